"""Locks between tasks and between processes."""

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tangram.base.errors import PrepareError, StateError
from tangram.node.locks import Locks
from tangram.testing.clock import FakeClock

HOLDER = """
import asyncio, pathlib, sys
from tangram.base.clock import SystemClock
from tangram.node.locks import Locks

async def hold():
    async with Locks(pathlib.Path(sys.argv[1]), clock=SystemClock()).gpus(["GPU-1"]):
        print("locked", flush=True)
        sys.stdin.readline()

asyncio.run(hold())
"""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def locks(tmp_path: Path, clock: FakeClock) -> Locks:
    made = Locks(tmp_path / "locks", clock=clock)
    made.create()
    return made


def holder(tmp_path: Path) -> "subprocess.Popen[str]":
    """Another process, which has the lock of GPU-1."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "locks")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


async def test_tasks_exclude_each_other_in_order(locks: Locks) -> None:
    order: list[str] = []
    gate = asyncio.Event()

    async def work(name: str) -> None:
        async with locks.claim("u1"):
            order.append(name)
            await gate.wait()
            order.append(name)

    tasks = []
    for name in "abc":
        tasks.append(asyncio.create_task(work(name)))
        await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*tasks)
    assert order == list("aabbcc")


async def test_different_claims_and_gpus_do_not_wait(locks: Locks) -> None:
    first, second = locks.claim("u1"), locks.claim("u2")
    async with first, locks.gpus(["GPU-1", "GPU-2"]), second, locks.gpus(["GPU-3"]):
        pass


async def test_gpus_are_locked_without_deadlock(locks: Locks) -> None:
    async def work(*uuids: str) -> None:
        async with locks.gpus(uuids):
            await asyncio.sleep(0)

    async with asyncio.timeout(10):
        await asyncio.gather(*(work(*pair) for pair in [("GPU-1", "GPU-2"), ("GPU-2", "GPU-1")] * 20))


async def test_nothing_is_left_of_a_lock(locks: Locks, tmp_path: Path) -> None:
    async with locks.claim("u1"), locks.gpus(["GPU-0AB1-../..", "GPU-0AB1-../.."]):
        pass
    assert [path.name for path in (tmp_path / "locks").iterdir()] == ["lock"]
    assert locks._local == {}
    assert locks._users == {}


async def test_two_plugins_exclude_each_other(locks: Locks, clock: FakeClock, tmp_path: Path) -> None:
    other = Locks(tmp_path / "locks", clock=clock)
    entered = asyncio.Event()

    async def work() -> None:
        async with other.claim("u1"):
            entered.set()

    async with locks.claim("u1"):
        async with other.claim("u2"):  # opens and closes nothing that the first lock hangs on
            pass
        task = asyncio.create_task(work())
        await clock.until_sleeping()
        await clock.advance(1)
        assert not entered.is_set()
    await clock.advance(1)
    await task


async def test_a_plugin_that_is_gone_leaves_no_descriptor(tmp_path: Path, clock: FakeClock) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        async with Locks(tmp_path, clock=clock).claim(f"u{number}"):
            pass
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_an_error_inside_frees_the_lock(locks: Locks) -> None:
    with pytest.raises(ValueError, match="inside"):
        async with locks.claim("u1"), locks.gpus(["GPU-1"]):
            raise ValueError("inside")
    async with locks.claim("u1"), locks.gpus(["GPU-1"]):
        pass


async def test_another_process_is_waited_for_without_blocking_the_loop(
    locks: Locks, clock: FakeClock, tmp_path: Path
) -> None:
    process = holder(tmp_path)
    entered = asyncio.Event()

    async def work() -> None:
        async with locks.gpus(["GPU-1"]):
            entered.set()

    task = asyncio.create_task(work())
    await clock.until_sleeping()
    await clock.advance(1)
    assert not entered.is_set()
    process.communicate("\n")
    await clock.advance(1)
    await task


async def test_a_dead_process_frees_its_lock(locks: Locks, tmp_path: Path) -> None:
    process = holder(tmp_path)
    process.kill()
    process.communicate()
    async with locks.gpus(["GPU-1"]):
        pass


async def test_waiting_has_an_end(locks: Locks, clock: FakeClock, tmp_path: Path) -> None:
    process = holder(tmp_path)

    async def work() -> None:
        async with locks.gpus(["GPU-1"]):
            pass

    task = asyncio.create_task(work())
    await clock.until_sleeping()
    await clock.advance(31)
    with pytest.raises(PrepareError, match="GPU-1 is locked by another process") as caught:
        await task
    assert caught.value.next_step
    process.communicate("\n")
    async with locks.gpus(["GPU-1"]):
        pass


async def test_no_directory(tmp_path: Path, clock: FakeClock) -> None:
    with pytest.raises(StateError, match="cannot be locked"):
        async with Locks(tmp_path / "missing", clock=clock).claim("u"):
            pass
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot be made"):
        Locks(tmp_path / "file" / "locks", clock=clock).create()
