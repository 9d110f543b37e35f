"""Time as a dependency, so that tests own it (`tangram.testing.FakeClock`)."""

import asyncio
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """What loops may know about time."""

    def now(self) -> datetime:
        """The wall clock, in UTC. For time stamps that leave the process, never for intervals."""
        ...

    def monotonic_s(self) -> float:
        """Seconds of a clock that never steps back. For deadlines and intervals."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Suspends the calling task."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def within(work: Coroutine[Any, Any, T], *, seconds: float, clock: Clock) -> T:
    """The result of `work`; TimeoutError, with `work` cancelled, once `seconds` of `clock` have passed."""
    task = asyncio.ensure_future(work)
    timer = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise TimeoutError(f"no result within {seconds:g} s")
        return task.result()
    finally:
        task.cancel()
        timer.cancel()
        await asyncio.wait({task, timer})


def rfc3339(moment: datetime) -> str:
    """A `metav1.Time`: second precision, UTC, e.g. `2026-11-29T20:15:00Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(moment: datetime) -> str:
    """A `metav1.MicroTime`: microsecond precision, UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
