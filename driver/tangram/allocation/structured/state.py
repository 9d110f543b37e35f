"""Which devices are taken: rebuilt from allocated claims, whoever allocated them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from tangram.allocation.structured.cluster import DeviceId
from tangram.allocation.structured.features import Features, Gate
from tangram.allocation.structured.quantities import quantity
from tangram.base.errors import InvalidObjectError
from tangram.model.kubernetes import AllocationResult, DeviceAllocationResult, ResourceClaim


class Shares(NamedTuple):
    """What is taken of a device that several claims share.

    `consumed`: capacity → nano-units; None if no share says what it consumes. `holders`: who has shares.
    """

    consumed: Mapping[str, int] | None
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """`held`: device → the claim (`namespace/name`) that has it alone; `shared`: device → its shares."""

    held: Mapping[DeviceId, str] = field(default_factory=dict)
    shared: Mapping[DeviceId, Shares] = field(default_factory=dict)

    @classmethod
    def of_results(
        cls, results: Mapping[str, Iterable[DeviceAllocationResult]], features: Features
    ) -> "Allocated":
        """The state that results from these devices of claims, by the claims' names.

        Raises InvalidObjectError for a consumed capacity that is no quantity.
        """
        state = _State({}, {})
        for name, devices in results.items():
            state.take(name, devices, features)
        return cls(held=MappingProxyType(state.held), shared=MappingProxyType(state.shared))

    @classmethod
    def of(cls, claims: Iterable[ResourceClaim], features: Features) -> "Allocated":
        """The state that results from these claims; those that are not allocated do not matter.

        Raises InvalidObjectError for a consumed capacity that is no quantity.
        """
        state = _State({}, {})
        for claim in claims:
            if claim.allocation is not None:
                state.take(claim_name(claim), claim.allocation.devices.results or (), features)
        return cls(held=MappingProxyType(state.held), shared=MappingProxyType(state.shared))

    def with_allocation(
        self, claim: ResourceClaim, allocation: AllocationResult, features: Features
    ) -> "Allocated":
        """The same state with `allocation` given to `claim`."""
        state = _State(dict(self.held), dict(self.shared))
        state.take(claim_name(claim), allocation.devices.results or (), features)
        return replace(self, held=MappingProxyType(state.held), shared=MappingProxyType(state.shared))


def claim_name(claim: ResourceClaim) -> str:
    """`namespace/name`, as upstream's messages have it."""
    namespace = claim.metadata.namespace
    return f"{namespace}/{claim.metadata.name}" if namespace else claim.metadata.name


class _State(NamedTuple):
    held: dict[DeviceId, str]
    shared: dict[DeviceId, Shares]

    def take(self, name: str, results: Iterable[DeviceAllocationResult], features: Features) -> None:
        for result in results:
            if result.admin_access:
                continue
            device = DeviceId(result.driver, result.pool, result.device)
            if result.share_id is None or not features.on(Gate.CONSUMABLE_CAPACITY):
                self.held.setdefault(device, name)
                continue
            consumed, holders = self.shared.get(device, Shares(None, ()))
            self.shared[device] = Shares(_sum(consumed, result, name), (*holders, name))


def _sum(
    consumed: Mapping[str, int] | None, result: DeviceAllocationResult, name: str
) -> Mapping[str, int] | None:
    if not result.consumed_capacity:  # empty is not stored
        return consumed
    total = dict(consumed or {})
    for capacity, amount in result.consumed_capacity.items():
        try:
            total[capacity] = total.get(capacity, 0) + quantity(amount).nano
        except ValueError as error:
            raise InvalidObjectError(
                str(error),
                object_name=f"ResourceClaim {name}",
                field=f"status.allocation.devices.results.consumedCapacity[{capacity}]",
            ) from None
    return total
