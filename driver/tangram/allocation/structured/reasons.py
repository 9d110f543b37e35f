"""Why claims do not fit on a node: every device that was refused, and one line for people.

Each (sub)request is looked at by itself, on the state before the decision. What could be served so is in
conflict with other requests, or with a constraint: then the line says with which.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from tangram import DRIVER_NAME
from tangram.allocation.structured.account import TooDear
from tangram.allocation.structured.candidates import Taker
from tangram.allocation.structured.capacity import Lacking
from tangram.allocation.structured.cluster import Device
from tangram.allocation.structured.constraints import DistinctAttribute, MatchAttribute
from tangram.allocation.structured.judge import Judge
from tangram.allocation.structured.ledger import Lack
from tangram.allocation.structured.links import LinkedSets
from tangram.allocation.structured.outcome import Code, FatalError, Reasons, Refusal, Shortage
from tangram.allocation.structured.requests import Alternative, Request
from tangram.allocation.structured.state import claim_name
from tangram.allocation.structured.view import Refused, View
from tangram.model.kubernetes import ResourceClaim


def explain(
    requests: Sequence[Request],
    claims: Sequence[ResourceClaim],
    taker: Taker,
    *,
    exhausted: bool,
    in_words: bool,
) -> Reasons:
    """`taker` must have nothing taken. Without `in_words` only the counts: words take time of their own."""
    words = _Words(taker)
    looks = [
        [
            _Look(alternative, dict(_refused(alternative, taker)), taker, words)
            for alternative in request.alternatives
        ]
        for request in requests
    ]
    shortage = _shortage(looks, taker, exhausted=exhausted)
    if not in_words:
        return Reasons(shortage=shortage)
    refusals = tuple(
        Refusal(
            claim=claim_name(claims[request.claim]),
            request=look.alternative.name,
            device=taker.view.device(position).id,
            code=refusal.code,
            text=refusal.text,
        )
        for request, mine in zip(requests, looks, strict=True)
        for look in mine
        for position, refusal in look.said.items()
    )
    lines = [
        f"{_name(request, claims)}: {'; or '.join(look.line for look in mine)}"
        for request, mine in zip(requests, looks, strict=True)
        if all(look.cause for look in mine)
    ]
    if not lines:
        lines = list(_conflicts(requests, claims, taker, exhausted=exhausted))
    if exhausted:
        lines = ["the search was ended before all possibilities were tried", *lines]
    elif not lines:
        lines = [
            f"{_name(request, claims)}: {'; or '.join(look.line or look.together() for look in mine)}"
            for request, mine in zip(requests, looks, strict=True)
        ]
    return Reasons(summary="; ".join([*lines, *_pools(taker.view)]), refusals=refusals, shortage=shortage)


def _name(request: Request, claims: Sequence[ResourceClaim]) -> str:
    """With the claim where there are several."""
    name = f"request {request.name}"
    return name if len(claims) < 2 else f"claim {claim_name(claims[request.claim])}, {name}"


class _Words:
    """Refusals put into words, once for all devices that are refused for the same."""

    def __init__(self, taker: Taker) -> None:
        self._taker = taker
        # With what was put into words, so that nothing else gets its id.
        self._known: dict[int, tuple[Refused, Refused]] = {}

    def of(self, refused: Mapping[int, Refused]) -> dict[int, Refused]:
        """The same with texts."""
        return {position: self._said(refusal, position) for position, refusal in refused.items()}

    def _said(self, refusal: Refused, position: int) -> Refused:
        known = self._known.get(id(refusal))
        if known is None:
            said = Refused(refusal.code, self._text(refusal, position), refusal.short)
            known = self._known[id(refusal)] = (refusal, said)
        return known[1]

    def _text(self, refusal: Refused, position: int) -> str:
        """Of what has too little left also who has the rest."""
        if isinstance(refusal.what, Lack):
            return _after(refusal.what, position, self._taker)
        if isinstance(refusal.what, Lacking):
            holders = self._taker.ledger.holders(self._taker.view.device(position).id)
            return f"{refusal.what} after {_claims(holders)}" if holders else str(refusal.what)
        return refusal.text


class _Look:
    """One (sub)request by itself: who is refused, who is left, and what is missing (`line`, `cause`; empty
    if it can be served)."""

    def __init__(
        self, alternative: Alternative, refused: Mapping[int, Refused], taker: Taker, words: _Words
    ) -> None:
        self.alternative = alternative
        self.refused = refused
        self.usable = tuple(
            position
            for position, place in enumerate(taker.view.places)
            if place.device is not None and position not in refused
        )
        self._words = words
        self._disagrees = self._but = self.cause = ""
        if alternative.everything:
            missing = [position for position in alternative.positions if position in refused]
            if not alternative.positions or missing:
                self.cause = f"request {alternative.name} wants all {len(alternative.positions)} that match"
        elif len(self.usable) < alternative.count:
            self.cause = f"request {alternative.name} needs {alternative.count}"
        elif unlinked := _unlinked(alternative, self.usable, taker):
            self.cause = unlinked
            self._but = f", but {unlinked}"
        else:
            self._disagrees, self.cause = _disagreement(alternative, self.usable, taker)

    @cached_property
    def said(self) -> dict[int, Refused]:
        """Who is refused, in words."""
        return self._words.of(self.refused)

    @cached_property
    def line(self) -> str:
        if not self.cause or self._disagrees:
            return self._disagrees
        wanted = "all matching devices wanted" if self.alternative.everything else _wanted(self.alternative)
        return f"{wanted}, {self._found(self._but)}"

    def together(self) -> str:
        """For a request that could be served if its devices took nothing from each other."""
        few = ", but not so many of them together"
        return f"{_wanted(self.alternative)}, {self._found(few)}"

    def _found(self, but: str) -> str:
        groups: dict[str, list[Refused]] = {}
        for refusal in self.said.values():
            groups.setdefault(_group(refusal), []).append(refusal)
        total = len(self.refused) + len(self.usable)
        ranked = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
        parts = ", ".join(f"{len(mine)} {_closer(words, mine)}" for words, mine in ranked)
        if not total:
            return f"no devices on this node{but}"
        found = f"of {total} {_devices(total)} {len(self.usable)} can be used{but}"
        return f"{found}: {parts}" if parts else found


def _shortage(looks: Sequence[Sequence[_Look]], taker: Taker, *, exhausted: bool) -> Shortage:
    """About the first request that cannot be served by itself, in the way that comes closest; else about all
    requests, by the devices that none of them can have."""
    several = len(looks) > 1
    for mine in looks:
        if mine and all(look.cause for look in mine):
            look = min(mine, key=lambda look: len(look.refused))
            cause = look.cause
            name = look.alternative.name if several else ""
            refused = {position: (refusal, name) for position, refusal in look.refused.items()}
            return _counted(refused, look.usable, cause, taker)
    usable = sorted({position for mine in looks for look in mine for position in look.usable})
    wanted = sum(min(look.alternative.count for look in mine) for mine in looks if mine)
    refused = {
        position: (refusal, look.alternative.name if several else "")
        for mine in reversed(looks)
        for look in reversed(mine)
        for position, refusal in look.refused.items()
        if position not in usable
    }
    cause = "no way to give each request of the pod its devices"
    if exhausted:
        cause = "the search for a set ended before one was found"
    elif wanted > len(usable):
        cause = f"the pod needs {wanted}"
    elif names := _shared_attributes([look for mine in looks for look in mine], taker):
        cause = f"no set for all requests of a claim agrees in {names}"
    elif [len(mine) for mine in looks] == [1]:
        cause = f"no {wanted} of those go together"
    return _counted(refused, usable, cause, taker)


def _counted(
    refused: Mapping[int, tuple[Refused, str]], usable: Sequence[int], cause: str, taker: Taker
) -> Shortage:
    """`refused`: with the name of the request that the refusal is about, where there are several."""
    own = {position: item for position, item in refused.items() if item[0].code not in _OTHERS}
    about = (*usable, *own) or tuple(refused)
    return Shortage(
        refused=dict(Counter(_short(refusal, name) for refusal, name in own.values())),
        left=len(usable),
        cause=cause,
        others=len(refused) - len(own),
        kinds=frozenset(kind_of(taker.view.device(position)) for position in about),
        unusable=next((text for pool in taker.view.pools if (text := pool.incomplete or pool.invalid)), ""),
    )


def of_class(judge: Judge, alternative: Alternative, position: int) -> bool:
    """Whether a device is of the class that is asked for."""
    verdict = judge.verdict(alternative.matches, position)
    return verdict is None or verdict.code not in _OTHERS


def kind_of(device: Device) -> str:
    """`type` of a device of our driver; empty for others."""
    if device.id.driver != DRIVER_NAME:
        return ""
    return str(device.cel.attributes.get(DRIVER_NAME, {}).get("type", ""))


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
            refusal = taker.in_use(alternative, position) or taker.take(alternative, position, 0)
            if refusal is None:
                taker.put_back()
    except FatalError as error:
        return Refused(Code.SELECTOR, str(error))
    except TooDear as error:
        return Refused(Code.BUDGET, f"not looked at: {error}")
    return refusal


def _after(lack: Lack, position: int, taker: Taker) -> str:
    """A counter that has too little left, with the claims that have the rest."""
    users = taker.ledger.users(position, lack.counter_set)
    place = taker.view.places[position]
    if users and place.slice is not None and lack.counter_set in dict(place.slice.derived_sets):
        return f"{_ON_HARDWARE} {_claims(users)} {'have' if len(users) > 1 else 'has'}"
    return f"{lack} after {_claims(users)}" if users else str(lack)


def _claims(names: Sequence[str]) -> str:
    shown = f"claim{'s' if len(names) > 1 else ''} {', '.join(names[:_MOST_USERS])}"
    return f"{shown} and {len(names) - _MOST_USERS} more" if len(names) > _MOST_USERS else shown


def _wanted(alternative: Alternative) -> str:
    return f"{alternative.count} {_devices(alternative.count)} wanted"


def _unlinked(alternative: Alternative, usable: Sequence[int], taker: Taker) -> str:
    """Why enough devices are not linked as wanted; empty if they are."""
    for constraint in taker.constraints[alternative.claim]:
        if isinstance(constraint, LinkedSets) and constraint.applies(alternative):
            shortage = constraint.shortage(usable)
            if shortage:
                return shortage
    return ""


def _disagreement(alternative: Alternative, usable: Sequence[int], taker: Taker) -> tuple[str, str]:
    """Whether a constraint alone keeps the request from being served: in one line, and in short."""
    count = alternative.count
    for constraint in taker.constraints[alternative.claim]:
        if not isinstance(constraint, MatchAttribute | DistinctAttribute):
            continue
        if not constraint.applies(alternative):
            continue
        name = constraint.attribute
        values = Counter(
            value
            for position in usable
            if (value := constraint.value(alternative, taker.view.device(position))) is not None
        )
        if isinstance(constraint, MatchAttribute) and (count > 1 or not values):
            best = max(
                (
                    (sum(n for v, n in values.items() if constraint.matches(single, v)), str(single))
                    for single in (s for value in values for s in constraint.single_values(value))
                ),
                default=(0, "none has it"),
            )
            if best[0] < count:
                line = (
                    f"{count} {_devices(count)} with one {name} wanted, at most {best[0]} of {len(usable)} "
                    f"free ones agree ({best[1]})"
                )
                return line, f"no {count} of those agree in {name}"
        if isinstance(constraint, DistinctAttribute) and len(values) < count:
            line = (
                f"{count} {_devices(count)} with different {name} wanted, the {len(usable)} free ones have "
                f"{len(values)}"
            )
            return line, f"those have only {len(values)} different {name}, where {count} are needed"
    return "", ""


def _shared_attributes(looks: Sequence[_Look], taker: Taker) -> str:
    """The attributes in which requests of one claim must agree."""
    names = {
        constraint.attribute
        for claim, mine in enumerate(taker.constraints)
        for constraint in mine
        if isinstance(constraint, MatchAttribute)
        and sum(look.alternative.claim == claim and constraint.applies(look.alternative) for look in looks)
        > 1
    }
    return ", ".join(sorted(names))


def _conflicts(
    requests: Sequence[Request], claims: Sequence[ResourceClaim], taker: Taker, *, exhausted: bool
) -> Iterator[str]:
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
                whose = f" of claim {claim_name(claims[constraint.claim])}" if len(claims) > 1 else ""
                yield f"the requests {names}{whose} must have {kind} {constraint.attribute}"
    if len(requests) > 1:
        wanted = sum(min(a.count for a in request.alternatives) for request in requests)
        together = f"{'no way was found for' if exhausted else 'not'} all {wanted} devices together"
        yield f"each of {len(requests)} requests could be served alone, but {together}"


def _group(refusal: Refused) -> str:
    """Refusals of one kind in the same words."""
    text = refusal.text
    if refusal.code is Code.COUNTER and text.startswith(_ON_HARDWARE):
        return "on hardware that other claims have"
    if refusal.code is Code.SELECTOR:
        return refusal.short or "not selected"
    return _WORDS.get(refusal.code) or text.removeprefix("is ")


def _closer(words: str, refusals: Sequence[Refused]) -> str:
    """The words for these refusals, and closer ones if all say the same."""
    code, text = refusals[0].code, refusals[0].text
    if code not in _CLOSER or any(refusal.text != text for refusal in refusals[1:]):
        return words
    if code is Code.HELD or text.startswith(_ON_HARDWARE):
        return text.removeprefix("is ")
    if code is Code.SELECTOR:
        return text.replace("does not match: ", "not selected by ", 1)
    return f"{words} ({text})"


def _short(refusal: Refused, request: str) -> str:
    """The cause in words that are the same for all devices that it refuses."""
    text = refusal.short or _COUNTED.get(refusal.code) or refusal.text
    if request and refusal.code in (Code.SELECTOR, Code.PARAMETERS):
        return f"{text} (request {request})"
    return text


_OTHERS = frozenset({Code.CLASS, Code.ALLOCATOR})
"""What is not for this request to count."""
_COUNTED = {
    Code.HELD: "in use by other claims",
    Code.CAPACITY: "without enough capacity left",
    Code.COUNTER: "on hardware that other devices in use share",
    Code.NODE: "not reachable from the node",
    Code.COMPATIBILITY: "not compatible with allocated ones",
}
_WORDS = {
    Code.CLASS: "not of the device class",
    Code.CAPACITY: "without enough capacity",
    Code.COUNTER: "without enough counters",
    Code.HELD: "held by other claims",
    Code.NODE: "not reachable from the node",
    Code.COMPATIBILITY: "not compatible with allocated ones",
    Code.FEATURE: "unusable",
}
_CLOSER = frozenset({Code.SELECTOR, Code.HELD, Code.CAPACITY, Code.COUNTER, Code.FEATURE})
"""Of which the words leave out something."""
_ON_HARDWARE = "is on hardware that"
_MOST_USERS = 3


def _pools(view: View) -> Iterator[str]:
    for pool in view.pools:
        if pool.incomplete or pool.invalid:
            yield f"pool {pool.id} cannot be used: {pool.incomplete or pool.invalid}"


def _devices(count: int) -> str:
    return "device" if count == 1 else "devices"
