"""The cgroups of a cluster, in every hierarchy that this machine has (version 1, 2 or both)."""

import time
from collections.abc import Iterator
from pathlib import Path

from clusterlib.errors import ClusterError


def hierarchies(mounts: str) -> list[Path]:
    """Mount points of all cgroup hierarchies, from the text of /proc/mounts (without repetitions)."""
    lines = (line.split() for line in mounts.splitlines())
    return list(dict.fromkeys(Path(fields[1]) for fields in lines if fields[2] in ("cgroup", "cgroup2")))


def create(name: str) -> None:
    for directory in _directories(name):
        directory.mkdir(parents=True, exist_ok=True)


def remove(name: str, *, timeout_s: float = 15.0) -> None:
    """Remove the cgroup with all below it.

    Its processes have been killed, but the kernel may still be burying them.
    """
    deadline_s = time.monotonic() + timeout_s
    for top in _directories(name):
        while top.exists():
            try:
                for directory in (*sorted(top.rglob("*/"), reverse=True), top):
                    directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                if time.monotonic() > deadline_s:
                    raise ClusterError(
                        f"cgroup {error.filename} cannot be removed: {error.strerror}",
                        next_step="see which processes its cgroup.procs lists",
                    ) from error
                time.sleep(0.02)


def exists(name: str) -> bool:
    return any(directory.exists() for directory in _directories(name))


def _directories(name: str) -> Iterator[Path]:
    for root in hierarchies(Path("/proc/mounts").read_text()):
        yield root / name
