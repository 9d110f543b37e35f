"""The best set of devices on one node for all requests of a pod.

Exhaustive over combinations within a step budget: the request with the least choice first, devices of a
request in ascending position, constraints checked as soon as they can fail. Of choices that differ only by an
exchange of equal requests or of equal devices one is tried. The answer depends on nothing but shapes (masks,
counts, links), so nodes in the same state share it.
"""

from functools import lru_cache
from typing import NamedTuple

from tangram.allocation.devices import members
from tangram.allocation.topology import Rest, Topology


class Slot(NamedTuple):
    """Devices that are chosen together on one node: `size` of `candidates`, which are eligible and free.

    `linked`: they must be fully linked. `constraints` are positions in the list of constraints that cover
    them.
    """

    candidates: int
    size: int
    linked: bool
    constraints: tuple[int, ...]


Values = tuple[int, ...]
"""A constraint's attribute per device position as a small number (equal value, equal number); -1: absent."""


class SetTerms(NamedTuple):
    """How good a choice is within its node, most important first.

    `linked`: every slot of several GPUs got a fully linked set. `spared_gb`: minus the nominal memory taken.
    `set_links`: links on the narrowest hop of the best ring through each slot's set (the worst of them).
    `ring_links`: the same for all GPUs of the pod together. `rest`: what stays free.
    """

    linked: bool
    spared_gb: int
    set_links: int
    ring_links: int
    rest: Rest


class Node(NamedTuple):
    """What a search looks at. `free`: all devices that nobody holds (for the usefulness of the rest);
    `sizes_gb`: nominal memory per position."""

    topology: Topology
    free: int
    sizes_gb: tuple[int, ...]


class Choice(NamedTuple):
    """Masks chosen per slot."""

    terms: SetTerms
    masks: tuple[int, ...]


class Outcome(NamedTuple):
    """`choice` is None where no set was found; `steps`: what the search cost; `complete`: it saw all there
    is, so that no choice means that there is none, and a choice is the best."""

    choice: Choice | None
    steps: int
    complete: bool


@lru_cache(maxsize=16384)
def best_choice(node: Node, slots: tuple[Slot, ...], constraints: tuple[Values, ...], steps: int) -> Outcome:
    """The best choice of devices for all slots, disjoint, satisfying all constraints.

    `steps` bounds the work; the same budget always ends at the same place.
    """
    order = sorted(range(len(slots)), key=lambda i: (_slack(slots[i]), -slots[i].size, slots[i], i))
    search = _Search(node, tuple(slots[i] for i in order), constraints, steps)
    search.descend(slot=0, used=0, masks=(), values=(None,) * len(constraints))
    best = search.best
    if best is not None:
        by_slot = dict(zip(order, best.masks, strict=True))
        best = best._replace(masks=tuple(by_slot[i] for i in range(len(slots))))
    return Outcome(best, steps - search.steps_left, search.steps_left > 0)


def _slack(slot: Slot) -> int:
    return slot.candidates.bit_count() - slot.size


class _Search:
    def __init__(
        self, node: Node, slots: tuple[Slot, ...], constraints: tuple[Values, ...], steps: int
    ) -> None:
        self.node = node
        self.slots = slots
        self.constraints = constraints
        self.steps_left = steps
        self.best: Choice | None = None
        self._twins_below = _twins_below(node, slots, constraints)

    def descend(
        self, *, slot: int, used: int, masks: tuple[int, ...], values: tuple[int | None, ...]
    ) -> None:
        """Fills the slots from `slot` on."""
        if slot == len(self.slots):
            self._score(used, masks)
            return
        # Equal slots are interchangeable: only choices in ascending order of their lowest device count.
        candidates = self.slots[slot].candidates & ~used
        if slot and self.slots[slot - 1] == self.slots[slot]:
            candidates &= -((masks[-1] & -masks[-1]) << 1)
        self._extend(slot, used, masks, values, chosen=0, candidates=candidates)

    def _extend(
        self,
        slot: int,
        used: int,
        masks: tuple[int, ...],
        values: tuple[int | None, ...],
        *,
        chosen: int,
        candidates: int,
    ) -> None:
        shape = self.slots[slot]
        missing = shape.size - chosen.bit_count()
        if not missing:
            self.descend(slot=slot + 1, used=used, masks=(*masks, chosen), values=values)
            return
        while candidates.bit_count() >= missing and self.steps_left > 0:
            self.steps_left -= 1
            bit = candidates & -candidates
            candidates ^= bit
            position = bit.bit_length() - 1
            if self._twins_below[position] & ~used:
                continue  # its twin is still there: every choice with this one has an equal one with that
            narrowed = self._narrow(shape, position, values)
            if narrowed is not None:
                fitting = candidates & self.node.topology.neighbours(position) if shape.linked else candidates
                self._extend(slot, used | bit, masks, narrowed, chosen=chosen | bit, candidates=fitting)

    def _narrow(
        self, shape: Slot, position: int, values: tuple[int | None, ...]
    ) -> tuple[int | None, ...] | None:
        """The constraint values after taking this device; None if it breaks one."""
        if not shape.constraints:
            return values
        narrowed = list(values)
        for index in shape.constraints:
            value = self.constraints[index][position]
            if value < 0 or narrowed[index] not in (None, value):
                return None
            narrowed[index] = value
        return tuple(narrowed)

    def _score(self, used: int, masks: tuple[int, ...]) -> None:
        topology, free, sizes_gb = self.node
        self.steps_left -= topology.scoring_steps(used.bit_count())
        sets = [mask for mask in masks if mask.bit_count() > 1]
        terms = SetTerms(
            linked=all(topology.fully_linked(mask) for mask in sets),
            spared_gb=-sum(sizes_gb[position] for position in members(used)),
            set_links=min((topology.ring_links(mask) for mask in sets), default=0),
            ring_links=topology.ring_links(used),
            rest=topology.rest(free & ~used),
        )
        # Strictly better only: among equals the first found stays, which has the lowest positions.
        if self.best is None or terms > self.best.terms:
            self.best = Choice(terms, masks)


def _twins_below(node: Node, slots: tuple[Slot, ...], constraints: tuple[Values, ...]) -> tuple[int, ...]:
    """Per position the lower ones that are the same to this search: alike in links, groups and size,
    candidates of the same slots, of the same values."""
    classes: dict[tuple[object, ...], int] = {}
    below = []
    for position, twins in enumerate(node.topology.twins):
        alike = (
            twins,
            node.sizes_gb[position],
            tuple([slot.candidates >> position & 1 for slot in slots]),
            tuple([values[position] for values in constraints]),
        )
        lower = classes.get(alike, 0)
        below.append(lower)
        classes[alike] = lower | 1 << position
    return tuple(below)
