"""What to do about one pod, as a value: a pure function of the state. The loop carries it out."""

from collections.abc import Hashable, Sequence
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
from tangram.controller.claims import Refused, claim_key
from tangram.controller.nodefit import node_selector_matches, refusal
from tangram.controller.pods import PodRecord, claim_names
from tangram.controller.state import State
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
    """The pod cannot have its devices now. `retry_s`: look again then even without an event.

    `kind`: until something becomes free, pods of the same kind are refused for the same reason; None if there
    is more to it.
    """

    claims: tuple[ResourceClaim, ...]
    why: str
    retry_s: float | None = None
    kind: Hashable = None


Action = Nothing | Placed | Allocate | Free | Wait


@dataclass(frozen=True, slots=True)
class _Ours:
    """A guarded claim of the pod; `node` is where it is allocated (or assumed to be), None if it is not."""

    claim: ResourceClaim
    request: ClaimRequest | Refused
    node: str | None


@dataclass(frozen=True, slots=True)
class _Claims:
    """All claims of a pod: ours, and the allocations of those of other drivers."""

    ours: tuple[_Ours, ...]
    others: tuple[AllocationResult, ...]

    @property
    def open_(self) -> tuple[_Ours, ...]:
        """Those of ours that are to be allocated."""
        return tuple(own for own in self.ours if own.node is None)

    @property
    def siblings(self) -> tuple[_Ours, ...]:
        """Those of ours that are allocated."""
        return tuple(own for own in self.ours if own.node is not None)


def decide(
    state: State, key: ObjectKey, *, now_s: float, settings: Settings, statistics: Statistics
) -> Action:
    """The next step for a pod: all its guarded claims together, or none (KEP-4381)."""
    record = state.pods.get(key)
    if record is None or not record.waits or record.gated:
        return Nothing()
    claims = _claims(state, record)
    if claims is None or not claims.ours:
        return Nothing()
    if not claims.open_:
        return _placed(record, claims.ours)
    refused = [own.request.cause for own in claims.open_ if isinstance(own.request, Refused)]
    if refused:
        return Wait(claims=tuple(own.claim for own in claims.open_), why="; ".join(refused))
    return _Placing(state, record, claims, now_s=now_s, settings=settings, statistics=statistics).run()


def _claims(state: State, record: PodRecord) -> _Claims | None:
    """The pod's claims; None while they are not all there, or change under our own hands."""
    names, complete = claim_names(record.pod)
    if not complete:
        return None
    ours: list[_Ours] = []
    others: list[AllocationResult] = []
    for name in names:
        claim = state.claims.get(ObjectKey(record.key.namespace, name.name))
        if claim is None or claim.metadata.deletion_timestamp:
            return None
        if name.generated and not _owned(claim, record):
            return None
        if state.freeing.get(claim_key(claim)) == claim.metadata.resource_version:
            return None
        request = state.request_of(claim)
        if request is not None:
            ours.append(_Ours(claim, request, state.node_of(claim)))
        elif claim.allocation is not None:
            others.append(claim.allocation)
    return _Claims(tuple(ours), tuple(others))


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


