"""What the links of a node say about sets of its GPUs, as functions of bitmasks, remembered per layout.

Nodes of the same layout share one `Topology` (see `topology_of`), so that each answer is worked out once.
Every answer ends soon, whatever the links are: where the exact one may take exponential time, it is exact on
nodes of eight GPUs and a bound beyond.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, TypeVar

from tangram.model.links import LinkMatrix, LinkRow

T = TypeVar("T")

GROUP_SIZES = (8, 4, 2)
_EXACT_RING = 8
"""GPUs up to which the best ring is looked for; the time doubles with each more."""
_CLIQUE_STEPS = 2_000
"""Sets tried for one answer about linked sets."""
_REMEMBERED = 16_384
"""Answers kept per topology: all there are on a node of 14 GPUs."""


class Rest(NamedTuple):
    """How useful a set of free GPUs is, most valuable first: for 8, 4 and 2 GPUs, how many disjoint fully
    linked sets it holds, and how many of the published groups of that size are wholly in it.

    Larger sets come first because they are the ones that cannot be made again (Koordinator weighs intact
    partitions 10000 : 100 : 1 for the same reason).
    """

    linked8: int
    groups8: int
    linked4: int
    groups4: int
    linked2: int
    groups2: int


class Topology:
    """The link matrix of a node's devices (keyed by position), and the published groups as masks.

    `twins` has a number per position, equal for GPUs that may be exchanged without changing any link or
    group.
    """

    def __init__(self, matrix: LinkMatrix, groups: dict[int, tuple[int, ...]]) -> None:
        count = len(matrix.rows)
        self._matrix = matrix
        self._groups = groups
        self._links = _link_table(matrix)
        self._neighbours = tuple(
            sum(1 << other for other, links in enumerate(row) if links) for row in self._links
        )
        widths = {self._links[a][b] for a in range(count) for b in range(a)}
        self._uniform = widths.pop() if len(widths) == 1 else None if widths else 0
        self.twins = _twins(self._links, groups)
        self._ring: dict[int, int] = {}
        self._rest: dict[int, Rest] = {}

    def neighbours(self, position: int) -> int:
        """The mask of GPUs linked with this one."""
        return self._neighbours[position]

    def fully_linked(self, mask: int) -> bool:
        """True if every two GPUs of the mask are linked."""
        left = mask
        while left:
            low = left & -left
            if mask & ~low & ~self._neighbours[low.bit_length() - 1]:
                return False
            left ^= low
        return True

    def ring_links(self, mask: int) -> int:
        """Links of the narrowest hop on the best ring through the set (`LinkMatrix.ring_links`).

        Of more than eight GPUs that are not all equally linked it is the narrowest link of any two: no ring
        is narrower.
        """
        count = mask.bit_count()
        if count < 2:
            return 0
        if self._uniform is not None:
            return self._uniform
        known = self._ring.get(mask)
        if known is None:
            positions = _positions(mask)
            if count <= _EXACT_RING:
                known = self._matrix.ring_links(positions)
            else:
                known = min(self._links[a][b] for a in positions for b in positions if a < b)
            _remember(self._ring, mask, known)
        return known

    def largest_linked(self, mask: int) -> tuple[int, bool]:
        """How many GPUs the largest fully linked subset has, and whether that is certain: of many GPUs with
        irregular links there may be a larger one."""
        search = _Cliques(self._neighbours)
        return search.largest(mask), search.steps > 0

    def rest(self, free: int) -> Rest:
        """The usefulness of the free GPUs."""
        known = self._rest.get(free)
        if known is None:
            values: list[int] = []
            for size in GROUP_SIZES:
                values.append(self._disjoint_linked(free, size))
                values.append(sum(group & free == group for group in self._groups.get(size, ())))
            known = Rest(*values)
            _remember(self._rest, free, known)
        return known

    def _disjoint_linked(self, free: int, size: int) -> int:
        """The largest number of disjoint fully linked sets of `size` within `free` that is soon found."""
        if self._uniform is not None:
            return free.bit_count() // size if self._uniform else 0
        return _Cliques(self._neighbours).disjoint(free, size)


class _Cliques:
    """Searches for fully linked sets, with a common number of steps."""

    def __init__(self, neighbours: tuple[int, ...]) -> None:
        self._neighbours = neighbours
        self.steps = _CLIQUE_STEPS

    def largest(self, candidates: int, *, chosen: int = 0, best: int = 0) -> int:
        """The size of the largest set: of `chosen` linked GPUs and more of `candidates`, or `best`."""
        best = max(best, chosen)
        while candidates and chosen + candidates.bit_count() > best and self.steps > 0:
            self.steps -= 1
            low = candidates & -candidates
            candidates ^= low
            linked = candidates & self._neighbours[low.bit_length() - 1]
            best = self.largest(linked, chosen=chosen + 1, best=best)
        return best

    def disjoint(self, free: int, size: int) -> int:
        """How many disjoint sets of `size`. When the steps are used up, the first sets found count."""
        bound = free.bit_count() // size
        if not bound:
            return 0
        low = free & -free
        without = free ^ low
        best = 0
        for group in self._containing(low, without & self._neighbours[low.bit_length() - 1], size - 1):
            best = max(best, 1 + self.disjoint(free & ~group, size))
            if best == bound or self.steps <= 0:
                return best
        return max(best, self.disjoint(without, size))

    def _containing(self, chosen: int, candidates: int, missing: int) -> Iterator[int]:
        """Linked sets of `chosen` and `missing` of the candidates, all of which are linked with it."""
        if not missing:
            yield chosen
            return
        while candidates.bit_count() >= missing and self.steps > 0:
            self.steps -= 1
            low = candidates & -candidates
            candidates ^= low
            linked = candidates & self._neighbours[low.bit_length() - 1]
            yield from self._containing(chosen | low, linked, missing - 1)


def topology_of(rows: tuple[str, ...], groups: dict[int, tuple[str | None, ...]]) -> Topology:
    """The topology of published attributes: `nvlinkLinks` of each device, and per size its `nvlinkGroupN`.

    `rows` must be in order of `ordinal` without a gap: ordinals in them are positions. Equal input gives the
    same object.
    """
    return _topology_of(rows, tuple(sorted(groups.items())))


@lru_cache(maxsize=1024)
def _topology_of(rows: tuple[str, ...], groups: tuple[tuple[int, tuple[str | None, ...]], ...]) -> Topology:
    masks: dict[int, tuple[int, ...]] = {}
    for size, ids in groups:
        by_id: dict[str, int] = {}
        for position, group_id in enumerate(ids):
            if group_id is not None:
                by_id[group_id] = by_id.get(group_id, 0) | 1 << position
        masks[size] = tuple(by_id.values())
    return Topology(LinkMatrix({i: LinkRow.decode(row) for i, row in enumerate(rows)}), masks)


def _link_table(matrix: LinkMatrix) -> tuple[tuple[int, ...], ...]:
    """Links by two positions."""
    count = len(matrix.rows)
    return tuple(tuple(matrix.links(a, b) for b in range(count)) for a in range(count))


def _twins(links: tuple[tuple[int, ...], ...], groups: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Numbers of classes of positions that are alike: same links to all others, same groups."""
    classes: list[int] = []  # one member of each
    numbers: list[int] = []
    for a, row in enumerate(links):
        for number, b in enumerate(classes):
            same_links = all(row[c] == links[b][c] for c in range(len(row)) if c not in (a, b))
            same_groups = all(mask >> a & 1 == mask >> b & 1 for masks in groups.values() for mask in masks)
            if same_links and same_groups:
                numbers.append(number)
                break
        else:
            numbers.append(len(classes))
            classes.append(a)
    return tuple(numbers)


def _remember(known: dict[int, T], mask: int, answer: T) -> None:
    if len(known) >= _REMEMBERED:
        known.clear()
    known[mask] = answer


def _positions(mask: int) -> tuple[int, ...]:
    return tuple(position for position in range(mask.bit_length()) if mask >> position & 1)
