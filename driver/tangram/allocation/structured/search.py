"""The search: depth first, claims, requests, subrequests and devices in order, as `allocateOne` upstream.

First it goes upstream's way, device by device. Most decisions end within some steps. A decision that does not
is begun again with what `tangram.allocation.structured.pruning` knows, which leaves out only what cannot
succeed, and so finds the same devices; where leaving out might hide an error, it goes on upstream's way.
Either way it ends when its steps are used up.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from tangram.allocation.structured.agreement import Agreement, agreement
from tangram.allocation.structured.candidates import Taken, Taker
from tangram.allocation.structured.features import Fault
from tangram.allocation.structured.outcome import Exhausted, FatalError
from tangram.allocation.structured.pruning import Pruning
from tangram.allocation.structured.requests import MAXIMUM_RESULTS, Alternative, Request
from tangram.allocation.structured.traces import traceless

_ANY_NUMBER = 1 << 62
_LONG_STEPS = 1_000
"""After so many it pays to count again after every device."""
_LOOKS_PER_STEP = 4
"""Devices looked at ahead, which are not taken."""
_STEPS_PER_SOLUTION = 8
"""What judging a solution costs, in devices looked at."""
_COUNTERS_PER_STEP = 16
"""Counters that taking a device changes."""


class Solution(NamedTuple):
    """Devices in the order in which they were taken; `chosen`: the alternative of each request."""

    taken: tuple[Taken, ...]
    chosen: tuple[int, ...]


class _Failure(Enum):
    """Why the newest choice leads nowhere."""

    NO_FIT = 1
    TOO_MANY = 2  # the claim would get more devices than a claim may have: no other device helps


class _Enter(NamedTuple):
    """Begin with a request."""

    request: int


class _Fill(NamedTuple):
    """Look for the device of a slot, in the order of search from rank `start` on."""

    request: int
    alternative: int
    slot: int
    start: int


_Step = _Enter | _Fill | _Failure | None
"""What to do next; None: the aim is reached."""


class _Frame:
    """A choice that can be made differently: a device of a slot, or the subrequest of a request."""

    __slots__ = (
        "agreement",
        "alternative",
        "candidates",
        "holds",
        "is_list",
        "only_too_many",
        "request",
        "slot",
        "solutions",
        "tried",
    )

    def __init__(self, request: int, alternative: int, slot: int, *, is_list: bool) -> None:
        self.request = request
        self.is_list = is_list
        self.alternative = alternative
        self.slot = slot
        self.holds = False
        self.only_too_many = True
        self.solutions = 0
        self.candidates: Iterator[int] = iter(())
        self.agreement: Agreement | None = None
        self.tried: set[Hashable] = set()


class Search:
    """One decision. `order`: positions of the view as they are tried. `steps` counts devices looked at.

    It ends when `budget` steps are used up, or when devices were put back `retries` times.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        taker: Taker,
        *,
        order: Sequence[int],
        budget: int,
        retries: int = _ANY_NUMBER,
    ) -> None:
        features = taker.view.features
        self._requests = requests
        self._taker = taker
        self._order = order
        self._ranks = {position: rank for rank, position in enumerate(order)}
        self._permutes = features.permutes
        self._loses_subrequest = features.has(Fault.ALL_LOSES_SUBREQUEST)
        self._budget = budget
        self._stack: list[_Frame] = []
        self._chosen = [0] * len(requests)
        self._too_many_in = 0
        self._pruning: Pruning | None = None
        self._retries = retries
        self.steps = 0
        self.solutions = 0

    def run(self, aim: Callable[[Solution], bool], *, pruning: Pruning | None = None) -> bool:
        """Searches until `aim` accepts a solution (True) or there is nothing more to find (False).

        Raises FatalError for what upstream treats as fatal, Exhausted when the steps are used up.
        """
        self._pruning = pruning
        step: _Step = _Enter(0)
        while step is not None:
            if isinstance(step, _Fill):
                step = self._fill(step)
            elif isinstance(step, _Enter):
                step = self._enter(step.request, aim)
            elif self._stack:
                step = self._retry(self._stack[-1], step)
            elif step is _Failure.TOO_MANY and not self._too_many_in:
                # A claim whose least alternatives are too many was refused before: only versions that mix up
                # alternatives get here, and with the first claim.
                raise FatalError("allocation max size exceeded")
            else:
                return False
        return True

    def _enter(self, request: int, aim: Callable[[Solution], bool]) -> _Step:
        if request == len(self._requests):
            solution = Solution(tuple(self._taker.taken), tuple(self._chosen))
            self.solutions += 1
            self.steps += _STEPS_PER_SOLUTION
            return None if aim(solution) else _Failure.NO_FIT
        if self._pruning is not None:
            possible = self._pruning.enter(request, self._taker)
            self.steps += self._pruning.steps + self._pruning.spent()
            if not possible:
                return _Failure.NO_FIT
        self._chosen[request] = 0
        if not self._requests[request].prioritized:
            return _Fill(request, 0, 0, 0)
        frame = _Frame(request, 0, 0, is_list=True)
        frame.solutions = self.solutions
        self._stack.append(frame)
        return _Fill(request, 0, 0, 0)

    @cached_property
    def _looks_ahead(self) -> bool:
        return not self._permutes and traceless(self._requests, self._taker)

    def _fill(self, step: _Fill) -> _Step:
        item = self._requests[step.request].alternatives[step.alternative]
        if item.everything and not item.positions:
            return _Failure.NO_FIT
        if step.slot >= item.count:
            return _Enter(step.request + 1)
        if self._taker.results[item.claim] + item.count - step.slot > MAXIMUM_RESULTS:
            self._too_many_in = item.claim
            return _Failure.TOO_MANY
        frame = _Frame(step.request, step.alternative, step.slot, is_list=False)
        if item.everything:
            frame.candidates = iter((item.positions[step.slot],))
        elif self._pruning is None:
            frame.candidates = iter(self._order[step.start :] if step.start else self._order)
            if not step.slot:
                found = agreement(item, self._taker, self._order)
                frame.agreement = found if found and self._looks_ahead else None
        else:
            needed = item.count - step.slot
            frame.candidates = self._pruning.candidates(item, self._taker, step.start, needed)
        self._stack.append(frame)
        return self._next_device(frame, item)

    def _next_device(self, frame: _Frame, item: Alternative) -> _Step:
        taker, pruning = self._taker, self._pruning
        for position in frame.candidates:
            self.steps += 1
            if self.steps > self._budget:
                raise Exhausted
            if taker.ledger.in_use(position, item.claim, admin=item.admin):
                continue
            if taker.judge.unfit(item, position) is not None:
                continue
            if pruning is not None and not item.everything:
                kind = pruning.kind(position, taker)
                if kind in frame.tried:
                    continue
                frame.tried.add(kind)
            if frame.agreement and not self._agreeable(frame.agreement, position):
                continue
            self.steps += taker.view.device(position).counters // _COUNTERS_PER_STEP
            if taker.take(item, position, frame.slot) is None:
                self.steps += 2
                if not self._promising(frame, item, position):
                    taker.put_back()
                    continue
                frame.holds = True
                start = 0 if self._permutes else self._ranks[position] + 1
                same = 0 if item.everything and self._loses_subrequest else frame.alternative
                return _Fill(frame.request, same, frame.slot + 1, start)
        self._stack.pop()
        return _Failure.NO_FIT

    def _agreeable(self, ahead: Agreement, position: int) -> bool:
        """Whether enough devices agree with the one at the position. It is counted as it is found out: of
        devices that all differ, each is compared with all behind it."""
        before = ahead.looked
        possible = ahead.possible(position, self._ranks[position])
        self.steps += (ahead.looked - before) // _LOOKS_PER_STEP
        return possible

    def _promising(self, frame: _Frame, item: Alternative, position: int) -> bool:
        """Whether what is left can be served by counting; asked only in a search that has become long."""
        if self._pruning is None or self.steps < _LONG_STEPS:
            return True
        start = 0 if self._permutes else self._ranks[position] + 1
        left = item.count - frame.slot - 1
        possible = self._pruning.can_be_served(frame.request + 1, self._taker, (item, start, left))
        self.steps += self._pruning.steps + self._pruning.spent()
        return possible

    def _retry(self, frame: _Frame, failure: _Failure) -> _Step:
        """The newest choice has failed: the next one."""
        request = self._requests[frame.request]
        if failure is _Failure.TOO_MANY and request.claim != self._too_many_in:
            failure = _Failure.NO_FIT  # another claim has too many: there may be another way
        if frame.is_list:
            return self._next_alternative(frame, request, failure)
        if frame.holds:
            self._taker.put_back()
            frame.holds = False
            self._retries -= 1
            if self._retries < 0:
                raise Exhausted
        item = request.alternatives[frame.alternative]
        if failure is _Failure.TOO_MANY or item.everything:
            self._stack.pop()
            return failure
        return self._next_device(frame, item)

    def _next_alternative(self, frame: _Frame, request: Request, failure: _Failure) -> _Step:
        if failure is _Failure.NO_FIT:
            frame.only_too_many = False
        frame.alternative += 1
        # Once there is a solution with an earlier subrequest, no later one is wanted.
        if frame.alternative < len(request.alternatives) and self.solutions == frame.solutions:
            self._chosen[frame.request] = frame.alternative
            return _Fill(frame.request, frame.alternative, 0, 0)
        self._stack.pop()
        if not frame.only_too_many:
            return _Failure.NO_FIT
        self._too_many_in = request.claim
        return _Failure.TOO_MANY
