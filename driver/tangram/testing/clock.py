"""Time that stands still until a test moves it."""

import asyncio
import heapq
import itertools
from datetime import UTC, datetime, timedelta


class FakeClock:
    """A `tangram.base.clock.Clock`: `now` and `monotonic_s` move only by `advance`.

    Sleepers wake in the order of their time. After each wake-up the event loop turns some times, so that a
    task which sleeps again within the same `advance` is woken again in it. What waits for a socket is not
    part of that: wait for its effect, then advance.
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed_s = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._changed = asyncio.Event()

    def now(self) -> datetime:
        """The fake wall clock."""
        return self._start + timedelta(seconds=self._elapsed_s)

    def monotonic_s(self) -> float:
        """Seconds advanced so far."""
        return self._elapsed_s

    async def sleep(self, seconds: float) -> None:
        """Suspends until `advance` has moved time by `seconds`; `seconds` <= 0 only yields."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed_s + seconds, next(self._order), future))
        self._changed.set()
        try:
            await future
        finally:
            self._sleepers = [entry for entry in self._sleepers if entry[2] is not future]
            heapq.heapify(self._sleepers)
            self._changed.set()

    @property
    def sleeping(self) -> int:
        """How many tasks sleep now."""
        return len(self._sleepers)

    async def advance(self, seconds: float) -> None:
        """Moves time, stopping at every sleeper on the way."""
        target_s = self._elapsed_s + seconds
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= target_s:
            due_s, _, future = heapq.heappop(self._sleepers)
            self._elapsed_s = max(self._elapsed_s, due_s)
            if not future.done():
                future.set_result(None)
            await _settle()
        self._elapsed_s = target_s
        await _settle()

    async def advance_to_next(self) -> float:
        """Waits until somebody sleeps, moves time to the first one's end and returns the seconds moved."""
        await self.until_sleeping()
        seconds = max(0.0, self._sleepers[0][0] - self._elapsed_s)
        await self.advance(seconds)
        return seconds

    async def until_sleeping(self, count: int = 1, *, timeout_s: float = 10.0) -> None:
        """Waits, in real time, until `count` tasks sleep on this clock; TimeoutError after `timeout_s`."""
        async with asyncio.timeout(timeout_s):
            while self.sleeping < count:
                self._changed.clear()
                await self._changed.wait()


async def _settle() -> None:
    # A woken task may need several turns of the loop before it acts: a task that awaits a task that awaits …
    for _ in range(20):
        await asyncio.sleep(0)
