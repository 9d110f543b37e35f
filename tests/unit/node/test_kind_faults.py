"""Each call of the driver failing once, always, after its work, or hanging, for each kind of device."""

import asyncio
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from tests.unit.node.kinds import KindsNode, assert_consistent, claim, make_node
from tests.unit.node.support import Claims, uid
from tests.unit.node.test_kind_crashes import SCENARIOS, Scenario

from tangram.base.errors import HardwareError, HardwareTimeoutError, TangramError
from tangram.hardware.machines.faultplan import Call, Fault
from tangram.testing.clock import FakeClock

CALLS: dict[str, tuple[Call, ...]] = {
    "exclusive": ("processes", "used_memory_bytes", "compute_mode", "set_compute_mode"),
    "timeslice": (),
    "mps": ("compute_mode", "set_compute_mode"),
    "mps-joins": ("compute_mode",),
    "mig": ("mig_modes", "gpu_instances", "create_gpu_instance", "create_compute_instance", "mig_nodes"),
    "mig-many": ("gpu_instances", "create_gpu_instance", "create_compute_instance"),
    "mig-mode-on": ("mig_modes", "set_mig_mode", "processes", "create_compute_instance"),
    "mig-mode-off": ("mig_modes", "gpu_instances", "set_mig_mode", "processes"),
    "mixed": ("mig_modes",),
}
UNDO_CALLS: dict[str, tuple[Call, ...]] = {
    "exclusive": ("compute_mode", "set_compute_mode"),
    "mps": ("compute_mode", "set_compute_mode"),
    "mig": ("gpu_instances", "destroy_compute_instance", "destroy_gpu_instance"),
    "mig-many": ("gpu_instances", "destroy_compute_instance", "destroy_gpu_instance"),
}
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
Error = Literal["UNKNOWN", "NO_PERMISSION", "INSUFFICIENT_RESOURCES", "IN_USE"]
MAKING = [(name, call) for name, calls in CALLS.items() for call in calls]
UNDOING = [(name, call) for name, calls in UNDO_CALLS.items() for call in calls]


def start(root: Path, scenario: Scenario, **node: Any) -> tuple[KindsNode, Claims]:
    return make_node(root, **{**scenario.node, **node}), Claims()


async def stand_by(node: KindsNode, claims: Claims, scenario: Scenario) -> None:
    if scenario.other:
        await node.preparer.prepare(claims.put(claim(node, *scenario.other, number=9)))


@pytest.mark.parametrize("error", ["UNKNOWN", "NO_PERMISSION", "INSUFFICIENT_RESOURCES", "IN_USE"])
@pytest.mark.parametrize(("name", "call"), MAKING)
async def test_a_call_that_fails_once_leaves_nothing(
    tmp_path: Path, name: str, call: Call, error: Error
) -> None:
    """P16: a clear error, no leak; the next try works."""
    scenario = BY_NAME[name]
    node, claims = start(tmp_path, scenario)
    await stand_by(node, claims, scenario)
    made = claims.put(claim(node, *scenario.devices))
    node.hardware.fail(Fault(call=call, error=error))
    with pytest.raises(HardwareError) as caught:
        await node.preparer.prepare(made)
    assert caught.value.cause
    assert uid(1) not in {held.uid for held in assert_consistent(node)}
    held, new = await node.preparer.prepare(made)
    assert new
    assert held in assert_consistent(node)
    await node.preparer.unprepare(uid(1))
    assert_consistent(node)


@pytest.mark.parametrize(("name", "call"), MAKING)
async def test_a_call_that_always_fails_disturbs_no_other_gpu(tmp_path: Path, name: str, call: Call) -> None:
    scenario = BY_NAME[name]
    node, claims = start(tmp_path, scenario)
    await stand_by(node, claims, scenario)
    first = node.gpu_at(0).uuid
    of_one = tuple(device for device in scenario.devices if device[0] == 0)
    elsewhere = tuple((1, what) for _, what in of_one)
    made, other = claims.put(claim(node, *of_one)), claims.put(claim(node, *elsewhere, number=2))
    node.hardware.fail(Fault(call=call, error="UNKNOWN", target=first, times="always"))
    for _ in range(2):
        with pytest.raises(HardwareError):
            await node.preparer.prepare(made)
        node.hardware.faults.plan([])  # what could not be undone is undone by the next pass
        await node.reconciler(claims).local()
        assert uid(1) not in {held.uid for held in assert_consistent(node)}
        node.hardware.fail(Fault(call=call, error="UNKNOWN", target=first, times="always"))
    held, _ = await node.preparer.prepare(other)
    await node.preparer.unprepare(held.uid)


