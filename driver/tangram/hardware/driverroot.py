"""Where the GPU driver's files lie below its root: `/`, or the root of a driver container or image."""

from collections.abc import Iterator
from pathlib import Path

_LIBRARY_DIRECTORIES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
    "lib",
)
_BINARY_DIRECTORIES = ("usr/bin", "usr/sbin", "bin", "sbin")


def find_library(driver_root: Path, pattern: str) -> Path | None:
    """The first regular file (or link to one) of that name or glob pattern in the library directories.

    A directory of that name, as a failed bind mount leaves it, does not count.
    """
    return next(_files(driver_root, _LIBRARY_DIRECTORIES, pattern), None)


def find_binary(driver_root: Path, name: str) -> Path | None:
    """The first regular file of that name in the directories for programs."""
    return next(_files(driver_root, _BINARY_DIRECTORIES, name), None)


def _files(driver_root: Path, directories: tuple[str, ...], pattern: str) -> Iterator[Path]:
    for directory in directories:
        try:
            yield from (path for path in sorted((driver_root / directory).glob(pattern)) if path.is_file())
        except OSError:
            continue  # unreadable: as good as empty
