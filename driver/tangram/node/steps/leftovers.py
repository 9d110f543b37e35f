"""What somebody has left on a GPU that is about to be handed over: processes, and memory in use."""

from tangram.hardware.workers import Workers
from tangram.model.gpu import GpuUuid
from tangram.model.quantity import human_bytes

SUSPICIOUS_BYTES = 2**30
"""Some drivers count what they keep for themselves as used: several hundred MiB on a large GPU."""


async def leftovers(workers: Workers, gpu: GpuUuid) -> str:
    """Who or what is still on the GPU, for people; empty for an idle one. Raises HardwareError."""
    processes = await workers.processes(gpu)
    if processes:
        shown = ", ".join(
            f"pid {process.pid}"
            + (f" ({human_bytes(process.memory_bytes)})" if process.memory_bytes is not None else "")
            for process in processes[:8]
        )
        return f"{len(processes)} processes are still on GPU {gpu}: {shown}"
    used = await workers.used_memory_bytes(gpu)
    if used is not None and used >= SUSPICIOUS_BYTES:
        return f"{human_bytes(used)} of memory of GPU {gpu} are still in use, by no process that can be seen"
    return ""
