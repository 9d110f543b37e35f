"""A call that hangs in the driver may still do its work, when nobody looks any more."""

from tangram.base.errors import HardwareTimeoutError
from tangram.hardware.workers import Workers
from tangram.model.gpu import GpuUuid


def refuse_while_hung(workers: Workers, gpu: GpuUuid) -> None:
    """Raises HardwareTimeoutError while a call of the GPU hangs: it may do again what is undone now."""
    if gpu in workers.hung_gpus:
        raise HardwareTimeoutError(
            f"GPU {gpu}: a call hangs in the driver, and may still change the GPU",
            next_step="look at the kernel log for the GPU driver; the node may need a reboot",
        )
