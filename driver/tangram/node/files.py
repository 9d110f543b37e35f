"""Durable file operations: the primitives, so that a test can end the process between any two of them."""

import contextlib
import os
from pathlib import Path

from tangram.base.errors import StateError


class Files:
    """The file system calls that held state is written with. Each may raise OSError."""

    def write(self, path: Path, data: bytes) -> None:
        """Makes or overwrites a file; its content is on disk when this returns."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Replaces `target` in one step."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Removes a file; one that is gone is no error."""
        path.unlink(missing_ok=True)

    def sync_directory(self, directory: Path) -> None:
        """Makes renames and removals in a directory outlive a power cut."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def temporary_name(path: Path) -> Path:
    """Where the new content of a file stands until it is complete."""
    return path.with_name(f".{path.name}.tmp")


def replace_file(files: Files, path: Path, data: bytes) -> None:
    """A file with new content, or the old content untouched: never a part. Raises StateError.

    Two writers of one path must exclude each other: they share the temporary name.
    """
    temporary = temporary_name(path)
    try:
        files.write(temporary, data)
        files.rename(temporary, path)
        files.sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            files.unlink(temporary)
        raise state_error(f"cannot write {path}", error) from error


def remove_file(files: Files, path: Path) -> None:
    """Removes a file (and its temporary one) for good; one that is gone is no error. Raises StateError."""
    try:
        files.unlink(temporary_name(path))
        files.unlink(path)
        files.sync_directory(path.parent)
    except OSError as error:
        raise state_error(f"cannot remove {path}", error) from error


def state_error(what: str, error: OSError) -> StateError:
    """The error of a failed file operation, with its cause in words."""
    return StateError(
        f"{what}: {error.strerror or error}",
        next_step="check free space, permissions and health of the node's disk; the kubelet tries again",
    )
