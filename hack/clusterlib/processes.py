"""The processes of a cluster, found by a mark in their environment.

There are no pid files that could be stale or missing after a crash: every process we start, and all that it
starts, carries CLUSTER_MARK=<base port> and COMPONENT_MARK=<component> in its environment, which /proc shows.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clusterlib.errors import ClusterError

CLUSTER_MARK = "TANGRAM_CLUSTER"
COMPONENT_MARK = "TANGRAM_COMPONENT"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    pid: int
    component: str
    program: str
    """File name of the program, as it was called."""


def parse_environment(block: bytes) -> dict[str, str]:
    """/proc/<pid>/environ -> variables. Entries without `=` are dropped."""
    pairs = (entry.partition("=") for entry in block.decode(errors="replace").split("\0"))
    return {name: value for name, separator, value in pairs if separator}


def find(base_port: int) -> list[Process]:
    """All living processes of the cluster, zombies not counted."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        # A process may end between any two reads.
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            environment = parse_environment((entry / "environ").read_bytes())
            if environment.get(CLUSTER_MARK) != str(base_port):
                continue
            program = (entry / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
            found.append(
                Process(
                    pid=int(entry.name),
                    component=environment.get(COMPONENT_MARK, ""),
                    program=os.path.basename(program),
                )
            )
    return found


def main_process(processes: Iterable[Process], component: str, program: str) -> Process | None:
    """The process that is the component itself, not a launcher or child that inherited its mark."""
    for process in processes:
        if process.component == component and process.program == program:
            return process
    return None


def spawn(
    argv: Sequence[str | Path],
    *,
    base_port: int,
    component: str,
    log_file: Path,
    path: Sequence[Path] = (),
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process detached from the terminal: own session, no input, output appended to `log_file`."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as log:
        return subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            # Nothing of the caller's environment (proxies, CA bundles) may change what the cluster does.
            env={
                "PATH": ":".join([*(str(entry) for entry in path), SYSTEM_PATH]),
                "HOME": "/root",
                CLUSTER_MARK: str(base_port),
                COMPONENT_MARK: component,
                **(environment or {}),
            },
        )


def end(pids: Iterable[int], number: signal.Signals, *, timeout_s: float = 15.0) -> None:
    """Signal processes and wait until they have ended. Raises ClusterError when one has not in time."""
    deadline_s = time.monotonic() + timeout_s
    handles: dict[int, int] = {}
    for pid in pids:
        with suppress(ProcessLookupError):
            handles[pid] = os.pidfd_open(pid)
    try:
        for handle in handles.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
        for pid, handle in handles.items():
            left_s = max(0.0, deadline_s - time.monotonic())
            readable, _, _ = select.select([handle], [], [], left_s)
            if not readable:
                raise ClusterError(
                    f"process {pid} has not ended {timeout_s:.0f} s after {number.name}",
                    next_step=f"see /proc/{pid}/stack and run the command again",
                )
    finally:
        for handle in handles.values():
            os.close(handle)
