"""Severities, how long they hold, and the loop that listens for XID errors."""

import asyncio
import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.base.clock import SystemClock
from tangram.base.errors import GpuLostError, HardwareError
from tangram.hardware.events import EventWatch
from tangram.hardware.health import (
    XIDS,
    GpuConditions,
    HealthRecord,
    Severity,
    XidEvent,
    of_conditions,
    of_xid,
)
from tangram.hardware.machines import load_machine
from tangram.hardware.simulated import SimulatedBackend
from tangram.hardware.workers import Workers
from tangram.model.gpu import GpuUuid
from tangram.testing.clock import FakeClock

UUID = GpuUuid("GPU-00000000-0000-0000-0000-000000000000")
WELL = GpuConditions(
    uncorrectable_ecc_errors=0,
    row_remap_pending=False,
    row_remap_failed=False,
    retired_pages_pending=False,
    recovery_action="none",
    active_nvlinks=12,
)


def changed(**changes: Any) -> GpuConditions:
    return replace(WELL, **changes)


def xid(number: int) -> XidEvent:
    return XidEvent(uuid=UUID, xid=number)


class TestSeverity:
    def test_a_gpu_that_is_well(self) -> None:
        record = HealthRecord().after_look(WELL)
        assert (record.severity, record.findings) == (Severity.NONE, ())

    def test_a_board_that_tells_nothing_counts_as_well(self) -> None:
        assert HealthRecord().after_look(GpuConditions()).severity == Severity.NONE

    @pytest.mark.parametrize(
        ("conditions", "code", "severity"),
        [
            (changed(uncorrectable_ecc_errors=2), "ecc", Severity.WARNING),
            (changed(row_remap_pending=True), "row-remap-pending", Severity.WARNING),
            (changed(row_remap_failed=True), "row-remap-failed", Severity.FATAL),
            (changed(retired_pages_pending=True), "retired-pages-pending", Severity.WARNING),
            (changed(recovery_action="gpu_reset"), "recovery-gpu-reset", Severity.FATAL),
            (changed(recovery_action="recover_imex"), "recovery-recover-imex", Severity.WARNING),
            (changed(active_nvlinks=11), "nvlink-down", Severity.WARNING),
            (changed(slowdowns=frozenset({"power_brake"})), "slowdown", Severity.WARNING),
        ],
    )
    def test_every_condition(self, conditions: GpuConditions, code: str, severity: Severity) -> None:
        (finding,) = of_conditions(conditions, expected_nvlinks=12)
        assert (finding.code, finding.severity) == (code, severity)
        assert finding.text

    def test_an_xid_nobody_knows_is_fatal(self) -> None:
        assert of_xid(4711).severity == Severity.FATAL

    def test_errors_of_programs_are_no_finding(self) -> None:
        record = HealthRecord()
        for number in (13, 31, 43, 45, 68, 109):
            record = record.after_xid(xid(number))
        assert record == HealthRecord()

    def test_links_are_missed_once_they_were_there(self) -> None:
        record = HealthRecord().after_look(changed(active_nvlinks=10))
        assert record.findings == ()
        record = record.after_look(WELL).after_look(changed(active_nvlinks=10))
        assert [finding.code for finding in record.findings] == ["nvlink-down"]

    def test_the_table_in_the_documentation_is_this_one(self) -> None:
        text = (Path(__file__).parents[3] / "docs" / "hardware.md").read_text(encoding="utf-8")
        for number, (severity, meaning) in XIDS.items():
            assert f"| {number} | {severity.name.lower()} | {meaning} |" in text
        for line in text.splitlines():
            if line.startswith("| ") and line.split("|")[1].strip().isdigit():
                assert int(line.split("|")[1]) in XIDS


