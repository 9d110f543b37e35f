"""The state a decision is made on: immutable, with cheap variations, so that planners can ask "what if"."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tangram.allocation.devices import DeviceId, NodeDevices
from tangram.allocation.requests import ClaimKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Devices, who holds them, and what is left of each node's other resources.

    `nodes` maps a node's name to its devices. `held` is the ledger: device → the claims that hold it (more
    than one only if somebody bypassed the guard). `free_resources` maps node → resource → milli-units left;
    a node without an entry is not limited.
    """

    nodes: Mapping[str, NodeDevices]
    held: Mapping[DeviceId, tuple[ClaimKey, ...]] = field(default_factory=dict)
    free_resources: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def free_mask(self, node: NodeDevices) -> int:
        """Bits of the devices of this node that nobody holds."""
        mask = 0
        for index, device in enumerate(node.devices):
            if not self.held.get(device.id):
                mask |= 1 << index
        return mask

    def with_held(self, devices: Iterable[DeviceId], holder: ClaimKey) -> "Snapshot":
        """The same state with `holder` on these devices."""
        held = dict(self.held)
        for device in devices:
            held[device] = (*held.get(device, ()), holder)
        return replace(self, held=MappingProxyType(held))

    def without(self, claims: Iterable[ClaimKey]) -> "Snapshot":
        """The same state with these claims gone."""
        gone = frozenset(claims)
        held = {
            device: left
            for device, holders in self.held.items()
            if (left := tuple(holder for holder in holders if holder not in gone))
        }
        return replace(self, held=MappingProxyType(held))

    def with_consumed(self, node: str, resources: Mapping[str, int]) -> "Snapshot":
        """The same state with `resources` taken from the node."""
        free = self.free_resources.get(node)
        if free is None or not resources:
            return self
        left = {name: amount - resources.get(name, 0) for name, amount in free.items()}
        return replace(self, free_resources=MappingProxyType({**self.free_resources, node: left}))
