"""The NVLink matrix of a node: who is linked to whom, how wide, and how a row is published.

A row travels in the string attribute `nvlinkLinks` (at most 64 bytes): `sw:18` for a GPU with 18 links to
the switch that connects the GPUs of the node, else `1:2,3:1` (peer ordinal : links). The matrix is rebuilt
from the rows of all GPUs of a node. Link semantics: NVML `nvmlDeviceGetNvLinkRemoteDeviceType`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

_SWITCH = re.compile(r"sw:(\d{1,3})")
_DIRECT = re.compile(r"\d{1,3}:\d{1,3}(?:,\d{1,3}:\d{1,3})*")
NO_LINKS = "none"
"""The published row of a GPU without NVLink."""
MAXIMUM_ROW_BYTES = 64
"""The limit of a string attribute of a device (`resource/v1/types.go`)."""


@dataclass(frozen=True, slots=True)
class LinkRow:
    """The links of one GPU: `switch_links` to the switch, `direct` as (peer ordinal, links), sorted."""

    switch_links: int = 0
    direct: tuple[tuple[int, int], ...] = ()

    def encode(self) -> str:
        """The attribute value. Of a row too long for it the highest ordinals are left out."""
        if self.switch_links:
            return f"sw:{self.switch_links}"
        text = ""
        for peer, links in self.direct:
            longer = f"{text},{peer}:{links}" if text else f"{peer}:{links}"
            if len(longer) > MAXIMUM_ROW_BYTES:
                break
            text = longer
        return text or NO_LINKS

    @classmethod
    def decode(cls, text: str) -> "LinkRow":
        """The row of an attribute value; anything unknown (a newer or foreign form) counts as no links."""
        if match := _SWITCH.fullmatch(text):
            return cls(switch_links=int(match[1]))
        if _DIRECT.fullmatch(text):
            pairs = (entry.split(":") for entry in text.split(","))
            return cls(direct=tuple(sorted((int(peer), int(links)) for peer, links in pairs)))
        return cls()


@dataclass(frozen=True, slots=True)
class LinkMatrix:
    """Links between the GPUs of one node.

    `rows` maps a GPU's ordinal (its position in the node's order of UUIDs) to its row.
    """

    rows: dict[int, LinkRow]

    def links(self, first: int, second: int) -> int:
        """NVLinks between two GPUs: 0 where there are none.

        Two GPUs behind a switch reach each other with the smaller of their link counts. Where the two ends of
        a direct connection disagree, the smaller count holds.
        """
        if first == second:
            return 0
        a, b = self.rows.get(first), self.rows.get(second)
        if a is None or b is None:
            return 0
        if a.switch_links and b.switch_links:
            return min(a.switch_links, b.switch_links)
        return min(dict(a.direct).get(second, 0), dict(b.direct).get(first, 0))

    def peers(self, ordinal: int) -> tuple[int, ...]:
        """The ordinals directly linked (or on one switch) with this GPU, ascending."""
        return tuple(other for other in sorted(self.rows) if self.links(ordinal, other))

    def fully_linked(self, ordinals: Iterable[int]) -> bool:
        """True if every two of these GPUs are linked (one GPU alone is)."""
        return all(self.links(a, b) for a, b in combinations(tuple(ordinals), 2))

    def ring_links(self, ordinals: Sequence[int]) -> int:
        """Links of the narrowest hop on the best ring through all these GPUs; 0 where no ring is linked.

        A collective runs at the speed of its narrowest hop, so this is the bandwidth of the set in links.
        On a switch every ring is equal; the search is for direct links (at most 2^n sets of n GPUs).
        """
        members = tuple(sorted(ordinals))
        if len(members) < 2:
            return 0
        if len(members) == 2:
            return self.links(*members)
        widths = sorted({self.links(a, b) for a, b in combinations(members, 2)} - {0}, reverse=True)
        if len(widths) == 1 and self.fully_linked(members):
            return widths[0]
        return next((width for width in widths if self._has_ring(members, at_least=width)), 0)

    def _has_ring(self, members: tuple[int, ...], *, at_least: int) -> bool:
        """Held-Karp reachability over sets of visited members: is there a Hamiltonian cycle this wide?"""
        count = len(members)
        wide = [
            sum(1 << j for j in range(count) if self.links(members[i], members[j]) >= at_least)
            for i in range(count)
        ]
        # reachable[visited] = mask of members on which a path from member 0 through `visited` can end.
        reachable = {1: 1}
        for _ in range(count - 1):
            extended: dict[int, int] = {}
            for visited, ends in reachable.items():
                for j in range(1, count):
                    if not visited >> j & 1 and wide[j] & ends:
                        extended[visited | 1 << j] = extended.get(visited | 1 << j, 0) | 1 << j
            reachable = extended
        return any(ends & wide[0] for ends in reachable.values())


def disjoint_groups(matrix: LinkMatrix, size: int) -> tuple[tuple[int, ...], ...]:
    """Disjoint sets of `size` GPUs, pairwise linked, for the attributes `nvlinkGroupN`.

    Groups are built so that larger groups contain smaller ones where the links allow it (a group of 4 is two
    groups of 2): taking one small group then breaks one large group only. Each group is the best one left:
    widest narrowest link first, then lowest ordinals. Deterministic.
    """
    return _nested_groups(matrix, tuple(sorted(matrix.rows)), size)


def _nested_groups(matrix: LinkMatrix, ordinals: tuple[int, ...], size: int) -> tuple[tuple[int, ...], ...]:
    if size * 2 <= len(ordinals):
        halves: list[tuple[int, ...]] = []
        inside: set[int] = set()
        for parent in _nested_groups(matrix, ordinals, size * 2):
            halves.extend(_partition(matrix, parent, size))
            inside.update(parent)
        rest = tuple(o for o in ordinals if o not in inside)
        return (*halves, *_partition(matrix, rest, size))
    return tuple(_partition(matrix, ordinals, size))


def _partition(matrix: LinkMatrix, ordinals: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    """As many disjoint linked sets of `size` as a greedy walk with one look-ahead finds."""
    groups: list[tuple[int, ...]] = []
    left = ordinals
    while len(left) >= size:
        best = max(
            (group for group in combinations(left, size) if matrix.fully_linked(group)),
            key=lambda group: (
                _has_linked(matrix, left, group, size),
                _narrowest(matrix, group),
                _low(group),
            ),
            default=None,
        )
        if best is None:
            break
        groups.append(best)
        left = tuple(o for o in left if o not in best)
    return groups


def _has_linked(matrix: LinkMatrix, ordinals: tuple[int, ...], taken: tuple[int, ...], size: int) -> bool:
    """True if the GPUs left after `taken` still hold a linked set of `size` (or are too few for one)."""
    left = [o for o in ordinals if o not in taken]
    return len(left) < size or any(matrix.fully_linked(group) for group in combinations(left, size))


def _narrowest(matrix: LinkMatrix, group: tuple[int, ...]) -> int:
    return min(matrix.links(a, b) for a, b in combinations(group, 2))


def _low(group: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-o for o in group)
