"""Runs stages of a test run: one after the other in a lane, lanes beside each other.

A stage is some commands. Its output goes through as it comes where there is one lane; with several it is kept
and printed in one piece when the stage ends, and a line tells now and then what runs.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PROGRESS_EVERY_S = 60.0
_STOP_WITHIN_S = 60.0
# A stage that takes so many times its budget hangs; a machine may well be several times slower than ours.
_LIMIT = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """`report` is the JUnit XML that it writes, if its tests count one by one.

    All `commands` run, also after one has failed, unless `stop_at_failure`. After a stage that `others_need`
    has failed, the rest of its lane is left out, but for what is to run `always`.
    """

    name: str
    budget_s: float
    commands: Sequence[Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    report: Path | None = None
    others_need: bool = False
    stop_at_failure: bool = False
    always: bool = False
    accepted: frozenset[int] = frozenset({0})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a stage ended; `problem` is empty if it was good."""

    stage: Stage
    seconds: float
    problem: str = ""

    def line(self) -> str:
        """One line for people."""
        outcome = self.problem or "ok"
        if self.seconds > self.stage.budget_s:
            outcome += ", over budget"
        return f"{self.stage.name:<28} {self.seconds:8.1f} s of {self.stage.budget_s:5.0f} s  {outcome}"


class Run:
    """One test run. `directory` holds the output of stages that have not ended."""

    def __init__(self, directory: Path, *, several: bool, progress_every_s: float = PROGRESS_EVERY_S) -> None:
        self._directory = directory
        self._several = several
        self._progress_every_s = progress_every_s
        self._started_s: dict[str, float] = {}
        self.results: list[Result] = []

    async def lanes(self, lanes: Iterable[Sequence[Stage]]) -> None:
        """Runs all; when cancelled, ends every process that it started."""
        progress = asyncio.create_task(self._tell_progress())
        try:
            async with asyncio.TaskGroup() as tasks:
                for stages in lanes:
                    tasks.create_task(self._lane(stages))
        finally:
            progress.cancel()

    async def _lane(self, stages: Sequence[Stage]) -> None:
        broken = ""
        for stage in stages:
            if broken and not stage.always:
                self.note(Result(stage=stage, seconds=0.0, problem=f"LEFT OUT: {broken} failed"))
                continue
            result = await self._stage(stage)
            self.note(result)
            if result.problem and stage.others_need:
                broken = stage.name

    def note(self, result: Result) -> None:
        """Keeps and prints how a stage ended."""
        self.results.append(result)
        print(f"== {result.line()}", flush=True)

    async def _stage(self, stage: Stage) -> Result:
        started_s = time.monotonic()
        self._started_s[stage.name] = started_s
        title = f"\n== {stage.name} (budget {stage.budget_s:.0f} s)"
        output = self._output(stage.name) if self._several else None
        if output is None:
            print(title, flush=True)
        try:
            async with asyncio.timeout(stage.budget_s * _LIMIT):
                problem = await self._commands(stage, output)
        except TimeoutError:
            problem = f"FAILED: ended after {stage.budget_s * _LIMIT:.0f} s"
        except OSError as error:
            problem = f"FAILED: {error}"
        finally:
            del self._started_s[stage.name]
            if output is not None:
                print(title, flush=True)
                _copy(output)
        return Result(stage=stage, seconds=time.monotonic() - started_s, problem=problem)

    async def _commands(self, stage: Stage, output: Path | None) -> str:
        problem = ""
        for command in stage.commands:
            async with _process(command, stage.environment, output) as process:
                code = await process.wait()
            if code not in stage.accepted:
                problem = "FAILED" if code >= 0 else f"FAILED: ended by {signal.Signals(-code).name}"
                if stage.stop_at_failure:
                    break
        return problem

    def _output(self, name: str) -> Path:
        return self._directory / f"{name.replace(' ', '-')}.log"

    async def _tell_progress(self) -> None:
        while self._several:
            await asyncio.sleep(self._progress_every_s)
            now_s = time.monotonic()
            running = [
                f"{name} {now_s - since_s:.0f} s{_percent(self._output(name))}"
                for name, since_s in self._started_s.items()
            ]
            print(f".. running: {', '.join(running)}", flush=True)


@contextlib.asynccontextmanager
async def _process(
    command: Sequence[str], environment: Mapping[str, str], output: Path | None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process in a group of its own, so that its end can reach what it started."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(output.open("ab")) if output else None
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, **environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=asyncio.subprocess.STDOUT if file else None,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            await asyncio.shield(_end(process))


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_WITHIN_S):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        # Also what its first process left.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _percent(output: Path) -> str:
    """How far pytest says it is."""
    found = re.findall(r"\[ *\d+%\]", output.read_text(errors="replace")) if output.exists() else []
    return f" {found[-1]}" if found else ""


def _copy(output: Path) -> None:
    if output.exists():
        sys.stdout.flush()
        sys.stdout.buffer.write(output.read_bytes())
        sys.stdout.flush()
