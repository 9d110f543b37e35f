"""What our driver publishes about one device of its own, and what GPUClaimParameters say of it."""

from tangram import DRIVER_NAME
from tangram.allocation.published import facts_of
from tangram.allocation.structured.cluster import Device
from tangram.api import Demand


def unmet(demand: Demand | None, device: Device) -> str | None:
    """Why the device does not do, in words that read well after a count; None if it does. Parameters of our
    driver say nothing of devices of others."""
    if demand is None or device.id.driver != DRIVER_NAME:
        return None
    return demand.accepts(facts_of(device.cel))


def works(device: Device) -> bool:
    """False for a device of our driver that is published as not healthy."""
    return device.id.driver != DRIVER_NAME or (
        device.cel.attributes.get(DRIVER_NAME, {}).get("healthy") is not False
    )
