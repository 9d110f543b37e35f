"""`allocate`: which node and which devices each pod of a batch gets, and why the others do not.

Pure: no clock, no randomness, no I/O; the same answer for any order of its input mappings. Topology-aware
best-fit in a fixed, documented order of terms (`ScoreTerms`). Feasibility follows the structured allocator of
Kubernetes (KEP-4381) for what is supported: class and request selectors, counts, `matchAttribute`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tangram.allocation.devices import DeviceId, NodeDevices, members
from tangram.allocation.effort import Effort, Settings
from tangram.allocation.eligibility import SelectorError
from tangram.allocation.feasibility import Fit, Fitting
from tangram.allocation.reasons import Code, NodeRefusal, Reasons, Refusal
from tangram.allocation.requests import Batch, ClaimKey, PodKey, PodRequest
from tangram.allocation.snapshot import Snapshot
from tangram.allocation.statistics import Statistics
from tangram.allocation.topology import Rest


class ScoreTerms(NamedTuple):
    """Why one node beats another, in order of precedence; greater is better.

    1. `preferred`: the scheduler nominated this node.
    2. `linked`: every request for several GPUs gets a fully linked set.
    3. `spared_gb`: minus the nominal memory of the GPUs taken, so that small demands leave big GPUs alone.
    4. `set_links`, `ring_links`: bandwidth of the sets, in links on the narrowest hop.
    5. `fullness`: minus the devices left free: full nodes first, so that empty ones stay empty.
    6. `rest`: usefulness of what stays free on the node.

    Nodes equal in all terms: the lower name wins.
    """

    preferred: bool
    linked: bool
    spared_gb: int
    set_links: int
    ring_links: int
    fullness: int
    rest: Rest


class DeviceResult(NamedTuple):
    """One device for one request."""

    request: str
    device: DeviceId


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAllocation:
    """What one claim gets; results in the order of its requests, then of device positions."""

    claim: ClaimKey
    results: tuple[DeviceResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a pod goes and with which devices; `runner_up` is the next best node, if any."""

    node: str
    claims: tuple[ClaimAllocation, ...]
    terms: ScoreTerms
    runner_up: tuple[str, ScoreTerms] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDecision:
    """`placement` is None where the pod fits nowhere now; `reasons` then says why, per node and device."""

    pod: PodKey
    placement: Placement | None
    reasons: Reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDecision:
    """Decisions in the order of the batch."""

    pods: tuple[PodDecision, ...]


def allocate(
    snapshot: Snapshot,
    batch: Batch,
    settings: Settings,
    statistics: Statistics,  # noqa: ARG001 - part of the seam: best-fit decides without it
) -> BatchDecision:
    """Decides every pod of the batch in order; each sees what the ones before it were given.

    In an atomic group that does not fit as a whole nobody is placed, and the decisions of its members that
    would have fitted carry no placement and the reasons of the first that did not.
    """
    decisions: list[PodDecision] = []
    for group in batch:
        state = snapshot
        decided: list[PodDecision] = []
        failed: PodDecision | None = None
        for pod in group.pods:
            decision = _decide(state, pod, settings)
            decided.append(decision)
            if decision.placement is not None:
                state = _after(state, pod, decision.placement)
            elif group.atomic:
                failed = decision
                break
        if failed is None:
            snapshot = state
            decisions += decided
        else:
            decisions += [
                PodDecision(pod=pod.key, placement=None, reasons=failed.reasons) for pod in group.pods
            ]
    return BatchDecision(pods=tuple(decisions))


def _after(state: Snapshot, pod: PodRequest, placement: Placement) -> Snapshot:
    for claim in placement.claims:
        state = state.with_held((result.device for result in claim.results), claim.claim)
    return state.with_consumed(placement.node, pod.resources)


class _Candidate(NamedTuple):
    terms: ScoreTerms
    node: NodeDevices
    fit: Fit


def _decide(snapshot: Snapshot, pod: PodRequest, settings: Settings) -> PodDecision:
    best: _Candidate | None = None
    second: _Candidate | None = None
    refusals: list[NodeRefusal] = []
    fitting = Fitting(pod.claims, Effort(settings))
    try:
        for name in sorted(snapshot.nodes):
            outcome = _on_node(snapshot, snapshot.nodes[name], pod, fitting)
            if isinstance(outcome, NodeRefusal):
                refusals.append(outcome)
            elif best is None or outcome.terms > best.terms:
                best, second = outcome, best
            elif second is None or outcome.terms > second.terms:
                second = outcome
    except SelectorError as error:
        return PodDecision(pod=pod.key, placement=None, reasons=Reasons(fatal=str(error)))
    reasons = Reasons(nodes=tuple(refusals))
    if best is None:
        return PodDecision(pod=pod.key, placement=None, reasons=reasons)
    placement = Placement(
        node=best.node.node,
        claims=tuple(_claim_allocations(best.node, pod, best.fit)),
        terms=best.terms,
        runner_up=(second.node.node, second.terms) if second else None,
    )
    return PodDecision(pod=pod.key, placement=placement, reasons=reasons)


def _on_node(
    snapshot: Snapshot, node: NodeDevices, pod: PodRequest, fitting: Fitting
) -> _Candidate | NodeRefusal:
    whole = _whole_node_refusal(snapshot, node, pod)
    if whole is not None:
        return NodeRefusal(name=node.node, device_count=len(node.devices), node=whole)
    free = snapshot.free_mask(node) & node.healthy_mask
    found = fitting.on(node, free)
    return found if isinstance(found, NodeRefusal) else _Candidate(_terms(node, pod, found), node, found)


def _whole_node_refusal(snapshot: Snapshot, node: NodeDevices, pod: PodRequest) -> Refusal | None:
    if refused := pod.refused_nodes.get(node.node):
        return refused
    if node.incomplete:
        return Refusal(Code.POOL_INCOMPLETE, f"on nodes whose slices cannot be used ({node.incomplete})")
    free = snapshot.free_resources.get(node.node)
    if free is not None:
        short = sorted(
            name for name, amount in pod.resources.items() if amount > 0 and free.get(name, 0) < amount
        )
        if short:
            return Refusal(Code.NODE_RESOURCES, f"on nodes with too little {', '.join(short)} left")
    return None


def _terms(node: NodeDevices, pod: PodRequest, found: Fit) -> ScoreTerms:
    linked, spared_gb, set_links, ring_links, rest = found.terms
    return ScoreTerms(
        preferred=bool(pod.preferred_node) and node.node == pod.preferred_node,
        linked=linked,
        spared_gb=spared_gb,
        set_links=set_links,
        ring_links=ring_links,
        fullness=-found.left,
        rest=rest,
    )


def _claim_allocations(node: NodeDevices, pod: PodRequest, found: Fit) -> Iterable[ClaimAllocation]:
    masks = iter(found.masks)
    for claim in pod.claims:
        results = [
            DeviceResult(request.name, node.devices[i].id)
            for request in claim.requests
            for i in members(next(masks))
        ]
        yield ClaimAllocation(claim=claim.key, results=tuple(results))
