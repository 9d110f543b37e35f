"""Why claims do not fit on a node: every device that was refused, and one line for people.

Each (sub)request is looked at by itself, on the state before the decision. What could be served so is in
conflict with other requests, or with a constraint: then the line says with which.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tangram.allocation.structured.candidates import Taker
from tangram.allocation.structured.constraints import DistinctAttribute, MatchAttribute
from tangram.allocation.structured.judge import Refused, TooDear
from tangram.allocation.structured.links import LinkedSets
from tangram.allocation.structured.outcome import Code, FatalError, Reasons, Refusal
from tangram.allocation.structured.requests import Alternative, Request
from tangram.allocation.structured.state import claim_name
from tangram.allocation.structured.view import View
from tangram.model.kubernetes import ResourceClaim


def explain(
    requests: Sequence[Request], claims: Sequence[ResourceClaim], taker: Taker, *, exhausted: bool
) -> Reasons:
    """`taker` must have nothing taken."""
    refusals: list[Refusal] = []
    lines: list[str] = []
    for request in requests:
        name = claim_name(claims[request.claim])
        short = []
        for alternative in request.alternatives:
            refused = dict(_refused(alternative, taker))
            refusals += [
                Refusal(
                    claim=name,
                    request=alternative.name,
                    device=taker.view.device(position).id,
                    code=refusal.code,
                    text=refusal.text,
                )
                for position, refusal in refused.items()
            ]
            if line := _shortage(alternative, refused, taker):
                short.append(line)
        if len(short) == len(request.alternatives):
            lines += [f"request {request.name}: {'; or '.join(short)}"]
    if not lines:
        lines = list(_conflicts(requests, taker)) or ["the requests cannot be served together on this node"]
    if exhausted:
        lines = ["the search was ended before all possibilities were tried", *lines]
    return Reasons(summary="; ".join([*lines, *_pools(taker.view)]), refusals=tuple(refusals))


def _refused(alternative: Alternative, taker: Taker) -> Iterator[tuple[int, Refused]]:
    """The devices that the request cannot have, each by the first test that it fails."""
    for position, place in enumerate(taker.view.places):
        if place.device is None:
            continue
        refusal = _refusal(alternative, position, taker)
        if refusal is not None:
            yield position, refusal


def _refusal(alternative: Alternative, position: int, taker: Taker) -> Refused | None:
    try:
        refusal = taker.judge.unfit(alternative, position)
        if refusal is None:
            refusal = taker.take(alternative, position, 0)
            if refusal is None:
                taker.put_back()
    except (FatalError, TooDear) as error:
        return Refused(Code.SELECTOR, str(error) or "was not looked at: selectors cost too much")
    return refusal


def _shortage(alternative: Alternative, refused: Mapping[int, Refused], taker: Taker) -> str:
    """Why an alternative cannot be served by itself; empty if it can."""
    unlinked = ""
    usable = [
        position
        for position, place in enumerate(taker.view.places)
        if place.device is not None and position not in refused
    ]
    if alternative.everything:
        missing = [position for position in alternative.positions if position in refused]
        if alternative.positions and not missing:
            return ""
        wanted = "all matching devices wanted"
    else:
        if len(usable) >= alternative.count:
            unlinked = _unlinked(alternative, usable, taker)
            if not unlinked:
                return _disagreement(alternative, usable, taker)
        wanted = f"{alternative.count} {_devices(alternative.count)} wanted"
    counts = Counter(_group(refusal) for refusal in refused.values())
    total = len(refused) + len(usable)
    parts = [
        f"{count} {text}" for text, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    found = f"of {total} {_devices(total)} {len(usable)} can be used" if total else "no devices on this node"
    return f"{wanted}, {found}{unlinked}" + (f": {', '.join(parts)}" if parts else "")


def _unlinked(alternative: Alternative, usable: Sequence[int], taker: Taker) -> str:
    """Why enough devices are not linked as wanted; empty if they are."""
    for constraint in taker.constraints[alternative.claim]:
        if isinstance(constraint, LinkedSets) and constraint.applies(alternative):
            shortage = constraint.shortage(usable)
            if shortage:
                return f", but {shortage}"
    return ""


def _disagreement(alternative: Alternative, usable: Sequence[int], taker: Taker) -> str:
    """Whether a constraint alone keeps the request from being served."""
    for constraint in taker.constraints[alternative.claim]:
        if not isinstance(constraint, MatchAttribute | DistinctAttribute):
            continue
        if not constraint.applies(alternative):
            continue
        values = Counter(
            value
            for position in usable
            if (value := taker.view.device(position).attribute(constraint.attribute)) is not None
        )
        if isinstance(constraint, MatchAttribute) and alternative.count > 1:
            best = max(
                (sum(n for v, n in values.items() if constraint.matches(single, v)), str(single))
                for single in (s for value in values for s in constraint.single_values(value))
            )
            if best[0] < alternative.count:
                return (
                    f"{alternative.count} devices with one {constraint.attribute} wanted, at most {best[0]} "
                    f"of {len(usable)} free ones agree ({best[1]})"
                )
        if isinstance(constraint, DistinctAttribute) and len(values) < alternative.count:
            return (
                f"{alternative.count} devices with different {constraint.attribute} wanted, the "
                f"{len(usable)} free ones have {len(values)}"
            )
    return ""


def _conflicts(requests: Sequence[Request], taker: Taker) -> Iterator[str]:
    """Constraints that no two requests can satisfy together, and requests that compete."""
    for mine in taker.constraints:
        for constraint in mine:
            if not isinstance(constraint, MatchAttribute | DistinctAttribute):
                continue
            bound = [
                request
                for request in requests
                if request.claim == constraint.claim
                and any(constraint.applies(alternative) for alternative in request.alternatives)
            ]
            if len(bound) > 1:
                names = ", ".join(request.name for request in bound)
                kind = "one" if isinstance(constraint, MatchAttribute) else "different"
                yield f"the requests {names} must have {kind} {constraint.attribute}"
    if len(requests) > 1:
        wanted = sum(min(a.count for a in request.alternatives) for request in requests)
        yield f"each of {len(requests)} requests could be served alone, but not all {wanted} devices together"


def _group(refusal: Refused) -> str:
    """Refusals of one kind in the same words."""
    return _WORDS.get(refusal.code) or refusal.text


_WORDS = {
    Code.CLASS: "not of the device class",
    Code.SELECTOR: "not selected",
    Code.CAPACITY: "without enough capacity",
    Code.COUNTER: "without enough counters",
    Code.HELD: "held by other claims",
    Code.NODE: "not reachable from the node",
    Code.COMPATIBILITY: "not compatible with allocated ones",
}


def _pools(view: View) -> Iterator[str]:
    for pool in view.pools:
        if pool.incomplete or pool.invalid:
            yield f"pool {pool.id} cannot be used: {pool.incomplete or pool.invalid}"


def _devices(count: int) -> str:
    return "device" if count == 1 else "devices"
