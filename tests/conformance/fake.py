"""Asks the fake API server, a fresh one for each case."""

import asyncio
from typing import Any

import aiohttp
from tests.conformance.asking import Answer, Asker
from tests.conformance.questions import Case

from tangram.testing.apiserver import FakeApiServer


async def answers_of(case: Case, *, version: str) -> list[Answer]:
    """Its answers to a case, as `version`, e.g. 1.36.3."""
    minor = version.rpartition(".")[0]
    async with FakeApiServer(version=minor) as server, aiohttp.ClientSession(server.url) as session:

        async def compact() -> None:
            server.compact()

        async def end_watch(reading: asyncio.Future[str]) -> None:
            running = asyncio.ensure_future(server.until(server.watches.running))
            done: set[asyncio.Future[Any]] = {reading, running}
            await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED)
            running.cancel()
            server.end_watches()

        return await Asker(session, compact=compact, end_watch=end_watch).ask(case)
