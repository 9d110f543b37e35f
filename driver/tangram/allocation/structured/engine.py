"""`decide`: what one node can do for a group of claims. Pure: no clock, no randomness, no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tangram.allocation.structured.account import Account, TooDear
from tangram.allocation.structured.bestfit import BestFit
from tangram.allocation.structured.candidates import Taker
from tangram.allocation.structured.cluster import Cluster
from tangram.allocation.structured.constraints import constraints
from tangram.allocation.structured.features import LATEST, Features
from tangram.allocation.structured.judge import Judge
from tangram.allocation.structured.links import linked_sets
from tangram.allocation.structured.nodes import NodeFacts
from tangram.allocation.structured.outcome import Exhausted, FatalError, Outcome, Reasons, Shortage
from tangram.allocation.structured.pruning import Pruning
from tangram.allocation.structured.reasons import explain, kind_of, of_class
from tangram.allocation.structured.requests import Compiler, Request
from tangram.allocation.structured.results import allocations
from tangram.allocation.structured.score import Score
from tangram.allocation.structured.search import Search, Solution
from tangram.allocation.structured.state import Allocated
from tangram.allocation.structured.traces import safe
from tangram.allocation.structured.view import View
from tangram.model.kubernetes import ResourceClaim

_PLAIN_STEPS = 4_096
_PLAIN_RETRIES = 16
"""What is tried upstream's way, devices looked at and put back, before anything is worked out."""
_BEST_STEPS = 1_500
"""After so much, the best solution so far is good enough."""


