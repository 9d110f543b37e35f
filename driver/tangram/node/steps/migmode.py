"""The MIG mode a device needs: switched for a claim, on an idle GPU, where that needs no reset.

A switch has no undo: whatever the mode is, the next claim switches it to what it needs.
"""

from tangram.base.errors import GpuBusyError, HardwareError
from tangram.base.logs import get_logger
from tangram.hardware.workers import Workers
from tangram.model.gpu import Gpu
from tangram.model.offers import switches_without_reset

_log = get_logger("node")


async def ensure_mig_mode(workers: Workers, gpu: Gpu, *, enabled: bool, dynamic: bool) -> bool:
    """Has the GPU in this MIG mode; whether it had to be switched (its device nodes may be others then).

    GpuBusyError while somebody uses the GPU; HardwareError where the mode cannot be switched, or was not.
    """
    if gpu.mig_mode == "unsupported":
        return False
    modes = await workers.mig_modes(gpu.uuid)
    if modes.current == enabled:
        return False
    wanted, found = ("on", "off") if enabled else ("off", "on")
    if not dynamic or not switches_without_reset(gpu):
        raise HardwareError(
            f"GPU {gpu.uuid}: MIG mode is {found}, the claim's device needs it {wanted}",
            next_step="delete the pod to place it elsewhere; see migMode in the settings of the node plugin",
        )
    if instances := await workers.gpu_instances(gpu.uuid):
        raise GpuBusyError(
            f"GPU {gpu.uuid}: MIG mode cannot be switched while {len(instances)} GPU instances exist",
            next_step="it is switched once they are gone; the kubelet tries again",
        )
    if processes := await workers.processes(gpu.uuid):
        pids = ", ".join(str(process.pid) for process in processes)
        raise GpuBusyError(
            f"GPU {gpu.uuid}: MIG mode cannot be switched while processes use the GPU (pid {pids})",
            next_step="end these processes; the kubelet tries again",
        )
    modes = await workers.set_mig_mode(gpu.uuid, enabled=enabled)
    if modes.current != enabled:
        raise HardwareError(
            f"GPU {gpu.uuid}: the driver accepted to switch MIG mode {wanted} and did not do it:"
            + (" a reset of the GPU is pending" if modes.pending == enabled else " something uses the GPU"),
            next_step="stop what holds the GPU (monitoring, a display server, persistence), or reset it",
        )
    _log.info("mig_mode_switched", gpu=gpu.uuid, mode=wanted)
    return True
