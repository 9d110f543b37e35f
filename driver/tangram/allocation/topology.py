"""What the links of a node say about sets of its GPUs, as functions of bitmasks, remembered per layout.

Nodes of the same layout share one `Topology` (see `topology_of`), so that each answer is worked out once.
"""

from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from tangram.model.links import LinkMatrix, LinkRow

GROUP_SIZES = (8, 4, 2)


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
    """The link matrix of a node's devices (keyed by position), and the published groups as masks."""

    def __init__(self, matrix: LinkMatrix, groups: dict[int, tuple[int, ...]]) -> None:
        self.matrix = matrix
        self._groups = groups
        count = len(matrix.rows)
        self._neighbours = [
            sum(1 << other for other in range(count) if matrix.links(position, other))
            for position in range(count)
        ]
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
        """Links of the narrowest hop on the best ring through the set (`LinkMatrix.ring_links`)."""
        known = self._ring.get(mask)
        if known is None:
            known = self._ring[mask] = self.matrix.ring_links(_positions(mask))
        return known

    def partitions(self, mask: int, size: int) -> bool:
        """True if the set can be split into fully linked sets of `size`."""
        if not mask:
            return True
        first = (mask & -mask).bit_length() - 1
        candidates = mask & self._neighbours[first]
        for others in combinations(_positions(candidates), size - 1):
            group = 1 << first | _mask(others)
            if self.fully_linked(group) and self.partitions(mask & ~group, size):
                return True
        return False

    def largest_linked(self, mask: int) -> int:
        """How many GPUs the largest fully linked subset has."""
        for size in range(mask.bit_count(), 1, -1):
            if any(self.fully_linked(_mask(group)) for group in combinations(_positions(mask), size)):
                return size
        return min(mask.bit_count(), 1)

    def rest(self, free: int) -> Rest:
        """The usefulness of the free GPUs."""
        known = self._rest.get(free)
        if known is None:
            values: list[int] = []
            for size in GROUP_SIZES:
                values.append(self._disjoint_linked(free, size))
                values.append(sum(group & free == group for group in self._groups.get(size, ())))
            known = self._rest[free] = Rest(*values)
        return known

    def _disjoint_linked(self, free: int, size: int) -> int:
        """The largest number of disjoint fully linked sets of `size` within `free`."""
        if free.bit_count() < size:
            return 0
        if self.fully_linked(free):
            return free.bit_count() // size
        first = (free & -free).bit_length() - 1
        without = free & ~(1 << first)
        best = self._disjoint_linked(without, size)
        limit = free.bit_count() // size
        for others in combinations(_positions(without & self._neighbours[first]), size - 1):
            if best == limit:
                break
            group = _mask(others)
            if self.fully_linked(group):
                best = max(best, 1 + self._disjoint_linked(without & ~group, size))
        return best


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


def _mask(positions: tuple[int, ...]) -> int:
    return sum(1 << position for position in positions)


def _positions(mask: int) -> tuple[int, ...]:
    return tuple(position for position in range(mask.bit_length()) if mask >> position & 1)
