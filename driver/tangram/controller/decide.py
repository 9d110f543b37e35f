"""What to do about one pod, as a value: a pure function of the state. The loop carries it out."""

from collections.abc import Sequence
from dataclasses import dataclass

from tangram.allocation import (
    ClaimRequest,
    Code,
    Group,
    Placement,
    PodDecision,
    PodRequest,
    Refusal,
    Settings,
    Snapshot,
    Statistics,
    allocate,
    summarize,
)
from tangram.controller.claims import Refused, claim_key, lower_claim
from tangram.controller.nodefit import node_selector_matches, refusal
from tangram.controller.pods import PodRecord, claim_names
from tangram.controller.state import State, allocated_node
from tangram.kube.decoding import ObjectKey
from tangram.kube.objects import AllocationResult, ResourceClaim


@dataclass(frozen=True, slots=True)
class Nothing:
    """The pod needs nothing from us now; events will say when it does."""


@dataclass(frozen=True, slots=True)
class Placed:
    """All of the pod's claims that are ours are allocated, on this node."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocate:
    """Write these allocations."""

    claims: tuple[ResourceClaim, ...]
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Take back the allocations of these siblings: the pod fits, but not where they are."""

    claims: tuple[ResourceClaim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The pod cannot have its devices now. `retry_s`: look again then even without an event."""

    claims: tuple[ResourceClaim, ...]
    why: str
    retry_s: float | None = None


Action = Nothing | Placed | Allocate | Free | Wait


@dataclass(frozen=True, slots=True)
class _Ours:
    """A guarded claim of the pod; `node` is where it is allocated (or assumed to be), None if it is not."""

    claim: ResourceClaim
    request: ClaimRequest | Refused
    node: str | None


def decide(
    state: State, key: ObjectKey, *, now_s: float, settings: Settings, statistics: Statistics
) -> Action:
    """The next step for a pod: all its guarded claims together, or none (KEP-4381)."""
    record = state.pods.get(key)
    if record is None or not record.waits or record.gated:
        return Nothing()
    names, complete = claim_names(record.pod)
    claims = [state.claims.get(ObjectKey(key.namespace, claim.name)) for claim in names]
    if not complete or not names:
        return Nothing()
    ours: list[_Ours] = []
    pins: list[AllocationResult] = []
    for name, claim in zip(names, claims, strict=True):
        if (
            claim is None
            or claim.metadata.deletion_timestamp
            or (name.generated and not _owned(claim, record))
        ):
            return Nothing()
        request = lower_claim(claim, state.classes)
        if request is not None:
            ours.append(_Ours(claim, request, _node_of(state, claim)))
        elif claim.allocation is not None:
            pins.append(claim.allocation)
    open_ = [own for own in ours if own.node is None]
    if not ours:
        return Nothing()
    if not open_:
        return _placed(record, ours)
    refused = [own.request.cause for own in open_ if isinstance(own.request, Refused)]
    if refused:
        return Wait(claims=tuple(own.claim for own in open_), why="; ".join(refused))
    return _place(state, record, ours, pins, now_s=now_s, settings=settings, statistics=statistics)


def _placed(record: PodRecord, ours: Sequence[_Ours]) -> Action:
    named = record.pod.spec.node_name
    astray = [own for own in ours if named and own.node not in (named, "")]
    if astray:
        return Wait(
            claims=tuple(own.claim for own in astray),
            why=f"claim {astray[0].claim.metadata.name} is allocated on node {astray[0].node}, but the pod is"
            f" bound to {named}; delete the pod: its successor gets both in one place",
        )
    return Placed(next((own.node for own in ours if own.node), ""))


def _place(
    state: State,
    record: PodRecord,
    ours: Sequence[_Ours],
    pins: Sequence[AllocationResult],
    *,
    now_s: float,
    settings: Settings,
    statistics: Statistics,
) -> Action:
    open_ = [own for own in ours if own.node is None]
    siblings = [own for own in ours if own.node is not None]
    refused = _refused_nodes(state, record, pins, now_s=now_s)
    snapshot = state.snapshot()
    pinned = dict(refused)
    for own in siblings:
        text = f"on other nodes than {own.node}, where claim {own.claim.metadata.name} is allocated"
        pinned |= {node: Refusal(Code.NODE_UNSUITABLE, text) for node in snapshot.nodes if node != own.node}
    decision = _allocate(snapshot, record, open_, pinned, settings=settings, statistics=statistics)
    if decision.placement is not None:
        return Allocate(claims=tuple(own.claim for own in open_), placement=decision.placement)
    movable = [own for own in siblings if _movable(own, record)]
    if siblings and len(movable) == len(siblings):
        freed = snapshot.without(claim_key(own.claim) for own in siblings)
        again = _allocate(freed, record, ours, refused, settings=settings, statistics=statistics)
        if again.placement is not None:
            return Free(claims=tuple(own.claim for own in siblings))
    exclusions = state.exclusions.of(record.key.uid, now_s=now_s)
    return Wait(
        claims=tuple(own.claim for own in open_),
        why=summarize(decision.reasons),
        retry_s=min(exclusions.values(), default=None),
    )


def _allocate(
    snapshot: Snapshot,
    record: PodRecord,
    claims: Sequence[_Ours],
    refused: dict[str, Refusal],
    *,
    settings: Settings,
    statistics: Statistics,
) -> PodDecision:
    request = PodRequest(
        key=record.key,
        claims=tuple(own.request for own in claims if isinstance(own.request, ClaimRequest)),
        refused_nodes=refused,
        # A bound pod is already counted on its node; one that is not must find room there.
        resources={} if record.bound else record.resources,
        preferred_node=record.pod.status.nominated_node_name or "",
    )
    return allocate(snapshot, (Group(pods=(request,)),), settings, statistics).pods[0]


def _refused_nodes(
    state: State, record: PodRecord, pins: Sequence[AllocationResult], *, now_s: float
) -> dict[str, Refusal]:
    """Nodes on which the pod cannot run whatever the devices are. The scheduler's nomination beats a veto."""
    named = record.pod.spec.node_name
    nominated = record.pod.status.nominated_node_name
    excluded = state.exclusions.of(record.key.uid, now_s=now_s)
    refused: dict[str, Refusal] = {}
    for name in state.inventory.nodes:
        node = state.nodes.get(name)
        why: Refusal | None = None
        if named:
            if name != named:
                why = Refusal(Code.NODE_UNSUITABLE, f"on other nodes than {named}, which the pod names")
        elif node is None:
            why = Refusal(Code.NODE_UNSUITABLE, "on nodes that are gone")
        elif name in excluded and name != nominated:
            why = Refusal(Code.NODE_EXCLUDED, "on nodes that kube-scheduler refused for this pod lately")
        else:
            why = refusal(record.pod, node, state.used_ports(name))
        if why is None and node is not None and not all(_pin_allows(pin, state, name) for pin in pins):
            why = Refusal(Code.NODE_UNSUITABLE, "on nodes that another claim of the pod is not allocated for")
        if why is not None:
            refused[name] = why
    return refused


def _pin_allows(pin: AllocationResult, state: State, node: str) -> bool:
    """False if a claim of another driver is allocated for other nodes than this one."""
    if pin.node_selector is None:
        return True
    return node_selector_matches(pin.node_selector.node_selector_terms or (), state.nodes[node])


def _node_of(state: State, claim: ResourceClaim) -> str | None:
    assumed = state.ledger.assumption(claim_key(claim))
    if assumed is not None:
        return assumed.node
    return allocated_node(claim.allocation) if claim.allocation is not None else None


def _movable(own: _Ours, record: PodRecord) -> bool:
    """An allocation may be taken back only if nobody uses or is about to use it.

    A pod with an open claim cannot pass the scheduler's filter, so nothing of it is in flight; other pods of
    the claim would have reserved it.
    """
    consumers = {consumer.uid for consumer in own.claim.consumers}
    return not record.bound and consumers <= {record.key.uid} and isinstance(own.request, ClaimRequest)


def _owned(claim: ResourceClaim, record: PodRecord) -> bool:
    return any(owner.uid == record.key.uid for owner in claim.metadata.owner_references or ())
