"""Devices as the allocator sees them: immutable, shared between snapshots, grouped by node."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tangram.allocation.topology import Topology
from tangram.api import DeviceFacts
from tangram.cel import CelDevice


class DeviceId(NamedTuple):
    """What makes a device unique in the cluster, within one driver."""

    pool: str
    device: str


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Device:
    """One published device.

    `cel` is what selectors of requests and constraints see; `guarded` what selectors of device classes see:
    the same device with its `allocator` attribute as kube-scheduler would need it, so that the guard of our
    classes holds.
    """

    id: DeviceId
    cel: CelDevice
    guarded: CelDevice
    facts: DeviceFacts
    healthy: bool

    def attribute(self, name: str) -> object:
        """The value of a fully qualified attribute (`domain/id`); None where the device has none."""
        domain, _, id_ = name.rpartition("/")
        return self.cel.attributes.get(domain, {}).get(id_)


@dataclass(frozen=True, eq=False, kw_only=True)
class NodeDevices:
    """The devices of one node's pool, in order of ordinal; bit i of every mask is `devices[i]`.

    `incomplete` says why the pool must not be allocated from (empty: it may).
    """

    node: str
    devices: tuple[Device, ...]
    topology: Topology
    incomplete: str = ""

    @cached_property
    def healthy_mask(self) -> int:
        """Bits of the devices that work."""
        return sum(1 << index for index, device in enumerate(self.devices) if device.healthy)

    @cached_property
    def sizes_gb(self) -> tuple[int, ...]:
        """Nominal memory of each device."""
        return tuple(device.facts.nominal_gb for device in self.devices)


def members(mask: int) -> tuple[int, ...]:
    """The positions of the bits that are set, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return tuple(found)
