"""Whether every request can have devices of its own: Hall's condition, by augmenting paths on bitmasks."""

from collections.abc import Sequence
from typing import NamedTuple

from tangram.allocation.structured.requests import Alternative


class Want(NamedTuple):
    """A request that needs at least `fewest` of the devices in `mask`."""

    alternatives: tuple[Alternative, ...]
    fewest: int
    mask: int


def can_be_served(wants: Sequence[tuple[int, int]]) -> bool:
    """True if each (mask, count) can have that many devices of its mask, no device twice."""
    if any(mask.bit_count() < count for mask, count in wants):
        return False
    together = 0
    for mask, _ in wants:
        together |= mask
    if together.bit_count() < sum(count for _, count in wants):
        return False
    given = [0] * len(wants)
    free = together
    for index, (_, count) in enumerate(wants):
        for _ in range(count):
            path = _path(index, wants, given, free)
            if path is None:
                return False
            free ^= path
    return True


def _path(start: int, wants: Sequence[tuple[int, int]], given: list[int], free: int) -> int | None:
    """Gives `start` one more device, moving others if need be; the free device that is used up."""
    come_from: dict[int, tuple[int, int]] = {}  # request → (whom it passes a device to, the device)
    queue, seen = [start], {start}
    for index in queue:
        mask = wants[index][0]
        if direct := mask & free & ~given[index]:
            used = direct & -direct
            device, taker = used, index
            while True:
                given[taker] |= device
                if taker == start:
                    return used
                receiver, passed = come_from[taker]
                given[taker] &= ~passed
                device, taker = passed, receiver
        for other, devices in enumerate(given):
            if other not in seen and (movable := devices & mask & ~given[index]):
                seen.add(other)
                come_from[other] = (index, movable & -movable)
                queue.append(other)
    return None
