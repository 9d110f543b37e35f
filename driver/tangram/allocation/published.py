"""What our driver has published about a device of its own."""

from msgspec.structs import replace

from tangram import DRIVER_NAME
from tangram.api import DeviceFacts
from tangram.cel import CelDevice


def guarded(cel: CelDevice) -> CelDevice:
    """The device as classes see it where our controller decides: with its `allocator` attribute as
    kube-scheduler would need it, so that the guard of our classes holds. Others are left as they are.
    """
    if cel.driver != DRIVER_NAME:
        return cel
    own = cel.attributes.get(DRIVER_NAME, {})
    if own.get("allocator") != "controller":
        return cel
    attributes = {**cel.attributes, DRIVER_NAME: {**own, "allocator": "scheduler"}}
    return replace(cel, attributes=attributes)


def facts_of(cel: CelDevice) -> DeviceFacts:
    """What GPUClaimParameters ask about."""
    own = cel.attributes.get(DRIVER_NAME, {})
    memory = cel.capacity.get(DRIVER_NAME, {}).get("memory")
    memory_bytes = int(memory) if memory is not None else None
    return DeviceFacts.of(
        kind=str(own.get("type", "")),
        product_name=str(own.get("productName", "")),
        gpu_type=str(own.get("gpuType", "")),
        memory_bytes=memory_bytes,
        profile=str(own.get("profile", "")),
    )
