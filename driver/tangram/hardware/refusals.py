"""What NVML's refusals mean: one mapping from return codes to errors, for real and simulated GPUs.

Codes as in nvmlReturn_t of the NVML API reference.
"""

from collections.abc import Iterable
from enum import IntEnum

from tangram.base.errors import (
    DriverUnavailableError,
    GpuBusyError,
    GpuLostError,
    HardwareError,
    NoRoomError,
    NotSupportedError,
)
from tangram.model.gpu import GpuUuid
from tangram.model.mig import GpuInstance, MigPlacement


class NvmlCode(IntEnum):
    """The return codes that mean something of their own."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    INSUFFICIENT_RESOURCES = 23
    ARGUMENT_VERSION_MISMATCH = 25
    GPU_NOT_FOUND = 28
    UNKNOWN = 999


DRIVER_CODES = frozenset(
    {
        NvmlCode.UNINITIALIZED,
        NvmlCode.DRIVER_NOT_LOADED,
        NvmlCode.LIBRARY_NOT_FOUND,
        NvmlCode.LIB_RM_VERSION_MISMATCH,
    }
)
"""The driver does not work: for no GPU."""
GPU_CODES = frozenset({NvmlCode.GPU_IS_LOST, NvmlCode.RESET_REQUIRED, NvmlCode.GPU_NOT_FOUND})
"""The GPU does not work."""
REFUSALS = frozenset(
    {
        NvmlCode.NOT_SUPPORTED,
        NvmlCode.INVALID_ARGUMENT,
        NvmlCode.FUNCTION_NOT_FOUND,
        NvmlCode.NO_PERMISSION,
        NvmlCode.ARGUMENT_VERSION_MISMATCH,
    }
)
"""Answers of a driver that works but does not do this: not on this board, not yet, not for us."""

_LOST = "look at the kernel log (Xid messages) and at nvidia-smi; the GPU may need a reset"


def driver_error(code: int, text: str) -> DriverUnavailableError:
    """The driver does not work, and what to do about it."""
    if code == NvmlCode.LIB_RM_VERSION_MISMATCH:
        next_step = "the driver was changed under this process: restart it"
    elif code == NvmlCode.NO_PERMISSION:
        next_step = "give this process access to /dev/nvidiactl"
    else:
        next_step = "wait for the driver, or load it (nvidia-smi shows whether it works)"
    return DriverUnavailableError(f"NVML: {text}", next_step=next_step)


def lost_error(label: str, text: str) -> GpuLostError:
    """The GPU does not work, and what to do about it."""
    return GpuLostError(f"{label}: {text}", uuid=label, next_step=_LOST)


def action_error(code: int, *, label: str, action: str, text: str = "") -> HardwareError:
    """What it means that an action on a GPU failed. `label` names the GPU, `action` what was tried.

    `text` is what the library says about the code.
    """
    cause = f"{label}: {action}: {text or code_text(code)}"
    if code in DRIVER_CODES:
        return driver_error(code, cause)
    if code in GPU_CODES:
        return GpuLostError(cause, uuid=label, next_step=_LOST)
    if code == NvmlCode.IN_USE:
        return GpuBusyError(
            cause,
            next_step="end what uses it (nvidia-smi, or fuser -v /dev/nvidia*, shows what)",
        )
    if code == NvmlCode.INSUFFICIENT_RESOURCES:
        return NoRoomError(cause, next_step="see what is there: nvidia-smi mig -lgi")
    if code in (NvmlCode.NOT_SUPPORTED, NvmlCode.FUNCTION_NOT_FOUND):
        return NotSupportedError(
            cause, next_step="check that board, driver version and MIG mode allow it (nvidia-smi -q)"
        )
    if code == NvmlCode.NO_PERMISSION:
        return HardwareError(
            cause,
            next_step="run this process as root, in a container privileged",
        )
    return HardwareError(cause, next_step="try again; if it stays so, look at the kernel log for the driver")


def code_text(code: int) -> str:
    """The code by name where it has one."""
    try:
        return f"{NvmlCode(code).name} (code {code})"
    except ValueError:
        return f"error of NVML (code {code})"


def no_room(
    uuid: GpuUuid, *, profile: str, placement: MigPlacement, instances: Iterable[GpuInstance]
) -> NoRoomError:
    """A GPU instance that does not fit there, with the instances that are in its way."""
    there = [instance for instance in instances if instance.placement.mask & placement.mask]
    holders = ", ".join(
        f"instance {instance.gpu_instance_id} at {instance.placement.start}:{instance.placement.size}"
        for instance in there
    )
    reason = f"taken by {holders}" if there else "too few compute slices, engines or instances are left"
    return NoRoomError(
        f"{uuid}: no room for a GPU instance {profile} at {placement.start}:{placement.size}: {reason}",
        next_step="see what is there: nvidia-smi mig -lgi",
    )