@pytest.mark.parametrize(("name", "call"), [pair for pair in MAKING if pair[1].startswith(("set", "create"))])
async def test_a_call_that_fails_after_its_work_is_undone(tmp_path: Path, name: str, call: Call) -> None:
    scenario = BY_NAME[name]
    node, claims = start(tmp_path, scenario)
    await stand_by(node, claims, scenario)
    made = claims.put(claim(node, *scenario.devices))
    node.hardware.fail(Fault(call=call, error="UNKNOWN", effect=True))
    with pytest.raises(HardwareError):
        await node.preparer.prepare(made)
    assert uid(1) not in {held.uid for held in assert_consistent(node)}
    await node.preparer.prepare(made)
    assert_consistent(node)


@pytest.mark.parametrize("effect", [False, True])
@pytest.mark.parametrize(("name", "call"), UNDOING)
async def test_p18_an_undo_that_fails_is_completed_later(
    tmp_path: Path, name: str, call: Call, effect: bool
) -> None:
    scenario = BY_NAME[name]
    node, claims = start(tmp_path, scenario)
    await node.preparer.prepare(claims.put(claim(node, *scenario.devices)))
    node.hardware.fail(Fault(call=call, error="UNKNOWN", effect=effect))
    with pytest.raises(HardwareError):
        await node.preparer.unprepare(uid(1))
    assert node.store.load().claims[uid(1)].phase == "unpreparing"
    await node.reconciler(claims).local()
    assert assert_consistent(node) == []


@pytest.mark.parametrize(("name", "call"), MAKING)
async def test_a_call_that_hangs_ends_with_an_error_and_leaves_nothing(
    tmp_path: Path, name: str, call: Call
) -> None:
    """The driver returns late, and does what it was asked for: that is found and undone."""
    scenario = BY_NAME[name]
    clock = FakeClock()
    node, claims = start(tmp_path, scenario, clock=clock)
    await stand_by(node, claims, scenario)
    made = claims.put(claim(node, *scenario.devices))
    hang = node.hardware.hang(call, node.gpu_at(0).uuid)
    task = asyncio.create_task(node.preparer.prepare(made))
    assert await asyncio.to_thread(hang.entered.wait, 30)
    while not task.done():
        await clock.advance(1.0)
        await asyncio.sleep(0)  # one turn of the loop, for what that has woken
    with pytest.raises(HardwareTimeoutError, match=r"did not return|hangs"):
        await task
    hang.release()
    async with asyncio.timeout(30):
        while node.workers.hung_gpus or node.workers.system_hung:  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # a thread in a driver sends no event
    await node.reconciler(claims).local()
    assert uid(1) not in {held.uid for held in assert_consistent(node)}
    await node.preparer.prepare(made)
    assert_consistent(node)


async def test_a_healthy_gpu_does_not_wait_for_one_that_hangs(tmp_path: Path) -> None:
    clock = FakeClock()
    node, claims = make_node(tmp_path, mode="enabled", clock=clock), Claims()
    hang = node.hardware.hang("create_gpu_instance", node.gpu_at(0).uuid)
    stuck = asyncio.create_task(node.preparer.prepare(claims.put(claim(node, (0, "mig-3g40gb-0")))))
    assert await asyncio.to_thread(hang.entered.wait, 30)
    # No time passes: whoever waits for the other GPU would wait for ever.
    async with asyncio.timeout(30):
        await node.preparer.prepare(claims.put(claim(node, (1, "mig-3g40gb-0"), number=2)))
        await node.preparer.unprepare(uid(2))
    assert not stuck.done()
    hang.release()
    await stuck
    assert_consistent(node)


