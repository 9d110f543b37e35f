"""The keeper: a supervisor that dies or hangs is started again, whatever else happens."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.mps.conftest import DRIVER, until

from tangram.hardware.mps.processes import identify

CODE = """
import os, signal, sys, time
from pathlib import Path
from tangram.hardware.mps import keeper

keeper.SILENCE_S = 0.5
root, how = Path(sys.argv[1]), sys.argv[2]

def work(name, beat):
    number = len(list(root.glob("run-*")))
    (root / f"run-{number}").write_text(f"{os.getpid()} {name}")
    while True:
        if how == "dies" and number < 2:
            return 7
        if how == "raises" and number < 2:
            raise ValueError("a bug")
        if how == "hangs" and number < 2:
            signal.pause()
        beat()
        time.sleep(0.05)

sys.exit(keeper.keep(root, work))
"""


def lives(pid: str) -> bool:
    return identify(int(pid), boot_id="") is not None


class Kept:
    def __init__(self, root: Path, process: asyncio.subprocess.Process) -> None:
        self.root = root
        self.process = process

    def runs(self) -> list[list[str]]:
        return [path.read_text().split() for path in sorted(self.root.glob("run-*"))]

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            return await self.process.wait()


@pytest.fixture
async def keep(tmp_path: Path) -> AsyncIterator["object"]:
    started: list[Kept] = []

    async def start(how: str) -> Kept:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CODE, str(tmp_path), how, env={"PYTHONPATH": str(DRIVER)}
        )
        started.append(Kept(tmp_path, process))
        return started[-1]

    yield start
    for kept in started:
        if kept.process.returncode is None:
            kept.process.kill()
            await kept.process.wait()


@pytest.mark.parametrize("how", ["dies", "raises", "hangs"])
async def test_a_supervisor_that_does_not_go_on_is_started_again(keep, how: str) -> None:  # type: ignore[no-untyped-def]
    kept = await keep(how)
    await until(lambda: len(kept.runs()) == 3)
    pids, names = zip(*kept.runs(), strict=True)
    assert len(set(pids)) == 3
    assert len(set(names)) == 1, "what was written for this keeper stays true"
    await kept.stop()
    assert len(kept.runs()) == 3


async def test_sigterm_ends_the_supervisor_and_the_keeper(keep) -> None:  # type: ignore[no-untyped-def]
    kept = await keep("works")
    await until(lambda: kept.runs() and kept.runs()[0])
    assert await kept.stop() == 0
    assert not lives(kept.runs()[0][0])


async def test_a_supervisor_ends_with_its_keeper(keep) -> None:  # type: ignore[no-untyped-def]
    """It beats into a pipe that nobody reads."""
    kept = await keep("works")
    await until(lambda: kept.runs() and kept.runs()[0])
    os.kill(kept.process.pid, signal.SIGKILL)
    await until(lambda: not lives(kept.runs()[0][0]))
