"""Files that are there whole or not at all, whatever happens while they are written."""

import contextlib
import errno
import os
import secrets
from pathlib import Path

from tangram.base.errors import StateError

_NEXT_STEPS = {
    errno.ENOSPC: "free space on that file system",
    errno.EDQUOT: "raise the quota on that file system",
    errno.EROFS: "mount that file system writable",
    errno.EACCES: "let this process write there",
    errno.EPERM: "let this process write there",
}


def write_atomically(path: Path, data: bytes, *, mode: int, sync: bool = True) -> None:
    """Writes by temporary file, fsync and rename; makes the directory if need be.

    A reader, and the disk after a crash, has the old content or the new one, whole; the directory is not
    synced, so that just after a power cut it may be the old one again. A process killed in between leaves
    only a temporary file (`remove_leftovers`). Without `sync` all that holds for killed processes, not for a
    power cut: for what is of no use after one. StateError names the path and what to do.
    """
    try:
        try:
            _replace(path, data, mode, sync=sync)
        except FileNotFoundError:
            # No directory yet; or another process, starting just now, took the temporary file for a leftover.
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            _replace(path, data, mode, sync=sync)
    except OSError as error:
        raise state_error(error, path, "cannot be written") from error


def make_directory(directory: Path) -> None:
    """Makes a directory for the state of this process's user alone. StateError names it and what to do."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise state_error(error, directory, "cannot be made") from error


def remove_leftovers(directory: Path, *, name_prefix: str) -> None:
    """Removes the temporary files that killed processes left of files whose names begin so."""
    for leftover in directory.glob(f".{name_prefix}*.tmp"):
        with contextlib.suppress(OSError):
            leftover.unlink()


def state_error(error: OSError, path: Path, what: str) -> StateError:
    """The error of the house for an error of the operating system about a file."""
    return StateError(
        f"{path} {what}: {error.strerror or error}",
        next_step=_NEXT_STEPS.get(error.errno or 0, "check the directory and its file system"),
    )


def _replace(path: Path, data: bytes, mode: int, *, sync: bool) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            while data:
                data = data[os.write(descriptor, data) :]
            os.fchmod(descriptor, mode)
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
