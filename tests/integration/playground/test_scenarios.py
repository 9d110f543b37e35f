"""Every scenario in the playground; tests/cluster/test_scenarios.py plays the same files."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tangram.base.clock import SystemClock
from tangram.playground.cluster import Cluster, running_cluster
from tangram.playground.machines import parse_machines
from tangram.playground.scenarios.reading import load_scenario
from tangram.playground.scenarios.runner import Runner
from tangram.playground.world import PlaygroundWorld
from tangram.testing.apiserver import DEFAULT_VERSION

FILES = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))
OLDEST = "1.34"
"""Its API server keeps nothing of shares: what is about them is played there too."""
OF_SHARES = [
    file
    for file in FILES
    if "mps.gpu" in file.read_text() or file.stem[:10] in ("example-12", "example-13", "example-14")
]

# One cluster for all: a scenario leaves nothing behind, and the next one counts on it.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner() -> AsyncIterator[Runner]:
    async with playing(DEFAULT_VERSION) as runner:
        yield runner


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def old_runner() -> AsyncIterator[Runner]:
    async with playing(OLDEST) as runner:
        yield runner


@contextlib.asynccontextmanager
async def playing(version: str) -> AsyncIterator[Runner]:
    started: asyncio.Future[Cluster] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        async with running_cluster(parse_machines("a100x8,h100x8"), version=version) as cluster:
            started.set_result(cluster)
            await asyncio.Event().wait()

    # In a task of its own: a fixture's end may run in another task than its beginning.
    task = asyncio.create_task(run())
    both: set[asyncio.Future[Any]] = {task, started}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    yield Runner(PlaygroundWorld(started.result()), clock=SystemClock())
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_scenario(runner: Runner, file: Path) -> None:
    await play(runner, file)


@pytest.mark.parametrize("file", OF_SHARES, ids=lambda file: file.stem)
async def test_shares_where_the_server_keeps_nothing_of_them(old_runner: Runner, file: Path) -> None:
    await play(old_runner, file)


async def play(runner: Runner, file: Path) -> None:
    outcome = await runner.play(load_scenario(file))
    if outcome.result == "skipped":
        pytest.skip(outcome.message)
    assert outcome.result == "passed", outcome.message