class Policy(StrEnum):
    """Which of the solutions is wanted."""

    FIRST_FIT = "first-fit"
    TANGRAM = "tangram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to decide.

    `controller`: on behalf of our controller, for which the guard of our device classes is satisfied, and
    which honours GPUClaimParameters with them; else as kube-scheduler sees them. `steps`: devices looked at
    before the search gives up, some microseconds each.
    `selector_units`: what selectors may take, in the units of `tangram.cel.work`, some 0.1 us each.
    `in_words`: reasons are told to people; else they are only counted (`Reasons.shortage`), which is quicker.
    """

    features: Features = LATEST
    policy: Policy = Policy.TANGRAM
    controller: bool = True
    steps: int = 50_000
    selector_units: int = 3_000_000
    in_words: bool = True


def decide(
    cluster: Cluster,
    node: NodeFacts,
    claims: Sequence[ResourceClaim],
    *,
    allocated: Allocated,
    options: Options,
    account: Account | None = None,
) -> Outcome:
    """The allocations of the claims, all of them on this node, or why that cannot be.

    `allocated` is the state made with the same features. Claims that are allocated already must not be given.
    `account`: shared by the nodes of one decision, instead of `options.selector_units` for each.
    """
    try:
        view = cluster_view(cluster, node, options.features)
        judge = Judge(view, account or Account(options.selector_units))
        compiler = Compiler(cluster, view, allocated, judge.verdict, controller=options.controller)
        requests = compiler.compile(claims)
        return _Decision(judge, allocated, claims, requests, options).outcome()
    except FatalError as error:
        return Outcome(node=node.name, error=str(error))
    except TooDear as error:
        return Outcome(node=node.name, reasons=Reasons(summary=str(error)), exhausted=True)


def offer(
    cluster: Cluster,
    node: NodeFacts,
    claims: Sequence[ResourceClaim],
    *,
    options: Options,
    account: Account | None = None,
) -> Shortage:
    """How many devices of the node are of the classes that the claims ask for, as `left`; whatever else they
    ask for, and whoever has them. All of them, where finding out is beyond the bounds."""
    left: list[int] = []
    view = None
    try:
        view = cluster_view(cluster, node, options.features)
        judge = Judge(view, account or Account(options.selector_units))
        compiler = Compiler(cluster, view, Allocated(), judge.verdict, controller=options.controller)
        requests = compiler.compile(claims)
        every = [alternative for request in requests for alternative in request.alternatives]
        for position, place in enumerate(view.places):
            if place.device is not None and any(of_class(judge, one, position) for one in every):
                left.append(position)
    except (FatalError, TooDear):
        if view is None:
            return Shortage()
        left = [position for position, place in enumerate(view.places) if place.device is not None]
    return Shortage(
        left=len(left),
        others=len(view.positions) - len(left),
        kinds=frozenset(kind_of(view.device(position)) for position in left),
    )


def cluster_view(cluster: Cluster, node: NodeFacts, features: Features) -> View:
    """The view of a node, remembered by its cluster."""
    key = (node.name, frozenset(node.labels.items()), node.declared_features, features)
    view = cluster.views.get(key)
    if view is None:
        if len(cluster.views) >= cluster.REMEMBERED:
            cluster.views.clear()
        view = cluster.views[key] = View(cluster, node, features)
    assert isinstance(view, View)
    return view


class _Decision:
    def __init__(
        self,
        judge: Judge,
        allocated: Allocated,
        claims: Sequence[ResourceClaim],
        requests: Sequence[Request],
        options: Options,
    ) -> None:
        self._judge = judge
        self._view = judge.view
        self._allocated = allocated
        self._claims = claims
        self._requests = requests
        self._options = options
        self._steps = 0

    def outcome(self) -> Outcome:
        exhausted = False
        try:
            found = self._solve()
        except Exhausted:
            found, exhausted = None, True
        if found is not None:
            solution, score = found
            return Outcome(
                node=self._view.node.name,
                allocations=allocations(solution, self._claims, self._requests, self._view),
                score=score,
                steps=self._steps,
            )
        invalid = [f"{pool.id}: {pool.invalid}" for pool in self._view.pools if pool.invalid]
        return Outcome(
            node=self._view.node.name,
            node_error=f"invalid resource pools were encountered: {'; '.join(invalid)}" if invalid else "",
            reasons=explain(
                self._requests,
                self._claims,
                self._taker(),
                exhausted=exhausted,
                in_words=self._options.in_words,
            ),
            exhausted=exhausted,
            steps=self._steps,
        )

    def _taker(self) -> Taker:
        made = constraints(self._claims, self._options.features, self._judge.derived)
        for linked in linked_sets(self._requests, self._view):
            made[linked.claim].append(linked)
        return Taker(self._judge, self._allocated, made)

    def _solve(self) -> tuple[Solution, Score | None] | None:
        if self._options.policy is Policy.TANGRAM:
            taker = self._taker()
            if safe(self._requests, taker):
                return self._best(taker)
        found = self._first()
        return None if found is None else (found, None)

    def _first(self) -> Solution | None:
        """The solution that upstream finds."""
        order = range(len(self._view.places))
        try:
            budget = min(_PLAIN_STEPS, self._options.steps)
            return self._search(order, budget=budget, retries=_PLAIN_RETRIES)
        except Exhausted:
            taker = self._taker()
            if not safe(self._requests, taker):
                return self._search(order, budget=self._options.steps)
        return self._search(order, budget=self._options.steps, pruning=Pruning(self._requests, taker, order))

    def _search(
        self,
        order: Sequence[int],
        *,
        budget: int,
        retries: int = 1 << 62,
        pruning: Pruning | None = None,
    ) -> Solution | None:
        """The first solution in this order."""
        search = Search(self._requests, self._taker(), order=order, budget=budget, retries=retries)
        found: list[Solution] = []

        def first(solution: Solution) -> bool:
            found.append(solution)
            return True

        try:
            search.run(first, pruning=pruning)
        finally:
            self._steps += search.steps
        return found[0] if found else None

    def _best(self, taker: Taker) -> tuple[Solution, Score] | None:
        """The best solution, or the best so far when the steps are used up."""
        judge = BestFit(taker)
        order = judge.order()
        pruning = Pruning(self._requests, taker, order, signature=judge.signature())
        search = Search(self._requests, taker, order=order, budget=self._options.steps)
        best: list[tuple[Solution, Score]] = []

        def keep(solution: Solution) -> bool:
            score = judge.score(solution)
            # Strictly better only: among equals the first found stays.
            if not best or score > best[0][1]:
                best[:] = [(solution, score)]
            return search.steps > _BEST_STEPS

        try:
            search.run(keep, pruning=pruning)
        except Exhausted:
            if not best:
                raise
        finally:
            self._steps += search.steps
        return best[0] if best else None
