"""GPUs that an operator has drained: their files, what the plugin sees of them, and who gets none of them."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.unit.model.boards import machine
from tests.unit.node.support import NODE, POOL, Killed, Killer, Node, make_claim
from tests.unit.node.test_discovery import Setup

from tangram.base.errors import HardwareError, PrepareError, StateError
from tangram.hardware.health import XidEvent
from tangram.kubeletplugin.slice_limits import check_pool
from tangram.model.devices import Allocator
from tangram.model.gpu import GpuUuid
from tangram.node.drains import Drain, DrainStore, DrainWatch
from tangram.node.heldstore import HeldStore
from tangram.node.inventory import Inventory, Policy
from tangram.node.locks import Locks
from tangram.node.metrics import NodeCollector
from tangram.node.pools import pools
from tangram.testing.clock import FakeClock

GPU = GpuUuid("GPU-00000000-0000-4000-8000-000000000001")
OTHER = GpuUuid("GPU-00000000-0000-4000-8000-000000000002")
DRAIN = Drain(since="2026-11-30T05:00:00Z", reason="fan is broken")


@pytest.fixture
def store(tmp_path: Path) -> DrainStore:
    return DrainStore(tmp_path / "plugin" / "drained")


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Killer:
    return Killer(monkeypatch)


class TestFiles:
    def test_they_come_and_go(self, store: DrainStore) -> None:
        assert store.load() == {}
        assert store.remove(GPU) is False
        store.add(OTHER, DRAIN)
        store.add(GPU, Drain())
        assert list(store.load().items()) == [(GPU, Drain()), (OTHER, DRAIN)]
        store.add(GPU, DRAIN)
        assert store.load()[GPU] == DRAIN
        assert store.remove(GPU) is True
        assert store.remove(GPU) is False
        assert store.load() == {OTHER: DRAIN}

    def test_in_words(self) -> None:
        assert DRAIN.text == "drained since 2026-11-30T05:00:00Z: fan is broken"
        assert Drain().text == "drained"

    @pytest.mark.parametrize(
        "content", [b"", b"\0" * 100, b"[]", b'{"since": 7}', b"[" * 60_000, b'{"reason": "' + b"x" * 70_000]
    )
    def test_a_damaged_one_still_drains(self, store: DrainStore, tmp_path: Path, content: bytes) -> None:
        store.add(GPU, DRAIN)
        (tmp_path / "plugin" / "drained" / f"{GPU}.json").write_bytes(content)
        assert store.load() == {GPU: Drain(reason="the file of the drain is damaged")}
        assert store.remove(GPU) is True

    def test_a_directory_in_its_place_still_drains(self, store: DrainStore, tmp_path: Path) -> None:
        (tmp_path / "plugin" / "drained" / f"{GPU}.json").mkdir(parents=True)
        assert list(store.load()) == [GPU]
        with pytest.raises(StateError, match="cannot be removed"):
            store.remove(GPU)

    def test_fields_of_a_later_version_are_no_damage(self, store: DrainStore, tmp_path: Path) -> None:
        store.add(GPU, DRAIN)
        (tmp_path / "plugin" / "drained" / f"{GPU}.json").write_text(json.dumps({"reason": "r", "until": 7}))
        assert store.load() == {GPU: Drain(reason="r")}

    @pytest.mark.parametrize("name", ["..", "../x", "", "a/b", "-x", "GPU 1", "x" * 97, "GPU-1\n"])
    def test_no_other_file_can_be_meant(self, store: DrainStore, name: str) -> None:
        for act in (lambda: store.add(GpuUuid(name), DRAIN), lambda: store.remove(GpuUuid(name))):
            with pytest.raises(StateError, match="cannot be a file name"):
                act()

    def test_what_is_no_drain_is_left_alone(self, store: DrainStore, tmp_path: Path) -> None:
        store.add(GPU, DRAIN)
        for name in ("notes.txt", "a b.json", f".{GPU}.json.0000.tmp"):
            (tmp_path / "plugin" / "drained" / name).write_text("{}")
        assert list(store.load()) == [GPU]

    def test_where_the_directory_is_none(self, store: DrainStore, tmp_path: Path) -> None:
        (tmp_path / "plugin").mkdir()
        (tmp_path / "plugin" / "drained").write_text("")
        with pytest.raises(StateError, match="cannot be read"):
            store.load()
        with pytest.raises(StateError, match="cannot be written"):
            store.add(GPU, DRAIN)


class TestKilled:
    """At every file operation of the command: the GPU is drained or it is not, and nothing is left over."""

    def dead(self, killer: Killer, root: Path, *, drained: bool) -> Iterator[tuple[int, DrainStore, Path]]:
        for step in itertools.count(1):
            directory = root / str(step)
            store = DrainStore(directory)
            store.add(OTHER, DRAIN)
            if drained:
                store.add(GPU, DRAIN)
            with killer.alive(until_step=step), contextlib.suppress(Killed):
                store.remove(GPU) if drained else store.add(GPU, DRAIN)
            if not killer.dead:
                return
            yield step, DrainStore(directory), directory

    def test_while_it_drains(self, killer: Killer, tmp_path: Path) -> None:
        outcomes = []
        for step, store, directory in self.dead(killer, tmp_path, drained=False):
            found = store.load()
            assert found.pop(OTHER) == DRAIN, step
            assert found in ({}, {GPU: DRAIN}), step
            outcomes.append(bool(found))
            store.add(GPU, DRAIN)
            assert {path.name for path in directory.iterdir()} == {f"{GPU}.json", f"{OTHER}.json"}, step
        assert len(outcomes) >= 10
        assert outcomes == sorted(outcomes)
        assert set(outcomes) == {False, True}

    def test_while_it_gives_back(self, killer: Killer, tmp_path: Path) -> None:
        outcomes = []
        for step, store, directory in self.dead(killer, tmp_path, drained=True):
            outcomes.append(GPU in store.load())
            store.remove(GPU)
            assert [path.name for path in directory.iterdir()] == [f"{OTHER}.json"], step
        assert len(outcomes) >= 4
        assert outcomes == sorted(outcomes, reverse=True)
        assert set(outcomes) == {False, True}


class TestWatch:
    def watch(self, store: DrainStore) -> tuple[DrainWatch, list[dict[GpuUuid, str]], FakeClock]:
        told: list[dict[GpuUuid, str]] = []
        clock = FakeClock()
        watch = DrainWatch(store, changed=lambda: told.append(dict(watch.drained)), clock=clock)
        return watch, told, clock

    async def test_each_change_is_told_once(self, store: DrainStore) -> None:
        watch, told, _ = self.watch(store)
        known = [watch.known]
        await watch.look()
        known.append(watch.known)
        assert known == [False, True]
        assert told == [{}]  # that there are none is news, too
        store.add(GPU, DRAIN)
        await watch.look()
        await watch.look()
        store.remove(GPU)
        await watch.look()
        assert told == [{}, {GPU: DRAIN.text}, {}]

    async def test_what_cannot_be_read_is_as_it_was(self, store: DrainStore, tmp_path: Path) -> None:
        watch, told, _ = self.watch(store)
        store.add(GPU, DRAIN)
        await watch.look()
        directory = tmp_path / "plugin" / "drained"
        directory.rename(tmp_path / "away")
        directory.write_text("")
        await watch.look()
        assert watch.drained == {GPU: DRAIN.text}
        assert watch.known
        assert "cannot be read" in watch.problem
        directory.unlink()
        await watch.look()
        assert told == [{GPU: DRAIN.text}, {}]


class TestInventory:
    async def test_told_at_once_and_kept_by_looks_and_events(self) -> None:
        drained: dict[GpuUuid, str] = {}
        setup = Setup(drained=lambda: drained)
        await setup.discovery.look()
        gpus = [gpu.uuid for gpu in setup.published[0].machine.gpus]
        assert setup.published[-1].drained == {}
        drained |= {gpus[0]: "drained", OTHER: "of another node"}
        setup.discovery.told_otherwise()
        assert setup.published[-1].drained == {gpus[0]: "drained"}
        assert len(setup.published) == 2
        await setup.discovery.look()
        assert len(setup.published) == 2
        setup.discovery.heard(XidEvent(uuid=gpus[1], xid=79))
        assert setup.published[-1].drained == {gpus[0]: "drained"}
        assert set(setup.published[-1].unhealthy) == {gpus[1]}
        drained.clear()
        await setup.discovery.look()
        assert setup.published[-1].drained == {}
        await setup.workers.close()

    async def test_before_the_first_look_there_is_nothing_to_tell(self) -> None:
        setup = Setup(drained=dict)
        setup.discovery.told_otherwise()
        assert setup.published == []

    def test_the_metric_counts_each_gpu_once(self, tmp_path: Path) -> None:
        of = machine("a100-sxm4-80gb-x8")
        gpus = [gpu.uuid for gpu in of.gpus]
        inventory = Inventory(
            machine=of, unhealthy={gpus[0]: "ill"}, drained={gpus[0]: "drained", gpus[1]: "drained"}
        )
        store = HeldStore(tmp_path)
        registry = CollectorRegistry()
        registry.register(NodeCollector(node_name=NODE, store=store, inventory=lambda: inventory))
        text = generate_latest(registry).decode()
        for state, count in (("healthy", 6), ("unhealthy", 1), ("drained", 1), ("not_answering", 0)):
            assert f'tangram_gpus{{state="{state}"}} {count}.0\n' in text


@pytest.mark.parametrize("allocator", ["controller", "scheduler"])
def test_all_devices_of_the_gpu_are_withdrawn_from_allocation(allocator: Allocator) -> None:
    of = machine("h100-sxm5-80gb-x8")
    drained, ill = of.gpus[1].uuid, of.gpus[2].uuid
    inventory = Inventory(
        machine=of,
        policy=Policy(kinds=("gpu", "mps", "timeslice", "mig"), dynamic=True),
        unhealthy={ill: "lost"},
        drained={drained: "drained", ill: "drained"},
    )
    found = pools(inventory, node_name=NODE, allocator=allocator, counters="consumed")[POOL]
    check_pool(pool_name=POOL, pool=found)
    seen: dict[str, set[tuple[bool, tuple[str, ...]]]] = {}
    for item in found.slices:
        for device in item.devices:
            attributes: dict[str, Any] = dict(device)["attributes"]
            uuid = attributes.get("parentUUID", attributes["uuid"])["string"]
            taints = tuple(taint["key"].rpartition("/")[2] for taint in device.get("taints", ()))
            seen.setdefault(uuid, set()).add((attributes["healthy"]["bool"], taints))
    both = ("unhealthy", "drained") if allocator == "scheduler" else ("drained",)
    assert seen.pop(drained) == {(False, ("drained",))}
    assert seen.pop(ill) == {(False, both)}
    assert len(seen) == 6
    assert set.union(*seen.values()) == {(True, ())}


async def test_nobody_new_is_prepared_and_what_runs_is_not_disturbed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    device, other = node.devices[:2]
    first, _ = await node.preparer.prepare(make_claim([device], number=1))
    assert node.inventory is not None
    text = DRAIN.text
    node.inventory = replace(node.inventory, drained={node.gpu(device): text, node.gpu(other): text})
    node.start()
    assert await node.preparer.prepare(make_claim([device], number=1)) == (first, False)
    with pytest.raises(PrepareError, match=f"{node.gpu(other)} .* is {text}") as caught:
        await node.preparer.prepare(make_claim([other], number=2))
    assert f"drain-gpu --undo {node.gpu(other)}" in caught.value.next_step
    await node.preparer.prepare(make_claim([other], number=3, adminAccess=True))
    assert await node.preparer.unprepare(first.uid) == first
    node.inventory = replace(node.inventory, drained={})
    await node.preparer.prepare(make_claim([other], number=2))


@pytest.mark.parametrize("what", ["drained", "unhealthy"])
async def test_nobody_is_prepared_who_still_waits_for_the_gpu(tmp_path: Path, what: str) -> None:
    """The claim before it takes its time, as the start of an MPS daemon does."""
    node = Node(tmp_path, clock=FakeClock())
    device = node.devices[0]
    assert isinstance(node.clock, FakeClock)
    assert node.inventory is not None
    async with Locks(tmp_path / "locks", clock=node.clock).gpus([node.gpu(device)]):
        waiting = asyncio.ensure_future(node.preparer.prepare(make_claim([device])))
        await node.clock.until_sleeping()
        change: dict[str, Any] = {what: {node.gpu(device): "not what it was"}}
        node.inventory = replace(node.inventory, **change)
    await node.clock.advance(1)
    with pytest.raises((PrepareError, HardwareError), match="not what it was"):
        await waiting
    assert node.files() == set()