async def test_what_is_half_done_is_tidied_beside_a_gpu_that_hangs(tmp_path: Path) -> None:
    clock = FakeClock()
    node, claims = make_node(tmp_path, mode="enabled", clock=clock), Claims()
    for number in (1, 2):
        await node.preparer.prepare(claims.put(claim(node, (number - 1, "mig-3g40gb-0"), number=number)))
        held = node.store.load().claims[uid(number)]
        node.store.write(msgspec.structs.replace(held, phase="unpreparing"))
    hang = node.hardware.hang("gpu_instances", node.gpu_at(0).uuid)
    tidying = asyncio.create_task(node.reconciler(claims).local())
    async with asyncio.timeout(30):
        while uid(2) in node.store.load().claims:  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # threads answer in real time, and no time passes on the clock
    assert not tidying.done()
    hang.release()
    await tidying
    assert assert_consistent(node) == []


async def test_p41_a_daemon_that_does_not_come_up_costs_its_claim_alone(tmp_path: Path) -> None:
    node, claims = make_node(tmp_path), Claims()
    made = claims.put(claim(node, (0, "mps")))
    node.mps.error = HardwareTimeoutError("the MPS daemon is not ready")
    with pytest.raises(HardwareTimeoutError):
        await node.preparer.prepare(made)
    # While its end cannot be seen, the compute mode stays: it is put back after it.
    assert node.store.load().claims[uid(1)].phase == "preparing"
    await node.preparer.prepare(claims.put(claim(node, (1, "ts"), number=2)))
    node.mps.error = None
    await node.reconciler(claims).local()
    assert [held.uid for held in assert_consistent(node)] == [uid(2)]


async def test_the_user_hears_that_a_daemon_takes_long_to_start(tmp_path: Path) -> None:
    node, claims = make_node(tmp_path), Claims()
    node.mps.slow = "the MPS daemon is still starting"
    await node.preparer.prepare(claims.put(claim(node, (0, "mps"))))
    assert node.warnings == ["MpsStarting: the MPS daemon is still starting"]


@pytest.mark.parametrize("name", ["mig", "mps", "exclusive"])
async def test_a_driver_that_is_not_connected_yet_is_not_gone(tmp_path: Path, name: str) -> None:
    """NVML answers UNINITIALIZED until the first look has connected, which may take a slow driver long."""
    scenario = BY_NAME[name]
    node, claims = start(tmp_path, scenario)
    await node.preparer.prepare(claims.put(claim(node, *scenario.devices)))
    node.hardware.fail(
        Fault(call="gpu_instances" if name == "mig" else "compute_mode", error="DRIVER_NOT_LOADED")
    )
    await node.preparer.unprepare(uid(1))
    assert assert_consistent(node) == []


@pytest.mark.parametrize("name", ["mig", "mps", "exclusive"])
async def test_p11_teardown_without_the_driver_is_done(tmp_path: Path, name: str) -> None:
    """Instances and compute modes cannot outlive the driver: a node must be able to drain and reboot."""
    scenario = BY_NAME[name]
    node, claims = start(tmp_path, scenario)
    await node.preparer.prepare(claims.put(claim(node, *scenario.devices)))
    node.hardware.make_unavailable("driver not loaded")
    await node.preparer.unprepare(uid(1))
    assert node.store.load().claims == {}
    assert node.cdi.uids() == frozenset()


async def test_p10_plain_claims_need_no_driver_to_end(tmp_path: Path) -> None:
    node, claims = make_node(tmp_path), Claims()
    await node.preparer.prepare(claims.put(claim(node, (0, "gpu"), (1, "ts"))))
    node.hardware.make_unavailable("driver not loaded")
    await node.preparer.unprepare(uid(1))
    await node.preparer.unprepare(uid(7))  # never seen
    assert node.store.load().claims == {}


async def test_an_error_is_a_tangram_error_with_a_next_step(tmp_path: Path) -> None:
    node, claims = make_node(tmp_path, mode="enabled"), Claims()
    node.hardware.fail(Fault(call="create_gpu_instance", error="NO_PERMISSION"))
    with pytest.raises(TangramError) as caught:
        await node.preparer.prepare(claims.put(claim(node, (0, "mig-3g40gb-0"))))
    assert node.gpu_at(0).uuid in caught.value.cause
    assert caught.value.next_step
