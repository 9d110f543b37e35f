"""The state of a GPU before it is handed over: its MIG mode, and what others have left on it."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.kinds import assert_consistent, claim, make_node
from tests.unit.node.support import Claims, uid

from tangram.base.errors import DeviceHeldError, GpuBusyError, HardwareError, PrepareError
from tangram.hardware.backend import GpuProcess
from tangram.hardware.machines.faultplan import Fault

GIBIBYTE = 2**30


@pytest.fixture
def claims() -> Claims:
    return Claims()


async def test_mig_mode_is_switched_for_a_claim_and_back(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path, board="h100-sxm5-80gb-x8", dynamic=True)
    gpu = node.gpu_at(0).uuid
    await node.preparer.prepare(claims.put(claim(node, (0, "mig-3g40gb-0"))))
    assert node.hardware.mig_modes(gpu).current
    await node.preparer.unprepare(uid(1))
    await node.preparer.prepare(claims.put(claim(node, (0, "gpu"), number=2)))
    assert not node.hardware.mig_modes(gpu).current
    with pytest.raises(DeviceHeldError):
        await node.preparer.prepare(claims.put(claim(node, (0, "mig-3g40gb-0"), number=3)))


async def test_p31_a_gpu_in_use_is_not_switched(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path, board="h100-sxm5-80gb-x8", dynamic=True)
    node.hardware.set_processes(node.gpu_at(0).uuid, [GpuProcess(pid=99)])
    with pytest.raises(GpuBusyError, match="pid 99"):
        await node.preparer.prepare(claims.put(claim(node, (0, "mig-3g40gb-0"))))
    assert assert_consistent(node) == []


async def test_a_switch_that_the_driver_accepts_and_does_not_do_is_an_error(
    tmp_path: Path, claims: Claims
) -> None:
    """NVML answers success, and something it does not list as a process holds the GPU."""
    node = make_node(tmp_path, board="h100-sxm5-80gb-x8", dynamic=True)
    gpu = node.gpu_at(0).uuid
    before = node.hardware.set_mig_mode

    def accept(uuid: Any, *, enabled: bool) -> Any:
        node.hardware.set_processes(gpu, [GpuProcess(pid=1)])
        modes = before(uuid, enabled=enabled)
        node.hardware.set_processes(gpu, [])
        return modes

    node.hardware.set_mig_mode = accept  # type: ignore[method-assign]
    with pytest.raises(HardwareError, match=r"accepted .* did not do it"):
        await node.preparer.prepare(claims.put(claim(node, (0, "mig-3g40gb-0"))))
    assert node.vetoes == [gpu]
    assert assert_consistent(node) == []


async def test_p19_no_switch_where_a_reset_would_be_needed(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path, board="a100-pcie-80gb-x4", dynamic=True)
    wanted = claims.put(claim(node, (0, "gpu")))
    node.hardware.set_mig_mode(node.gpu_at(0).uuid, enabled=True)
    node.hardware.reset(node.gpu_at(0).uuid)
    node.hardware.fail(Fault(call="set_mig_mode", error="UNKNOWN", times="always"))
    with pytest.raises(HardwareError, match="needs it off"):
        await node.preparer.prepare(wanted)


@pytest.mark.parametrize("policy", ["ignore", "warn", "refuse"])
@pytest.mark.parametrize("left", ["process", "memory"])
async def test_what_others_have_left_on_a_gpu(tmp_path: Path, claims: Claims, policy: str, left: str) -> None:
    node = make_node(tmp_path, leftovers=policy)
    gpu = node.gpu_at(0).uuid
    if left == "process":
        node.hardware.set_processes(gpu, [GpuProcess(pid=4711, memory_bytes=3 * GIBIBYTE)])
    else:
        node.hardware.set_used_memory(gpu, 3 * GIBIBYTE)
    wanted = claims.put(claim(node, (0, "gpu")))
    if policy == "refuse":
        with pytest.raises(PrepareError, match="3Gi"):
            await node.preparer.prepare(wanted)
        assert assert_consistent(node) == []
        return
    await node.preparer.prepare(wanted)
    assert len(node.warnings) == (policy == "warn")
    if policy == "warn":
        assert ("pid 4711" in node.warnings[0]) is (left == "process")


@pytest.mark.parametrize("cause", ["process", "not carried out"])
async def test_a_claim_whose_gpu_cannot_be_switched_hears_the_cause_each_time(
    tmp_path: Path, claims: Claims, cause: str
) -> None:
    """After the first try the device is published no more; the claim has it all the same."""
    node = make_node(tmp_path, board="h100-sxm5-80gb-x8", dynamic=True)
    gpu = node.gpu_at(0).uuid
    wanted, text = claims.put(claim(node, (0, "mig-3g40gb-0"))), "pid 99"
    if cause == "process":
        node.hardware.set_processes(gpu, [GpuProcess(pid=99)])
    else:
        node.hardware.fail(Fault(call="set_mig_mode", error="IN_USE", times=2))
        text = "set_mig_mode"
    for _ in range(2):
        with pytest.raises(GpuBusyError, match=text):
            await node.preparer.prepare(wanted)
        assert wanted.allocation is not None
        assert node.inventory is not None
        assert node.inventory.stuck == {gpu}
        assert not any("mig" in name for name, each in node.inventory.devices.items() if each.gpu.uuid == gpu)
    node.hardware.set_processes(gpu, [])
    await node.preparer.prepare(wanted)  # at once, not when the GPU is offered again
    assert len(assert_consistent(node)) == 1
