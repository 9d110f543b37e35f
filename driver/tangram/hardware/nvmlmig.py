"""MIG through NVML: what a GPU offers, its instances and its mode, in the order of calls that works.

Terms as in the NVML API reference. A `device` in nvmlGpuInstanceInfo_t and nvmlComputeInstanceInfo_t is the
GPU, not the MIG device: the MIG UUID of a compute instance is found among the GPU's MIG device handles alone.
"""

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pynvml

from tangram.base.errors import HardwareError, NoRoomError
from tangram.base.logs import get_logger
from tangram.hardware.backend import MigModes
from tangram.hardware.nvmlcalls import GpuHandle, refused
from tangram.hardware.refusals import NvmlCode, no_room
from tangram.model.gpu import GpuUuid
from tangram.model.mig import ComputeInstance, GpuInstance, MigPlacement, MigProfile

_PROFILES = range(max(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT, 18))
"""Numbers to ask for: what a driver does not know it refuses."""
_COMPUTE_PROFILES = range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
"""In this order 7_SLICE comes before 7_SLICE_NVL, which is as wide."""
_SUFFIXES = {7: "+me", 8: "+me", 10: "+gfx", 11: "+gfx", 12: "+gfx", 13: "-me", 14: "-me"} | {
    15: "+me.all",
    16: "+me.all",
    17: "+gfx",
}
"""By number of the profile, for drivers that tell no names."""
_MAXIMUM_PLACEMENTS = 64
_GONE = frozenset({NvmlCode.NOT_FOUND, NvmlCode.NOT_SUPPORTED})
"""What a look for an instance answers where it is not there, or MIG mode is off."""
_NOTHING_THERE = _GONE | {NvmlCode.INVALID_ARGUMENT, NvmlCode.FUNCTION_NOT_FOUND}
"""What a look through numbers answers where one means nothing on this board or driver, or is a hole."""

_log = get_logger("hardware")


def profiles(handle: GpuHandle, *, memory_bytes: int | None) -> tuple[MigProfile, ...]:
    """All profiles of GPU instances with their placements; none where the driver does not tell them.

    `memory_bytes`: of the GPU, from which profiles get their names where the driver tells none.
    Raises GpuLostError, DriverUnavailableError.
    """
    found = (_profile(handle, number, memory_bytes) for number in _PROFILES)
    return tuple(profile for profile in found if profile is not None)


def _profile(handle: GpuHandle, number: int, memory_bytes: int | None) -> MigProfile | None:
    info = handle.ask(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, None, number)
    name = str(info.name).removeprefix("MIG ") if info is not None else ""
    info = info or handle.ask(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, None, number, 1)
    if info is None:
        return None
    nowhere: tuple[MigPlacement, ...] = ()
    placements = handle.ask(_placements, nowhere, info.id)
    if not placements:
        return None
    return MigProfile(
        name=name or _computed_name(info, number, memory_bytes),
        number=number,
        profile_id=info.id,
        compute_slices=info.sliceCount,
        memory_bytes=info.memorySizeMB * 2**20 or None,
        multiprocessors=info.multiprocessorCount or None,
        max_instances=info.instanceCount,
        placements=placements,
        copy_engines=info.copyEngineCount,
        decoders=info.decoderCount,
        encoders=info.encoderCount,
        jpeg_engines=info.jpegCount,
        ofa_engines=info.ofaCount,
    )


def _placements(handle: Any, profile_id: int) -> tuple[MigPlacement, ...]:
    room = (pynvml.c_nvmlGpuInstancePlacement_t * _MAXIMUM_PLACEMENTS)()
    count = ctypes.c_uint(_MAXIMUM_PLACEMENTS)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, room, ctypes.byref(count))
    return tuple(sorted(MigPlacement(place.start, place.size) for place in room[: count.value]))


