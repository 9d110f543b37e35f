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
    """Ends processes whose environment names the directory; whether there were any."""
    found = False
    for path in glob.glob("/proc/[0-9]*/environ"):
        with contextlib.suppress(OSError):
            with open(path, "rb") as file:
                if directory.encode() not in file.read():
                    continue
            os.kill(int(path.split("/")[2]), signal.SIGKILL)
            found = True
    return found


if __name__ == "__main__":
    main()
