"""Where the GPU driver's files lie below its root: `/`, or the root of a driver container or image.

Links are followed as a process with that root would follow them: an absolute one from the root, `..` not
beyond it. The operating system would look for their targets in the file system of this process.
"""

import fnmatch
import os
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
_MAXIMUM_LINKS = 40
"""In one path, as Linux allows."""


def resolve(driver_root: Path, path: Path) -> Path | None:
    """The file or directory that a path below the root means, free of links below it.

    None where there is none: a link into nothing, or in a circle.
    """
    todo = list(reversed(path.relative_to(driver_root).parts))
    found: list[str] = []
    links = 0
    while todo:
        part = todo.pop()
        if part == os.pardir:
            del found[-1:]
            continue
        here = driver_root.joinpath(*found, part)
        try:
            target = os.readlink(here)
        except OSError:  # no link, or nothing there
            found.append(part)
            continue
        links += 1
        if links > _MAXIMUM_LINKS:
            return None
        if target.startswith("/"):
            found.clear()
        todo += [step for step in reversed(target.split("/")) if step not in ("", os.curdir)]
    result = driver_root.joinpath(*found)
    return result if result.exists() else None


def find_library(driver_root: Path, pattern: str) -> Path | None:
    """The first regular file (or link to one) of that name or glob pattern in the library directories.

    A directory of that name, as a failed bind mount leaves it, does not count.
    """
    return next(_files(driver_root, _LIBRARY_DIRECTORIES, pattern), None)


def find_binary(driver_root: Path, name: str) -> Path | None:
    """The first regular file of that name in the directories for programs."""
    return next(_files(driver_root, _BINARY_DIRECTORIES, name), None)


def is_file(driver_root: Path, path: Path) -> bool:
    """Whether a path below the root is a regular file, or a link to one."""
    real = resolve(driver_root, path)
    return real is not None and real.is_file()


def _files(driver_root: Path, directories: tuple[str, ...], pattern: str) -> Iterator[Path]:
    for directory in directories:
        real = resolve(driver_root, driver_root / directory)
        if real is None:
            continue
        try:
            names = sorted(fnmatch.filter(os.listdir(real), pattern))
        except OSError:
            continue  # unreadable: as good as empty
        yield from (p for name in names if is_file(driver_root, p := driver_root / directory / name))
