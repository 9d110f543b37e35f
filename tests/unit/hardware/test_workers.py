"""The asyncio façade over a back end whose calls hang, fail and return late. No test waits on real time."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from tangram.base.errors import (
    DriverUnavailableError,
    GpuLostError,
    HardwareError,
    HardwareTimeoutError,
)
from tangram.hardware.machines import load_machine
from tangram.hardware.simulated import Call, Hang, SimulatedBackend
from tangram.hardware.workers import MIG_DEADLINE_S, MIG_MODE_DEADLINE_S, Workers
from tangram.model.gpu import GpuUuid, Machine
from tangram.model.mig import MigPlacement
from tangram.testing.clock import FakeClock

LIMIT_S = 20.0
"""Only to fail instead of hanging for ever; nothing waits for it to pass."""


@pytest.fixture
def backend() -> SimulatedBackend:
    return SimulatedBackend(load_machine("t4-x4"), node_name="node-1")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def workers(backend: SimulatedBackend, clock: FakeClock) -> AsyncIterator[Workers]:
    workers = Workers(backend, clock=clock, gpu_deadline_s=10.0, system_deadline_s=30.0)
    yield workers
    await workers.close()


async def stuck(hang: Hang) -> None:
    """Returns once a call is stuck in the hang."""
    assert await asyncio.to_thread(hang.entered.wait, LIMIT_S)


_others: set[threading.Thread] = set()
"""Threads that were there before a test: tests of hung hardware elsewhere leave some."""


@pytest.fixture(autouse=True)
def _look_for_others() -> None:
    _others.update(threading.enumerate())


def wait_for_end(lane: str) -> None:
    """Returns once no thread of this GPU (or `system`) is left."""
    for thread in threading.enumerate():
        if thread.name == f"hardware-{lane}" and thread not in _others:
            thread.join(LIMIT_S)
            assert not thread.is_alive()


async def ended(lane: str) -> None:
    """As `wait_for_end`, while the loop goes on."""
    await asyncio.to_thread(wait_for_end, lane)


async def timed_out(call: "asyncio.Task[object]", hang: Hang, clock: FakeClock, *, seconds: float) -> None:
    await stuck(hang)
    await clock.advance(seconds)
    with pytest.raises(HardwareTimeoutError):
        await call


async def test_calls_go_through(workers: Workers, backend: SimulatedBackend) -> None:
    await workers.open()
    machine = await workers.discover()
    assert machine == backend.discover()
    await workers.probe(machine.gpus[0].uuid)
    assert await workers.device_nodes(machine.gpus[0]) == backend.device_nodes(machine.gpus[0])
    assert await workers.control_nodes() == backend.control_nodes()
    assert workers.backend_name == "simulated"
    assert workers.hung_gpus == frozenset()
    assert not workers.system_hung


async def test_errors_of_the_back_end_arrive(workers: Workers, backend: SimulatedBackend) -> None:
    machine = await workers.discover()
    lost = machine.gpus[1].uuid
    backend.lose(lost)
    with pytest.raises(GpuLostError):
        await workers.probe(lost)
    backend.make_unavailable("driver unloaded")
    with pytest.raises(DriverUnavailableError):
        await workers.discover()


@pytest.mark.parametrize("error", [ValueError("odd"), StopIteration("odd"), SystemExit("odd")])
async def test_an_unexpected_error_becomes_a_hardware_error(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def discover(self: SimulatedBackend) -> Machine:
        raise error

    monkeypatch.setattr(SimulatedBackend, "discover", discover)
    with pytest.raises(HardwareError, match=r"discover failed unexpectedly.*odd") as raised:
        await workers.discover()
    assert raised.value.__cause__ is error


async def test_a_hung_gpu_times_out_and_is_unhealthy_until_it_returns(
    workers: Workers, backend: SimulatedBackend, clock: FakeClock
) -> None:
    machine = await workers.discover()
    hung, other = machine.gpus[0].uuid, machine.gpus[1].uuid
    hang = backend.hang("probe", hung)
    call = asyncio.create_task(workers.probe(hung))
    await stuck(hang)
    await clock.advance(9.9)
    assert not call.done()
    await workers.probe(other)  # the others go on meanwhile
    await workers.device_nodes(machine.gpus[0])
    await clock.advance(0.1)
    with pytest.raises(HardwareTimeoutError, match=f"{hung}: probe did not return within 10 s"):
        await call
    assert workers.hung_gpus == {hung}
    assert not workers.system_hung
    hang.release()
    await ended(hung)
    assert workers.hung_gpus == frozenset()
    await workers.probe(hung)


async def test_later_calls_get_a_fresh_thread_up_to_a_bound(
    workers: Workers, backend: SimulatedBackend, clock: FakeClock
) -> None:
    uuid = (await workers.discover()).gpus[0].uuid
    hangs = []
    for _ in range(2):
        hangs.append(backend.hang("probe", uuid))  # one each: both calls must be stuck, not only begun
        call = asyncio.create_task(workers.probe(uuid))
        await clock.until_sleeping(1)
        await timed_out(call, hangs[-1], clock, seconds=10)
    threads = threading.active_count()
    with pytest.raises(HardwareTimeoutError, match="refused, 2 calls hang already"):
        await workers.probe(uuid)
    assert threading.active_count() == threads
    for hang in hangs:
        hang.release()
    await ended(uuid)
    await workers.probe(uuid)


async def test_a_fresh_thread_serves_while_an_old_one_hangs(
    workers: Workers, backend: SimulatedBackend, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = (await workers.discover()).gpus[0].uuid
    hang = backend.hang("probe", uuid)
    call = asyncio.create_task(workers.probe(uuid))
    await timed_out(call, hang, clock, seconds=10)
    monkeypatch.setattr(SimulatedBackend, "probe", lambda self, uuid: None)
    await workers.probe(uuid)
    assert workers.hung_gpus == {uuid}  # the old call has still not returned
    hang.release()


async def test_calls_queued_behind_a_hung_one_time_out_by_their_own_deadline(
    workers: Workers, backend: SimulatedBackend, clock: FakeClock
) -> None:
    uuid = (await workers.discover()).gpus[0].uuid
    hang = backend.hang("probe", uuid)
    first = asyncio.create_task(workers.probe(uuid))
    await stuck(hang)
    await clock.advance(6)
    second = asyncio.create_task(workers.probe(uuid))
    await clock.until_sleeping(2)
    await clock.advance(4)
    with pytest.raises(HardwareTimeoutError):
        await first
    assert not second.done()
    await clock.advance(6)
    with pytest.raises(HardwareTimeoutError):
        await second
    # Both stood on one thread, so the bound of two is not reached.
    third = asyncio.create_task(workers.probe(uuid))
    await clock.until_sleeping(1)
    hang.release()
    await third


async def test_calls_on_one_gpu_run_one_after_another(
    workers: Workers, backend: SimulatedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = (await workers.discover()).gpus[0].uuid
    inside = 0
    most = 0

    def probe(self: SimulatedBackend, uuid: GpuUuid) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        inside -= 1

    monkeypatch.setattr(SimulatedBackend, "probe", probe)
    await asyncio.gather(*(workers.probe(uuid) for _ in range(50)))
    assert most == 1


async def test_calls_on_different_gpus_run_at_the_same_time(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = await workers.discover()
    meeting = threading.Barrier(len(machine.gpus), timeout=LIMIT_S)
    monkeypatch.setattr(SimulatedBackend, "probe", lambda self, uuid: meeting.wait())
    await asyncio.gather(*(workers.probe(gpu.uuid) for gpu in machine.gpus))


async def test_no_prepare_waits_for_a_discovery(workers: Workers, backend: SimulatedBackend) -> None:
    machine = await workers.discover()
    hang = backend.hang("discover")
    discovery = asyncio.create_task(workers.discover())
    await stuck(hang)
    await workers.device_nodes(machine.gpus[0])
    await workers.control_nodes()
    hang.release()
    await discovery


async def test_calls_on_mig_have_time_of_their_own(
    workers: Workers, backend: SimulatedBackend, clock: FakeClock
) -> None:
    uuid = (await workers.discover()).gpus[0].uuid
    calls: tuple[tuple[Call, Callable[[], Coroutine[Any, Any, object]], float], ...] = (
        ("set_mig_mode", lambda: workers.set_mig_mode(uuid, enabled=True), MIG_MODE_DEADLINE_S),
        (
            "destroy_gpu_instance",
            lambda: workers.destroy_gpu_instance(uuid, gpu_instance_id=1),
            MIG_DEADLINE_S,
        ),
        ("gpu_instances", lambda: workers.gpu_instances(uuid), 10.0),
    )
    for name, call, seconds in calls:
        hang = backend.hang(name, uuid)
        task = asyncio.create_task(call())
        await stuck(hang)
        await clock.advance(seconds - 0.1)
        assert not task.done()
        await timed_out(task, hang, clock, seconds=0.1)
        assert workers.hung_gpus == {uuid}
        hang.release()
        await ended(uuid)
        assert workers.hung_gpus == frozenset()


async def test_waiting_for_events_holds_up_nobody(
    workers: Workers, backend: SimulatedBackend, clock: FakeClock
) -> None:
    uuid = (await workers.discover()).gpus[0].uuid
    assert await workers.watch([uuid]) == frozenset()
    hang = backend.hang("next_event")
    waiting = asyncio.create_task(workers.next_event(timeout_s=5))
    await stuck(hang)
    await workers.probe(uuid)
    await workers.discover()
    await workers.health(uuid)
    await timed_out(waiting, hang, clock, seconds=15)
    assert workers.hung_gpus == frozenset()
    assert not workers.system_hung
    hang.release()


async def test_every_call_of_the_back_end_goes_through(workers: Workers, backend: SimulatedBackend) -> None:
    backend = SimulatedBackend(load_machine("h100-sxm5-80gb-x8"), node_name="node-1")
    workers = Workers(backend, clock=FakeClock())
    gpu = (await workers.discover()).gpus[0]
    uuid = gpu.uuid
    assert (await workers.set_mig_mode(uuid, enabled=True)).current
    assert (await workers.mig_modes(uuid)).current
    placement = MigPlacement(0, 4)
    instance = await workers.create_gpu_instance(uuid, profile_id=9, placement=placement)
    compute = await workers.create_compute_instance(uuid, gpu_instance_id=instance)
    ids = {"gpu_instance_id": instance, "compute_instance_id": compute.compute_instance_id}
    assert (await workers.gpu_instances(uuid))[0].compute_instances == (compute,)
    assert len(await workers.mig_nodes(gpu, **ids)) == 2
    await workers.destroy_compute_instance(uuid, **ids)
    await workers.destroy_gpu_instance(uuid, gpu_instance_id=instance)
    await workers.set_mig_mode(uuid, enabled=False)
    await workers.set_compute_mode(uuid, "exclusive_process")
    assert await workers.compute_mode(uuid) == "exclusive_process"
    assert await workers.processes(uuid) == ()
    assert await workers.used_memory_bytes(uuid) == 0
    assert await workers.next_event(timeout_s=0) is None
    await workers.close()


async def test_a_hung_system_call_is_told(
    workers: Workers, backend: SimulatedBackend, clock: FakeClock
) -> None:
    hang = backend.hang("discover")
    call = asyncio.create_task(workers.discover())
    await timed_out(call, hang, clock, seconds=30)
    assert workers.system_hung
    assert workers.hung_gpus == frozenset()
    hang.release()
    await ended("system")
    assert not workers.system_hung


async def test_a_cancelled_call_harms_no_later_one(workers: Workers, backend: SimulatedBackend) -> None:
    uuid = (await workers.discover()).gpus[0].uuid
    hang = backend.hang("probe", uuid)
    call = asyncio.create_task(workers.probe(uuid))
    await stuck(hang)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    later = asyncio.create_task(workers.probe(uuid))
    hang.release()
    await later
    assert workers.hung_gpus == frozenset()


async def test_closing_does_not_wait_for_hung_threads(backend: SimulatedBackend, clock: FakeClock) -> None:
    workers = Workers(backend, clock=clock)
    uuid = (await workers.discover()).gpus[0].uuid
    probe, discover = backend.hang("probe", uuid), backend.hang("discover")
    await timed_out(asyncio.create_task(workers.probe(uuid)), probe, clock, seconds=10)
    await timed_out(asyncio.create_task(workers.discover()), discover, clock, seconds=30)
    async with asyncio.timeout(LIMIT_S):
        await workers.close()
        await workers.close()
    hung = [thread for thread in threading.enumerate() if thread.name.startswith("hardware-")]
    assert all(thread.daemon for thread in hung)
    with pytest.raises(HardwareError, match="closed"):
        await workers.discover()
    probe.release()
    discover.release()


async def test_closing_ends_the_idle_threads(backend: SimulatedBackend, clock: FakeClock) -> None:
    workers = Workers(backend, clock=clock)
    machine = await workers.discover()
    for gpu in machine.gpus:
        await workers.probe(gpu.uuid)
    await workers.close()
    for lane in ("system", *(gpu.uuid for gpu in machine.gpus)):
        await ended(lane)


async def test_a_back_end_that_hangs_in_close_is_left_behind(
    backend: SimulatedBackend, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = Hang()
    monkeypatch.setattr(SimulatedBackend, "close", lambda self: hang.wait())
    workers = Workers(backend, clock=clock, system_deadline_s=30)
    closing = asyncio.create_task(workers.close())
    await stuck(hang)
    await clock.advance(30)
    await closing
    hang.release()


def test_a_call_that_returns_after_its_loop_has_ended_is_dropped(backend: SimulatedBackend) -> None:
    hang = backend.hang("discover")
    clock = FakeClock()

    async def give_up() -> None:
        call = asyncio.create_task(Workers(backend, clock=clock).discover())
        await stuck(hang)
        await clock.advance(30)
        with pytest.raises(HardwareTimeoutError):
            await call

    asyncio.run(give_up())
    hang.release()
    wait_for_end("system")
