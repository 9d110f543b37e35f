"""Records what a real API server answers: `python -m tests.conformance.record` in the root of the repository.

Builds and starts it where needed (Go, root not). Writes `recordings/<version>.json`, and the types of the
API to the fake server's `schema.json`.
"""

import argparse
import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from tests.conformance import realserver, schema
from tests.conformance.asking import Answer, Asker
from tests.conformance.questions import Case, load

VERSION = "1.36.3"
RECORDINGS = Path(__file__).parent / "recordings"


def recorded(version: str = VERSION) -> dict[str, list[Answer]]:
    """The answers of a version, by case."""
    answers: dict[str, list[Answer]] = json.loads(path_of(version).read_text())["answers"]
    return answers


def path_of(version: str) -> Path:
    """Where a version's answers lie."""
    return RECORDINGS / f"{version}.json"


@contextlib.asynccontextmanager
async def asker_of(server: realserver.RealServer) -> AsyncIterator[Asker]:
    """Asks a real server."""

    async def compact() -> None:
        await asyncio.to_thread(realserver.compact, server)

    def session(url: str) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            url,
            headers={"authorization": f"Bearer {server.token}"},
            connector=aiohttp.TCPConnector(ssl=server.tls),
            timeout=aiohttp.ClientTimeout(total=60),
        )

    async with session(server.url) as cached, session(server.uncached_url) as uncached:
        yield Asker(cached, compact=compact, uncached=uncached)


async def ask_all(server: realserver.RealServer, cases: list[Case]) -> dict[str, list[Answer]]:
    """One case after the other: a compaction is everybody's."""
    async with asker_of(server) as asker:
        return {case.name: await asker.ask(case) for case in cases}


def dump(version: str, answers: dict[str, list[Answer]]) -> str:
    """One answer a line: a change of one is a change of one line."""
    lines = []
    for name, given in answers.items():
        steps = ",\n  ".join(json.dumps(answer, sort_keys=True) for answer in given)
        lines.append(f" {json.dumps(name)}: [\n  {steps}]")
    body = ",\n".join(lines)
    return f'{{"version": "{version}", "answers": {{\n{body}\n}}}}\n'


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Record a real API server's answers.")
    parser.add_argument("--version", default=VERSION)
    parser.add_argument("--base-port", type=int, default=17_400)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        realserver.running(
            arguments.version, base_port=arguments.base_port, directory=Path(directory)
        ) as server,
    ):
        answers: dict[str, Any] = asyncio.run(ask_all(server, load()))
        RECORDINGS.mkdir(exist_ok=True)
        path_of(arguments.version).write_text(dump(arguments.version, answers))
        if arguments.version == VERSION:
            schema.PATH.write_text(schema.read(server))


if __name__ == "__main__":
    main()
