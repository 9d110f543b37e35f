"""Running other programs: with their output on failure, and the Debian packages that hold them."""

import fcntl
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from clusterlib.errors import ClusterError
from clusterlib.steps import step


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    next_step: str = "read the output above; `--help` tells what the command needs",
) -> str:
    """Run a program to its end and return its standard output; a failure carries all it printed."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words, input=stdin, cwd=cwd, env=env, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise ClusterError(f"{words[0]} is not installed", next_step=next_step) from error
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip()
        raise ClusterError(f"{' '.join(words)} failed with {done.returncode}:\n{output}", next_step=next_step)
    return done.stdout


@contextmanager
def exclusive(lock_file: Path) -> Iterator[None]:
    """Hold a lock that lets one process at a time do this; the others wait."""
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with lock_file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ensure_packages(packages: Sequence[str]) -> None:
    """Install the Debian packages that are missing. Does nothing, and needs no network, when none is."""
    query = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}\n", *packages],
        capture_output=True,
        text=True,
        check=False,  # fails when a package is unknown, which only means that it is missing
    )
    installed = {line.split()[1] for line in query.stdout.splitlines() if line.startswith("installed ")}
    missing = [package for package in packages if package not in installed]
    if not missing:
        return
    if os.geteuid() != 0:
        raise ClusterError(
            f"Debian packages are missing: {' '.join(missing)}", next_step="install them, or run this as root"
        )
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "--quiet", "--yes"]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with step(f"Debian packages {' '.join(missing)}"):
        run([*apt, "update"], env=env, next_step="check that the package mirror can be reached")
        run([*apt, "install", "--no-install-recommends", *missing], env=env)
