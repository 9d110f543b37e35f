"""The devices of the shipped machines, as CEL expressions in the chart and the examples see them."""

from fractions import Fraction

from tangram import DRIVER_NAME
from tangram.cel import CelDevice
from tangram.hardware.simulated import SimulatedBackend
from tangram.model.devices import STANDARD_DOMAIN, Allocator, PublishedDevice, Version, gpu_devices
from tangram.model.semver import SemVer


def published(
    machine: str, *, allocator: Allocator = "controller", healthy: bool = True
) -> tuple[PublishedDevice, ...]:
    """What the node plugin publishes for a shipped machine."""
    backend = SimulatedBackend.load(machine, node_name="node-1")
    backend.open()
    found = backend.discover()
    unhealthy = frozenset() if healthy else frozenset(gpu.uuid for gpu in found.gpus)
    return gpu_devices(found, allocator=allocator, unhealthy=unhealthy)


def cel_device(device: PublishedDevice) -> CelDevice:
    attributes: dict[str, dict[str, object]] = {DRIVER_NAME: {}, STANDARD_DOMAIN: {}}
    for name, value in device.attributes.items():
        domain, _, bare = name.rpartition("/")
        attributes[domain or DRIVER_NAME][bare] = SemVer(value.text) if isinstance(value, Version) else value
    capacity = {name: Fraction(value) for name, value in device.capacity.items()}
    return CelDevice(driver=DRIVER_NAME, attributes=attributes, capacity={DRIVER_NAME: capacity})
