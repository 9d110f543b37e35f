"""Decides the groups of an allocation problem one after the other, each on what the ones before left."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field

import msgspec

from tangram import DRIVER_NAME
from tangram.allocation import NodeRefusal, Reasons, summarize
from tangram.allocation.exclusion import prepare_excluding
from tangram.allocation.reasons import of_unusable
from tangram.allocation.shareable import given_to, with_shares
from tangram.allocation.structured import (
    Account,
    Allocated,
    Cluster,
    NodeFacts,
    NodeSelectorError,
    Options,
    Outcome,
    Policy,
    Refusal,
    Shortage,
    Slice,
    claim_name,
    decide,
    offer,
    prepare_slice,
    selects,
)
from tangram.allocation.withdrawn import with_withdrawn
from tangram.base.errors import InvalidObjectError, UsageError
from tangram.cli.problems import ClaimName, Group, Problem
from tangram.controller.nodefit import refusal
from tangram.kube.objects import AllocationResult, DeviceAllocationResult, Pod, ResourceClaim, ResourceSlice

_SHOWN_NODES = 3
_SHOWN_LINES = 10
_CANNOT_RUN = "the pod cannot run "


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a claim gets. Without `allocation`, `reasons` say why; `error` if it can be placed nowhere at all.

    `node` is empty where the claim is not placed and no node was asked for. `refusals`: node → why
    each device was refused.
    """

    claim: ClaimName
    node: str = ""
    allocation: AllocationResult | None = None
    error: str | None = None
    reasons: tuple[str, ...] = ()
    refusals: Mapping[str, tuple[Refusal, ...]] = field(default_factory=dict)


class Placer:
    """The problem and what was given so far. `timestamp`: written into allocations, if not empty."""

    def __init__(self, problem: Problem, options: Options, *, timestamp: str = "") -> None:
        self._problem = problem
        self._options = options
        self._timestamp = timestamp
        classes = {item.metadata.name: item for item in problem.classes}
        prepare = _prepare if options.controller else prepare_slice
        with _located(problem):
            self._cluster = Cluster.of(map(prepare, problem.slices), classes)
            if options.controller:
                self._allocated = Allocated.of_results(dict(map(_held, problem.claims)), options.features)
            else:
                self._allocated = Allocated.of(problem.claims, options.features)
        self._given: dict[ClaimName, AllocationResult] = {
            _name(claim): claim.allocation for claim in problem.claims if claim.allocation is not None
        }

    def copy(self) -> "Placer":
        """With what was given so far; what either gives from now on the other does not see."""
        twin = copy(self)
        twin._given = dict(self._given)
        return twin

    def answers(self, nodes: Sequence[str], *, named: bool) -> list[Answer]:
        """The answers for all groups, each placed on one of the nodes. `named`: the user asked for these."""
        return [answer for group in self._problem.groups for answer in self._group(group, nodes, named)]

    def _group(self, group: Group, nodes: Sequence[str], named: bool) -> Iterator[Answer]:
        where = nodes[0] if named and len(nodes) == 1 else ""
        for claim in group.claims:
            if claim.metadata.deletion_timestamp:
                text = f"claim {'/'.join(_name(claim))} is being deleted"
                yield from _refused(group, where, [text])
                return
        if error := self._unreadable(group):
            yield from _refused(group, where, [], error=error)
            return
        refused = {node: why for node in nodes if (why := self._unsuitable(group, node))}
        # The controller's bound is for all nodes together.
        account = Account(self._options.selector_units) if self._options.controller else None
        outcomes = []
        for node in nodes:
            if node in refused:
                continue
            outcome = self._decide(group, node, account)
            if error := (account and account.exhausted) or outcome.error:
                yield from _refused(group, where, [], error=error)
                return
            outcomes.append(outcome)
            if outcome.allocations is not None and self._options.policy is Policy.FIRST_FIT:
                break
        fitting = [outcome for outcome in outcomes if outcome.allocations is not None]
        best = max(fitting, key=lambda outcome: outcome.score or (), default=None)  # the first of equals
        if best is None:
            by_node = {outcome.node: outcome.reasons.refusals for outcome in outcomes}
            reasons = _reasons(outcomes, refused)
            if len(nodes) > 1 and not any(map(_is_unknown, outcomes)):
                reasons = [self._in_one_line(group, outcomes, refused), *reasons]
            yield from _refused(group, where, reasons, refusals=by_node)
            return
        assert best.allocations is not None
        for claim, allocation in zip(group.claims, best.allocations, strict=True):
            yield Answer(claim=_name(claim), node=best.node, allocation=self._give(claim, allocation))

    def _in_one_line(self, group: Group, outcomes: Sequence[Outcome], refused: Mapping[str, str]) -> str:
        """As the controller's event says it."""
        nodes = []
        for item in outcomes:
            slices = self._cluster.by_node.get(item.node, ())
            whole, shortage = of_unusable(item.reasons.shortage, slices)
            nodes.append(NodeRefusal(name=item.node, shortage=shortage, whole=whole))
        for name, why in refused.items():
            facts = self._facts(name)
            shortage = offer(self._cluster, facts, group.claims, options=self._options)
            words = why.removeprefix(_CANNOT_RUN)
            whole = words if words != why else f"on other nodes ({why})"
            nodes.append(NodeRefusal(name=name, shortage=shortage, whole=whole))
        return summarize(Reasons(nodes=tuple(nodes)))

    def _decide(self, group: Group, node: str, account: Account | None) -> Outcome:
        allocated = self._allocated
        if self._options.controller:
            allocated = with_withdrawn(self._cluster, allocated)
        return decide(
            self._cluster,
            self._facts(node),
            group.claims,
            allocated=allocated,
            options=self._options,
            account=account,
        )

    def _give(self, claim: ResourceClaim, allocation: AllocationResult) -> AllocationResult:
        self._allocated = self._allocated.with_allocation(claim, allocation, self._options.features)
        if self._timestamp:
            allocation = msgspec.structs.replace(allocation, allocation_timestamp=self._timestamp)
        self._given[_name(claim)] = allocation
        return allocation

    def _facts(self, node: str) -> NodeFacts:
        given = self._problem.nodes.get(node)
        return given.facts if given else NodeFacts(name=node)

    def _unreadable(self, group: Group) -> str:
        """Why nobody can tell where other claims of the pod are allocated; empty if all can be told."""
        for name in group.fixed:
            allocation = self._given.get(name)
            if allocation is not None and allocation.node_selector is not None:
                try:
                    selects(allocation.node_selector, NodeFacts(name=""))
                except NodeSelectorError as error:
                    return f"claim {'/'.join(name)} of the pod: its allocation's node selector: {error}"
        return ""

    def _unsuitable(self, group: Group, node: str) -> str:
        """Why the group cannot be on the node whatever its devices; empty if it can."""
        for name in group.fixed:
            allocation = self._given.get(name)
            if allocation is None:
                return f"claim {'/'.join(name)} of the pod is not allocated"
            selector = allocation.node_selector
            if selector is not None and not selects(selector, self._facts(node)):
                return f"claim {'/'.join(name)} of the pod is allocated for other nodes"
        return self._pod_unsuitable(group.pod, node) if group.pod else ""

    def _pod_unsuitable(self, pod: Pod, node: str) -> str:
        if pod.spec.node_name:
            return "" if pod.spec.node_name == node else f"the pod is on node {pod.spec.node_name}"
        given = self._problem.nodes.get(node)
        why = refusal(pod, given.record) if given else ""
        return f"{_CANNOT_RUN}{why}" if why else ""


