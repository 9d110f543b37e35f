"""What one decision may cost. A claim is written by anybody, and one loop decides for all.

Counted in steps and units, never in time, and without regard to what caches know: the same decision always
ends at the same place.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from tangram.allocation.search import Node, Outcome, Slot, Values, best_choice

Bill = tuple[tuple[Hashable, int], ...]
"""Evaluations, each by what tells it from others, and their prices."""

_FEWEST_STEPS = 200
"""For every further node once the steps are used up: enough to find some set, if not the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Bounds of one decision; each is worth well under a second.

    `search_steps`: devices tried on all nodes together, of which at most `node_search_steps` on nodes in one
    state; a search that is cut off settles for the best set so far. `selector_units`: evaluations of
    selectors, in units of `tangram.cel.program.BUDGET`.
    """

    search_steps: int = 100_000
    node_search_steps: int = 10_000
    selector_units: int = 2_000_000


class Effort:
    """The account of one decision. What was paid for once is free."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._steps_left = settings.search_steps
        self._units_left = settings.selector_units
        self._paid: set[Hashable] = set()
        self._bills: dict[int, Bill] = {}
        self._outcomes: dict[Hashable, Outcome] = {}

    def choice(self, node: Node, slots: tuple[Slot, ...], constraints: tuple[Values, ...]) -> Outcome:
        """`best_choice` within the steps that are left."""
        key = (node, slots, constraints)
        outcome = self._outcomes.get(key)
        if outcome is None:
            steps = max(_FEWEST_STEPS, min(self._settings.node_search_steps, self._steps_left))
            outcome = self._outcomes[key] = best_choice(node, slots, constraints, steps)
            self._steps_left -= outcome.steps
        return outcome

    def spend(self, units: int) -> bool:
        """Pays for evaluations; False if there is not so much left."""
        self._units_left -= units
        return self._units_left >= 0

    def pay(self, item: Hashable, units: int) -> bool:
        """Pays for the evaluation of `item`, once; False if there is not so much left."""
        if item not in self._paid:
            self._paid.add(item)
            self._units_left -= units
        return self._units_left >= 0

    def settle(self, bill: Bill) -> bool:
        """Pays for all items of a bill; False if there is not so much left."""
        if id(bill) not in self._bills:
            self._bills[id(bill)] = bill  # alive, so that no other object gets its id
            for item, units in bill:
                self.pay(item, units)
        return self._units_left >= 0
