"""Do the claims of a pod fit the free devices of a node: the best way to fit them, or why there is none."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tangram.allocation.devices import NodeDevices
from tangram.allocation.effort import Effort
from tangram.allocation.eligibility import Eligibility, eligibility
from tangram.allocation.reasons import Code, NodeRefusal, Refusal
from tangram.allocation.requests import ClaimRequest, DeviceRequest
from tangram.allocation.search import Node, Outcome, SetTerms, Slot, Values
from tangram.model.semver import SemVer


class Fit(NamedTuple):
    """`masks`: the devices of each request of the pod, claim by claim; `left`: how many stay free."""

    terms: SetTerms
    masks: tuple[int, ...]
    left: int


class _Misfit(NamedTuple):
    """Why not: `requests` (positions) cannot be given what they ask for together, because of `cause`."""

    requests: tuple[int, ...]
    cause: Refusal


class _Request(NamedTuple):
    claim: int
    request: DeviceRequest
    constraints: tuple[int, ...]


class _Pod:
    """The claims of a pod as one list of requests, with their constraints as positions of attributes."""

    def __init__(self, claims: tuple[ClaimRequest, ...]) -> None:
        self.attributes: list[str] = []
        self.requests: list[_Request] = []
        for number, claim in enumerate(claims):
            first = len(self.attributes)
            self.attributes += [constraint.attribute for constraint in claim.constraints]
            for request in claim.requests:
                covering = (first + i for i, c in enumerate(claim.constraints) if c.covers(request.name))
                self.requests.append(_Request(number, request, tuple(covering)))
        self.needed = sum(request.count for _, request, _ in self.requests)

    def attributes_of(self, positions: Iterable[int]) -> str:
        """The names of the attributes that these requests must agree in."""
        indexes = {index for position in positions for index in self.requests[position].constraints}
        return ", ".join(sorted({self.attributes[index] for index in indexes}))


class Fitting:
    """The claims of one pod, fitted on one node after the other. Nodes in one state are worked out once."""

    def __init__(self, claims: tuple[ClaimRequest, ...], effort: Effort) -> None:
        self._pod = _Pod(claims)
        self._effort = effort
        self._known: dict[_State, Fit | _Misfit] = {}

    def on(self, node: NodeDevices, free: int) -> Fit | NodeRefusal:
        """The best devices for all requests together. `free`: bits of healthy devices that nobody holds.

        Raises SelectorError.
        """
        eligible: list[Eligibility] = []
        count = 0
        for _, request, _ in self._pod.requests:
            eligible.append(eligibility(node, request, self._effort))
            count += request.count
            if count > free.bit_count():
                break  # too many already, whatever the other requests may take
        state = _State(
            Node(node.topology, free, node.sizes_gb),
            tuple([one.mask & free for one in eligible]),
            tuple([_values(node, attribute) for attribute in self._pod.attributes]),
        )
        found = self._known.get(state)
        if found is None:
            found = self._known[state] = _Solution(self._pod, state, self._effort).find()
        return found if isinstance(found, Fit) else self._refusal(node, free, eligible, found)

    def _refusal(
        self, node: NodeDevices, free: int, eligible: Sequence[Eligibility], misfit: _Misfit
    ) -> NodeRefusal:
        """Every device that none of the requests may take, with the reason of the first of them; the rest
        does not do because of the cause."""
        able = 0
        for position in misfit.requests:
            able |= eligible[position].mask
        first = misfit.requests[0]
        refusals = eligible[first].refusals
        return NodeRefusal(
            name=node.node,
            device_count=len(node.devices),
            request=self._pod.requests[first].request.name if len(self._pod.requests) > 1 else "",
            devices=tuple(
                (device.id.device, _HELD if able >> index & 1 else refusals[index] or _HELD)
                for index, device in enumerate(node.devices)
                if not able & free & 1 << index
            ),
            set_=misfit.cause,
        )


_HELD = Refusal(Code.HELD, "in use by other claims")


class _State(NamedTuple):
    """All that a solution depends on. `candidates`: of each request that was looked at; `values`: of each
    constraint."""

    node: Node
    candidates: tuple[int, ...]
    values: tuple[Values, ...]


class _Solution:
    def __init__(self, pod: _Pod, state: _State, effort: Effort) -> None:
        self._pod = pod
        self._state = state
        self._effort = effort
        self._slots = [
            _slots(request, candidates, constraints)
            for (_, request, constraints), candidates in zip(pod.requests, state.candidates, strict=False)
        ]
        self._all = tuple(range(len(self._slots)))

    def find(self) -> Fit | _Misfit:
        union, count = 0, 0
        for position, candidates in enumerate(self._state.candidates):
            request = self._pod.requests[position].request
            if candidates.bit_count() < request.count:
                text = f"request {request.name} needs {request.count}"
                return _Misfit((position,), Refusal(Code.TOO_FEW, text))
            union |= candidates
            count += request.count
        if union.bit_count() < count:
            return _Misfit(self._all, Refusal(Code.TOO_FEW, f"the pod needs {self._pod.needed}"))
        outcome = self._search(self._all)
        if outcome.choice is None:
            return self._misfit(complete=outcome.complete)
        masks = iter(outcome.choice.masks)
        by_request = tuple([sum(next(masks) for _ in slots) for slots in self._slots])
        return Fit(outcome.choice.terms, by_request, (self._state.node.free & ~sum(by_request)).bit_count())

    def _misfit(self, *, complete: bool) -> _Misfit:
        """Enough devices for each request alone, but no set of them satisfies everything: the smallest part
        that fails by itself explains it."""
        if not complete:
            text = "the search for a set ended before one was found"
            return _Misfit(self._all, Refusal(Code.BUDGET, text))
        for position in self._all:
            if not self._fits((position,)):
                return _Misfit((position,), self._alone(position))
        for claim in range(self._pod.requests[-1].claim + 1):
            together = tuple(i for i in self._all if self._pod.requests[i].claim == claim)
            names = self._pod.attributes_of(together)
            if names and not self._fits(together):
                text = f"no set for all requests of a claim agrees in {names}"
                return _Misfit(together, Refusal(Code.CONSTRAINT, text))
        text = "no way to give each request of the pod its devices"
        return _Misfit(self._all, Refusal(Code.TOO_FEW, text))

    def _alone(self, position: int) -> Refusal:
        """Why a request does not fit even where there is nothing else to fit."""
        request, slots = self._pod.requests[position].request, self._slots[position]
        size = request.linked_set_size
        if size > 1 and not self._fits((position,), constrained=False):
            largest, certain = self._state.node.topology.largest_linked(slots[0].candidates)
            if largest >= size:
                return Refusal(
                    Code.NOT_LINKED, f"there are no {len(slots)} linked sets of {size} among those"
                )
            found = f"{largest}" if certain else f"{largest} or more"
            return Refusal(
                Code.NOT_LINKED, f"no {size} of those are linked (largest free linked set: {found})"
            )
        linked = " linked" if size > 1 else ""
        names = self._pod.attributes_of((position,))
        return Refusal(Code.CONSTRAINT, f"no {request.count}{linked} of those agree in {names}")

    def _fits(self, positions: tuple[int, ...], *, constrained: bool = True) -> bool:
        """False only if it is certain that these requests cannot be met."""
        outcome = self._search(positions, constrained=constrained)
        return outcome.choice is not None or not outcome.complete

    def _search(self, positions: tuple[int, ...], *, constrained: bool = True) -> Outcome:
        slots = [slot for position in positions for slot in self._slots[position]]
        if not constrained:
            slots = [slot._replace(constraints=()) for slot in slots]
        return self._effort.choice(self._state.node, tuple(slots), self._state.values)


def _slots(request: DeviceRequest, candidates: int, constraints: tuple[int, ...]) -> tuple[Slot, ...]:
    """A request for linked sets is one slot per set."""
    size = request.linked_set_size
    if size > 1:
        return (Slot(candidates, size, True, constraints),) * (request.count // size)
    return (Slot(candidates, request.count, False, constraints),)


def _values(node: NodeDevices, attribute: str) -> Values:
    """The attribute of each device as a small number. Type matters: 1, true and "1" are different values, and
    versions are compared as text (KEP-4381)."""
    numbers: dict[tuple[type, object], int] = {}
    values = []
    for device in node.devices:
        value = device.attribute(attribute)
        key = (type(value), value.text if isinstance(value, SemVer) else value)
        values.append(-1 if value is None else numbers.setdefault(key, len(numbers)))
    return tuple(values)
