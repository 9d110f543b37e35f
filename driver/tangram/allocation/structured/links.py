"""Linked sets: the GPUs of a request must split into sets of which every two are linked (nvLinkPeers)."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tangram import DRIVER_NAME
from tangram.allocation.structured.cluster import Device
from tangram.allocation.structured.outcome import Exhausted
from tangram.allocation.structured.requests import Alternative, Request
from tangram.allocation.structured.view import View
from tangram.allocation.topology import GROUP_SIZES, Topology, topology_of

_STEPS = 50_000
"""Sets tried by one constraint, about a microsecond each; eight GPUs need some hundreds."""

_MOST_GPUS = 64
"""Of one pool. There is no such machine; a pool that claims to be one is not worth a table of its links."""


class Gpus(NamedTuple):
    """The whole GPUs of one pool in order of ordinal, and how they are linked."""

    positions: tuple[int, ...]
    topology: Topology


def is_gpu(device: Device) -> bool:
    """True for a whole GPU of our driver."""
    own = device.cel.attributes.get(DRIVER_NAME, {})
    return device.id.driver == DRIVER_NAME and own.get("type") == "gpu"


def gpus_of(view: View) -> tuple[Gpus, ...]:
    """Of each pool that says how its GPUs are linked."""
    by_pool: dict[Hashable, list[int]] = {}
    for position, place in enumerate(view.places):
        if place.device is not None and is_gpu(place.device):
            by_pool.setdefault(place.pool.id, []).append(position)
    return tuple(gpus for found in by_pool.values() if (gpus := _linked(view, found)) is not None)


def _linked(view: View, positions: list[int]) -> Gpus | None:
    """None if the ordinals are not those of all GPUs there are, or of more than any machine has."""
    if len(positions) > _MOST_GPUS:
        return None
    ordered = []
    for position in positions:
        own = view.device(position).cel.attributes.get(DRIVER_NAME, {})
        ordered.append((own.get("ordinal"), position, own))
    if sorted(str(ordinal) for ordinal, _, _ in ordered) != sorted(map(str, range(len(ordered)))):
        return None
    ordered.sort(key=lambda item: int(str(item[0])))
    groups = {
        size: tuple(_text(own.get(f"nvlinkGroup{size}")) for _, _, own in ordered) for size in GROUP_SIZES
    }
    rows = tuple(str(own.get("nvlinkLinks", "")) for _, _, own in ordered)
    return Gpus(tuple(position for _, position, _ in ordered), topology_of(rows, groups))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


class LinkedSets:
    """The devices of one (sub)request split into fully linked sets of `size`, `sets` of them.

    While devices are taken: they can be split into at most so many linked sets of at most that size.
    """

    def __init__(self, alternative: Alternative, *, size: int, view: View, gpus: Sequence[Gpus]) -> None:
        self.claim = alternative.claim
        self.size = size
        self.sets = alternative.count // size
        self._index = alternative.index
        self._gpus = gpus
        self._bits: Mapping[Device, tuple[int, int]] = {
            view.device(position): (number, bit)
            for number, one in enumerate(gpus)
            for bit, position in enumerate(one.positions)
        }
        self._taken: list[tuple[int, ...]] = [(0,) * len(gpus)]
        self._fewest: dict[tuple[int, int], int] = {}
        self._steps = self._counting_steps = _STEPS

    def applies(self, alternative: Alternative) -> bool:
        """True for the one (sub)request."""
        return alternative.index == self._index

    def alike(self, device: Device, _fitting: Sequence[Alternative]) -> Hashable:
        """Equal for devices that may be exchanged: with the same links to all others."""
        if device not in self._bits:
            return None
        number, bit = self._bits[device]
        return number, self._gpus[number].topology.twins[bit]

    def add(self, alternative: Alternative, device: Device) -> str | None:
        """Takes the device in, or says why not. Raises Exhausted where that takes too long to find out."""
        if not self.applies(alternative):
            return None
        if device not in self._bits:
            return "of unknown links, where linked sets are needed"
        number, bit = self._bits[device]
        masks = list(self._taken[-1])
        masks[number] |= 1 << bit
        if sum(self._split(index, mask) for index, mask in enumerate(masks)) > self.sets:
            return f"not linked in sets of {self.size} with those chosen before"
        self._taken.append(tuple(masks))
        return None

    def remove(self, alternative: Alternative) -> None:
        """Takes the last device out."""
        if self.applies(alternative):
            self._taken.pop()

    def _split(self, number: int, mask: int) -> int:
        """The fewest linked sets of at most `size` that these GPUs split into."""
        if not mask:
            return 0
        known = self._fewest.get((number, mask))
        if known is None:
            topology = self._gpus[number].topology
            known = mask.bit_count()
            bound = -(-known // self.size)
            # Larger sets first: they make the bound be met early.
            for size in range(min(self.size, known), 0, -1):
                for found in self._containing(topology, mask, size):
                    known = min(known, 1 + self._split(number, mask & ~found))
                    if known == bound:
                        break
                if known == bound:
                    break
            self._fewest[number, mask] = known
        return known

    def _containing(self, topology: Topology, mask: int, size: int) -> Iterator[int]:
        """Linked sets of `size` with the lowest GPU of the mask."""
        low = mask & -mask
        candidates = mask & topology.neighbours(low.bit_length() - 1)
        for chosen in self._cliques(topology, candidates, size - 1):
            yield low | chosen

    def _cliques(self, topology: Topology, candidates: int, missing: int) -> Iterator[int]:
        if not missing:
            yield 0
            return
        while candidates.bit_count() >= missing:
            self._steps -= 1
            if self._steps < 0:
                raise Exhausted
            low = candidates & -candidates
            candidates ^= low
            linked = candidates & topology.neighbours(low.bit_length() - 1)
            for chosen in self._cliques(topology, linked, missing - 1):
                yield low | chosen

    def possible(self, positions: Sequence[int]) -> bool:
        """Whether there are enough disjoint sets among these places; True once finding out has taken long."""
        spent, self._steps = self._steps, self._counting_steps
        try:
            return self._has_all(self._masks(positions))
        except Exhausted:
            return True
        finally:
            self._counting_steps, self._steps = self._steps, spent

    def _has_all(self, masks: Sequence[int]) -> bool:
        most = 0
        for number, mask in enumerate(masks):
            most += self._most(number, mask, self.sets - most, {})
        return most >= self.sets

    def shortage(self, positions: Sequence[int]) -> str:
        """Why the devices at these places do not do; empty if they do."""
        if self.possible(positions):
            return ""
        masks = self._masks(positions)
        found = [one.topology.largest_linked(mask) for one, mask in zip(self._gpus, masks, strict=True)]
        largest = max((size for size, _ in found), default=0)
        if largest >= self.size:
            return f"there are no {self.sets} linked sets of {self.size} among those"
        more = "" if all(certain for _, certain in found) else " or more"
        return f"no {self.size} of those are linked (largest free linked set: {largest}{more})"

    def _masks(self, positions: Sequence[int]) -> list[int]:
        wanted = set(positions)
        return [
            sum(1 << bit for bit, position in enumerate(one.positions) if position in wanted)
            for one in self._gpus
        ]

    def _most(self, number: int, mask: int, wanted: int, known: dict[int, int]) -> int:
        """How many disjoint linked sets of the size there are, or `wanted` if there are so many."""
        wanted = min(wanted, mask.bit_count() // self.size)
        if wanted <= 0:
            return 0
        if mask in known:
            return min(known[mask], wanted)
        best = 0
        for found in self._containing(self._gpus[number].topology, mask, self.size):
            best = max(best, 1 + self._most(number, mask & ~found, wanted - 1, known))
            if best == wanted:
                return best
        best = max(best, self._most(number, mask & (mask - 1), wanted, known))
        if best < wanted:
            known[mask] = best  # all were tried
        return best


def linked_sets(requests: Sequence[Request], view: View) -> list[LinkedSets]:
    """A constraint for each (sub)request that wants linked sets."""
    wanting = [
        (alternative, size)
        for request in requests
        for alternative in request.alternatives
        if (size := alternative.linked_set_size) > 1
    ]
    if not wanting:
        return []
    gpus = gpus_of(view)
    return [LinkedSets(alternative, size=size, view=view, gpus=gpus) for alternative, size in wanting]
