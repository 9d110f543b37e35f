"""Where and with what something was measured."""

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from benchlib.results import Machine

REPOSITORY = Path(__file__).resolve().parents[2]
_MEASURED = ("deploy", "driver", "hack")


def machine(*, load_before: float) -> Machine:
    """This one."""
    os_release = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
    return Machine(
        cpu=_cpu_model(),
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release().partition("-")[0],
        os=os_release.get("PRETTY_NAME", platform.system()),
        load=(round(load_before, 2), round(load(), 2)),
    )


def load() -> float:
    """The 1-minute load average."""
    return os.getloadavg()[0]


def versions(distributions: Sequence[str]) -> dict[str, str]:
    """Of Python and of installed distributions."""
    found = {"python": platform.python_version()}
    for name in distributions:
        found[name] = metadata.version(name)
    return found


def commit() -> str:
    """The short id of what is checked out, `-dirty` behind it if what is measured or measures was changed."""
    head = _git("rev-parse", "--short", "HEAD")
    if head.returncode:
        return "unknown"
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *_MEASURED).stdout
    return head.stdout.strip() + ("-dirty" if changed else "")


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", REPOSITORY, *words], capture_output=True, text=True, check=False)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
