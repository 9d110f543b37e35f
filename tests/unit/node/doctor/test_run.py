"""All checks together: what hangs or breaks costs what it tells, and nothing is changed."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.support import backend

from tangram.base.clock import SystemClock
from tangram.base.deadline import within_deadline
from tangram.base.errors import StateError
from tangram.hardware.machines.faultplan import Fault
from tangram.hardware.workers import Workers
from tangram.node import sight
from tangram.node.doctor import local, run
from tangram.node.doctor.check import Check, ok
from tangram.node.held import HeldClaim
from tangram.node.heldstore import HeldStore
from tangram.node.settings import NodeSettings
from tangram.node.sight import plugin_directory


@pytest.fixture
def node(tmp_path: Path) -> NodeSettings:
    for name in ("plugins/gpu.resource.admin/claims", "plugins_registry", "cdi"):
        (tmp_path / name).mkdir(parents=True)
    return NodeSettings(
        node_name="node-1",
        kubelet_dir=str(tmp_path),
        cdi_root=str(tmp_path / "cdi"),
        simulate="t4-x4",
        kubeconfig=str(tmp_path / "none"),
    )


async def examine(node: NodeSettings, *faults: Fault, deadline_s: float = 60.0) -> dict[str, Check]:
    clock, hardware = SystemClock(), backend()
    for fault in faults:
        hardware.faults.add(fault)
    workers = Workers(hardware, clock=clock, gpu_deadline_s=0.1, system_deadline_s=0.1 if faults else 60.0)
    found = await run.examine(node, workers=workers, clock=clock, deadline_s=deadline_s)
    return {check.name: check for check in found}


async def test_without_a_plugin_and_a_cluster(node: NodeSettings, tmp_path: Path) -> None:
    before = paths(tmp_path)
    found = await examine(node)
    assert {name for name, check in found.items() if check.result == "fail"} == {"plugin", "api-server"}
    assert {"rights", "disk", "held-files", "driver", "gpus", "health", "mps", "published"} <= found.keys()
    assert paths(tmp_path) == before


def paths(root: Path) -> list[Path]:
    return sorted(root.rglob("*"))


async def test_hardware_that_hangs_costs_what_it_tells(node: NodeSettings) -> None:
    found = await examine(node, Fault(call="discover", error="HANG", times="always"))
    assert found["gpus"].result == "fail"
    assert "discover did not return within 0.1 s" in found["gpus"].text
    assert found["held-files"].result == "ok"


async def test_files_that_hang_or_fail_cost_what_they_tell(
    node: NodeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def hanging(*_: object) -> Iterator[Check]:
        yield ok("first", "is told")
        released.wait(60)

    monkeypatch.setattr(local, "processes", hanging)
    found = await examine(node, deadline_s=0.2)
    released.set()
    assert found["node"].text == "the look did not end within 0.2 s"
    assert found["first"].result == "ok"
    assert found["gpus"].result == "ok"

    def broken(*_: object) -> Iterator[Check]:
        raise StateError("the disk")

    monkeypatch.setattr(local, "processes", broken)
    found = await examine(node)
    assert (found["node"].result, found["node"].text) == ("fail", "cannot be looked at: the disk")


async def test_a_claim_that_ends_while_the_gpus_are_looked_at(
    node: NodeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin at work is no fault."""
    store = HeldStore(plugin_directory(node) / "claims")
    store.write(
        HeldClaim(namespace="ns", name="c", uid="u", boot_id="b", phase="prepared", devices=(), result=())
    )
    look_at_gpus = sight.look_at_gpus

    async def look(*args: Any, **more: Any) -> sight.Gpus:
        store.remove("u")
        return await look_at_gpus(*args, **more)

    monkeypatch.setattr(sight, "look_at_gpus", look)
    found = await examine(node)
    assert (found["cdi-files"].result, found["cdi-files"].text) == ("ok", "0, all of held claims")


def test_a_deadline_gives_what_comes_in_time() -> None:
    assert within_deadline(lambda: 7, seconds=60) == 7
    with pytest.raises(StateError, match="the disk"):
        within_deadline(_raise, seconds=60)
    released = threading.Event()
    with pytest.raises(TimeoutError):
        within_deadline(lambda: released.wait(60), seconds=0.05)
    released.set()


def _raise() -> None:
    raise StateError("the disk")
