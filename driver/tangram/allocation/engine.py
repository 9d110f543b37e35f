"""`allocate`: which node and which devices each pod of a batch gets, and why the others do not.

Pure: no clock, no randomness, no I/O; the same answer for any order of its input mappings. Topology-aware
best-fit in a fixed, documented order of terms (`ScoreTerms`). Feasibility follows the structured allocator of
Kubernetes (KEP-4381) for what is supported: class and request selectors, counts, `matchAttribute`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tangram.allocation.devices import DeviceId, NodeDevices, members
from tangram.allocation.eligibility import Eligibility, SelectorError, eligibility
from tangram.allocation.reasons import Code, NodeRefusal, Reasons, Refusal
from tangram.allocation.requests import Batch, ClaimKey, ClaimRequest, DeviceRequest, PodKey, PodRequest
from tangram.allocation.search import Choice, Slot, Values, best_choice
from tangram.allocation.snapshot import Snapshot
from tangram.allocation.statistics import Statistics
from tangram.allocation.topology import Rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`search_steps`: devices tried per node and pod before the search settles for the best set so far."""

    search_steps: int = 50_000


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
    choice: Choice


def _decide(snapshot: Snapshot, pod: PodRequest, settings: Settings) -> PodDecision:
    best: _Candidate | None = None
    second: _Candidate | None = None
    refusals: list[NodeRefusal] = []
    try:
        for name in sorted(snapshot.nodes):
            outcome = _on_node(snapshot, snapshot.nodes[name], pod, settings)
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
        claims=tuple(_claim_allocations(best.node, pod.claims, best.choice)),
        terms=best.terms,
        runner_up=(second.node.node, second.terms) if second else None,
    )
    return PodDecision(pod=pod.key, placement=placement, reasons=reasons)


def _on_node(
    snapshot: Snapshot, node: NodeDevices, pod: PodRequest, settings: Settings
) -> _Candidate | NodeRefusal:
    count = len(node.devices)
    whole = _whole_node_refusal(snapshot, node, pod)
    if whole is not None:
        return NodeRefusal(name=node.node, device_count=count, node=whole)
    free = snapshot.free_mask(node)
    slots: list[Slot] = []
    constraints: list[Values] = []
    for claim in pod.claims:
        first = len(constraints)
        constraints += [_values(node, constraint.attribute) for constraint in claim.constraints]
        for request in claim.requests:
            eligible = eligibility(node, request)
            candidates = eligible.mask & free
            if candidates.bit_count() < request.count:
                return _too_few(node, request, eligible, free)
            covering = tuple(
                first + i for i, constraint in enumerate(claim.constraints) if constraint.covers(request.name)
            )
            slots.append(Slot(candidates, request.count, request.linked_set_size, covering))
    outcome = best_choice(node.topology, free, tuple(slots), tuple(constraints), settings.search_steps)
    if outcome.choice is None:
        return _no_set(snapshot, node, pod, slots, exhausted=outcome.exhausted)
    return _Candidate(_terms(node, pod, free, outcome.choice), node, outcome.choice)


def _whole_node_refusal(snapshot: Snapshot, node: NodeDevices, pod: PodRequest) -> Refusal | None:
    if refused := pod.refused_nodes.get(node.node):
        return refused
    if node.incomplete:
        return Refusal(Code.POOL_INCOMPLETE, f"on nodes that are republishing ({node.incomplete})")
    free = snapshot.free_resources.get(node.node)
    if free is not None:
        short = sorted(
            name for name, amount in pod.resources.items() if amount > 0 and free.get(name, 0) < amount
        )
        if short:
            return Refusal(Code.NODE_RESOURCES, f"on nodes with too little {', '.join(short)} left")
    return None


def _values(node: NodeDevices, attribute: str) -> Values:
    """The attribute of each device as a small number. Type matters: 1, true and "1" are different values."""
    numbers: dict[tuple[type, object], int] = {}
    values = []
    for device in node.devices:
        value = device.attributes.get(attribute)
        values.append(-1 if value is None else numbers.setdefault((type(value), value), len(numbers)))
    return tuple(values)


def _terms(node: NodeDevices, pod: PodRequest, free: int, choice: Choice) -> ScoreTerms:
    taken = sum(choice.masks)
    return ScoreTerms(
        preferred=bool(pod.preferred_node) and node.node == pod.preferred_node,
        linked=choice.terms.linked,
        spared_gb=-sum(node.devices[i].nominal_gb for i in members(taken)),
        set_links=choice.terms.set_links,
        ring_links=choice.terms.ring_links,
        fullness=-(free & ~taken).bit_count(),
        rest=choice.terms.rest,
    )


def _claim_allocations(
    node: NodeDevices, claims: tuple[ClaimRequest, ...], choice: Choice
) -> Iterable[ClaimAllocation]:
    masks = iter(choice.masks)
    for claim in claims:
        results = [
            DeviceResult(request.name, node.devices[i].id)
            for request in claim.requests
            for i in members(next(masks))
        ]
        yield ClaimAllocation(claim=claim.key, results=tuple(results))


def _too_few(node: NodeDevices, request: DeviceRequest, eligible: Eligibility, free: int) -> NodeRefusal:
    """Every device that does not come into question, with its reason; the rest is less than asked for."""
    return NodeRefusal(
        name=node.node,
        device_count=len(node.devices),
        request=request.name,
        devices=tuple(_device_refusals(node, eligible, free)),
        set_=Refusal(Code.TOO_FEW, f"request {request.name} needs {request.count}"),
    )


def _device_refusals(node: NodeDevices, eligible: Eligibility, free: int) -> Iterable[tuple[str, Refusal]]:
    for index, device in enumerate(node.devices):
        refusal = eligible.refusals[index]
        if refusal is not None:
            yield device.id.device, refusal
        elif not free >> index & 1:
            yield device.id.device, Refusal(Code.HELD, "in use by other claims")


def _no_set(
    snapshot: Snapshot, node: NodeDevices, pod: PodRequest, slots: list[Slot], *, exhausted: bool
) -> NodeRefusal:
    """Enough devices for each request alone, but no set of them satisfies everything."""
    free = snapshot.free_mask(node)
    requests = [(claim, request) for claim in pod.claims for request in claim.requests]
    union = 0
    for slot in slots:
        union |= slot.candidates
    needed = sum(slot.size for slot in slots)
    # Explained by the request that is hardest to link, else by the first.
    hardest = max(range(len(slots)), key=lambda i: (slots[i].linked_set_size, slots[i].size, -i))
    claim, request = requests[hardest]
    set_: Refusal
    if exhausted:
        set_ = Refusal(Code.BUDGET, "the search for a set ended before one was found")
    elif union.bit_count() < needed:
        set_ = Refusal(Code.TOO_FEW, f"the pod needs {needed}")
    elif request.linked_set_size > 1:
        largest = node.topology.largest_linked(slots[hardest].candidates)
        set_ = Refusal(
            Code.NOT_LINKED,
            f"no {request.linked_set_size} of those are linked (largest free linked set: {largest})",
        )
    elif claim.constraints:
        names = ", ".join(sorted({constraint.attribute for constraint in claim.constraints}))
        set_ = Refusal(Code.CONSTRAINT, f"no {request.count} of those agree in {names}")
    else:
        set_ = Refusal(Code.TOO_FEW, f"no way to give each request its devices ({needed} in all)")
    return NodeRefusal(
        name=node.node,
        device_count=len(node.devices),
        request=request.name,
        devices=tuple(_device_refusals(node, eligibility(node, request), free)),
        set_=set_,
    )