class TestRecord:
    def test_p51_a_weaker_event_never_lowers(self) -> None:
        record = HealthRecord().after_xid(xid(48)).after_xid(xid(63)).after_xid(xid(13)).after_look(WELL)
        assert record.severity == Severity.FATAL
        assert [finding.code for finding in record.findings] == ["xid-48", "xid-63"]

    @pytest.mark.parametrize("how", ["lost and back", "recovery done", "errors cleared"])
    def test_p51_a_reset_that_is_seen_clears(self, how: str) -> None:
        record = HealthRecord().after_look(WELL).after_xid(xid(48))
        if how == "lost and back":
            record = record.after_loss()
            assert [finding.code for finding in record.findings] == ["lost", "xid-48"]
        elif how == "recovery done":
            record = record.after_look(changed(recovery_action="gpu_reset"))
        else:
            record = record.after_look(changed(uncorrectable_ecc_errors=1))
        assert record.severity == Severity.FATAL
        assert record.after_look(WELL).severity == Severity.NONE

    def test_p51_looking_well_alone_clears_nothing(self) -> None:
        record = HealthRecord().after_look(WELL).after_xid(xid(79))
        for _ in range(3):
            record = record.after_look(WELL)
        assert record.severity == Severity.FATAL

    @given(numbers=st.lists(st.sampled_from([*XIDS, 4711]), max_size=12))
    def test_p51_events_only_ever_raise(self, numbers: list[int]) -> None:
        record = HealthRecord()
        for number in numbers:
            after = record.after_xid(xid(number))
            assert after.severity == max(record.severity, of_xid(number).severity)
            record = after
        assert len(record.events) <= len(set(numbers))


@pytest.fixture
def backend() -> SimulatedBackend:
    return SimulatedBackend(load_machine("dgx-1v"), node_name="node-1")


class TestSimulated:
    def test_conditions_are_what_was_set(self, backend: SimulatedBackend) -> None:
        uuid = backend.discover().gpus[0].uuid
        links = backend.health(uuid).active_nvlinks
        assert backend.health(uuid) == changed(active_nvlinks=links)
        backend.set_conditions(uuid, GpuConditions(row_remap_pending=True), nvlinks_down=2)
        assert links
        assert backend.health(uuid) == changed(row_remap_pending=True, active_nvlinks=links - 2)

    def test_links_to_a_lost_gpu_are_down(self, backend: SimulatedBackend) -> None:
        gpus = backend.discover().gpus
        before = {gpu.uuid: backend.health(gpu.uuid).active_nvlinks or 0 for gpu in gpus}
        backend.lose(gpus[0].uuid)
        peers = {link.peer_bus_id for link in gpus[0].nvlinks}
        for gpu in gpus[1:]:
            now = backend.health(gpu.uuid).active_nvlinks or 0
            assert (now < before[gpu.uuid]) == (gpu.pci_bus_id in peers)

    def test_p50_a_gpu_that_is_gone_without_an_event_shows_when_looked_at(
        self, backend: SimulatedBackend
    ) -> None:
        uuid = backend.discover().gpus[0].uuid
        backend.watch([uuid])
        backend.lose(uuid)
        assert backend.next_event(timeout_s=0) is None
        for look in (backend.probe, backend.health):
            with pytest.raises(GpuLostError):
                look(uuid)

    def test_events_come_in_order_and_once(self, backend: SimulatedBackend) -> None:
        one, other = (gpu.uuid for gpu in backend.discover().gpus[:2])
        backend.raise_xid(one, 13)  # before anybody listens
        backend.stop_monitoring(other)
        assert backend.watch([one, other]) == {other}
        backend.raise_xid(other, 79)
        for number in range(100, 110):
            backend.raise_xid(one, number, gpu_instance_id=2, compute_instance_id=0)
        found = [backend.next_event(timeout_s=0) for _ in range(11)]
        assert [event.xid for event in found if event] == list(range(100, 110))
        assert found[0] == XidEvent(uuid=one, xid=100, gpu_instance_id=2, compute_instance_id=0)
        assert found[-1] is None

    def test_what_a_listener_is_too_slow_for_is_lost_oldest_first(self, backend: SimulatedBackend) -> None:
        uuid = backend.discover().gpus[0].uuid
        backend.watch([uuid])
        for number in range(100):
            backend.raise_xid(uuid, number + 1000)
        first = backend.next_event(timeout_s=0)
        assert first
        assert first.xid == 1036

    def test_a_reset_mends_what_it_can(self, backend: SimulatedBackend) -> None:
        uuid = backend.discover().gpus[0].uuid
        backend.set_conditions(
            uuid, GpuConditions(uncorrectable_ecc_errors=3, row_remap_pending=True, row_remap_failed=True)
        )
        backend.reset(uuid)
        told = backend.health(uuid)
        assert (told.uncorrectable_ecc_errors, told.row_remap_pending, told.row_remap_failed) == (
            0,
            False,
            True,
        )


