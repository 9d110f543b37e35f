"""Processes and files that cannot outlive the playground, even if it is killed."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tangram.base.errors import TangramError

# A child tells the guardian of itself before it becomes what it is to be: there is no moment between.
_BEGIN = 'echo "$$" >&0 && exec "$@" </dev/null'


class Guard:
    """Use as `with`: `directory` is there, private, and gone afterwards, as are all processes started here.

    That also holds if this process is killed: `tangram.playground.guardian` then reads the end of a pipe.
    """

    def __init__(self, parent: Path) -> None:
        self.directory = parent / f"tangram-{secrets.token_hex(4)}"

    def __enter__(self) -> Self:
        program = Path(__file__).with_name("guardian.py")
        reading, self._pipe = os.pipe()
        try:
            self._guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", str(program), str(self.directory)],
                stdin=reading,
                start_new_session=True,  # Ctrl-C in the terminal is not for it
            )
        finally:
            os.close(reading)
        self.directory.mkdir(mode=0o700)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._pipe)
        self._guardian.wait()

    def start(
        self, words: Sequence[str], *, environment: Mapping[str, str], output: IO[bytes], directory: Path
    ) -> "Group":
        """Starts a program in `directory`, in a session of its own, so that all it starts ends with it."""
        process = subprocess.Popen(
            ["/bin/sh", "-c", _BEGIN, "sh", *words],
            stdin=self._pipe,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
        return Group(process, self)

    def forget(self, group: int) -> None:
        """It has ended: its number may be another's from now on."""
        try:
            os.write(self._pipe, f"-{group}\n".encode())
        except BrokenPipeError:
            raise TangramError("the playground's guardian process was ended by somebody") from None


class Group:
    """A process and all that it started. Made by `Guard.start`."""

    def __init__(self, process: subprocess.Popen[bytes], guard: Guard) -> None:
        self._process = process
        self._guard = guard
        self._ended = False

    def exit_code(self) -> int | None:
        """None while it runs; 128 + signal where one ended it."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def terminate(self) -> None:
        """Asks it to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it and all it started, and waits for its end. May be repeated."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        if not self._ended:
            self._ended = True
            self._guard.forget(self._process.pid)

    def _signal(self, number: signal.Signals) -> None:
        # The group may outlive its first process: what that one left running is in it.
        if not self._ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
