"""What MIG offers on a GPU, asked of NVML: read-only calls, for recordings.

Terms as in the NVML API reference (nvmlDeviceGetGpuInstanceProfileInfoV,
nvmlDeviceGetGpuInstancePossiblePlacements_v2).
"""

import ctypes
from typing import Any

import msgspec
import pynvml

from tangram.hardware.machines.migtables import MigGeometry
from tangram.hardware.nvmlcalls import GpuHandle, gpu_error
from tangram.model.gpu import GpuUuid

_MAXIMUM_PLACEMENTS = 64


def mig_geometry(uuid: GpuUuid) -> MigGeometry | None:
    """All profiles of GPU instances with their placements; None where the driver does not tell them.

    NVML must be open. Raises GpuLostError, DriverUnavailableError.
    """
    try:
        handle = GpuHandle(pynvml.nvmlDeviceGetHandleByUUID(uuid), uuid)
    except pynvml.NVMLError as error:
        raise gpu_error(error, label=uuid) from error
    profiles = [
        profile
        for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
        if (profile := _profile(handle, number)) is not None
    ]
    spans = [span for _, placed, _ in profiles for span in placed]
    if not spans:
        return None
    content = {
        "memorySlices": max(start + size for start, size in spans),
        "computeSlices": max(slices for _, _, slices in profiles),
        "profiles": [profile for profile, _, _ in profiles],
    }
    try:
        return msgspec.convert(content, MigGeometry)
    except msgspec.ValidationError:
        return None  # of a form that no description can hold


def _profile(handle: GpuHandle, number: int) -> tuple[dict[str, Any], list[tuple[int, int]], int] | None:
    """A profile in the form of a table, its placements, and the compute slices of all its instances."""
    found = handle.ask(_named_info, None, number)
    if found is None:
        return None
    name, info = found
    nowhere: list[tuple[int, int]] = []
    placements = handle.ask(_placements, nowhere, info.id)
    if not placements:
        return None
    profile = {
        "name": name,
        "enum": number,
        "id": info.id,
        "memoryMiB": info.memorySizeMB or None,
        "multiprocessors": info.multiprocessorCount or None,
        "engines": {
            "copy": info.copyEngineCount,
            "decoder": info.decoderCount,
            "encoder": info.encoderCount,
            "jpeg": info.jpegCount,
            "ofa": info.ofaCount,
        },
        "maxInstances": info.instanceCount,
        "placements": [f"{start}:{size}" for start, size in placements],
    }
    return profile, placements, info.sliceCount * info.instanceCount


def _named_info(handle: Any, number: int) -> tuple[str, Any]:
    info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)
    return str(info.name).removeprefix("MIG "), info


def _placements(handle: Any, profile_id: int) -> list[tuple[int, int]]:
    room = (pynvml.c_nvmlGpuInstancePlacement_t * _MAXIMUM_PLACEMENTS)()
    count = ctypes.c_uint(_MAXIMUM_PLACEMENTS)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, room, ctypes.byref(count))
    return sorted((place.start, place.size) for place in room[: count.value])
