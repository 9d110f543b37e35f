"""What to do about one pod, as a value: a pure function of the state. The loop carries it out."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from tangram.allocation import (
    Group,
    Placement,
    PodDecision,
    PodRequest,
    Reasons,
    Settings,
    Snapshot,
    Statistics,
    allocate,
    claim_key,
    summarize,
)
from tangram.allocation.remembered import kind_of
from tangram.api import with_grants
from tangram.controller.nodefit import node_selector_matches, refusal
from tangram.controller.podclaims import OwnClaim, PodClaims, claims_of, may_be_in_flight
from tangram.controller.pods import PodRecord
from tangram.controller.returned import BINDING_S
from tangram.controller.state import State
from tangram.kube.decoding import ObjectKey
from tangram.kube.objects import ResourceClaim

_KUBE_SCHEDULER = ("", "default-scheduler")
_DEAR_S = 60.0
"""How long a decision is not made again that was ended because it took too long, about a second."""


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
    is more to it. `dear`: a kind that is refused for it until `retry_s` have passed, whatever becomes free.
    """

    claims: tuple[ResourceClaim, ...]
    why: str
    retry_s: float | None = None
    kind: Hashable = None
    dear: Hashable = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The pod gets no devices now, free or not: it could not use them. Looked at again after `retry_s`, and
    when kube-scheduler has something else to say of it. `fresh`: claims that begin to rest with this.
    """

    claims: tuple[ResourceClaim, ...]
    why: str
    retry_s: float
    fresh: tuple[ResourceClaim, ...] = ()


Action = Nothing | Placed | Allocate | Free | Wait | Hold


def decide(
    state: State, key: ObjectKey, *, now_s: float, settings: Settings, statistics: Statistics
) -> Action:
    """The next step for a pod: all its guarded claims together, or none (KEP-4381)."""
    record = state.pods.get(key)
    if record is None or not record.waits or record.gated:
        return Nothing()
    claims = claims_of(state, record)
    if claims is None or not claims.ours:
        return Nothing()
    if not claims.open_:
        return _placed(record, claims.ours)
    refused = [own.refused.cause for own in claims.open_ if own.refused is not None]
    if refused:
        return Wait(claims=tuple(own.claim for own in claims.open_), why="; ".join(refused))
    if not record.bound and (hold := _hold(state, record, claims.open_, now_s=now_s)) is not None:
        return hold
    return _Placing(state, record, claims, now_s=now_s, settings=settings, statistics=statistics).run()


def _placed(record: PodRecord, ours: Sequence[OwnClaim]) -> Action:
    named = record.pod.spec.node_name
    astray = [own for own in ours if named and own.node not in (named, "")]
    if astray:
        return Wait(
            claims=tuple(own.claim for own in astray),
            why=f"claim {astray[0].claim.metadata.name} is allocated on node {astray[0].node}, but the pod is"
            f" bound to {named}; delete the pod: its successor gets both in one place",
        )
    return Placed(next((own.node for own in ours if own.node), ""))


def _hold(state: State, record: PodRecord, open_claims: Sequence[OwnClaim], *, now_s: float) -> Hold | None:
    """Whether devices would be lost on the pod for now."""
    claims = tuple(own.claim for own in open_claims)
    rests_s = [
        rest_s
        for claim in claims
        if (
            rest_s := state.returned.rests_s(
                claim_key(claim), record, _others(state, claim, record), now_s=now_s
            )
        )
    ]
    why = "the pod had devices for long without being bound, and no scheduler says why"
    if not any(state.returned.knows(claim_key(claim), record.key.uid) for claim in claims):
        why = "another pod of the claim may still be bound to the node where the claim was"
    if record.objection:
        why = f"kube-scheduler objects to more than the missing devices: {record.objection}"
    if rests_s:
        return Hold(claims=claims, why=why, retry_s=max(rests_s))
    if not record.objection or record.pod.spec.scheduler_name not in _KUBE_SCHEDULER:
        return None  # what other schedulers say may be that there are no devices
    fresh = tuple(c for c in claims if not state.returned.knows(claim_key(c), record.key.uid))
    return Hold(claims=claims, why=why, retry_s=BINDING_S, fresh=fresh) if fresh else None


def _others(state: State, claim: ResourceClaim, record: PodRecord) -> list[PodRecord]:
    """The other pods that name the claim."""
    meta = claim.metadata
    found = (state.pods[key] for key in state.pods_of(ObjectKey(meta.namespace, meta.name)))
    return [other for other in found if other.key.uid != record.key.uid]


class _Placing:
    """One decision on a pod with claims to allocate."""

    def __init__(
        self,
        state: State,
        record: PodRecord,
        claims: PodClaims,
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
        self._now_s = now_s
        self._excluded = state.exclusions.of(record.key.uid, now_s=now_s)

    def run(self) -> Action:
        kind = self._kind()
        if kind is not None and (why := self._state.refused.get(kind)) is not None:
            return self._wait(why, kind)
        open_, siblings = self._claims.open_, self._claims.siblings
        dear = self._record.key.uid if kind is None else kind
        why, until_s = self._state.dear.get(dear, ("", 0.0))
        if until_s > self._now_s:
            return self._put_off(why, until_s - self._now_s)
        snapshot = self._state.snapshot(self._key)
        refused = self._refused_nodes()
        pinned = {**refused, **self._pinned(snapshot)}
        decision = self._allocate(snapshot, open_, pinned)
        if decision.placement is not None:
            placement = self._with_grants(decision.placement)
            return Allocate(claims=tuple(own.claim for own in open_), placement=placement)
        if decision.reasons.dear:
            return self._put_off(summarize(decision.reasons), _DEAR_S, dear=dear)
        if siblings and all(self._movable(own) for own in siblings):
            freed = snapshot.without(claim_key(own.claim) for own in siblings)
            if self._allocate(freed, self._claims.ours, refused).placement is not None:
                return Free(claims=tuple(own.claim for own in siblings))
        why = self._why(decision.reasons)
        if any(str(claim_key(own.claim)) in why for own in open_):
            kind = None  # it names the claim: for others it would name the wrong one
        return self._wait(why, kind)

    def _with_grants(self, placement: Placement) -> Placement:
        """As it must be written for the API server to keep all of it."""
        if not self._state.inventory.forgets_shares(placement.node):
            return placement
        claims = tuple(replace(each, allocation=with_grants(each.allocation)) for each in placement.claims)
        return replace(placement, claims=claims)

    def _why(self, reasons: Reasons) -> str:
        """For the user, who sees in a mixed cluster GPUs that the counts leave out."""
        foreign = self._state.inventory.foreign
        if reasons.fatal or not foreign:
            return summarize(reasons)
        gpus, nodes = foreign.total(), len(foreign)
        left_out = (
            f"{gpus} {'GPU' if gpus == 1 else 'GPUs'} on {nodes} {'node' if nodes == 1 else 'nodes'}"
            " that kube-scheduler allocates not counted"
        )
        return f"{summarize(reasons, limit_bytes=900)}; {left_out}"

    def _kind(self) -> Hashable:
        """What the answer depends on besides what is free; None if other claims play a part."""
        if self._claims.siblings or self._claims.others:
            return None
        return (
            self._record.kind,
            kind_of([own.claim for own in self._claims.open_]),
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

    def _put_off(self, why: str, retry_s: float, *, dear: Hashable = None) -> Wait:
        claims = tuple(own.claim for own in self._claims.open_)
        return Wait(claims=claims, why=why, retry_s=retry_s, dear=dear)

    def _allocate(
        self, snapshot: Snapshot, claims: Sequence[OwnClaim], refused: dict[str, str]
    ) -> PodDecision:
        record = self._record
        request = PodRequest(
            key=record.key,
            claims=tuple(own.claim for own in claims),
            refused_nodes=refused,
            # A bound pod is already counted on its node; one that is not must find room there.
            resources={} if record.bound else record.resources,
            preferred_node=record.pod.status.nominated_node_name or "",
        )
        batch = (Group(pods=(request,)),)
        remembered = self._state.remembered
        (decision,) = allocate(snapshot, batch, self._settings, self._statistics, remembered=remembered).pods
        return decision

    def _refused_nodes(self) -> dict[str, str]:
        """Nodes on which the pod cannot run whatever the devices are."""
        nodes = self._state.inventory.nodes
        return {name: why for name in nodes if (why := self._node_refusal(name))}

    def _node_refusal(self, name: str) -> str:
        node, pod = self._state.nodes.get(name), self._record.pod
        named = pod.spec.node_name
        if named and name != named:
            return f"on other nodes than {named}, which the pod names"
        if node is None:
            return "" if named else "on nodes that are gone"
        # The scheduler's nomination beats its veto.
        if name in self._excluded and name != pod.status.nominated_node_name:
            return "on nodes that kube-scheduler refused for this pod lately"
        if not named and (why := refusal(pod, node, self._state.used_ports(name, self._key))):
            return why
        for other in self._claims.others:
            selector = other.node_selector
            if selector and not node_selector_matches(selector.node_selector_terms or (), node):
                return "on nodes that another claim of the pod is not allocated for"
        return ""

    def _pinned(self, snapshot: Snapshot) -> dict[str, str]:
        """Nodes other than those on which claims of the pod are allocated already."""
        pinned: dict[str, str] = {}
        for own in self._claims.siblings:
            if own.node:
                why = f"on other nodes than {own.node}, where claim {own.claim.metadata.name} is allocated"
                pinned |= {node: why for node in snapshot.nodes if node != own.node}
        return pinned

    def _movable(self, own: OwnClaim) -> bool:
        """An allocation may be taken back only if no pod uses it, or is about to (`PreBind`, in flight)."""
        if self._record.bound or own.refused is not None:
            return False
        if not {consumer.uid for consumer in own.claim.consumers} <= {self._record.key.uid}:
            return False
        return not any(
            may_be_in_flight(self._state, other, now_s=self._now_s)
            for other in _others(self._state, own.claim, self._record)
        )
