"""Do the claims of a pod fit the free devices of one node: the best way to fit them, or why there is none."""

from collections.abc import Iterable
from typing import NamedTuple

from tangram.allocation.devices import NodeDevices
from tangram.allocation.effort import Effort
from tangram.allocation.eligibility import Eligibility, eligibility
from tangram.allocation.reasons import Code, NodeRefusal, Refusal
from tangram.allocation.requests import ClaimRequest, DeviceRequest
from tangram.allocation.search import Node, SetTerms, Slot, Values
from tangram.model.semver import SemVer


class Fit(NamedTuple):
    """`masks`: the devices of each request of each claim."""

    terms: SetTerms
    masks: tuple[tuple[int, ...], ...]


class _Request(NamedTuple):
    claim: ClaimRequest
    request: DeviceRequest
    eligible: Eligibility
    slots: tuple[Slot, ...]


def fit(node: NodeDevices, free: int, claims: tuple[ClaimRequest, ...], effort: Effort) -> Fit | NodeRefusal:
    """The best devices for all requests together. `free`: bits of healthy devices that nobody holds.

    Raises SelectorError.
    """
    return _Fitting(node, free, claims, effort).run()


class _Fitting:
    def __init__(
        self, node: NodeDevices, free: int, claims: tuple[ClaimRequest, ...], effort: Effort
    ) -> None:
        self._node = node
        self._free = free
        self._claims = claims
        self._effort = effort
        self._shape = Node(node.topology, free, node.sizes_gb)
        self._constraints: list[Values] = []
        self._requests: list[_Request] = []
        self._several = sum(len(claim.requests) for claim in claims) > 1

    def run(self) -> Fit | NodeRefusal:
        if (refusal := self._collect()) is not None:
            return refusal
        slots = [slot for request in self._requests for slot in request.slots]
        outcome = self._effort.choice(self._shape, tuple(slots), tuple(self._constraints))
        if outcome.choice is None:
            return self._no_set(complete=outcome.complete)
        masks = iter(outcome.choice.masks)
        by_request = iter([sum(next(masks) for _ in request.slots) for request in self._requests])
        return Fit(
            outcome.choice.terms,
            tuple(tuple(next(by_request) for _ in claim.requests) for claim in self._claims),
        )

    def _collect(self) -> NodeRefusal | None:
        """Candidates of each request; a refusal where there are too few of them before any search."""
        needed = sum(request.count for claim in self._claims for request in claim.requests)
        union, count = 0, 0
        for claim in self._claims:
            first = len(self._constraints)
            self._constraints += [_values(self._node, c.attribute) for c in claim.constraints]
            for request in claim.requests:
                eligible = eligibility(self._node, request, self._effort)
                candidates = eligible.mask & self._free
                covering = tuple(
                    first + i
                    for i, constraint in enumerate(claim.constraints)
                    if constraint.covers(request.name)
                )
                slots = _slots(request, candidates, covering)
                self._requests.append(_Request(claim, request, eligible, slots))
                if candidates.bit_count() < request.count:
                    return self._refusal(
                        Refusal(Code.TOO_FEW, f"request {request.name} needs {request.count}"),
                        self._requests[-1:],
                    )
                union |= candidates
                count += request.count
                if count > self._free.bit_count():
                    break
        if union.bit_count() < count:
            return self._refusal(Refusal(Code.TOO_FEW, f"the pod needs {needed}"), self._requests)
        return None

    def _no_set(self, *, complete: bool) -> NodeRefusal:
        """Enough devices for each request alone, but no set of them satisfies everything: the smallest part
        of the claims that fails by itself explains it."""
        if not complete:
            text = "the search for a set ended before one was found"
            return self._refusal(Refusal(Code.BUDGET, text), self._requests)
        for request in self._requests:
            if not self._fits(request.slots):
                return self._refusal(self._alone(request), [request])
        for claim in self._claims:
            if claim.constraints:
                requests = [request for request in self._requests if request.claim is claim]
                if not self._fits([slot for request in requests for slot in request.slots]):
                    names = ", ".join(sorted({c.attribute for c in claim.constraints}))
                    return self._refusal(
                        Refusal(Code.CONSTRAINT, f"no set for all requests of a claim agrees in {names}"),
                        requests,
                    )
        return self._refusal(
            Refusal(Code.TOO_FEW, "no way to give each request of the pod its devices"), self._requests
        )

    def _alone(self, one: _Request) -> Refusal:
        """Why a request does not fit a node on which there is nothing else to fit."""
        _, request, _, slots = one
        size, candidates = request.linked_set_size, slots[0].candidates
        if size > 1 and not self._fits([slot._replace(constraints=()) for slot in slots]):
            largest, certain = self._node.topology.largest_linked(candidates)
            found = f"{largest}" if certain else f"{largest} or more"
            if largest < size:
                text = f"no {size} of those are linked (largest free linked set: {found})"
            else:
                text = f"there are no {len(slots)} linked sets of {size} among those"
            return Refusal(Code.NOT_LINKED, text)
        names = ", ".join(sorted({c.attribute for c in one.claim.constraints if c.covers(request.name)}))
        linked = " linked" if size > 1 else ""
        return Refusal(Code.CONSTRAINT, f"no {request.count}{linked} of those agree in {names}")

    def _fits(self, slots: Iterable[Slot]) -> bool:
        """False only if it is certain that these slots cannot be filled."""
        outcome = self._effort.choice(self._shape, tuple(slots), tuple(self._constraints))
        return outcome.choice is not None or not outcome.complete

    def _refusal(self, set_: Refusal, requests: list[_Request]) -> NodeRefusal:
        """Every device that none of the requests may take, with the reason of the first; the rest does not do
        because of `set_`."""
        held = Refusal(Code.HELD, "in use by other claims")
        eligible, candidates = 0, 0
        for request in requests:
            eligible |= request.eligible.mask
            candidates |= request.eligible.mask & self._free
        refused = tuple(
            (device.id.device, held if eligible >> index & 1 else refusal or held)
            for index, (device, refusal) in enumerate(
                zip(self._node.devices, requests[0].eligible.refusals, strict=True)
            )
            if not candidates >> index & 1
        )
        return NodeRefusal(
            name=self._node.node,
            device_count=len(self._node.devices),
            request=requests[0].request.name if self._several else "",
            devices=refused,
            set_=set_,
        )


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
