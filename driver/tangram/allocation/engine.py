"""`allocate`: which node and which devices each pod of a batch gets, and why the others do not.

Pure: no clock, no randomness, no I/O; the same answer for any order of its input mappings. What is allowed on
a node, and what is best there, `tangram.allocation.structured` says; here nodes are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tangram.allocation.reasons import NodeRefusal, Reasons
from tangram.allocation.remembered import Answer, Remembered, kind_of
from tangram.allocation.requests import Batch, ClaimKey, PodKey, PodRequest, claim_key
from tangram.allocation.snapshot import Snapshot
from tangram.allocation.statistics import Statistics
from tangram.allocation.structured import (
    Account,
    NodeFacts,
    Options,
    Outcome,
    Score,
    Shortage,
    decide,
    offer,
)
from tangram.allocation.withdrawn import with_withdrawn
from tangram.model.kubernetes import AllocationResult, DeviceAllocationResult

_LESS = "make requests and selectors fewer or shorter, without nested all(), exists(), map() or filter()"
_UNSCORED = Score((), False, 0, 0, 0, 0, 0, 0, 0, 0, ())
"""Of claims whose devices cannot be exchanged, so that the first fit is the only one."""
_FEWEST_STEPS = 200
"""For every further node once the steps are used up: enough to find some set, if not the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Bounds of one decision; each is worth well under a second.

    `search_steps`: devices tried on all nodes together, of which at most `node_search_steps` on one; a search
    that is cut off settles for the best set so far. `selector_units`: evaluations of selectors, in the units
    of `tangram.cel.work`, some 0.1 µs each.
    """

    search_steps: int = 100_000
    node_search_steps: int = 10_000
    selector_units: int = 3_000_000


class ScoreTerms(NamedTuple):
    """Why one node beats another, in order of precedence; greater is better.

    `preferred`: the scheduler nominated this node. `fit`: how good the best devices there are
    (`tangram.allocation.structured.Score`). Nodes equal in both: the lower name wins.
    """

    preferred: bool
    fit: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAllocation:
    """What one claim gets."""

    claim: ClaimKey
    allocation: AllocationResult

    @property
    def results(self) -> tuple[DeviceAllocationResult, ...]:
        """Its devices, in the order of its requests."""
        return tuple(self.allocation.devices.results or ())


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
    *,
    remembered: Remembered | None = None,
) -> BatchDecision:
    """Decides every pod of the batch in order; each sees what the ones before it were given.

    In an atomic group that does not fit as a whole nobody is placed, and the decisions of its members that
    would have fitted carry no placement and the reasons of the first that did not. `remembered` spares work
    and changes no answer.
    """
    remembered = remembered if remembered is not None else Remembered()
    decisions: list[PodDecision] = []
    for group in batch:
        state = snapshot
        decided: list[PodDecision] = []
        failed: PodDecision | None = None
        for pod in group.pods:
            decision = _Decision(state, pod, settings, remembered).run()
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
        state = state.with_held(placement.node, claim.claim, claim.results)
    return state.with_consumed(placement.node, pod.resources)


class _Decision:
    """One pod, on one node after the other."""

    def __init__(self, state: Snapshot, pod: PodRequest, settings: Settings, remembered: Remembered) -> None:
        self._state = state
        self._pod = pod
        self._settings = settings
        self._remembered = remembered
        self._kind = kind_of(pod.claims)
        self._account = Account(settings.selector_units)
        self._steps_left = settings.search_steps
        self._found: dict[str, Outcome] = {}

    def run(self) -> PodDecision:
        fits: list[tuple[str, ScoreTerms]] = []
        unfit: list[tuple[str, Answer]] = []
        refused: list[tuple[str, str]] = []
        for name in sorted(self._state.nodes):
            if whole := self._refusal(name):
                refused.append((name, whole))
                continue
            answer = self._answer(name)
            if exhausted := self._account.exhausted:
                self._remembered.forget(self._kind)
                return self._failed(Reasons(fatal=f"{exhausted}; {_LESS}", dear=True))
            if answer.error:
                return self._failed(Reasons(fatal=self._again(name).error or answer.error))
            if answer.fit:
                preferred = bool(self._pod.preferred_node) and name == self._pod.preferred_node
                fits.append((name, ScoreTerms(preferred, answer.score or _UNSCORED)))
            else:
                unfit.append((name, answer))
        if fits:
            return self._placed(fits)
        return self._failed(Reasons(nodes=tuple(self._refusals(refused, unfit))))

    def _refusal(self, node: str) -> str:
        """Why the whole node is out, whatever its devices; empty if it is not."""
        if refused := self._pod.refused_nodes.get(node):
            return refused
        free = self._state.free_resources.get(node)
        if free is not None:
            needed = self._pod.resources.items()
            if short := sorted(name for name, amount in needed if amount > 0 and free.get(name, 0) < amount):
                return f"on nodes with too little {', '.join(short)} left"
        return ""

    def _answer(self, node: str) -> Answer:
        cluster, holdings = self._state.nodes[node], self._state.holdings(node)
        answer = self._remembered.get(self._kind, node, cluster, holdings)
        if answer is None:
            steps = max(_FEWEST_STEPS, min(self._settings.node_search_steps, self._steps_left))
            outcome = self._decide(node, steps, self._account)
            answer = Answer.of(outcome, cluster)
            if outcome.allocations is not None:
                self._found[node] = outcome
            if steps == self._settings.node_search_steps:
                self._remembered.put(self._pod.claims, node, cluster, holdings, answer)
        self._steps_left -= answer.steps
        return answer

    def _decide(self, node: str, steps: int, account: Account) -> Outcome:
        cluster = self._state.nodes[node]
        return decide(
            cluster,
            NodeFacts(name=node),
            self._pod.claims,
            allocated=with_withdrawn(cluster, self._state.holdings(node).allocated),
            options=Options(steps=steps, in_words=False),
            account=account,
        )

    def _again(self, node: str) -> Outcome:
        """The outcome for these very claims, where what is remembered is of others of the kind."""
        account = Account(self._settings.selector_units)
        return self._decide(node, self._settings.node_search_steps, account)

    def _placed(self, fits: Sequence[tuple[str, ScoreTerms]]) -> PodDecision:
        ranked = sorted(fits, key=lambda item: item[1], reverse=True)  # stable: the lower name of equals
        (node, terms), second = ranked[0], ranked[1] if len(ranked) > 1 else None
        outcome = self._found.get(node) or self._again(node)
        assert outcome.allocations is not None
        claims = zip(self._pod.claims, outcome.allocations, strict=True)
        placement = Placement(
            node=node,
            claims=tuple(
                ClaimAllocation(claim=claim_key(claim), allocation=given) for claim, given in claims
            ),
            terms=terms,
            runner_up=second,
        )
        return PodDecision(pod=self._pod.key, placement=placement, reasons=Reasons())

    def _failed(self, reasons: Reasons) -> PodDecision:
        return PodDecision(pod=self._pod.key, placement=None, reasons=reasons)

    def _refusals(
        self, refused: Sequence[tuple[str, str]], unfit: Sequence[tuple[str, Answer]]
    ) -> list[NodeRefusal]:
        found = [NodeRefusal(name=name, whole=text, shortage=self._offer(name)) for name, text in refused]
        found += [
            NodeRefusal(name=name, whole=answer.whole, shortage=answer.shortage) for name, answer in unfit
        ]
        return sorted(found, key=lambda item: item.name)

    def _offer(self, node: str) -> Shortage:
        return offer(
            self._state.nodes[node],
            NodeFacts(name=node),
            self._pod.claims,
            options=Options(),
            account=self._account,
        )
