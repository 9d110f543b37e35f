"""Whether enough devices agree with a first one, before the others of a request are looked for.

With the first device of a request matchAttribute is bound to its value. Where too few others have it,
upstream finds out by trying them all, every set of those that have it.
"""

from collections.abc import Sequence

from tangram.allocation.structured.candidates import Taker
from tangram.allocation.structured.cluster import Attribute
from tangram.allocation.structured.constraints import MatchAttribute
from tangram.allocation.structured.requests import Alternative


class Agreement:
    """About the first device of one (sub)request, in one state. `looked`: how many devices were looked at."""

    def __init__(
        self, alternative: Alternative, bound: Sequence[MatchAttribute], taker: Taker, order: Sequence[int]
    ) -> None:
        self._alternative = alternative
        self._bound = bound
        self._taker = taker
        self._order = order
        self._too_few: set[tuple[Attribute | None, ...]] = set()
        self.looked = 0

    def possible(self, position: int, rank: int) -> bool:
        """Whether behind this rank there are enough devices that agree with the one at the position.

        Raises FatalError where trying them would.
        """
        device = self._taker.view.device(position)
        values = tuple([constraint.bound_by(device) for constraint in self._bound])
        if values in self._too_few:
            return False
        if None in values or self._enough(values, rank):
            return True  # without the attribute it is refused anyway
        self._too_few.add(values)
        return False

    def _enough(self, values: tuple[Attribute | None, ...], rank: int) -> bool:
        alternative, view = self._alternative, self._taker.view
        ledger, judge = self._taker.ledger, self._taker.judge
        missing = alternative.count - 1
        for position in self._order[rank + 1 :]:
            self.looked += 1
            if ledger.in_use(position, alternative.claim, admin=alternative.admin):
                continue
            if judge.unfit(alternative, position) is not None:
                continue
            device = view.device(position)
            for constraint, value in zip(self._bound, values, strict=True):
                if not constraint.agrees(alternative, device, value):
                    break
            else:
                missing -= 1
                if not missing:
                    return True
        return False


def agreement(alternative: Alternative, taker: Taker, order: Sequence[int]) -> Agreement | None:
    """None where nothing has to agree; nor of derived attributes, which devices that upstream does not reach
    may fail to have."""
    if alternative.count < 2 or alternative.everything or alternative.derived:
        return None
    bound = [
        constraint
        for constraint in taker.constraints[alternative.claim]
        if isinstance(constraint, MatchAttribute) and constraint.applies(alternative)
    ]
    return Agreement(alternative, bound, taker, order) if bound else None
