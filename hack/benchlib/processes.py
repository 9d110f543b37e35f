"""A measured process: its log, its memory, its CPU time, its end."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self, TypeVar

from clusterlib.errors import ClusterError

T = TypeVar("T")

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Of one process. `proportional` (PSS) counts a page shared by n processes as 1/n."""

    resident_bytes: int
    proportional_bytes: int
    anonymous_bytes: int
    by_file_bytes: Mapping[str, int]
    """Resident pages of mapped files by file name."""


class Process:
    """Standard output and error are read to their end."""

    def __init__(self, process: asyncio.subprocess.Process, *, started_s: float) -> None:
        self.started_s = started_s
        """time.time() just before the start."""
        self.log: list[dict[str, Any]] = []
        """What it logged on standard error: JSON lines with an `event`."""
        self.output: list[str] = []
        """Lines of standard output."""
        self._written: list[str] = []
        self._process = process
        self._ends = False
        self._changed = asyncio.Condition()
        self._readers = [
            asyncio.create_task(
                self._read(stream, self._note_output if stream is process.stdout else self._note_log)
            )
            for stream in (process.stdout, process.stderr)
            if stream is not None
        ]

    @classmethod
    async def start(cls, *words: str, environment: Mapping[str, str]) -> Self:
        """With an open, empty standard input."""
        started_s = time.time()
        process = await asyncio.create_subprocess_exec(
            *words,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        return cls(process, started_s=started_s)

    async def _read(self, stream: asyncio.StreamReader, note: Callable[[str], None]) -> None:
        async for line in stream:  # ends with the process
            text = line.decode(errors="replace").rstrip("\n")
            async with self._changed:
                self._written.append(text)
                note(text)
                self._changed.notify_all()
        async with self._changed:
            self._ends = True
            self._changed.notify_all()

    def _note_output(self, text: str) -> None:
        self.output.append(text)

    def _note_log(self, text: str) -> None:
        try:
            entry = json.loads(text)
        except ValueError:
            return
        if isinstance(entry, dict) and "event" in entry:
            self.log.append(entry)

    async def until_event(self, event: str) -> float:
        """Seconds from the start of the process to the first such log entry, by its own time stamp."""
        found: list[dict[str, Any]] = []

        def seen() -> bool:
            found[:] = [entry for entry in self.log if entry["event"] == event]
            return bool(found)

        await self._until(seen, what=f"log event {event}")
        return datetime.fromisoformat(found[0]["timestamp"]).timestamp() - self.started_s

    async def until_output(self) -> str:
        """The first line on standard output."""
        await self._until(lambda: bool(self.output), what="output")
        return self.output[0]

    async def _until(self, seen: Callable[[], bool], *, what: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S), self._changed:
                await self._changed.wait_for(lambda: seen() or self._ends)
        if not seen():
            raise self.failed(f"gave no {what}")

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; ClusterError if the process ends before that or it takes a minute."""
        task = asyncio.ensure_future(work)
        end = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait({task, end}, timeout=_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await asyncio.wait(self._readers, timeout=1)
                raise self.failed("ended" if end.done() else "took too long")
            return task.result()
        finally:
            for each in (task, end):
                each.cancel()

    def failed(self, how: str) -> ClusterError:
        """What to raise: with the end of its output."""
        return ClusterError(
            f"a measured process {how}; its output ends with\n" + "\n".join(self._written[-20:]),
            next_step="see its output above",
        )

    def memory(self) -> Memory:
        """As /proc/PID/smaps has it now."""
        return memory_of(self._process.pid)

    def cpu_s(self) -> float:
        """User and system time of all its threads so far, the ended ones too."""
        # The clock id that clock_getcpuclockid(3) makes of a process id.
        return time.clock_gettime((~self._process.pid << 3) | 2)

    async def kill(self) -> None:
        """At once, if it still runs."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await asyncio.gather(*self._readers)


def memory_of(pid: int) -> Memory:
    """Raises OSError."""
    return parse_smaps(Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8"))


def parse_smaps(text: str) -> Memory:
    """The text of /proc/PID/smaps (proc_pid_smaps(5)). Pure."""
    totals = dict.fromkeys(("Rss", "Pss", "Anonymous"), 0)
    files: dict[str, int] = {}
    name = ""
    for line in text.splitlines():
        head, _, rest = line.partition(" ")
        if not head.endswith(":"):
            path = line.split(maxsplit=5)[5:]
            name = path[0].rpartition("/")[2] if path and path[0].startswith("/") else ""
            continue
        field = head[:-1]
        if field in totals:
            size_bytes = int(rest.split()[0]) * 1024
            totals[field] += size_bytes
            if name and field in {"Rss", "Anonymous"}:
                # Written pages of a file's mapping are anonymous.
                files[name] = files.get(name, 0) + (size_bytes if field == "Rss" else -size_bytes)
    return Memory(
        resident_bytes=totals["Rss"],
        proportional_bytes=totals["Pss"],
        anonymous_bytes=totals["Anonymous"],
        by_file_bytes={name: size for name, size in files.items() if size},
    )
