"""What NVML tells of a GPU that matters to its administrator alone: persistence mode, and NVLink fabric."""

import ctypes
from dataclasses import dataclass
from typing import Any, Literal

import pynvml

from tangram.hardware.nvmlcalls import GpuHandle, gpu_error
from tangram.model.gpu import GpuUuid

Fabric = Literal["none", "waiting", "failed", "ready"]
"""`none`: the GPU is part of none; `waiting`: the fabric manager has not brought it in yet."""
_FABRIC: dict[int, Fabric] = {
    pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED: "none",
    pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED: "waiting",
    pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS: "waiting",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDetails:
    """None where board or driver does not tell (boards before Hopper tell nothing of their fabric)."""

    uuid: GpuUuid
    persistence: bool | None = None
    fabric: Fabric | None = None


def gpu_details(uuid: GpuUuid) -> GpuDetails:
    """Of one GPU; NVML must be open. Raises GpuLostError, DriverUnavailableError."""
    try:
        handle = GpuHandle(pynvml.nvmlDeviceGetHandleByUUID(uuid), uuid)
    except pynvml.NVMLError as error:
        raise gpu_error(error, label=uuid) from error
    return GpuDetails(
        uuid=uuid,
        persistence=handle.ask(_persistence, None),
        fabric=handle.ask(_fabric, None),
    )


def _persistence(handle: Any) -> bool:
    return bool(pynvml.nvmlDeviceGetPersistenceMode(handle))


def _fabric(handle: Any) -> Fabric:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    if info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED:
        return "ready" if info.status == pynvml.NVML_SUCCESS else "failed"
    return _FABRIC.get(info.state, "none")
