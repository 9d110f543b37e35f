import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.kube.workqueue import WorkQueue
from tangram.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def queue(clock: FakeClock) -> WorkQueue[str]:
    return WorkQueue(clock=clock)


async def idle(work: Awaitable[Any]) -> bool:
    """Whether `work` waits when everything that can happen has happened."""
    task = asyncio.ensure_future(work)
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    return task.cancelled()


async def test_first_in_first_out_and_each_once(queue: WorkQueue[str]) -> None:
    for key in "abac":
        queue.add(key)
    assert len(queue) == 3
    assert [await queue.get() for _ in range(3)] == ["a", "b", "c"]


async def test_what_is_ready_comes_in_order(clock: FakeClock) -> None:
    queue: WorkQueue[str] = WorkQueue(clock=clock, order=len)
    for key in ("ccc", "bb", "a", "dd"):
        queue.add(key)
    assert [await queue.get() for _ in range(4)] == ["a", "bb", "dd", "ccc"]
    queue.add_after("eeeee", delay_s=1)
    queue.add_after("ffff", delay_s=2)
    await clock.advance(2)
    assert [await queue.get() for _ in range(2)] == ["ffff", "eeeee"]


async def test_the_same_delay_asked_for_again_and_again_is_one_timer(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    until_s = 600.1
    for _ in range(1000):
        queue.add_after("a", delay_s=until_s - clock.monotonic_s())
        await clock.advance(0.1)
    assert len(queue._timers) == 1


async def test_key_added_during_its_work_comes_once_more_after_done(queue: WorkQueue[str]) -> None:
    queue.add("a")
    await queue.get()
    queue.add("a")
    queue.add("a")
    assert await idle(queue.get())
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    assert await idle(queue.get())


async def test_delayed_key_comes_in_time(queue: WorkQueue[str], clock: FakeClock) -> None:
    queue.add_after("late", delay_s=10)
    queue.add_after("soon", delay_s=5)
    getting = asyncio.ensure_future(queue.get())
    await clock.advance(4.9)
    assert not getting.done()
    await clock.advance(0.1)
    assert await getting == "soon"
    await clock.advance(5)
    assert await queue.get() == "late"


async def test_earliest_delay_of_a_key_counts(queue: WorkQueue[str], clock: FakeClock) -> None:
    queue.add_after("a", delay_s=10)
    queue.add_after("a", delay_s=3)
    queue.add_after("a", delay_s=20)
    await clock.advance(3)
    assert await queue.get() == "a"
    queue.done("a")
    await clock.advance(100)
    assert await idle(queue.get())


async def test_waiting_worker_notices_a_shorter_delay(queue: WorkQueue[str], clock: FakeClock) -> None:
    queue.add_after("late", delay_s=100)
    getting = asyncio.ensure_future(queue.get())
    await clock.until_sleeping()
    queue.add_after("soon", delay_s=1)
    await clock.advance(1)
    assert await getting == "soon"


async def test_what_is_due_later_wakes_nobody(queue: WorkQueue[str], clock: FakeClock) -> None:
    """A burst of delayed keys costs one awakening, not one each."""
    queue.add_after("first", delay_s=1)
    waiting = asyncio.create_task(queue.get())
    await clock.until_sleeping()
    queue.add_after("second", delay_s=2)
    assert not queue._changed.is_set()
    await clock.advance(1)
    assert await waiting == "first"
    queue.done("first")
    waiting = asyncio.create_task(queue.get())
    await clock.until_sleeping()
    await clock.advance(1)
    assert await waiting == "second"


async def test_retries_back_off_until_forgotten(queue: WorkQueue[str], clock: FakeClock) -> None:
    delays_s = []
    for _ in range(12):
        getting = asyncio.ensure_future(queue.get())
        queue.retry("a")
        delays_s.append(await clock.advance_to_next())
        await getting
        queue.done("a")
    assert delays_s[0] <= 0.15
    assert 30 <= delays_s[-1] <= 45
    queue.forget("a")
    queue.retry("a")
    getting = asyncio.ensure_future(queue.get())
    assert await clock.advance_to_next() <= 0.15
    await getting


async def test_what_failed_waits_even_if_it_was_added_meanwhile(
    queue: WorkQueue[str], clock: FakeClock
) -> None:
    queue.add("a")
    queue.add("b")
    assert await queue.get() == "a"
    queue.add("a")
    queue.failed("a")
    assert await queue.get() == "b"
    assert await idle(queue.get())
    await clock.advance(0.15)
    assert await queue.get() == "a"


async def test_failing_key_does_not_hold_up_others(queue: WorkQueue[str], clock: FakeClock) -> None:
    queue.add("bad")
    await queue.get()
    queue.done("bad")
    queue.retry("bad")
    queue.add("good")
    assert await queue.get() == "good"


async def test_all_waiting_workers_are_served(queue: WorkQueue[str]) -> None:
    workers = [asyncio.ensure_future(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    for key in "abc":
        queue.add(key)
    assert {await worker for worker in workers} == {"a", "b", "c"}


async def test_delays_leave_no_task_behind(queue: WorkQueue[str]) -> None:
    queue.add_after("a", delay_s=100)
    assert await idle(queue.get())
    assert asyncio.all_tasks() == {asyncio.current_task()}


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "later", "get", "done", "advance"]), st.sampled_from("abc")),
        max_size=40,
    )
)
async def test_nothing_added_is_lost_and_nothing_is_worked_on_twice_at_once(
    steps: list[tuple[str, str]],
) -> None:
    clock = FakeClock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    working: set[str] = set()
    owed: set[str] = set()
    for what, key in steps:
        if what == "add":
            queue.add(key)
            owed.add(key)
        elif what == "later":
            queue.add_after(key, delay_s=1)
            owed.add(key)
        elif what == "advance":
            await clock.advance(1)
        elif what == "get" and len(queue):
            got = await queue.get()
            assert got not in working
            working.add(got)
            owed.discard(got)
        elif what == "done" and key in working:
            working.discard(key)
            queue.done(key)
    for key in working:
        queue.done(key)
    await clock.advance(1)
    while not await idle_get(queue, owed):
        pass
    assert not owed


async def idle_get(queue: WorkQueue[str], owed: set[str]) -> bool:
    getting = asyncio.ensure_future(queue.get())
    for _ in range(5):
        await asyncio.sleep(0)
    if getting.done():
        owed.discard(getting.result())
        queue.done(getting.result())
        return False
    getting.cancel()
    await asyncio.wait({getting})
    return True
