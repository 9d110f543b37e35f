"""Trying changes of a package on its tests: a forked process per change, which imports the changed module."""

import importlib.machinery
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.abc import MetaPathFinder
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, ModuleType

import hypothesis
import pytest

from clusterlib.errors import ClusterError
from clusterlib.layout import REPOSITORY
from devtools.mutate import Mutant, mutants, mutated

_TESTS = REPOSITORY / "tests" / "unit"
SUITES = {
    "cel": [_TESTS / "cel"],
    "allocation": [_TESTS / "allocation" / "structured", _TESTS / "allocation" / "conformance"],
}
"""The fast tests of each package."""

_UNFIT = 70
"""Exit code: the tests could not be run. (Pytest's own: 1 a test failed, 2 a module cannot be imported.)"""


class Outcome(StrEnum):
    """What became of a changed module."""

    NOTICED = "noticed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"


@dataclass(frozen=True, slots=True)
class Change:
    """A mutant of a module."""

    path: Path
    mutant: Mutant

    @property
    def module(self) -> str:
        """Its dotted name."""
        return ".".join(self.path.relative_to(REPOSITORY / "driver").with_suffix("").parts)

    def __str__(self) -> str:
        return f"{self.path.relative_to(REPOSITORY / 'driver' / 'tangram')}:{self.mutant}"


@dataclass(frozen=True, slots=True)
class Trial:
    """A change and what became of it."""

    change: Change
    outcome: Outcome


def sample(package: str, *, module: str, size: int, seed: int) -> list[Change]:
    """At most so many changes, the same ones for the same sources and seed."""
    found = [
        Change(path, mutant)
        for path in _modules(package)
        if module in path.as_posix() and path.name != "__init__.py"
        for mutant in mutants(path.read_text(encoding="utf-8"))
    ]
    if not found:
        raise ClusterError(f"nothing to change in {package}", next_step="see --module", exit_code=2)
    return random.Random(seed).sample(found, min(size, len(found)))


def _modules(package: str) -> list[Path]:
    """The modules that the tests of a package are about."""
    root = REPOSITORY / "driver" / "tangram" / package
    if package == "allocation":  # the rest of it belongs to the controller
        return sorted([*(root / "structured").rglob("*.py"), root / "published.py"])
    return sorted(root.rglob("*.py"))


class Suite:
    """The tests of a package; unchanged they take `seconds`. Raises ClusterError if they fail as they are."""

    def __init__(self, package: str) -> None:
        self._paths = SUITES[package]
        self._order: dict[str, float] = {}
        started_s = time.monotonic()
        with TemporaryDirectory() as directory:
            durations = Path(directory, "durations")
            _, status = os.waitpid(self._fork(None, durations), 0)
            if status:
                code = os.waitstatus_to_exitcode(status)
                raise ClusterError(
                    f"the unchanged tests of {package} end with {code}",
                    next_step="run them with pytest and mend them",
                )
            self._order = json.loads(durations.read_text())
        self.seconds = time.monotonic() - started_s

    def trials(self, changes: Sequence[Change], *, jobs: int, limit_s: float) -> Iterator[Trial]:
        """Each change with its outcome, as they end; `jobs` at a time."""
        waiting = list(reversed(changes))
        running: dict[int, tuple[Change, float]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    change = waiting.pop()
                    running[self._fork(change)] = (change, time.monotonic() + limit_s)
                for process, (change, deadline_s) in list(running.items()):
                    ended, status = os.waitpid(process, os.WNOHANG)
                    if not ended and time.monotonic() < deadline_s:
                        continue
                    del running[process]
                    if ended:
                        yield Trial(change, Outcome.NOTICED if status else Outcome.SURVIVED)
                    else:
                        _kill(process)
                        yield Trial(change, Outcome.TIMED_OUT)
                time.sleep(0.02)
        finally:
            for process in running:
                _kill(process)

    def _fork(self, change: Change | None, durations: Path | None = None) -> int:
        """The tests in a process of their own; what is imported here need not be imported there."""
        process = os.fork()
        if process:
            return process
        code = _UNFIT
        try:
            os.setpgid(0, 0)
            code = _test(self._paths, change, _Plugin(self._order, durations))
        finally:
            os._exit(code)


def _kill(process: int) -> None:
    """A child and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)


class _Plugin:
    """Quick tests first, and failures as they are found: shrinking them would tell nobody anything."""

    def __init__(self, order: Mapping[str, float], durations: Path | None) -> None:
        self._order = order
        self._file = durations
        self._durations: dict[str, float] = {}

    def pytest_sessionstart(self) -> None:
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", deadline=None, database=None, phases=phases)
        hypothesis.settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self._order.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._durations[report.nodeid] = self._durations.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        if self._file is not None:
            self._file.write_text(json.dumps(self._durations))


def _test(paths: Sequence[Path], change: Change | None, plugin: _Plugin) -> int:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    os.chdir(REPOSITORY)
    # The parent has imported some of it; the tests must meet the changed module.
    for name in [name for name in sys.modules if name.partition(".")[0] == "tangram"]:
        del sys.modules[name]
    if change is not None:
        sys.meta_path.insert(0, _Finder(change))
    options = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*options, *map(str, paths)], plugins=[plugin]))


class _Finder(MetaPathFinder):
    def __init__(self, change: Change) -> None:
        self._change = change

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the interface
        target: ModuleType | None = None,  # noqa: ARG002 - the interface
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._change.module:
            return None
        origin = str(self._change.path)
        return importlib.machinery.ModuleSpec(fullname, _Loader(self._change), origin=origin)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, change: Change) -> None:
        super().__init__(change.module, str(change.path))
        self._change = change

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - the interface
        source = self._change.path.read_text(encoding="utf-8")
        return compile(mutated(source, self._change.mutant.number), str(self._change.path), "exec")
