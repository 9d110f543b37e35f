"""Locks between tasks and between processes."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tangram.base.errors import PrepareError, StateError
from tangram.node.locks import Locks
from tangram.testing.clock import FakeClock

HOLDER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(fd, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.readline()
if len(sys.argv) > 2: os.unlink(sys.argv[1])
"""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def locks(tmp_path: Path, clock: FakeClock) -> Locks:
    made = Locks(tmp_path / "locks", clock=clock)
    made.create()
    return made


def holder(path: Path, *more: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), *more],
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


async def test_files(locks: Locks, tmp_path: Path) -> None:
    async with locks.claim("u1"), locks.gpus(["GPU-0AB1-../..", "GPU-0AB1-../.."]):
        assert sorted(path.name for path in (tmp_path / "locks").iterdir()) == [
            "claim-u1.lock",
            "gpu-0ab1.lock",
        ]
    # A claim's lock goes with it; those of GPUs stay.
    assert [path.name for path in (tmp_path / "locks").iterdir()] == ["gpu-0ab1.lock"]
    assert locks._local == {}
    assert locks._users == {}


async def test_an_error_inside_frees_the_lock(locks: Locks) -> None:
    with pytest.raises(ValueError, match="inside"):
        async with locks.claim("u1"), locks.gpus(["GPU-1"]):
            raise ValueError("inside")
    async with locks.claim("u1"), locks.gpus(["GPU-1"]):
        pass


async def test_another_process_is_waited_for_without_blocking_the_loop(
    locks: Locks, clock: FakeClock, tmp_path: Path
) -> None:
    process = holder(tmp_path / "locks" / "gpu-1.lock")
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
    process = holder(tmp_path / "locks" / "gpu-1.lock")
    process.kill()
    process.communicate()
    async with locks.gpus(["GPU-1"]):
        pass


async def test_a_lock_file_that_its_holder_removed_excludes_nobody(
    locks: Locks, clock: FakeClock, tmp_path: Path
) -> None:
    path = tmp_path / "locks" / "claim-u1.lock"
    process = holder(path, "remove")
    inode = path.stat().st_ino
    seen: list[int] = []

    async def work() -> None:
        async with locks.claim("u1"):
            seen.append(path.stat().st_ino)

    task = asyncio.create_task(work())
    await clock.until_sleeping()
    keep = os.open(path, os.O_RDONLY)  # so that the inode is not used again
    process.communicate("\n")
    await clock.advance(1)
    await task
    os.close(keep)
    assert seen
    assert seen != [inode]


async def test_waiting_has_an_end(locks: Locks, clock: FakeClock, tmp_path: Path) -> None:
    process = holder(tmp_path / "locks" / "gpu-1.lock")

    async def work() -> None:
        async with locks.gpus(["GPU-1"]):
            pass

    task = asyncio.create_task(work())
    await clock.until_sleeping()
    await clock.advance(31)
    with pytest.raises(PrepareError, match="gpu-1 is locked by another process") as caught:
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