def _computed_name(info: Any, number: int, memory_bytes: int | None) -> str:
    """The name by NVIDIA's rule: its eighths of the GPU's memory, which is counted in whole GiB."""
    if not memory_bytes:
        return f"profile-{info.id}"
    eighths = -(-info.memorySizeMB * 2**20 * 8 // memory_bytes)
    gib = (eighths * -(-memory_bytes // 2**30) * 2 + 8) // 16
    return f"{info.sliceCount}g.{gib}gb{_SUFFIXES.get(number, '')}"


def modes(handle: GpuHandle) -> MigModes:
    """The MIG mode, current and pending; NotSupportedError where there is none."""
    try:
        current, pending = pynvml.nvmlDeviceGetMigMode(handle.handle)
    except pynvml.NVMLError as error:
        raise refused(error, label=handle.label, action="read the MIG mode") from error
    on = pynvml.NVML_DEVICE_MIG_ENABLE
    return MigModes(current=current == on, pending=pending == on)


def set_mode(handle: GpuHandle, *, enabled: bool) -> int:
    """Asks for the mode. The code of how its activation went: 0, IN_USE or RESET_REQUIRED.

    The GPU may be reset: its handle is of no use afterwards, and its minor number may be another.
    """
    mode = pynvml.NVML_DEVICE_MIG_ENABLE if enabled else pynvml.NVML_DEVICE_MIG_DISABLE
    try:
        activation: int = pynvml.nvmlDeviceSetMigMode(handle.handle, mode)
    except pynvml.NVMLError as error:
        action = f"switch MIG mode {'on' if enabled else 'off'}"
        raise refused(error, label=handle.label, action=action) from error
    if activation != pynvml.NVML_SUCCESS:
        _log.warning("mig_mode_not_activated", gpu=handle.label, enabled=enabled, code=activation)
    return activation


def instances(handle: GpuHandle) -> tuple[GpuInstance, ...]:
    """All GPU instances with their compute instances, by id; none where MIG mode is off.

    Found through the profiles of the GPU, so that empty GPU instances count too; compute instances without
    a MIG device handle are left out: one is there for each as soon as it can be used.
    """
    by_instance: dict[int, list[ComputeInstance]] = {}
    for gpu_instance_id, compute_instance_id, device in mig_devices(handle):
        uuid = _demand(handle, pynvml.nvmlDeviceGetUUID, device)
        compute = ComputeInstance(compute_instance_id=compute_instance_id, uuid=uuid)
        by_instance.setdefault(gpu_instance_id, []).append(compute)
    found: dict[int, GpuInstance] = {}
    for number in _PROFILES:
        info = _look(handle, pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle.handle, number, 1)
        if info is None:
            continue
        for instance in _instances_of(handle, info.id, info.instanceCount):
            compute_instances = sorted(by_instance.get(instance.id, ()), key=lambda c: c.compute_instance_id)
            found[instance.id] = GpuInstance(
                gpu_instance_id=instance.id,
                profile_id=instance.profileId,
                placement=MigPlacement(instance.placement.start, instance.placement.size),
                compute_instances=tuple(compute_instances),
            )
    return tuple(found[number] for number in sorted(found))


def _instances_of(handle: GpuHandle, profile_id: int, maximum: int) -> list[Any]:
    room = (pynvml.c_nvmlGpuInstance_t * maximum)()
    count = ctypes.c_uint(maximum)
    query = pynvml.nvmlDeviceGetGpuInstances
    if _look(handle, query, handle.handle, profile_id, room, ctypes.byref(count)) is None:
        return []
    found = (_look(handle, pynvml.nvmlGpuInstanceGetInfo, instance) for instance in room[: count.value])
    return [info for info in found if info is not None]


def mig_devices(handle: GpuHandle) -> Iterator[tuple[int, int, Any]]:
    """(GPU instance id, compute instance id, handle) of every MIG device; indices have holes."""
    for index in range(_look(handle, pynvml.nvmlDeviceGetMaxMigDeviceCount, handle.handle) or 0):
        device = _look(handle, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle.handle, index)
        if device is not None:
            gpu_instance_id = _demand(handle, pynvml.nvmlDeviceGetGpuInstanceId, device)
            yield gpu_instance_id, _demand(handle, pynvml.nvmlDeviceGetComputeInstanceId, device), device


def _look(handle: GpuHandle, query: Callable[..., Any], *arguments: Any) -> Any:
    """The answer; None where there is nothing to be told. What only fails must not look like nothing."""
    try:
        return query(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _NOTHING_THERE:
            return None
        raise refused(error, label=handle.label, action="look at the MIG instances") from error


def _demand(handle: GpuHandle, query: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return query(*arguments)
    except pynvml.NVMLError as error:
        raise refused(error, label=handle.label, action="look at the MIG instances") from error


def create_gpu_instance(handle: GpuHandle, *, profile_id: int, placement: MigPlacement) -> int:
    """Creates an instance at that very place; its id. NoRoomError names what is in the way."""
    place = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
    action = f"create a GPU instance of profile {profile_id} at {placement.start}:{placement.size}"
    try:
        # The wrapper hands its argument on as it is: the struct itself instead of a reference would crash.
        instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
            handle.handle, profile_id, ctypes.byref(place)
        )
    except pynvml.NVMLError as error:
        failure = refused(error, label=handle.label, action=action)
        if isinstance(failure, NoRoomError):
            raise no_room(
                GpuUuid(handle.label),
                profile=f"of profile {profile_id}",
                placement=placement,
                instances=_instances_if_told(handle),
            ) from error
        raise failure from error
    try:
        return int(pynvml.nvmlGpuInstanceGetInfo(instance).id)
    except pynvml.NVMLError as error:
        # Without its id nobody could ever remove it.
        _destroy_quietly(instance, label=handle.label)
        raise refused(error, label=handle.label, action=action) from error


def _instances_if_told(handle: GpuHandle) -> tuple[GpuInstance, ...]:
    try:
        return instances(handle)
    except HardwareError:
        return ()


def _destroy_quietly(instance: Any, *, label: str) -> None:
    try:
        pynvml.nvmlGpuInstanceDestroy(instance)
    except pynvml.NVMLError as error:
        _log.error("gpu_instance_left_behind", gpu=label, code=error.value)


def create_compute_instance(handle: GpuHandle, *, gpu_instance_id: int) -> ComputeInstance:
    """Creates the compute instance that is as wide as the GPU instance, and finds its UUID.

    Where the UUID cannot be found the compute instance is destroyed again.
    """
    action = f"create a compute instance in GPU instance {gpu_instance_id}"
    try:
        instance = pynvml.nvmlDeviceGetGpuInstanceById(handle.handle, gpu_instance_id)
        profile_id = _whole_width(handle, instance)
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, profile_id)
    except pynvml.NVMLError as error:
        raise refused(error, label=handle.label, action=action) from error
    try:
        compute_instance_id = int(pynvml.nvmlComputeInstanceGetInfo(compute).id)
        for gi, ci, device in mig_devices(handle):
            if (gi, ci) == (gpu_instance_id, compute_instance_id):
                uuid = _demand(handle, pynvml.nvmlDeviceGetUUID, device)
                return ComputeInstance(compute_instance_id=compute_instance_id, uuid=uuid)
    except (pynvml.NVMLError, HardwareError) as error:
        _destroy_compute_quietly(compute, label=handle.label)
        if isinstance(error, HardwareError):
            raise
        raise refused(error, label=handle.label, action=action) from error
    _destroy_compute_quietly(compute, label=handle.label)
    raise HardwareError(
        f"{handle.label}: {action}: the driver shows no MIG device for it", next_step="try again"
    )


def _destroy_compute_quietly(compute: Any, *, label: str) -> None:
    try:
        pynvml.nvmlComputeInstanceDestroy(compute)
    except pynvml.NVMLError as error:
        _log.error("compute_instance_left_behind", gpu=label, code=error.value)


def _whole_width(handle: GpuHandle, instance: Any) -> int:
    """The profile id of compute instances that take the whole GPU instance.

    The widest one: a compute instance as wide as its GPU instance is the widest that fits.
    """
    widest: Any = None
    for number in _COMPUTE_PROFILES:
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                instance, number, pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, version=1
            )
        except pynvml.NVMLError as error:
            if error.value in (NvmlCode.NOT_SUPPORTED, NvmlCode.INVALID_ARGUMENT):
                continue
            raise
        if widest is None or info.sliceCount > widest.sliceCount:
            widest = info
    if widest is None:
        raise HardwareError(f"{handle.label}: the GPU instance takes no compute instance")
    return int(widest.id)


def destroy_compute_instance(handle: GpuHandle, *, gpu_instance_id: int, compute_instance_id: int) -> None:
    """Destroys it; one that is gone already, with its GPU instance or MIG mode, is no error."""
    action = f"destroy compute instance {compute_instance_id} of GPU instance {gpu_instance_id}"
    try:
        instance = pynvml.nvmlDeviceGetGpuInstanceById(handle.handle, gpu_instance_id)
        compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, compute_instance_id)
    except pynvml.NVMLError as error:
        if error.value in _GONE:
            return
        raise refused(error, label=handle.label, action=action) from error
    try:
        pynvml.nvmlComputeInstanceDestroy(compute)
    except pynvml.NVMLError as error:
        if error.value != NvmlCode.NOT_FOUND:
            raise refused(error, label=handle.label, action=action) from error


def destroy_gpu_instance(handle: GpuHandle, *, gpu_instance_id: int) -> None:
    """Destroys it; one that is gone already is no error. GpuBusyError while something is in it."""
    action = f"destroy GPU instance {gpu_instance_id}"
    try:
        instance = pynvml.nvmlDeviceGetGpuInstanceById(handle.handle, gpu_instance_id)
    except pynvml.NVMLError as error:
        if error.value in _GONE:
            return
        raise refused(error, label=handle.label, action=action) from error
    try:
        pynvml.nvmlGpuInstanceDestroy(instance)
    except pynvml.NVMLError as error:
        if error.value != NvmlCode.NOT_FOUND:
            raise refused(error, label=handle.label, action=action) from error
