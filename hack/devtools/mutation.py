"""Trying changes of a package on its tests: a forked process per change, which imports the changed module."""

import importlib.machinery
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.abc import MetaPathFinder
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, ModuleType

import hypothesis
import pytest
from coverage import Coverage, CoverageData

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

_LEAST_S = 3
"""CPU time that each test has at least, beside five times what it takes unchanged."""
_IMPORTING_S = 30
"""CPU time until the first test."""

_MEMORY_BYTES = 4 << 30
"""A change that makes a loop endless may also make it grow."""


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
        return f"{self.path.relative_to(REPOSITORY / 'driver' / 'tangram')} {self.mutant}"


@dataclass(frozen=True, slots=True)
class Trial:
    """A change and what became of it."""

    change: Change
    outcome: Outcome


def sample(package: str, *, module: str, size: int, seed: int) -> list[Change]:
    """At most so many changes, the same ones for the same sources and seed."""
    found = changes(package, module=module)
    if not found:
        raise ClusterError(f"nothing to change in {package}", next_step="see --module", exit_code=2)
    return random.Random(seed).sample(found, min(size, len(found)))


def changes(package: str, *, module: str = "") -> list[Change]:
    """All there are, in the modules whose path has `module` in it."""
    return [
        Change(path, mutant)
        for path in _modules(package)
        if module in path.as_posix() and path.name != "__init__.py"
        for mutant in mutants(path.read_text(encoding="utf-8"))
    ]


def _modules(package: str) -> list[Path]:
    """The modules that the tests of a package are about."""
    root = REPOSITORY / "driver" / "tangram" / package
    if package == "allocation":  # the rest of it belongs to the controller
        return sorted([*(root / "structured").rglob("*.py"), root / "published.py"])
    return sorted(root.rglob("*.py"))


class Suite:
    """The tests of a package, and the lines each executes. Raises ClusterError if they fail unchanged."""

    def __init__(self, package: str) -> None:
        self._paths = [f"{path.relative_to(REPOSITORY)}" for path in SUITES[package]]
        with TemporaryDirectory() as directory:
            seconds, lines = Path(directory, "seconds"), Path(directory, "lines")
            _, status = os.waitpid(_forked(lambda: _unchanged(self._paths, seconds, lines)), 0)
            if status:
                code = os.waitstatus_to_exitcode(status)
                raise ClusterError(
                    f"the unchanged tests of {package} end with {code}",
                    next_step="run them with pytest and mend them",
                )
            self._costs_s: dict[str, float] = json.loads(seconds.read_text())
            covered = CoverageData(str(lines))
            covered.read()
            self._covered = {path: covered.contexts_by_lineno(str(path)) for path in _modules(package)}

    @property
    def seconds(self) -> float:
        """What all of them take of CPU time."""
        return sum(self._costs_s.values())

    def trials(self, changes: Sequence[Change], *, jobs: int) -> Iterator[Trial]:
        """Each change with its outcome, as they end; `jobs` at a time."""
        waiting = list(reversed(changes))
        running: dict[int, tuple[Change, dict[str, float]]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    change = waiting.pop()
                    if tests := self._concerned(change):
                        rest = {test: cost for test, cost in self._costs_s.items() if test not in tests}
                        running[self._start(change, tests)] = (change, rest)
                    else:
                        yield Trial(change, Outcome.SURVIVED)
                if not running:
                    continue
                process, status = os.wait()
                change, rest = running.pop(process)
                outcome = _outcome(status)
                if outcome is Outcome.SURVIVED and rest:
                    running[self._start(change, rest)] = (change, {})
                else:
                    yield Trial(change, outcome)
        finally:
            for process in running:
                os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)

    def _concerned(self, change: Change) -> dict[str, float]:
        """The tests that execute the changed statement, quick ones first: all, if it runs on import.

        A test that finds the result in a cache is not among them: what these let pass, the others must.
        """
        covered = self._covered[change.path]
        tests = {test for line in change.mutant.lines for test in covered.get(line, ())}
        found = self._costs_s if "" in tests else {test: self._costs_s[test] for test in tests}
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def _start(self, change: Change, tests: Mapping[str, float]) -> int:
        files = {test.partition("::")[0]: None for test in tests}
        known = frozenset(self._costs_s)
        return _forked(lambda: _changed(change, list(files), tests, known))


def _outcome(status: int) -> Outcome:
    """Raises ClusterError where the tests did not run at all: that tells nothing of them."""
    if not status:
        return Outcome.SURVIVED
    if os.waitstatus_to_exitcode(status) == _UNFIT:
        raise ClusterError(
            "the tests of a change could not be run", next_step="look at hack/devtools/mutation.py"
        )
    out_of_time = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
    return Outcome.TIMED_OUT if out_of_time else Outcome.NOTICED


def _forked(work: Callable[[], int]) -> int:
    """A process group of its own; what is imported here need not be imported there."""
    process = os.fork()
    if process:
        return process
    code = _UNFIT
    try:
        os.setpgid(0, 0)
        os.chdir(REPOSITORY)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        # The parent has imported some of it; the tests must meet the changed module.
        for name in [name for name in sys.modules if name.partition(".")[0] == "tangram"]:
            del sys.modules[name]
        code = work()
    finally:
        os._exit(code)


def _unchanged(paths: Sequence[str], seconds: Path, lines: Path) -> int:
    """All tests as they are; keeps the CPU time of each, and which lines it executes."""
    coverage = Coverage(data_file=str(lines), config_file=False, source=[str(REPOSITORY / "driver")])
    coverage.start()
    observer = _Observer(coverage)
    code = _pytest(paths, observer)
    coverage.stop()
    coverage.save()
    seconds.write_text(json.dumps(observer.seconds))
    return code


def _changed(change: Change, paths: Sequence[str], tests: Mapping[str, float], known: Collection[str]) -> int:
    """Some tests on a changed module."""
    _limit(_IMPORTING_S)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    sys.meta_path.insert(0, _Finder(change))
    return _pytest(paths, _Selection(tests, known))


def _limit(seconds: float) -> None:
    """The process is ended after so much more CPU time: how busy the machine is matters not."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (ceil(time.process_time() + seconds), most))


def _pytest(paths: Sequence[str], plugin: object) -> int:
    options = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*options, *paths], plugins=[plugin, _Hypothesis()]))


class _Hypothesis:
    """Failures as they are found: shrinking them would tell nobody anything."""

    def pytest_sessionstart(self) -> None:
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", deadline=None, database=None, phases=phases)
        hypothesis.settings.load_profile("mutants")


class _Observer:
    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        started_s = time.process_time()
        result = yield
        self.seconds[item.nodeid] = time.process_time() - started_s
        return result


class _Selection:
    """Tests in this order. A change may give tests other names: those count."""

    def __init__(self, tests: Mapping[str, float], known: Collection[str]) -> None:
        self._costs_s = tests
        self._order = {test: position for position, test in enumerate(tests)}
        self._known = known

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._order or item.nodeid not in self._known]
        items[:] = sorted(chosen, key=lambda item: self._order.get(item.nodeid, -1))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        _limit(_LEAST_S + 5 * self._costs_s.get(item.nodeid, 0.0))


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
