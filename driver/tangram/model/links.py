"""The NVLink matrix of a node: who is linked to whom, how wide, and how a row is published.

A row travels in the string attribute `nvlinkLinks` (at most 64 bytes): `sw:18` for a GPU with 18 links to
the switch that connects the GPUs of the node, else `1:2,3:1` (peer ordinal : links), or where that is too
long `row:0201…`, one digit (base 36) per ordinal. The matrix is rebuilt from the rows of all GPUs of a node.
Link semantics: NVML `nvmlDeviceGetNvLinkRemoteDeviceType`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

_SWITCH = re.compile(r"sw:([0-9]{1,3})")
_DIRECT = re.compile(r"[0-9]{1,3}:[0-9]{1,3}(?:,[0-9]{1,3}:[0-9]{1,3})*")
_DENSE = re.compile(r"row:([0-9a-z]+)")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
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
        """The attribute value: at most 64 bytes for a node of up to 60 GPUs (peers beyond are left out)."""
        if self.switch_links:
            return f"sw:{self.switch_links}"
        text = ",".join(f"{peer}:{links}" for peer, links in self.direct)
        if len(text) <= MAXIMUM_ROW_BYTES:
            return text or NO_LINKS
        counts = dict(self.direct)
        ordinals = range(min(max(counts) + 1, MAXIMUM_ROW_BYTES - len("row:")))
        return "row:" + "".join(_DIGITS[min(counts.get(o, 0), len(_DIGITS) - 1)] for o in ordinals)

    @classmethod
    def decode(cls, text: str) -> "LinkRow":
        """The row of an attribute value; anything unknown (a newer or foreign form) counts as no links."""
        if match := _SWITCH.fullmatch(text):
            return cls(switch_links=int(match[1]))
        if _DIRECT.fullmatch(text):
            pairs = (entry.split(":") for entry in text.split(","))
            return cls(direct=tuple(sorted((int(peer), int(links)) for peer, links in pairs)))
        if match := _DENSE.fullmatch(text):
            counts = enumerate(_DIGITS.index(digit) for digit in match[1])
            return cls(direct=tuple((peer, links) for peer, links in counts if links))
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
    one that leaves another, with the widest narrowest link, then leaving the widest other, then of the lowest
    ordinals. Deterministic.
    """
    return _Groups(matrix).nested(tuple(sorted(matrix.rows)), size)


_Peers = Mapping[int, frozenset[int]]
_LOOK_AHEADS = 256
"""Groups of one width that are compared: all of them on any machine without a switch."""


class _Groups:
    """Cliques of the link graph. `_peers_by_width`: for each width, widest first, who is linked that wide."""

    def __init__(self, matrix: LinkMatrix) -> None:
        links = {(a, b): matrix.links(a, b) for a in matrix.rows for b in matrix.rows}
        widths = sorted(set(links.values()) - {0}, reverse=True)
        self._peers_by_width: list[_Peers] = [
            {a: frozenset(b for b in matrix.rows if links[a, b] >= width) for a in matrix.rows}
            for width in widths
        ]

    def nested(self, ordinals: tuple[int, ...], size: int) -> tuple[tuple[int, ...], ...]:
        if size * 2 > len(ordinals):
            return self._partition(ordinals, size)
        parents = self.nested(ordinals, size * 2)
        rest = tuple(o for o in ordinals if not any(o in parent for parent in parents))
        halves = (group for parent in parents for group in self._partition(parent, size))
        return (*halves, *self._partition(rest, size))

    def _partition(self, ordinals: tuple[int, ...], size: int) -> tuple[tuple[int, ...], ...]:
        """As many disjoint groups as a greedy walk with one look-ahead finds."""
        groups: list[tuple[int, ...]] = []
        left = ordinals
        while (group := self._best(left, size)) is not None:
            groups.append(group)
            left = tuple(o for o in left if o not in group)
        return tuple(groups)

    def _best(self, ordinals: tuple[int, ...], size: int) -> tuple[int, ...] | None:
        fallback: tuple[int, ...] | None = None
        for peers in self._peers_by_width:
            best, best_rest = None, 0
            for group in islice(_cliques(peers, ordinals, size), _LOOK_AHEADS):
                rest = self._best_rank(tuple(o for o in ordinals if o not in group), size)
                if rest > best_rest:
                    best, best_rest = group, rest
                if rest == self._top_rank:
                    break
                fallback = fallback or group
            if best is not None:
                return best
        return fallback

    @property
    def _top_rank(self) -> int:
        return len(self._peers_by_width)

    def _best_rank(self, ordinals: tuple[int, ...], size: int) -> int:
        """How wide the best group of these is: the top rank if the widest or not needed, 0 for none."""
        if len(ordinals) < size:
            return self._top_rank
        for step, peers in enumerate(self._peers_by_width):
            if next(_cliques(peers, ordinals, size), None) is not None:
                return self._top_rank - step
        return 0


def _cliques(peers: _Peers, ordinals: tuple[int, ...], size: int) -> Iterator[tuple[int, ...]]:
    """All sets of `size` of these ordinals (ascending) that are pairwise peers, lowest ordinals first."""
    if size == 0:
        yield ()
        return
    for position, first in enumerate(ordinals[: len(ordinals) - size + 1]):
        others = tuple(o for o in ordinals[position + 1 :] if o in peers[first])
        for tail in _cliques(peers, others, size - 1):
            yield (first, *tail)
