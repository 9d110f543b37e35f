"""The devices of the shipped machines, as CEL expressions in the chart and the examples see them."""

from collections.abc import Collection
from fractions import Fraction

from tangram import DRIVER_NAME
from tangram.cel import CelDevice
from tangram.hardware.simulated import SimulatedBackend
from tangram.model.devices import STANDARD_DOMAIN, Allocator, Kind, PublishedDevice, Version
from tangram.model.offers import offers
from tangram.model.publishing import published as publish
from tangram.model.semver import SemVer

WHOLE: tuple[Kind, ...] = ("gpu",)


def published(
    machine: str,
    *,
    allocator: Allocator = "controller",
    healthy: bool = True,
    kinds: Collection[Kind] = WHOLE,
) -> tuple[PublishedDevice, ...]:
    """What the node plugin publishes for a shipped machine, if it may switch MIG mode."""
    backend = SimulatedBackend.load(machine, node_name="node-1")
    backend.open()
    found = backend.discover()
    unhealthy = frozenset() if healthy else frozenset(gpu.uuid for gpu in found.gpus)
    offered = offers(found, kinds=kinds, dynamic=True)
    return publish(offered, found, allocator=allocator, replicas=4, unhealthy=unhealthy)


def cel_device(device: PublishedDevice) -> CelDevice:
    attributes: dict[str, dict[str, object]] = {DRIVER_NAME: {}, STANDARD_DOMAIN: {}}
    for name, value in device.attributes.items():
        domain, _, bare = name.rpartition("/")
        attributes[domain or DRIVER_NAME][bare] = SemVer(value.text) if isinstance(value, Version) else value
    capacity = {name: Fraction(value) for name, value in device.capacity.items()}
    return CelDevice(driver=DRIVER_NAME, attributes=attributes, capacity={DRIVER_NAME: capacity})
