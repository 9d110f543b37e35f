"""The parent of the supervisor: starts it again when it dies or hangs, so that daemons outlive both.

In a container this is the first process: as long as it lives, the kernel ends none of the others. So it does
next to nothing, and daemons that the supervisor has left behind become its children.
"""

import contextlib
import fcntl
import os
import secrets
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tangram.base.atomicfile import state_error
from tangram.base.backoff import Backoff

SILENCE_S = 30.0
"""A supervisor that has not beaten for so long hangs."""
_STABLE_S = 60.0
_LOCK = "keeper.lock"

Work = Callable[[str, Callable[[], None]], int]
"""The supervisor: gets the name of this run and the beat it is to give each second; returns an exit code."""


def keep(root: Path, work: Work) -> int:
    """Runs `work` in a child, again and again, until SIGTERM or SIGINT; returns the exit code.

    Waits while another keeper holds the directory. StateError where the directory cannot be used.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.chmod(0o700)
        lock = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Only one that has ended lets go: then the daemons in its container have ended too.
        fcntl.flock(lock, fcntl.LOCK_EX)
        name = secrets.token_hex(8)
        os.ftruncate(lock, 0)
        os.pwrite(lock, name.encode(), 0)
    except OSError as error:
        raise state_error(error, root / _LOCK, "cannot be locked") from error
    return _Keeper(name, work).run()


class _Keeper:
    def __init__(self, name: str, work: Work) -> None:
        self._name = name
        self._work = work
        self._child = 0
        self._stopping = threading.Event()

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        backoff = Backoff(initial_s=0.2, maximum_s=30.0)
        while True:
            started_s = time.monotonic()
            code = self._run_child()
            if self._stopping.is_set():
                return max(code, 0)  # one that our signal met before it listened has ended as well
            if time.monotonic() - started_s > _STABLE_S:
                backoff.reset()
            print(f"the MPS supervisor ended ({code}); it starts again", file=sys.stderr)  # noqa: T201
            deadline_s = time.monotonic() + backoff.next_s()
            while not self._stopping.is_set() and (left_s := deadline_s - time.monotonic()) > 0:
                _collect()
                select.select([], [], [], min(left_s, 0.1))
            if self._stopping.is_set():
                return 0

    def _run_child(self) -> int:
        """Returns the child's exit code once it has ended."""
        keeper = os.getpid()
        heard, beat = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(heard)
            self._be_child(keeper, beat)
        self._child = child
        os.close(beat)
        if self._stopping.is_set():
            self._forward(signal.SIGTERM)
        try:
            while True:
                ready, _, _ = select.select([heard], [], [], SILENCE_S)
                if not ready:
                    os.kill(child, signal.SIGKILL)
                elif not os.read(heard, 4096):
                    break
                _collect(but=child)
        finally:
            os.close(heard)
        status = os.waitpid(child, 0)[1]
        self._child = 0
        return os.waitstatus_to_exitcode(status)

    def _be_child(self, keeper: int, beat: int) -> None:
        """Never returns."""
        code = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)

            def give_beat() -> None:
                if os.getppid() != keeper:
                    os._exit(1)
                os.write(beat, b".")

            code = self._work(self._name, give_beat)
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _stop(self, number: int, _frame: object) -> None:
        self._stopping.set()
        self._forward(number)

    def _forward(self, number: int) -> None:
        if self._child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, number)


def _collect(but: int = 0) -> None:
    """Lets daemons go that have ended and whose own parent is gone."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if found.si_pid == but:
                return
            os.waitpid(found.si_pid, 0)
