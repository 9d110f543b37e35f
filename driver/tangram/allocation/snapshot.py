"""The state a decision is made on: immutable, with cheap variations, so that planners can ask "what if"."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from tangram.allocation.requests import ClaimKey
from tangram.allocation.structured import LATEST, Allocated, Cluster
from tangram.model.kubernetes import DeviceAllocationResult


@dataclass(frozen=True, eq=False)
class Holdings:
    """Who holds what of a node's devices. Never changed: an equal object is the same state."""

    by_claim: Mapping[ClaimKey, tuple[DeviceAllocationResult, ...]] = field(default_factory=dict)

    @cached_property
    def allocated(self) -> Allocated:
        """The same for the engine."""
        return Allocated.of_results({str(claim): held for claim, held in self.by_claim.items()}, LATEST)

    def with_(self, claim: ClaimKey, results: Iterable[DeviceAllocationResult]) -> "Holdings":
        """The same state with these devices held by the claim as well."""
        held = (*self.by_claim.get(claim, ()), *results)
        return Holdings(MappingProxyType({**self.by_claim, claim: held}))

    def without(self, claims: frozenset[ClaimKey]) -> "Holdings":
        """The same state with these claims gone."""
        if claims.isdisjoint(self.by_claim):
            return self
        left = {claim: held for claim, held in self.by_claim.items() if claim not in claims}
        return Holdings(MappingProxyType(left))


NOTHING = Holdings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Devices, who holds them, and what is left of each node's other resources.

    `nodes` maps a node's name to its devices, with the device classes. `held` is the ledger by node; nothing
    is held on a node without an entry. `free_resources` maps node → resource → milli-units left; a node
    without an entry is not limited.
    """

    nodes: Mapping[str, Cluster]
    held: Mapping[str, Holdings] = field(default_factory=dict)
    free_resources: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def holdings(self, node: str) -> Holdings:
        """Who holds what on a node."""
        return self.held.get(node, NOTHING)

    def with_held(self, node: str, claim: ClaimKey, results: Iterable[DeviceAllocationResult]) -> "Snapshot":
        """The same state with these devices of the node held by the claim."""
        held = {**self.held, node: self.holdings(node).with_(claim, results)}
        return replace(self, held=MappingProxyType(held))

    def without(self, claims: Iterable[ClaimKey]) -> "Snapshot":
        """The same state with these claims gone."""
        gone = frozenset(claims)
        held = {node: holdings.without(gone) for node, holdings in self.held.items()}
        return replace(self, held=MappingProxyType(held))

    def with_consumed(self, node: str, resources: Mapping[str, int]) -> "Snapshot":
        """The same state with `resources` taken from the node."""
        free = self.free_resources.get(node)
        if free is None or not resources:
            return self
        left = {name: amount - resources.get(name, 0) for name, amount in free.items()}
        return replace(self, free_resources=MappingProxyType({**self.free_resources, node: left}))
