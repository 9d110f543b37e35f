"""What `./hack/try` runs: prepares `.venv-run`, then becomes `tangram playground`.

Standard library only, as nothing else is there yet. `.venv-run` holds what deploy/requirements.txt lists, by
hash, and the command `tangram` of this checkout; it is made once. If a signal ends this, nothing but a
finished `.venv-run` stays.
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-run"
LOCK = ROOT / "deploy" / "requirements.txt"
STAMP = VENV / ".made-from"

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INTERRUPTED = 130
_PAUSE_S = 0.05
_PIP_INTO_OTHERS = (22, 3)
"""The first pip that knows `--python`."""

# Handlers only note a signal, so that none falls between the start of a process and the care for its end.
_signals: list[int] = []


class _InterruptedError(Exception):
    """A signal asked for the end."""


class CannotPrepareError(Exception):
    """`.venv-run` cannot be made; the text says what to do."""


def main() -> None:
    """Does not return but by SystemExit: 2 where `.venv-run` cannot be made, 130 after a signal."""
    started_s = time.monotonic()
    for number in _SIGNALS:
        signal.signal(number, lambda number, _: _signals.append(number))
    try:
        prepare()
    except CannotPrepareError as error:
        print(f"hack/try: {error}", file=sys.stderr)
        sys.exit(2)
    except _InterruptedError:
        sys.exit(_INTERRUPTED)
    os.environ |= {
        "PYTHONPATH": str(ROOT / "driver"),
        "TANGRAM_PLAYGROUND_COMMAND": "./hack/try",
        "TANGRAM_PLAYGROUND_STARTED_S": str(started_s),
    }
    # Signals wait until the playground can answer them: it lets them through.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    if _signals:
        sys.exit(_INTERRUPTED)
    python = str(VENV / "bin" / "python")
    os.execv(python, [python, "-m", "tangram", "playground", *sys.argv[1:]])


def prepare() -> None:
    """Makes `.venv-run` unless it is current. Raises CannotPrepareError."""
    with _alone():
        wanted = f"{hashlib.sha256(LOCK.read_bytes()).hexdigest()} {ROOT}\n"
        if not _made_from(wanted):
            _make(wanted)
        _write_command()


def _write_command() -> None:
    """The command `tangram` beside the Python: for a second terminal."""
    command = VENV / "bin" / "tangram"
    text = (
        f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT / 'driver'))}"
        f' exec {shlex.quote(str(VENV / "bin" / "python"))} -m tangram "$@"\n'
    )
    with contextlib.suppress(OSError):
        if command.read_text(encoding="utf-8") == text:
            return
    command.write_text(text, encoding="utf-8")
    command.chmod(0o755)


def _pause() -> None:
    time.sleep(_PAUSE_S)
    if _signals:
        raise _InterruptedError


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Two that are started together must not both make it."""
    with LOCK.open("rb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                _pause()
        yield


def _made_from(wanted: str) -> bool:
    try:
        return STAMP.read_text(encoding="utf-8") == wanted and (VENV / "bin" / "python").exists()
    except OSError:
        return False


def _make(wanted: str) -> None:
    print("Preparing .venv-run from deploy/requirements.txt, once; needs the network", file=sys.stderr)
    installer = _installer()
    sys.path.insert(0, str(ROOT / "driver"))
    from tangram.playground.guard import Guard  # noqa: PLC0415 - takes nothing but the standard library

    done = False
    try:
        with Guard(Path(tempfile.gettempdir())) as guard:
            environment = {
                **os.environ,
                "TMPDIR": str(guard.directory),  # what pip leaves when it is killed lies there
                "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            }
            for command in installer:
                running = guard.start(
                    command, environment=environment, output=sys.stderr.buffer, directory=ROOT
                )
                while (code := running.exit_code()) is None:
                    _pause()
                if code:
                    raise CannotPrepareError(f"{' '.join(command[:4])} … failed with exit code {code}")
        STAMP.write_text(wanted, encoding="utf-8")
        done = True
    finally:
        if not done:
            shutil.rmtree(VENV, ignore_errors=True)


def _installer() -> list[list[str]]:
    """What makes `.venv-run`: a pip that is here, else the one that comes with Python, else uv."""
    new = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    python = str(VENV / "bin" / "python")
    # The lock is complete, and what is never imported need not be compiled: half the time.
    install = ["install", "--quiet", "--no-deps", "--no-compile", "--require-hashes", "-r", str(LOCK)]
    # Before ensurepip, which would install another pip first: a quarter of the time.
    if _pip_version() >= _PIP_INTO_OTHERS:
        return [[*new, "--without-pip"], [sys.executable, "-m", "pip", "--python", python, *install]]
    if importlib.util.find_spec("ensurepip") is not None:
        return [new, [python, "-m", "pip", *install]]
    if uv := shutil.which("uv"):
        return [[*new, "--without-pip"], [uv, "pip", *install[:3], *install[4:], "--python", python]]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    raise CannotPrepareError(
        f"Python {version} lacks ensurepip and pip, so it cannot install anything; install the package"
        f" python{version}-venv (Debian, Ubuntu: apt-get install python{version}-venv)"
    )


def _pip_version() -> tuple[int, int]:
    """Of the pip of this Python; (0, 0) if there is none."""
    try:
        major, minor = importlib.metadata.version("pip").split(".")[:2]
        return int(major), int(minor)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return 0, 0


if __name__ == "__main__":
    main()
