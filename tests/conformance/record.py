"""Records what a real API server answers: `python -m tests.conformance.record` in the root of the repository.

Builds and starts it where needed (Go, root not). Writes `recordings/<version>.json`, and the types of the
API to the fake server's `schema.json`. Of another version than `VERSION` only those answers are kept that
differ from `VERSION`'s: `--version 1.34.4`.
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
from tests.conformance.compare import differences
from tests.conformance.questions import Case, load

VERSION = "1.36.3"
OTHER_VERSIONS = ("1.34.4", "1.35.4", "1.37.2")
RECORDINGS = Path(__file__).parent / "recordings"


def recorded(version: str = VERSION) -> dict[str, list[Answer]]:
    """The answers of a version, by case."""
    answers: dict[str, list[Answer]] = json.loads(path_of(VERSION).read_text())["answers"]
    if version != VERSION:
        for name, steps in json.loads(path_of(version).read_text())["answers"].items():
            for step, answer in steps.items():
                answers[name][int(step)] = answer
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
    usual = {} if version == VERSION else recorded()
    cases = []
    for name, given in answers.items():
        if version == VERSION:
            lines, brackets = [_json(answer) for answer in given], "[]"
        else:
            changed = [step for step, answer in enumerate(given) if differences(answer, usual[name][step])]
            lines, brackets = [f'"{step}": {_json(given[step])}' for step in changed], "{}"
        if lines:
            cases.append(f" {_json(name)}: {brackets[0]}\n  " + ",\n  ".join(lines) + brackets[1])
    body = ",\n".join(cases)
    return f'{{"version": "{version}", "answers": {{\n{body}\n}}}}\n'


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)


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
