"""Devices as the allocator sees them: immutable, shared between snapshots, grouped by node."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from tangram.allocation.topology import Topology
from tangram.cel import CelDevice


class DeviceId(NamedTuple):
    """What makes a device unique in the cluster, within one driver."""

    pool: str
    device: str


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Device:
    """One published device.

    `cel` is what selectors of requests see; `guarded` what selectors of device classes see: the same device
    with its `allocator` attribute as kube-scheduler would need it, so that the guard of our classes holds.
    `attributes` maps fully qualified names (`domain/id`) to values, for constraints.
    `memory_bytes` is None for unified memory; `nominal_gb` is the size the product is sold by.
    """

    id: DeviceId
    cel: CelDevice
    guarded: CelDevice
    attributes: Mapping[str, object]
    uuid: str
    product_name: str
    gpu_type: str
    memory_bytes: int | None
    nominal_gb: int
    healthy: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class NodeDevices:
    """The devices of one node's pool, in order of ordinal; bit i of every mask is `devices[i]`.

    `incomplete` says why the pool must not be allocated from (empty: it may).
    """

    node: str
    devices: tuple[Device, ...]
    topology: Topology
    incomplete: str = ""
    index_of: Mapping[DeviceId, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index_of", {device.id: index for index, device in enumerate(self.devices)})

    @cached_property
    def healthy_mask(self) -> int:
        """Bits of the devices that work."""
        return sum(1 << index for index, device in enumerate(self.devices) if device.healthy)

    @property
    def all_mask(self) -> int:
        """Bits of all devices."""
        return (1 << len(self.devices)) - 1


def members(mask: int) -> tuple[int, ...]:
    """The positions of the bits that are set, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return tuple(found)
