"""Progress on standard error: one line per step, with the time it took."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Step:
    """One running step; `note` shows where a long one stands, at most every `interval_s`."""

    name: str
    interval_s: float
    detail: str = ""
    _started_s: float = field(default_factory=time.monotonic)
    _noted_s: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def note(self, text: str) -> None:
        now_s = time.monotonic()
        if now_s - self._noted_s < self.interval_s:
            return
        self._noted_s = now_s
        _show(f"  … {self.name}: {text}, {self.elapsed_s:.0f} s", transient=True)


@contextmanager
def step(name: str) -> Iterator[Step]:
    """Time one step and print its line; set `detail` inside to say more in it."""
    running = Step(name, interval_s=1.0 if sys.stderr.isatty() else 30.0)
    try:
        yield running
    except BaseException:
        _show(f"  ✗ {name}  {running.elapsed_s:.1f} s")
        raise
    _show(f"  ✓ {name}{f' ({running.detail})' if running.detail else ''}  {running.elapsed_s:.1f} s")


def _show(line: str, *, transient: bool = False) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="" if transient else "\n", file=sys.stderr, flush=True)
    else:
        print(line, file=sys.stderr, flush=True)
