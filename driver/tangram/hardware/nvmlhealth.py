"""How well a GPU is, through NVML: counters and states, and XID errors as they come."""

from collections.abc import Iterable
from typing import Any, get_args

import pynvml

from tangram.hardware.health import GpuConditions, RecoveryAction, Slowdown, XidEvent
from tangram.hardware.nvmlcalls import GpuHandle, refused
from tangram.hardware.refusals import GPU_CODES, REFUSALS, NvmlCode
from tangram.model.gpu import GpuUuid

_RECOVERY_ACTION_FIELD = 230
_RECOVERY_ACTIONS: tuple[RecoveryAction, ...] = get_args(RecoveryAction)
_SLOWDOWNS: dict[int, Slowdown] = {
    pynvml.nvmlClocksEventReasonHwSlowdown: "hardware",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "thermal",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power_brake",
}
_NO_INSTANCE = 0xFFFFFFFF


def conditions(handle: GpuHandle) -> GpuConditions:
    """What the GPU tells; each question by itself, None where it does not answer that one.

    Raises GpuLostError, DriverUnavailableError.
    """
    rows = handle.ask(pynvml.nvmlDeviceGetRemappedRows, None)
    return GpuConditions(
        uncorrectable_ecc_errors=handle.ask(_uncorrectable_ecc_errors, None),
        row_remap_pending=bool(rows[2]) if rows else None,
        row_remap_failed=bool(rows[3]) if rows else None,
        retired_pages_pending=handle.ask(_retired_pages_pending, None),
        recovery_action=handle.ask(_recovery_action, None),
        active_nvlinks=_active_nvlinks(handle),
        slowdowns=_slowdowns(handle),
    )


def _uncorrectable_ecc_errors(handle: Any) -> int:
    return int(
        pynvml.nvmlDeviceGetTotalEccErrors(
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        )
    )


def _retired_pages_pending(handle: Any) -> bool:
    return bool(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))


def _recovery_action(handle: Any) -> RecoveryAction | None:
    (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION_FIELD])
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    number = value.value.uiVal
    return _RECOVERY_ACTIONS[number] if number < len(_RECOVERY_ACTIONS) else None


def _active_nvlinks(handle: GpuHandle) -> int | None:
    states = [
        handle.ask(pynvml.nvmlDeviceGetNvLinkState, None, link)
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
    ]
    told = [state for state in states if state is not None]
    return told.count(pynvml.NVML_FEATURE_ENABLED) if told else None


def _slowdowns(handle: GpuHandle) -> frozenset[Slowdown]:
    reasons = handle.ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, None)
    if reasons is None:  # its name before driver 535
        reasons = handle.ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, 0)
    return frozenset(name for bit, name in _SLOWDOWNS.items() if reasons & bit)


class XidSource:
    """XID errors of some GPUs. Not for use by two threads at a time."""

    def __init__(self, handles: Iterable[GpuHandle]) -> None:
        """Registers before it returns: what comes from now on is not missed. HardwareError if it cannot.

        GPUs that tell no events, or are lost, are `unmonitored`.
        """
        self.unmonitored: set[GpuUuid] = set()
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            raise refused(error, label="system", action="listen for events") from error
        for handle in handles:
            self._register(handle)

    def _register(self, handle: GpuHandle) -> None:
        kind = pynvml.nvmlEventTypeXidCriticalError
        try:
            if pynvml.nvmlDeviceGetSupportedEventTypes(handle.handle) & kind:
                pynvml.nvmlDeviceRegisterEvents(handle.handle, kind, self._events)
            else:
                self.unmonitored.add(GpuUuid(handle.label))
        except pynvml.NVMLError as error:
            if error.value not in REFUSALS | GPU_CODES:
                self.close()
                raise refused(error, label=handle.label, action="listen for events") from error
            self.unmonitored.add(GpuUuid(handle.label))

    def next(self, *, timeout_s: float) -> XidEvent | None:
        """The next event; None if none comes in that time. HardwareError if waiting fails."""
        try:
            data = pynvml.nvmlEventSetWait_v2(self._events, max(1, int(timeout_s * 1000)))
            if data.eventType != pynvml.nvmlEventTypeXidCriticalError:
                return None
            return XidEvent(
                uuid=_gpu_uuid(data.device),
                xid=int(data.eventData),
                gpu_instance_id=_instance(data.gpuInstanceId),
                compute_instance_id=_instance(data.computeInstanceId),
            )
        except pynvml.NVMLError as error:
            if error.value == NvmlCode.TIMEOUT:
                return None
            raise refused(error, label="system", action="wait for events") from error

    def close(self) -> None:
        """Listens no more; never raises."""
        try:
            pynvml.nvmlEventSetFree(self._events)
        except pynvml.NVMLError:
            return


def _gpu_uuid(device: Any) -> GpuUuid:
    """Of the GPU, also where the driver names the MIG device."""
    uuid = pynvml.nvmlDeviceGetUUID(device)
    if uuid.startswith("MIG-"):
        uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device))
    return GpuUuid(uuid)


def _instance(number: int) -> int | None:
    return None if number == _NO_INSTANCE else number
