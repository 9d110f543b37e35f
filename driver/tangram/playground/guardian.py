"""Run as a program: ends what a playground leaves, however that ended. Standard library only.

Its input is a pipe of which only the playground (and a child until it has begun) has the other end: a line
`+123` for each process group to end, `-123` for one that has ended. At the end of the input it kills the
groups, what has left them (simulated MPS daemons, which outlive whoever starts them) where /proc tells, and
removes the directory it was given.
"""

import contextlib
import glob
import os
import shutil
import signal
import sys
import time

_MARKS = (b"HOME", b"TMPDIR", b"CUDA_MPS_PIPE_DIRECTORY")
"""Variables that name the directory in what was started for the playground: containers, the installer of its
environment, MPS daemons. Others may name it as well: whoever uses the cluster from a terminal has it in
KUBECONFIG, and is spared."""
_ATTEMPTS = 200
_PAUSE_S = 0.05


def main() -> None:
    """Until the end of the input."""
    groups: set[int] = set()
    for line in sys.stdin:
        with contextlib.suppress(ValueError):
            number = int(line)
            (groups.add if number > 0 else groups.discard)(abs(number))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    directory = sys.argv[1]
    for _ in range(_ATTEMPTS):  # who is being killed may still write
        strays = _kill_strays(directory)
        shutil.rmtree(directory, ignore_errors=True)
        if not strays and not os.path.lexists(directory):
            return
        time.sleep(_PAUSE_S)


def _kill_strays(directory: str) -> bool:
    """Ends processes that are known by their environment; whether there were any."""
    found = False
    for path in glob.glob("/proc/[0-9]*/environ"):
        with contextlib.suppress(OSError):
            with open(path, "rb") as file:
                variables = [entry.partition(b"=") for entry in file.read().split(b"\0")]
            if not any(name in _MARKS and directory.encode() in value for name, _, value in variables):
                continue
            os.kill(int(path.split("/")[2]), signal.SIGKILL)
            found = True
    return found


if __name__ == "__main__":
    main()
