"""What our driver publishes about one device of its own, and what GPUClaimParameters say of it."""

from collections.abc import Mapping

from tangram import DRIVER_NAME
from tangram.allocation.published import facts_of
from tangram.allocation.structured.cluster import Device
from tangram.allocation.structured.quantities import NANO, Format, Quantity
from tangram.api import Demand
from tangram.model.devices import Kind
from tangram.model.shares import WantedShare, share

_NOTHING = WantedShare()


def unmet(demand: Demand | None, device: Device) -> str | None:
    """Why the device does not do, in words that read well after a count; None if it does. Parameters of our
    driver say nothing of devices of others."""
    if demand is None or device.id.driver != DRIVER_NAME:
        return None
    return demand.accepts(facts_of(device.cel))


def requested(
    capacity: Mapping[str, Quantity] | None, demand: Demand | None, device: Device
) -> Mapping[str, Quantity] | None:
    """The capacities that a request asks for of a device: those it states, else those of the share that its
    GPUClaimParameters state. What neither states is left to the device's defaults."""
    if demand is None or demand.share == _NOTHING or device.id.driver != DRIVER_NAME or not device.multiple:
        return capacity
    return {**_share(demand.share, device), **(capacity or {})}


def _share(wanted: WantedShare, device: Device) -> dict[str, Quantity]:
    replicas, memory = (_whole(device, name) for name in ("replicas", "memory"))
    kind: Kind = "timeslice" if replicas else "mps"
    found = share(kind, wanted, gpu_memory_bytes=memory or None, replicas=replicas or 1)
    asked: dict[str, Quantity] = {}
    # The default memory of several replicas is several times that of one; of anything else the device says.
    if memory and (wanted.memory_bytes or (replicas and wanted.replicas)):
        asked["memory"] = Quantity(found.memory_bytes * NANO, Format.BINARY)
    if wanted.cores:
        asked["cores"] = Quantity(found.cores * NANO)
    if replicas and wanted.replicas:
        asked["replicas"] = Quantity(found.replicas * NANO)
    return asked


def _whole(device: Device, name: str) -> int:
    capacity = device.capacity.get(name)
    return capacity.value.whole() if capacity else 0


def works(device: Device) -> bool:
    """False for a device of our driver that is published as not healthy."""
    return device.id.driver != DRIVER_NAME or (
        device.cel.attributes.get(DRIVER_NAME, {}).get("healthy") is not False
    )
