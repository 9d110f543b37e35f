"""What selectors may cost in one decision. A claim is written by anybody, and one loop decides for all.

It is counted as work (`tangram.cel.work`), without regard to what caches know: the same decision always ends
at the same place.
"""

from tangram.base.errors import CelError
from tangram.cel import Environment, Program, compiled
from tangram.cel.work import COMPILING, REFUSING

Bill = tuple[tuple[int, int], ...]
"""Answers of selectors, each by a hash that tells it from others, and the work that they take."""

_PAIRS = 33_000
_PAIRS_PER_DEVICE = 4
"""Pairs of a request and a device that are looked at: as many as 32 requests with 8 alternatives and 128
devices make, and on however many nodes a few requests for each device."""
_TOO_DEAR = "the selectors cost too much to evaluate on so many different devices"
_TOO_MANY = "there are too many requests to look at so many devices for each of them"


class TooDear(Exception):  # noqa: N818 - an outcome that crosses frames, as search.Exhausted
    """Finding out costs more than one decision may; says what of it."""


class Account:
    """What evaluating selectors may cost in one decision, on however many nodes. What was paid for once is
    free: equal devices cost no more than one. Looking at a pair of request and device never is."""

    def __init__(self, units: int) -> None:
        self._units_left = units
        self._pairs_left = _PAIRS
        self._paid: set[int] = set()
        self._settled: dict[int, Bill] = {}
        self._programs: dict[tuple[str, Environment], Program | CelError] = {}

    def pay(self, bill: Bill) -> None:
        """Raises TooDear when that is beyond the bound."""
        if id(bill) in self._settled:
            return
        for item, cost in bill:
            if item not in self._paid:
                self._paid.add(item)
                self._units_left -= cost
        if self._units_left < 0:
            raise TooDear(self.exhausted)
        self._settled[id(bill)] = bill  # kept, so that no other gets its id

    def program(self, text: str, environment: Environment) -> Program | CelError:
        """The program of a selector, or what is wrong with it; paid for. Raises TooDear."""
        found = self._programs.get((text, environment))
        if found is None:
            found = self._programs[text, environment] = compiled(text, environment)
            self.pay((compiling(text, found),))
        return found

    def allow(self, devices: int) -> None:
        """So many devices more come into question."""
        self._pairs_left += _PAIRS_PER_DEVICE * devices

    def look(self) -> None:
        """A device is looked at for a request. Raises TooDear when that is beyond the bound."""
        self._pairs_left -= 1
        if self._pairs_left < 0:
            raise TooDear(self.exhausted)

    @property
    def exhausted(self) -> str:
        """What costs too much; empty as long as all could be paid."""
        if self._units_left < 0:
            return _TOO_DEAR
        return _TOO_MANY if self._pairs_left < 0 else ""


def compiling(text: str, found: Program | CelError) -> tuple[int, int]:
    """What making a selector ready costs, as a part of a bill."""
    return hash(text), COMPILING * found.size if isinstance(found, Program) else REFUSING * len(text)
