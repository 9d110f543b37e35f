"""Who uses a GPU, and who may: processes, memory in use and compute mode, through NVML."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pynvml

from tangram.base.errors import GpuBusyError, HardwareError
from tangram.hardware.backend import ComputeMode, GpuProcess
from tangram.hardware.nvmlcalls import GpuHandle, refused
from tangram.hardware.nvmlmig import mig_devices
from tangram.hardware.refusals import REFUSALS

_MODES: dict[int, ComputeMode] = {
    pynvml.NVML_COMPUTEMODE_DEFAULT: "default",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "exclusive_thread",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive_process",
}
_NO_INSTANCE = 0xFFFFFFFF


def compute_mode(handle: GpuHandle) -> ComputeMode:
    """Who may make contexts on the GPU."""
    try:
        number = pynvml.nvmlDeviceGetComputeMode(handle.handle)
    except pynvml.NVMLError as error:
        raise refused(error, label=handle.label, action="read the compute mode") from error
    if number not in _MODES:
        raise HardwareError(
            f"{handle.label}: unknown compute mode {number}",
            next_step="compare with nvidia-smi; update Tangram if this driver knows more modes",
        )
    return _MODES[number]


def set_compute_mode(handle: GpuHandle, mode: ComputeMode) -> None:
    """Sets it; needs root."""
    number = next(number for number, name in _MODES.items() if name == mode)
    try:
        pynvml.nvmlDeviceSetComputeMode(handle.handle, number)
    except pynvml.NVMLError as error:
        raise refused(error, label=handle.label, action=f"set the compute mode {mode}") from error


def processes(handle: GpuHandle) -> tuple[GpuProcess, ...]:
    """All that have a compute context on the GPU, or on one of its MIG devices, by pid."""
    found: dict[tuple[int, int | None, int | None], GpuProcess] = {}
    for device in (handle.handle, *(device for _, _, device in mig_devices(handle))):
        for process in _running(handle, device):
            key = (process.pid, process.gpu_instance_id, process.compute_instance_id)
            found.setdefault(key, process)
    placed = {process.pid for process in found.values() if process.gpu_instance_id is not None}
    return tuple(
        found[key]
        for key in sorted(found, key=lambda key: (key[0], key[1] or 0, key[2] or 0))
        if found[key].gpu_instance_id is not None or key[0] not in placed
    )


@contextmanager
def naming_holders(handle: GpuHandle) -> Iterator[None]:
    """A GpuBusyError from inside is raised with the processes on the GPU, as far as they can be told."""
    try:
        yield
    except GpuBusyError as error:
        pids: list[str] = []
        with suppress(HardwareError):
            pids = [str(process.pid) for process in processes(handle)]
        if not pids:
            raise
        cause = f"{error.cause}; on this GPU: pid {', '.join(pids)}"
        raise GpuBusyError(cause, next_step=error.next_step) from error


def _running(handle: GpuHandle, device: Any) -> list[GpuProcess]:
    try:
        listed = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(device)
    except pynvml.NVMLError as error:
        if error.value in REFUSALS:
            return []  # in MIG mode the whole GPU may refuse where its instances answer
        raise refused(error, label=handle.label, action="list the processes") from error
    return [
        GpuProcess(
            pid=process.pid,
            memory_bytes=process.usedGpuMemory,
            gpu_instance_id=_instance(process.gpuInstanceId),
            compute_instance_id=_instance(process.computeInstanceId),
        )
        for process in listed
    ]


def _instance(number: int) -> int | None:
    return None if number == _NO_INSTANCE else number


def used_memory_bytes(handle: GpuHandle) -> int | None:
    """What is allocated, without what driver and firmware keep for themselves where the driver tells that."""
    for version in (pynvml.nvmlMemory_v2, None):
        try:
            return int(pynvml.nvmlDeviceGetMemoryInfo(handle.handle, version).used)
        except pynvml.NVMLError as error:
            if error.value not in REFUSALS:
                raise refused(error, label=handle.label, action="read the memory in use") from error
    return None
