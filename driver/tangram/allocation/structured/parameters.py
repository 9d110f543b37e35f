"""What our driver publishes about one device of its own, and what GPUClaimParameters say of it."""

from tangram import DRIVER_NAME
from tangram.allocation.structured.cluster import Device
from tangram.api import Demand, DeviceFacts
from tangram.model.product import nominal_gigabytes


def unmet(demand: Demand | None, device: Device) -> str | None:
    """Why the device does not do, in words that read well after a count; None if it does. Parameters of our
    driver say nothing of devices of others."""
    if demand is None or device.id.driver != DRIVER_NAME:
        return None
    return demand.accepts(facts_of(device))


def works(device: Device) -> bool:
    """False for a device of our driver that is published as not healthy."""
    return device.id.driver != DRIVER_NAME or (
        device.cel.attributes.get(DRIVER_NAME, {}).get("healthy") is not False
    )


def facts_of(device: Device) -> DeviceFacts:
    """What our driver has published about a device of its own."""
    own = device.cel.attributes.get(DRIVER_NAME, {})
    memory = device.cel.capacity.get(DRIVER_NAME, {}).get("memory")
    memory_bytes = int(memory) if memory is not None else None
    product = str(own.get("productName", ""))
    return DeviceFacts(
        memory_bytes=memory_bytes,
        nominal_gb=nominal_gigabytes(product, memory_bytes),
        gpu_type=str(own.get("gpuType", "")),
        product_name=product,
    )
