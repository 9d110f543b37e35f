"""The best set of devices on one node for all requests of a pod.

Exhaustive over combinations within a step budget: requests in order, devices of a request in ascending
position, constraints checked as soon as they can fail; equal neighbours are tried in one order only.
The answer depends on nothing but shapes (masks, counts, links), so nodes in the same state share it.
"""

from functools import lru_cache
from typing import NamedTuple

from tangram.allocation.devices import members
from tangram.allocation.topology import Rest, Topology


class Slot(NamedTuple):
    """One request on one node: `candidates` are its eligible and free devices.

    `constraints` are positions in the list of constraints that cover the request.
    """

    candidates: int
    size: int
    linked_set_size: int
    constraints: tuple[int, ...]


Values = tuple[int, ...]
"""A constraint's attribute per device position as a small number (equal value, equal number); -1: absent."""


class SetTerms(NamedTuple):
    """How good a choice is within its node, most important first.

    `linked`: every request for several GPUs got a fully linked set. `set_links`: links on the narrowest hop
    of the best ring through each request's set (the worst of them). `ring_links`: the same for all GPUs of
    the pod together. `rest`: what stays free.
    """

    linked: bool
    set_links: int
    ring_links: int
    rest: Rest


class Choice(NamedTuple):
    """Masks chosen per slot."""

    terms: SetTerms
    masks: tuple[int, ...]


class Outcome(NamedTuple):
    """`choice` is None where no set was found; `exhausted`: the step budget ended before the search did."""

    choice: Choice | None
    exhausted: bool


@lru_cache(maxsize=16384)
def best_choice(
    topology: Topology, free: int, slots: tuple[Slot, ...], constraints: tuple[Values, ...], steps: int
) -> Outcome:
    """The best choice of devices for all slots, disjoint, satisfying all constraints.

    `free`: all unheld devices of the node (for the usefulness of the rest). `steps` bounds the work; the same
    budget always ends at the same place.
    """
    search = _Search(topology, free, slots, constraints, steps)
    search.descend(slot=0, used=0, masks=(), values=(None,) * len(constraints))
    return Outcome(search.best, search.steps_left <= 0)


class _Search:
    def __init__(
        self,
        topology: Topology,
        free: int,
        slots: tuple[Slot, ...],
        constraints: tuple[Values, ...],
        steps: int,
    ) -> None:
        self.topology = topology
        self.free = free
        self.slots = slots
        self.constraints = constraints
        self.steps_left = steps
        self.best: Choice | None = None

    def descend(
        self, *, slot: int, used: int, masks: tuple[int, ...], values: tuple[int | None, ...]
    ) -> None:
        """Fills the slots from `slot` on."""
        if slot == len(self.slots):
            self._score(used, masks)
            return
        # Equal neighbours are interchangeable: only choices in ascending order of their lowest device count.
        after = -1
        if slot and self.slots[slot - 1] == self.slots[slot] and not self.slots[slot].constraints:
            after = (masks[-1] & -masks[-1]).bit_length() - 1
        self._extend(slot, used, masks, values, chosen=0, after=after)

    def _extend(
        self,
        slot: int,
        used: int,
        masks: tuple[int, ...],
        values: tuple[int | None, ...],
        *,
        chosen: int,
        after: int,
    ) -> None:
        shape = self.slots[slot]
        missing = shape.size - chosen.bit_count()
        if not missing:
            if shape.linked_set_size <= 1 or self.topology.partitions(chosen, shape.linked_set_size):
                self.descend(slot=slot + 1, used=used, masks=(*masks, chosen), values=values)
            return
        candidates = shape.candidates & ~used & ~((2 << after) - 1 if after >= 0 else 0)
        if chosen and shape.linked_set_size == shape.size:
            for position in members(chosen):
                candidates &= self.topology.neighbours(position)
        for position in members(candidates):
            if candidates.bit_count() < missing or self.steps_left <= 0:
                return
            candidates &= ~(1 << position)
            self.steps_left -= 1
            narrowed = self._narrow(shape, position, values)
            if narrowed is not None:
                bit = 1 << position
                self._extend(slot, used | bit, masks, narrowed, chosen=chosen | bit, after=position)

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
        sets = [mask for mask in masks if mask.bit_count() > 1]
        terms = SetTerms(
            linked=all(self.topology.fully_linked(mask) for mask in sets),
            set_links=min((self.topology.ring_links(mask) for mask in sets), default=0),
            ring_links=self.topology.ring_links(used) if used.bit_count() > 1 else 0,
            rest=self.topology.rest(self.free & ~used),
        )
        # Strictly better only: among equals the first found stays, which has the lowest positions.
        if self.best is None or terms > self.best.terms:
            self.best = Choice(terms, masks)
