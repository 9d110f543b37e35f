"""The claims of a pod as they stand: which are ours to allocate, which are allocated, and where."""

from dataclasses import dataclass

from tangram.allocation import claim_key
from tangram.controller.claims import Refused
from tangram.controller.pods import PodRecord, claim_names
from tangram.controller.state import State
from tangram.kube.decoding import ObjectKey
from tangram.kube.objects import AllocationResult, ResourceClaim


@dataclass(frozen=True, slots=True)
class OwnClaim:
    """A guarded claim of the pod; `node` is where it is allocated (or assumed to be), None if it is not.
    `refused`: why it cannot be allocated anywhere, if so."""

    claim: ResourceClaim
    node: str | None
    refused: Refused | None = None


@dataclass(frozen=True, slots=True)
class PodClaims:
    """All claims of a pod: ours, and the allocations of those of other drivers."""

    ours: tuple[OwnClaim, ...]
    others: tuple[AllocationResult, ...]

    @property
    def open_(self) -> tuple[OwnClaim, ...]:
        """Those of ours that are to be allocated."""
        return tuple(own for own in self.ours if own.node is None)

    @property
    def siblings(self) -> tuple[OwnClaim, ...]:
        """Those of ours that are allocated."""
        return tuple(own for own in self.ours if own.node is not None)


def claims_of(state: State, record: PodRecord) -> PodClaims | None:
    """The pod's claims; None while they are not all there, or change under our own hands."""
    names, complete = claim_names(record.pod, state.generated.of_pod(record.key.uid))
    if not complete:
        return None
    ours: list[OwnClaim] = []
    others: list[AllocationResult] = []
    for name in names:
        claim = state.claims.get(ObjectKey(record.key.namespace, name.name))
        if claim is None or claim.metadata.deletion_timestamp:
            return None
        if name.generated and not _owned(claim, record):
            return None
        if state.freeing.get(claim_key(claim)) == claim.metadata.resource_version:
            return None
        mine = state.is_ours(claim)
        if mine:
            refused = mine if isinstance(mine, Refused) else None
            ours.append(OwnClaim(claim, state.node_of(claim), refused))
        elif claim.allocation is not None:
            others.append(claim.allocation)
    return PodClaims(tuple(ours), tuple(others))


def may_be_in_flight(state: State, record: PodRecord, *, now_s: float) -> bool:
    """A pod passes the scheduler's filters only when all its claims are allocated; then it may be bound at
    any moment, to where they are. A claim given back under a pod on its way does not stop the pod at once."""
    if record.finished or (record.gated and not record.bound):
        return False
    if record.bound:
        return True
    claims = claims_of(state, record)
    return claims is not None and all(
        state.returned.on_its_way(claim_key(own.claim), record, now_s=now_s) for own in claims.open_
    )


def _owned(claim: ResourceClaim, record: PodRecord) -> bool:
    return any(owner.uid == record.key.uid for owner in claim.metadata.owner_references or ())
