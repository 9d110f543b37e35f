import asyncio

import pytest

from tangram.base.clock import within
from tangram.testing.clock import FakeClock


async def test_sleepers_wake_in_order_and_see_their_time() -> None:
    clock, woken = FakeClock(), []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic_s()))

    tasks = [
        asyncio.create_task(sleeper(name, seconds))
        for name, seconds in (("c", 3), ("a", 1), ("b", 1), ("z", 9))
    ]
    await clock.until_sleeping(4)
    start = clock.now()
    await clock.advance(5)
    assert woken == [("a", 1), ("b", 1), ("c", 3)]
    assert (clock.now() - start).total_seconds() == 5
    assert await clock.advance_to_next() == 4
    await asyncio.gather(*tasks)


async def test_task_that_sleeps_again_is_woken_within_the_same_advance() -> None:
    clock, ticks = FakeClock(), []

    async def tick() -> None:
        while True:
            await clock.sleep(1)
            ticks.append(clock.monotonic_s())

    task = asyncio.create_task(tick())
    await clock.advance(3.5)
    assert ticks == [1, 2, 3]
    task.cancel()
    await asyncio.wait({task})
    assert clock.sleeping == 0


async def test_until_sleeping_gives_up_in_real_time() -> None:
    with pytest.raises(TimeoutError):
        await FakeClock().until_sleeping(timeout_s=0.01)


async def test_within_returns_the_result() -> None:
    async def work() -> int:
        return 5

    assert await within(work(), seconds=1, clock=FakeClock()) == 5


async def test_within_passes_the_error_on() -> None:
    async def work() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await within(work(), seconds=1, clock=FakeClock())


async def test_within_cancels_what_takes_too_long() -> None:
    clock, cancelled = FakeClock(), []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(clock.monotonic_s())
            raise

    waiting = asyncio.create_task(within(work(), seconds=5, clock=clock))
    await clock.advance(4)
    assert not waiting.done()
    await clock.advance(1)
    with pytest.raises(TimeoutError, match="within 5 s"):
        await waiting
    assert cancelled == [5]


async def test_within_that_is_cancelled_leaves_nothing_running() -> None:
    clock = FakeClock()
    waiting = asyncio.create_task(within(asyncio.Event().wait(), seconds=5, clock=clock))
    await clock.until_sleeping()
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}
