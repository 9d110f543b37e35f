"""Health on the node: what GPUs tell becomes `unhealthy`, warnings, a stream for the kubelet, and taints."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.unit.model.boards import machine
from tests.unit.node.support import NODE, POOL
from tests.unit.node.test_discovery import Setup

from tangram.hardware.health import GpuConditions, XidEvent
from tangram.hardware.machines.faultplan import Fault
from tangram.kubeletplugin.health import DeviceHealth
from tangram.model.devices import Allocator, Kind
from tangram.model.gpu import GpuUuid
from tangram.node.claimstatus import prepared_entries
from tangram.node.healthstream import HealthStream
from tangram.node.held import HeldClaim, HeldDevice
from tangram.node.inventory import Inventory, Policy
from tangram.node.pools import pools
from tangram.testing.clock import FakeClock


@pytest.fixture
async def setup() -> Setup:
    made = Setup()
    await made.discovery.look()
    return made


async def test_an_xid_is_told_at_once_and_stays_until_a_reset(setup: Setup) -> None:
    """P51: a look at a GPU that seems well clears nothing."""
    gpu = setup.published[0].machine.gpus[0].uuid
    setup.discovery.heard(XidEvent(uuid=gpu, xid=79))
    assert set(setup.published[-1].unhealthy) == {gpu}
    assert "XID 79" in setup.published[-1].unhealthy[gpu]
    await setup.discovery.look()
    setup.discovery.heard(XidEvent(uuid=gpu, xid=94))
    assert "XID 79" in setup.published[-1].unhealthy[gpu]
    assert "XID 94" in setup.published[-1].warnings[gpu]
    setup.hardware.set_conditions(gpu, GpuConditions(recovery_action="gpu_reset"))
    await setup.discovery.look()
    setup.hardware.set_conditions(gpu, GpuConditions(recovery_action="none"))
    await setup.discovery.look()
    assert setup.published[-1].unhealthy == {}
    assert setup.published[-1].warnings == {}


@pytest.mark.parametrize("call", ["health", "control_nodes"])
async def test_an_xid_that_comes_during_a_look_is_kept(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    gpu = setup.published[0].machine.gpus[0].uuid
    ask = getattr(setup.workers, call)

    async def meanwhile(*arguments: Any) -> Any:
        answer = await ask(*arguments)
        if arguments in ((), (gpu,)):
            setup.discovery.heard(XidEvent(uuid=gpu, xid=79))
        return answer

    monkeypatch.setattr(setup.workers, call, meanwhile)
    setup.hardware.lose(setup.published[0].machine.gpus[1].uuid)  # so that there is something new to tell
    await setup.discovery.look()
    assert "XID 79" in setup.published[-1].unhealthy[gpu]
    monkeypatch.undo()
    await setup.discovery.look()
    assert "XID 79" in setup.published[-1].unhealthy[gpu]


async def test_errors_of_programs_change_nothing(setup: Setup) -> None:
    before = len(setup.published)
    setup.discovery.heard(XidEvent(uuid=setup.published[0].machine.gpus[0].uuid, xid=31))
    assert len(setup.published) == before


async def test_a_warning_is_told_and_changes_nothing_else(setup: Setup) -> None:
    gpu = setup.published[0].machine.gpus[0].uuid
    setup.hardware.set_conditions(gpu, GpuConditions(slowdowns=frozenset({"thermal"})))
    await setup.discovery.look()
    assert setup.published[-1].unhealthy == {}
    assert "thermal" in setup.published[-1].warnings[gpu]


async def test_p49_a_gpu_whose_health_cannot_be_asked_costs_no_other(setup: Setup) -> None:
    lost, silent = (gpu.uuid for gpu in setup.published[0].machine.gpus[:2])
    setup.hardware.fail(Fault(call="health", error="GPU_IS_LOST", target=lost))
    setup.hardware.fail(Fault(call="health", error="NOT_SUPPORTED", target=silent))
    await setup.discovery.look()
    assert set(setup.published[-1].unhealthy) == {lost}
    await setup.discovery.look()
    assert setup.published[-1].unhealthy == {}


async def test_before_the_first_look_an_event_is_kept() -> None:
    setup = Setup()
    gpu = setup.hardware.discover().gpus[0].uuid
    setup.discovery.heard(XidEvent(uuid=gpu, xid=79))
    await setup.discovery.look()
    assert set(setup.published[-1].unhealthy) == {gpu}


async def test_the_kubelet_is_told_again_and_again() -> None:
    clock, told = FakeClock(), list[list[DeviceHealth]]()
    of = machine("t4-x4")
    ill, warned = of.gpus[0].uuid, of.gpus[1].uuid
    inventory = Inventory(machine=of, unhealthy={ill: "XID 79"}, warnings={warned: "hot"})
    known: Inventory | None = None
    stream = HealthStream(
        tell=lambda devices: told.append(list(devices)),
        pool=POOL,
        inventory=lambda: known,
        clock=clock,
        interval_s=30.0,
    )
    stream.tell()
    assert told == []
    known = inventory
    task = asyncio.create_task(stream.run())
    for _ in range(2):
        await clock.advance_to_next()
    task.cancel()
    assert len(told) == 2
    assert [(device.health, device.message) for device in told[-1]] == [
        ("unhealthy", "XID 79"),
        ("healthy", "hot"),
        ("healthy", ""),
        ("healthy", ""),
    ]
    assert all(device.timeout_s > 2 * 30 for device in told[-1])


@pytest.mark.parametrize("scheduler", [True, False])
def test_an_unhealthy_device_is_tainted_where_kube_scheduler_allocates(scheduler: bool) -> None:
    of = machine("t4-x4")
    inventory = Inventory(machine=of, unhealthy={of.gpus[0].uuid: "x"}, policy=Policy(kinds=("gpu",)))
    found = pools(inventory, node_name=NODE, allocator="scheduler" if scheduler else "controller")[POOL]
    taints = [bool(device.get("taints")) for each in found.slices for device in each.devices]
    assert taints == [scheduler, False, False, False]


def test_warnings_alone_are_a_change() -> None:
    """Or nobody would be told."""
    of = machine("t4-x4")
    before = Inventory(machine=of)
    assert replace(before, warnings={of.gpus[0].uuid: "hot"}) != before


@pytest.mark.parametrize("allocator", ["controller", "scheduler"])
def test_p41_where_mps_serves_nobody_its_share_alone_is_ill(allocator: Allocator) -> None:
    """The GPU is well, and so are its other devices."""
    of = machine("h100-sxm5-80gb-x8")
    first = of.gpus[0].uuid
    kinds: tuple[Kind, ...] = ("gpu", "mps", "timeslice")
    policy = Policy(kinds=kinds if allocator == "controller" else ("mps",))
    inventory = Inventory(machine=of, mps_failing={first: "it does not start"}, policy=policy)
    found = pools(inventory, node_name=NODE, allocator=allocator)[POOL]
    devices = [device for each in found.slices for device in each.devices]
    ill = [device for device in devices if not device["attributes"]["healthy"]["bool"]]
    assert [(each["attributes"]["type"]["string"], each["attributes"]["uuid"]["string"]) for each in ill] == [
        ("mps", first)
    ]
    assert [bool(device.get("taints")) for device in ill] == [allocator == "scheduler"]
    told: list[Sequence[DeviceHealth]] = []
    HealthStream(
        tell=told.append, pool=POOL, inventory=lambda: inventory, clock=FakeClock(), interval_s=30.0
    ).tell()
    assert {(each.device_name, each.message) for each in told[0] if each.health == "unhealthy"} == {
        (ill[0]["name"], "it does not start")
    }


async def test_p41_a_claim_hears_that_mps_serves_nobody_until_it_does(setup: Setup) -> None:
    failing: dict[GpuUuid, str] = {}
    setup.discovery._mps_failing = lambda: failing
    gpu = setup.published[0].machine.gpus[0].uuid
    device = HeldDevice(pool=POOL, device="d", uuid=gpu, request_names=("r",), kind="mps")
    held = HeldClaim(
        namespace="ns", name="c", uid="u", boot_id="b", phase="prepared",
        devices=(device, msgspec.structs.replace(device, device="e", kind="gpu")),
    )  # fmt: skip
    for cause in ("it does not start", ""):
        failing.clear()
        failing |= {gpu: cause} if cause else {}
        setup.discovery.told_otherwise()
        assert setup.published[-1].mps_failing == failing
        of_mps, of_gpu = prepared_entries(held, setup.published[-1], node_name=NODE)
        (condition,) = of_mps["conditions"]
        assert condition["status"] == ("False" if cause else "True")
        assert cause in condition["message"]
        assert of_gpu["conditions"][0]["status"] == "True"
