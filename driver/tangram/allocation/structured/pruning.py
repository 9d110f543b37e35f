"""What cannot succeed is not tried: counting, matching, and devices that are alike.

Everything here leaves out only branches that hold no solution, or none that another branch does not hold in
the same way, so that the first solution found stays the first. It may be used only where no branch can end in
an error (`traces.safe`), which leaving it out would hide.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from tangram.allocation.structured.candidates import Taker
from tangram.allocation.structured.cluster import Attribute
from tangram.allocation.structured.constraints import Constraint, DistinctAttribute, MatchAttribute
from tangram.allocation.structured.links import LinkedSets
from tangram.allocation.structured.matching import Want, can_be_served
from tangram.allocation.structured.requests import MAXIMUM_RESULTS, Alternative, Request


def _may_be_too_many(requests: Sequence[Request]) -> bool:
    most = Counter[int]()
    for request in requests:
        most[request.claim] += max(alternative.count for alternative in request.alternatives)
    return any(count > MAXIMUM_RESULTS for count in most.values())


_PAIRS_PER_STEP = 64
_COUNTERS_PER_STEP = 32


class Pruning:
    """Knowledge about one decision. Masks have a bit per rank in the order of search."""

    def __init__(
        self,
        requests: Sequence[Request],
        taker: Taker,
        order: Sequence[int],
        *,
        signature: Sequence[Hashable] | None = None,
    ) -> None:
        self._requests = requests
        self._order = order
        self._ranks = {position: rank for rank, position in enumerate(order)}
        self._masks = {
            alternative.index: self._fitting(alternative, taker)
            for request in requests
            for alternative in request.alternatives
        }
        self._deriving = [a for request in requests for a in request.alternatives if a.derived]
        self._held = self._mask(taker.ledger.held)
        self._kinds = [self._kind(taker, position, signature) for position in range(len(order))]
        self._multiple = [taker.multiple(position) for position in range(len(order))]
        self._admin = any(a.admin for request in requests for a in request.alternatives)
        self._counting = sum(1 << r for r, p in enumerate(order) if taker.view.device(p).consumes)
        alternatives = sum(len(request.alternatives) for request in requests)
        self.steps = 2 + alternatives * len(order) // (
            _PAIRS_PER_STEP // 2 if self._counting else _PAIRS_PER_STEP
        )
        """What counting once takes, in devices looked at."""
        self._counted = 0
        self._draws: dict[int, tuple[tuple[Hashable, str], Mapping[str, int]]] = {}
        self._permutes = taker.view.features.permutes
        self._counts_results = _may_be_too_many(requests)
        self._known: dict[tuple[MatchAttribute, Attribute | None, int | None], int] = {}
        self._failed: set[Hashable] = set()
        self._sharing = sum(
            1 << self._ranks[p]
            for p, multiple in enumerate(self._multiple)
            if multiple and self._fits_twice(p, taker)
        )

    def _fits_twice(self, position: int, taker: Taker) -> bool:
        """False if no two shares that requests may want of a shared device have room on it."""
        demands = [
            taker.judge.demand(alternative, position).consumed
            for request in self._requests
            for alternative in request.alternatives
            if self._masks[alternative.index] >> self._ranks[position] & 1 and not alternative.admin
        ]
        if not demands:
            return False
        consumed = taker.ledger.consumed(position) or {}
        return all(
            consumed.get(name, 0) + 2 * min(demand[name].nano for demand in demands) <= capacity.value.nano
            for name, capacity in taker.view.device(position).capacity.items()
            if all(name in demand for demand in demands)
        )

    def _mask(self, positions: int) -> int:
        return sum(1 << rank for rank, position in enumerate(self._order) if positions >> position & 1)

    def _fitting(self, alternative: Alternative, taker: Taker) -> int:
        judge = taker.judge
        return sum(
            1 << rank
            for rank, position in enumerate(self._order)
            if judge.unfit(alternative, position) is None
            and judge.taint(alternative, judge.view.device(position)) is None  # which may be looked at late
            and not (taker.multiple(position) and taker.short(alternative, position))
        )

    def _kind(self, taker: Taker, position: int, signature: Sequence[Hashable] | None) -> Hashable:
        """Equal for devices that may be exchanged in every solution."""
        device, ledger = taker.view.device(position), taker.ledger
        bit = 1 << self._ranks[position]
        fitting = [a for a in self._deriving if self._masks[a.index] & bit]
        consumed = ledger.consumed(position)
        multiple = taker.multiple(position)
        return (
            tuple(bool(mask & bit) for mask in self._masks.values()),
            tuple(
                c.alike(device, [a for a in fitting if a.claim == c.claim])
                for mine in taker.constraints
                for c in mine
            ),
            (ledger.account_key(taker.view.places[position]), device.consumes) if device.consumes else None,
            multiple,
            tuple(sorted(device.capacity.items())) if multiple else None,
            tuple(sorted(consumed.items())) if consumed else consumed is None,
            ledger.is_shared(position) if multiple else None,
            bool(ledger.held >> position & 1),
            signature[position] if signature is not None else None,
        )

    def kind(self, position: int, taker: Taker) -> Hashable:
        """Equal for devices that may be exchanged in what is left of the search."""
        static = self._kinds_index[position]
        if self._admin:
            return (static, taker.ledger.marks[position], taker.ledger.admin_marks[position])
        if self._multiple[position] and taker.ledger.shares.get(position):
            return (static, self._shared(position, taker))
        return static

    def _shared(self, position: int, taker: Taker) -> Hashable:
        """Equal for devices of one kind of which others may still have the same."""
        ledger = taker.ledger
        consumed = ledger.consumed(position)
        return (len(ledger.shares[position]), tuple(sorted(consumed.items())) if consumed else None)

    @cached_property
    def _kinds_index(self) -> list[int]:
        """The kinds as small numbers."""
        numbers: dict[Hashable, int] = {}
        return [numbers.setdefault(kind, len(numbers)) for kind in self._kinds]

    def candidates(self, alternative: Alternative, taker: Taker, start: int, needed: int) -> Iterator[int]:
        """The positions worth trying, or none if there are too few of them."""
        mask = self._open(alternative, taker) >> start << start
        alone, missing = self._alone(mask, needed)
        if alone.bit_count() < missing:
            return iter(())
        return self._positions(mask)

    def _positions(self, mask: int) -> Iterator[int]:
        while mask:
            low = mask & -mask
            mask ^= low
            yield self._order[low.bit_length() - 1]

    def _open(self, alternative: Alternative, taker: Taker) -> int:
        mask = self._masks[alternative.index]
        for position, shares in taker.ledger.shares.items():
            bit = 1 << self._ranks[position]
            if shares and mask & bit:
                self._counted += len(taker.view.device(position).capacity) // 2
                if taker.short(alternative, position):
                    mask ^= bit
        if not alternative.admin:
            mask &= ~self._held & ~self._marked(taker)
        for constraint in taker.constraints[alternative.claim]:
            if isinstance(constraint, MatchAttribute) and constraint.applies(alternative):
                mask &= self._agreeing(constraint, alternative, constraint.common, taker)
        return mask

    def _marked(self, taker: Taker) -> int:
        mask = 0
        for taken in taker.taken:
            if taken.share is None and (not taken.alternative.admin or taker.ledger.marks[taken.position]):
                mask |= 1 << self._ranks[taken.position]
        return mask

    def _agreeing(
        self, constraint: MatchAttribute, alternative: Alternative, common: Attribute | None, taker: Taker
    ) -> int:
        """The devices that have the attribute, with something in common with `common` (if given); of a
        derived one, those among the devices that the (sub)request may have."""
        derives = constraint.derives(alternative)
        key = (constraint, common, alternative.index if derives else None)
        known = self._known.get(key)
        if known is None:
            asked = self._masks[alternative.index] if derives else (1 << len(self._order)) - 1
            known = self._known[key] = sum(
                1 << self._ranks[position]
                for position in self._positions(asked)
                if constraint.agrees(alternative, taker.view.device(position), common)
            )
        return known

    def spent(self) -> int:
        """What looking at counters and capacities took since it was asked last, in devices looked at."""
        spent, self._counted = divmod(self._counted, _COUNTERS_PER_STEP)
        return spent

    # --- at the beginning of each request ---

    def enter(self, request: int, taker: Taker) -> bool:
        """False if no solution is left: seen before, or impossible by counting."""
        state = self._state(request, taker)
        if state in self._failed:
            return False
        self._failed.add(state)  # it fails, or the search ends
        return self.can_be_served(request, taker)

    def _state(self, request: int, taker: Taker) -> Hashable:
        """Equal for states that differ only in devices that may be exchanged."""
        used: dict[Hashable, int] = {}
        shared = set()
        for taken in taker.taken:
            kind: Hashable = self._kinds_index[taken.position]
            if self._admin:
                kind = (kind, taken.position, taken.alternative.claim, taken.alternative.index)
            elif taken.share is not None:
                if taken.position in shared:
                    continue
                shared.add(taken.position)
                kind = (kind, self._shared(taken.position, taker))
            used[kind] = used.get(kind, 0) + 1
        values: list[Hashable] = []
        for mine in taker.constraints:
            for constraint in mine:
                if isinstance(constraint, MatchAttribute):
                    values.append(constraint.common)
                elif isinstance(constraint, DistinctAttribute):
                    values.append(constraint.taken)
        results = tuple(taker.results) if self._counts_results else None
        return (request, frozenset(used.items()), tuple(values), results)

    def can_be_served(
        self, start: int, taker: Taker, partial: tuple[Alternative, int, int] | None = None
    ) -> bool:
        """Whether the requests from `start` on can have enough devices: all of them together, and for some
        value of each matchAttribute; with different values of each distinctAttribute.

        `partial`: a request that has some of its devices, the rank from which on it may have more, and how
        many more it needs.
        """
        wants = list(self._wants(start, taker, partial))
        if not self._served([(want.mask, want.fewest) for want in wants]):
            return False
        if not self._counters_suffice(wants, taker):
            return False
        for mine in taker.constraints:
            for constraint in mine:
                if isinstance(constraint, MatchAttribute):
                    possible = self._agreeable(constraint, wants, taker)
                elif isinstance(constraint, DistinctAttribute):
                    possible = self._distinguishable(constraint, wants, taker)
                else:
                    possible = self._linkable(constraint, wants)
                if not possible:
                    return False
        return True

    def _wants(
        self, start: int, taker: Taker, partial: tuple[Alternative, int, int] | None
    ) -> Iterator[Want]:
        """What must still be served, without admin access and `All`: they count otherwise."""
        if partial is not None:
            alternative, rank, count = partial
            if count and not (alternative.admin or alternative.everything):
                yield Want((alternative,), count, self._open(alternative, taker) >> rank << rank)
        for request in self._requests[start:]:
            if any(a.admin or a.everything for a in request.alternatives):
                continue
            open_ = 0
            for alternative in request.alternatives:
                open_ |= self._open(alternative, taker)
            fewest = min(alternative.count for alternative in request.alternatives)
            yield Want(request.alternatives, fewest, open_)

    def _served(self, wants: Iterable[tuple[int, int]]) -> bool:
        """Whether each (mask, count) can have that many devices of its mask."""
        return can_be_served([self._alone(mask, count) for mask, count in wants])

    def _alone(self, mask: int, count: int) -> tuple[int, int]:
        """The devices that cannot be shared, and how many of them are needed if each request gets all the
        shared ones: once, or as often as it likes (`Features.permutes`)."""
        shared = (mask & self._sharing).bit_count()
        if not shared:
            return mask, count
        return mask & ~self._sharing, 0 if self._permutes else max(count - shared, 0)

    def _counters_suffice(self, wants: Sequence[Want], taker: Taker) -> bool:
        """Whether the counters have room for so many devices, if each took the least: each request by itself,
        and all together."""
        if not self._counting:
            return True
        together = needed = 0
        rooms: dict[int, int] = {}  # many requests are equal
        for want in wants:
            mask, count = self._alone(want.mask, want.fewest)
            together |= mask
            needed += count
            if mask not in rooms:
                rooms[mask] = self._room(mask, taker)
            if rooms[mask] < count:
                return False
        if together not in rooms:
            rooms[together] = self._room(together, taker)
        return rooms[together] >= needed

    def _room(self, mask: int, taker: Taker) -> int:
        """An upper bound of how many of these devices fit together."""
        room = (mask & ~self._counting).bit_count()
        least: dict[tuple[Hashable, str], Mapping[str, int]] = {}
        number: dict[tuple[Hashable, str], int] = {}
        rests: dict[tuple[Hashable, str], Mapping[tuple[str, str], int]] = {}
        for position in self._positions(mask & self._counting):
            if self._multiple[position] and taker.ledger.is_shared(position):
                room += 1  # the first share has paid for the others
                continue
            key, amounts = self._draw(position, taker)
            number[key] = number.get(key, 0) + 1
            if key not in rests:
                rests[key] = taker.ledger.rest(position)
            known = least.get(key)
            if known is None:
                least[key] = amounts
            else:  # only counters that all of them use
                self._counted += len(known)
                least[key] = {c: min(n, amounts[c]) for c, n in known.items() if c in amounts}
        for (account, counter_set), amounts in least.items():
            fits = number[account, counter_set]
            for counter, amount in amounts.items():
                rest = rests[account, counter_set].get((counter_set, counter))
                if rest is not None and amount > 0:
                    fits = min(fits, max(rest, 0) // amount)
            room += fits
        return room

    def _draw(self, position: int, taker: Taker) -> tuple[tuple[Hashable, str], Mapping[str, int]]:
        """The counter set that a device draws on first, with its account, and what it takes."""
        found = self._draws.get(position)
        if found is None:
            consumed = taker.view.device(position).consumes[0]
            key = (taker.ledger.account_key(taker.view.places[position]), consumed.counter_set)
            found = self._draws[position] = (key, dict(consumed.counters))
        return found

    def _linkable(self, constraint: Constraint, wants: Sequence[Want]) -> bool:
        """Whether there are enough linked sets for a request that has no device yet, by itself."""
        return not isinstance(constraint, LinkedSets) or all(
            constraint.possible(tuple(self._positions(want.mask)))
            for want in wants
            if _bound(want, constraint) and want.fewest == want.alternatives[0].count
        )

    def _distinguishable(self, constraint: DistinctAttribute, wants: Sequence[Want], taker: Taker) -> bool:
        """Whether all constrained requests can have different values; lists count by their elements."""
        numbers: dict[object, int] = {}
        values = []
        for want in wants:
            if not _bound(want, constraint):
                continue
            mask = 0
            for value in self._values(constraint, [want], taker):
                for element in value.values or (None,):
                    mask |= 1 << numbers.setdefault((value.kind, element), len(numbers))
            values.append((mask, want.fewest))
        return can_be_served(values)

    def _agreeable(self, constraint: MatchAttribute, wants: Sequence[Want], taker: Taker) -> bool:
        """Whether some value of the attribute is left that all constrained requests can agree on."""
        bound = [want for want in wants if _bound(want, constraint)]
        if not bound:
            return True
        found = self._values(constraint, bound, taker)
        if any(constraint.is_alone(value) for value in found):
            return True
        others = [(want.mask, want.fewest) for want in wants if want not in bound]
        for value in {single for each in found for single in constraint.single_values(each)}:
            narrowed = [(self._narrowed(constraint, want, value, taker), want.fewest) for want in bound]
            if self._served([*narrowed, *others]):
                return True
        return False

    def _values(
        self, constraint: MatchAttribute | DistinctAttribute, wants: Sequence[Want], taker: Taker
    ) -> set[Attribute]:
        """What the devices have that could be given, each as the (sub)requests see it that could get it."""
        seen: dict[int | None, tuple[Alternative, int]] = {}
        for want in wants:
            for alternative in want.alternatives:
                key = alternative.index if constraint.derives(alternative) else None
                mask = want.mask & self._masks[alternative.index]
                seen[key] = (alternative, mask | seen[key][1] if key in seen else mask)
        return {
            value
            for alternative, mask in seen.values()
            for position in self._positions(mask)
            if (value := constraint.value(alternative, taker.view.device(position))) is not None
        }

    def _narrowed(self, constraint: MatchAttribute, want: Want, value: Attribute, taker: Taker) -> int:
        """The devices of a want that agree with the value."""
        mask = 0
        for alternative in want.alternatives:
            fitting = self._masks[alternative.index]
            mask |= fitting & self._agreeing(constraint, alternative, value, taker)
        return want.mask & mask


def _bound(want: Want, constraint: Constraint) -> bool:
    """True if the constraint is about all devices that could be given."""
    if not want.fewest:
        return False
    return all(a.claim == constraint.claim and constraint.applies(a) for a in want.alternatives)
