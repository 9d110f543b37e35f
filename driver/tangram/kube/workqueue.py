"""Keys to be worked on: each once, later on request, again after failure."""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from tangram.base.backoff import Backoff
from tangram.base.clock import Clock

K = TypeVar("K", bound=Hashable)

_SAME_MOMENT_S = 0.001


class WorkQueue(Generic[K]):
    """A queue in which a key stands at most once, and is worked on by one worker at a time.

    `add` during the work on a key hands it out once more after `done`. Every `get` needs one `done`. Delayed
    keys need no task of their own: `get` wakes for them. Workers are stopped by cancelling them. Of the keys
    that are ready, the one with the smallest `order` comes first, then the one that was added first.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        initial_retry_s: float = 0.1,
        maximum_retry_s: float = 30.0,
        order: Callable[[K], Any] = lambda _key: 0,
    ) -> None:
        self._clock = clock
        self._key_order = order
        self._initial_retry_s = initial_retry_s
        self._maximum_retry_s = maximum_retry_s
        self._ready: list[tuple[Any, int, K]] = []
        self._queued: set[K] = set()
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._due_s: dict[K, float] = {}
        # Entries whose time differs from `_due_s` are void. The numbers keep keys from being compared.
        self._timers: list[tuple[float, int, K]] = []
        self._order = itertools.count()
        self._backoffs: dict[K, Backoff] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Keys ready to be handed out now."""
        return len(self._ready)

    def add(self, key: K) -> None:
        """Queues a key, unless it is queued."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            heapq.heappush(self._ready, (self._key_order(key), next(self._order), key))
            self._changed.set()

    def add_after(self, key: K, *, delay_s: float) -> None:
        """Queues a key after `delay_s`; of several delays of a key the one that ends first counts."""
        if delay_s <= 0:
            self.add(key)
            return
        due_s = self._clock.monotonic_s() + delay_s
        # The same moment, worked out again, may differ by a rounding error: that is no earlier one.
        if due_s < self._due_s.get(key, float("inf")) - _SAME_MOMENT_S:
            self._due_s[key] = due_s
            entry = (due_s, next(self._order), key)
            heapq.heappush(self._timers, entry)
            if self._timers[0] is entry:  # else who waits wakes before that anyway
                self._changed.set()

    def retry(self, key: K) -> None:
        """Queues a key after its back-off, which grows until `forget`."""
        backoff = self._backoffs.get(key)
        if backoff is None:
            backoff = Backoff(initial_s=self._initial_retry_s, maximum_s=self._maximum_retry_s)
            self._backoffs[key] = backoff
        self.add_after(key, delay_s=backoff.next_s())

    def failed(self, key: K) -> None:
        """The work on a key has ended badly: it is handed out again after its back-off, not at once, even if
        it was added meanwhile. Instead of `done`.
        """
        self._working.discard(key)
        self._again.discard(key)
        self.retry(key)

    def forget(self, key: K) -> None:
        """The key succeeded: its next failure starts with the shortest back-off."""
        self._backoffs.pop(key, None)

    async def get(self) -> K:
        """The next key; waits for one."""
        while True:
            self._promote()
            if self._ready:
                _, _, key = heapq.heappop(self._ready)
                self._queued.discard(key)
                self._working.add(key)
                if self._ready:
                    self._changed.set()  # several workers may wait
                return key
            self._changed.clear()
            await self._wait()

    def done(self, key: K) -> None:
        """The work on a key has ended, well or not."""
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _promote(self) -> None:
        now_s = self._clock.monotonic_s()
        while self._timers and self._timers[0][0] <= now_s:
            due_s, _, key = heapq.heappop(self._timers)
            if self._due_s.get(key) == due_s:
                del self._due_s[key]
                self.add(key)

    async def _wait(self) -> None:
        """Until something changes or the next delayed key is due."""
        if not self._timers:
            await self._changed.wait()
            return
        remaining_s = self._timers[0][0] - self._clock.monotonic_s()
        waits = {
            asyncio.ensure_future(self._changed.wait()),
            asyncio.ensure_future(self._clock.sleep(remaining_s)),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
