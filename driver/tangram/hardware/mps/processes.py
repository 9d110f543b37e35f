"""Processes of MPS daemons, found and ended without ever touching a stranger's.

A process is known by pid, start time and boot; that it belongs to a GPU's daemon, by two variables in its
environment, which servers inherit from the control daemon. So a daemon is found again whatever was lost.
"""

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from tangram.hardware.mps.values import MpsDaemon

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
MARK_VARIABLE = "TANGRAM_MPS_GPU"
"""Set for daemons, not for the short-lived client of their control interface."""
DAEMON_ARGUMENTS = ("-f", "-M")
"""In the foreground, for clients of any user."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ENDED = frozenset("ZXx")
_MAXIMUM_READ = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsProcess:
    """A process of a GPU's daemon; `control` for the control daemon itself, else a server."""

    identity: MpsDaemon
    control: bool


def read_boot_id() -> str:
    """The kernel's id of this boot."""
    return _BOOT_ID.read_text().strip()


def identify(pid: int, *, boot_id: str) -> MpsDaemon | None:
    """The process of that pid; None if there is none, or it has ended and only waits to be collected."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold anything, spaces and parentheses included (proc(5)).
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in _ENDED:
        return None
    return MpsDaemon(pid=pid, start_ticks=int(fields[19]), boot_id=boot_id)


def lives(process: MpsDaemon) -> bool:
    """Whether this very process still runs."""
    return identify(process.pid, boot_id=process.boot_id) == process


def find(pipe: Path, *, mark: str, boot_id: str) -> list[MpsProcess]:
    """All processes of the daemon with that pipe directory and mark, by pid."""
    wanted = {f"{PIPE_VARIABLE}={pipe}".encode(), f"{MARK_VARIABLE}={mark}".encode()}
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        if not wanted <= set(_read(pid, "environ").split(b"\0")):
            continue
        arguments = _read(pid, "cmdline").rstrip(b"\0").split(b"\0")
        if (identity := identify(pid, boot_id=boot_id)) is not None:
            control = tuple(arguments[-2:]) == tuple(word.encode() for word in DAEMON_ARGUMENTS)
            found.append(MpsProcess(identity=identity, control=control))
    return found


def kill(process: MpsDaemon) -> None:
    """Ends this very process at once; one that is gone, or whose pid is another's now, is left alone."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            # From here on the handle means one process, whatever becomes of its pid.
            if lives(process):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def _read(pid: int, name: str) -> bytes:
    """A file of a process; empty where it is gone, or somebody else's."""
    try:
        with Path(f"/proc/{pid}/{name}").open("rb") as file:
            return file.read(_MAXIMUM_READ)
    except OSError:
        return b""