class Source:
    """Answers from a script: an event, nothing, or an error; the last answer again and again."""

    def __init__(self, *script: XidEvent | HardwareError | None) -> None:
        self.script = list(script)
        self.watched: list[frozenset[GpuUuid]] = []
        self.waits = 0

    async def watch(self, uuids: Collection[GpuUuid]) -> frozenset[GpuUuid]:
        self.watched.append(frozenset(uuids))
        return frozenset()

    async def next_event(self, *, timeout_s: float) -> XidEvent | None:
        self.waits += 1
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, HardwareError):
            raise answer
        return answer


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class TestWatch:
    async def test_p52_what_comes_after_listening_has_begun_arrives(
        self, backend: SimulatedBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gpus = [gpu.uuid for gpu in backend.discover().gpus]
        backend.stop_monitoring(gpus[0])
        backend.lose(gpus[1])
        listening = threading.Event()
        begin = backend.watch

        def watched(uuids: Collection[GpuUuid]) -> frozenset[GpuUuid]:
            unmonitored = begin(uuids)
            listening.set()
            return unmonitored

        monkeypatch.setattr(backend, "watch", watched)
        clock = SystemClock()
        workers = Workers(backend, clock=clock)
        events: asyncio.Queue[XidEvent] = asyncio.Queue()
        watch = EventWatch(workers, gpus=lambda: gpus, on_event=events.put_nowait, clock=clock, wait_s=0.05)
        task = asyncio.create_task(watch.run())
        async with asyncio.timeout(20):
            await asyncio.to_thread(listening.wait, 20)
            backend.raise_xid(gpus[2], 79)
            assert await events.get() == XidEvent(uuid=gpus[2], xid=79)
        assert watch.unmonitored == {gpus[0], gpus[1]}
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await workers.close()

    @pytest.mark.parametrize("answer", [HardwareError("odd"), None])
    async def test_p78_a_wait_that_returns_at_once_does_not_spin(
        self, clock: FakeClock, answer: HardwareError | None
    ) -> None:
        source = Source(answer)
        watch = EventWatch(source, gpus=lambda: [UUID], on_event=lambda event: None, clock=clock)
        task = asyncio.create_task(watch.run())
        await clock.advance(60)
        assert 2 <= source.waits <= 13
        assert watch.unmonitored == (frozenset({UUID}) if answer else frozenset())
        task.cancel()

    async def test_it_listens_anew_when_the_gpus_are_others(self, clock: FakeClock) -> None:
        source = Source(None)
        gpus = [UUID]
        watch = EventWatch(source, gpus=lambda: gpus, on_event=lambda event: None, clock=clock)
        task = asyncio.create_task(watch.run())
        await clock.advance(11)
        gpus.clear()
        await clock.advance(11)
        gpus.append(GpuUuid("GPU-1"))
        await clock.advance(11)
        assert source.watched == [{UUID}, {GpuUuid("GPU-1")}]
        task.cancel()

    async def test_events_come_through_between_errors(self, clock: FakeClock) -> None:
        found: list[XidEvent] = []
        source = Source(xid(48), HardwareError("odd"), xid(63), None)
        watch = EventWatch(source, gpus=lambda: [UUID], on_event=found.append, clock=clock)
        task = asyncio.create_task(watch.run())
        await clock.advance(30)
        assert [event.xid for event in found] == [48, 63]
        task.cancel()