class _Placing:
    """One decision on a pod with claims to allocate."""

    def __init__(
        self,
        state: State,
        record: PodRecord,
        claims: _Claims,
        *,
        now_s: float,
        settings: Settings,
        statistics: Statistics,
    ) -> None:
        self._state = state
        self._key = ObjectKey(record.key.namespace, record.key.name)
        self._record = record
        self._claims = claims
        self._settings = settings
        self._statistics = statistics
        self._excluded = state.exclusions.of(record.key.uid, now_s=now_s)

    def run(self) -> Action:
        kind = self._kind()
        if kind is not None and (why := self._state.refused.get(kind)) is not None:
            return self._wait(why, kind)
        open_, siblings = self._claims.open_, self._claims.siblings
        snapshot = self._state.snapshot(self._key)
        refused = self._refused_nodes()
        pinned = {**refused, **self._pinned(snapshot)}
        decision = self._allocate(snapshot, open_, pinned)
        if decision.placement is not None:
            return Allocate(claims=tuple(own.claim for own in open_), placement=decision.placement)
        if siblings and all(self._movable(own) for own in siblings):
            freed = snapshot.without(claim_key(own.claim) for own in siblings)
            if self._allocate(freed, self._claims.ours, refused).placement is not None:
                return Free(claims=tuple(own.claim for own in siblings))
        return self._wait(summarize(decision.reasons), kind)

    def _kind(self) -> Hashable:
        """What the answer depends on besides what is free; None if other claims play a part."""
        if self._claims.siblings or self._claims.others:
            return None
        requests = [own.request for own in self._claims.open_ if isinstance(own.request, ClaimRequest)]
        return (
            self._record.kind,
            tuple([(request.requests, request.constraints) for request in requests]),
            self._record.pod.status.nominated_node_name,
            frozenset(self._excluded),
        )

    def _wait(self, why: str, kind: Hashable) -> Wait:
        return Wait(
            claims=tuple(own.claim for own in self._claims.open_),
            why=why,
            retry_s=min(self._excluded.values(), default=None),
            kind=kind,
        )

    def _allocate(
        self, snapshot: Snapshot, claims: Sequence[_Ours], refused: dict[str, Refusal]
    ) -> PodDecision:
        record = self._record
        request = PodRequest(
            key=record.key,
            claims=tuple(own.request for own in claims if isinstance(own.request, ClaimRequest)),
            refused_nodes=refused,
            # A bound pod is already counted on its node; one that is not must find room there.
            resources={} if record.bound else record.resources,
            preferred_node=record.pod.status.nominated_node_name or "",
        )
        return allocate(snapshot, (Group(pods=(request,)),), self._settings, self._statistics).pods[0]

    def _refused_nodes(self) -> dict[str, Refusal]:
        """Nodes on which the pod cannot run whatever the devices are."""
        refused: dict[str, Refusal] = {}
        for name in self._state.inventory.nodes:
            why = self._node_refusal(name)
            if why is not None:
                refused[name] = why
        return refused

    def _node_refusal(self, name: str) -> Refusal | None:
        node, pod = self._state.nodes.get(name), self._record.pod
        named = pod.spec.node_name
        if named and name != named:
            return Refusal(Code.NODE_UNSUITABLE, f"on other nodes than {named}, which the pod names")
        if node is None:
            return None if named else Refusal(Code.NODE_UNSUITABLE, "on nodes that are gone")
        # The scheduler's nomination beats its veto.
        if name in self._excluded and name != pod.status.nominated_node_name:
            return Refusal(Code.NODE_EXCLUDED, "on nodes that kube-scheduler refused for this pod lately")
        if not named and (why := refusal(pod, node, self._state.used_ports(name, self._key))) is not None:
            return why
        for other in self._claims.others:
            selector = other.node_selector
            if selector and not node_selector_matches(selector.node_selector_terms or (), node):
                return Refusal(
                    Code.NODE_UNSUITABLE, "on nodes that another claim of the pod is not allocated for"
                )
        return None

    def _pinned(self, snapshot: Snapshot) -> dict[str, Refusal]:
        """Nodes other than those on which claims of the pod are allocated already."""
        pinned: dict[str, Refusal] = {}
        for own in self._claims.siblings:
            if own.node:
                text = f"on other nodes than {own.node}, where claim {own.claim.metadata.name} is allocated"
                why = Refusal(Code.NODE_UNSUITABLE, text)
                pinned |= {node: why for node in snapshot.nodes if node != own.node}
        return pinned

    def _movable(self, own: _Ours) -> bool:
        """An allocation may be taken back only if no pod uses it, or is about to (`PreBind`, in flight)."""
        if self._record.bound or not isinstance(own.request, ClaimRequest):
            return False
        if not {consumer.uid for consumer in own.claim.consumers} <= {self._record.key.uid}:
            return False
        meta = own.claim.metadata
        return not any(
            _may_be_in_flight(self._state, self._state.pods[key])
            for key in self._state.pods_of(ObjectKey(meta.namespace, meta.name))
            if self._state.pods[key].key.uid != self._record.key.uid
        )


def _may_be_in_flight(state: State, record: PodRecord) -> bool:
    """A pod passes the scheduler's filters only when all its claims are allocated; then it may be bound at
    any moment, to where they are."""
    if record.finished or (record.gated and not record.bound):
        return False
    claims = _claims(state, record)
    return record.bound or (claims is not None and not claims.open_)


def _owned(claim: ResourceClaim, record: PodRecord) -> bool:
    return any(owner.uid == record.key.uid for owner in claim.metadata.owner_references or ())