@contextmanager
def _located(problem: Problem) -> Iterator[None]:
    """Errors in objects with file and document."""
    try:
        yield
    except InvalidObjectError as error:
        if error.object_name not in problem.places:
            raise
        raise InvalidObjectError(
            error.problem,
            object_name=f"{problem.places[error.object_name]}: {error.object_name}",
            field=error.field,
            next_step=error.next_step or "correct the object",
        ) from None


def _prepare(item: ResourceSlice) -> Slice:
    """As our controller sees a slice. On nodes that kube-scheduler allocates, counters are published."""
    counted = item.spec.shared_counters or any(d.consumes_counters for d in item.spec.devices or ())
    if item.spec.driver != DRIVER_NAME or counted:
        return prepare_slice(item)
    whole, _ = with_shares(item)
    return prepare_excluding(whole)


def _held(claim: ResourceClaim) -> tuple[str, Sequence[DeviceAllocationResult]]:
    """Who holds devices, as reasons name it, and which, as our controller counts them."""
    given = given_to(claim)
    whole = ", whose share cannot be read: it counts as the whole GPU" if given.unread else ""
    return f"{claim_name(claim)}{whole}", given.results


def _name(claim: ResourceClaim) -> ClaimName:
    return claim.metadata.namespace, claim.metadata.name


def _refused(
    group: Group,
    node: str,
    reasons: Iterable[str],
    *,
    error: str | None = None,
    refusals: Mapping[str, tuple[Refusal, ...]] | None = None,
) -> Iterator[Answer]:
    texts = tuple(reasons)
    for claim in group.claims:
        yield Answer(claim=_name(claim), node=node, error=error, reasons=texts, refusals=refusals or {})


def _is_unknown(outcome: Outcome) -> bool:
    """Whether finding out was too dear: nothing was counted."""
    return outcome.exhausted and outcome.reasons.shortage == Shortage()


def _reasons(outcomes: Sequence[Outcome], refused: Mapping[str, str]) -> list[str]:
    """The nodes by what they say, what most say first."""
    by_text: dict[str, list[str]] = {}
    for node, why in refused.items():
        by_text.setdefault(why, []).append(node)
    for outcome in outcomes:
        text = outcome.reasons.summary or outcome.node_error
        by_text.setdefault(text, []).append(outcome.node)
    if len(outcomes) + len(refused) == 1:
        return list(by_text)
    ranked = sorted(by_text.items(), key=lambda item: -len(item[1]))
    lines = [f"{_nodes(nodes)}: {text}" for text, nodes in ranked[:_SHOWN_LINES]]
    if left := sum(len(nodes) for _, nodes in ranked[_SHOWN_LINES:]):
        lines.append(f"{_more(left)}: `tangram allocate --node NAME` tells of one")
    return lines


def _nodes(names: Sequence[str]) -> str:
    if len(names) <= _SHOWN_NODES:
        return ", ".join(names)
    return f"{', '.join(names[:_SHOWN_NODES])} and {_more(len(names) - _SHOWN_NODES)}"


def _more(count: int) -> str:
    return f"{count} more node{'s' if count > 1 else ''}"


def chosen_nodes(problem: Problem, wanted: str) -> list[str]:
    """The node asked for, or all there are. UsageError for a node that nothing speaks of."""
    known = problem.node_names()
    if not wanted:
        if not known and problem.groups:
            raise UsageError(
                "no Node is given, and no slice names one",
                next_step="give Node objects, or a name with --node",
            )
        return known
    if problem.nodes and wanted not in known:
        close = ", ".join(known[:10]) + (" …" if len(known) > 10 else "")
        raise UsageError(
            f"--node: there is no node {wanted} among the objects", next_step=f"they have {close}"
        )
    return [wanted]
