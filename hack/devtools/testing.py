"""What `./hack/test` runs; `--help` says how."""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterlib.binaries import KUBERNETES_VERSION
from clusterlib.layout import REPOSITORY
from devtools.report import Totals, read_report, totals_text
from devtools.stages import Result, Run, Stage

OTHER_VERSIONS = ("1.34.4", "1.37.2")
"""The oldest and the newest Kubernetes supported: `--matrix` runs the cluster tests on each."""
KUBECTL_VERSIONS = ("1.34.4", "1.35.4", "1.36.3")
"""One of each minor version but that of .venv: `--matrix` works them against the stand-in API server."""

# Apart from the defaults of hack/cluster and of tests/cluster, so that a cluster in use stays as it is. Two
# workers of pytest, each with a cluster of its own (tests/cluster/conftest.py).
_BASE_PORTS = ("17500", "18500")
_NO_TESTS_RAN = 5
_COVERED = ("tests/unit/cel", "tests/unit/allocation")
"""Tests of the packages whose coverage is measured: see pyproject.toml."""
_PYTHON = ".venv/bin/python"

_DESCRIPTION = """\
Runs the checks and tests of this repository.

  (nothing)   lint, unit and integration tests
  --fast      unit tests only, without the thorough ones (under 2 minutes)
  --cluster   tests on a real Kubernetes that is built, started and removed here (needs root and Go)
  --matrix    the same on the oldest and the newest Kubernetes supported, and kubectl of each version
  --all       everything but the matrix, with the coverage of cel and allocation: what CI runs; the cluster
              tests beside the others

Arguments after -- go to pytest, e.g. ./hack/test --fast -- -k quantity -x
"""
_EPILOG = """\
The last line is "N passed, N failed"; a stage that fails otherwise than by tests counts as one failed test.
Exit status: 0 all good, 1 something failed, 2 wrong usage.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for. `reports` is a directory for what stages hand on."""

    mode: str
    pytest_arguments: Sequence[str]
    reports: Path

    @property
    def everything(self) -> bool:
        """Lanes beside each other, and coverage."""
        return self.mode == "all"


def lanes(options: Options) -> list[list[Stage]]:
    """What runs one after the other, and beside each other."""
    if options.mode == "fast":
        return [[_suite(options, "unit", "tests/unit", 120, "-n", "2", "-m", "not thorough")]]
    if options.mode == "cluster":
        return [_on_cluster(options, KUBERNETES_VERSION)]
    if options.mode == "matrix":
        return [
            [*_kubectl(options), *(s for version in OTHER_VERSIONS for s in _on_cluster(options, version))]
        ]
    integration = _suite(options, "integration", "tests/integration", 300, "-n", "2", "--dist", "worksteal")
    if not options.everything:
        return [[_lint(), _suite(options, "unit", "tests/unit", 300, "-n", "2"), integration]]
    # Tracing takes its time: only where every branch is to be reached.
    rest = [f"--ignore={directory}" for directory in _COVERED]
    unit = [
        _suite(options, "unit engine", _COVERED, 240, "-n", "2", covered=True),
        _suite(options, "unit", "tests/unit", 240, *rest, "-n", "2", "-m", "not thorough"),
        _suite(options, "unit thorough", "tests/unit", 240, *rest, "-n", "2", "-m", "thorough"),
    ]
    return [[_lint(), *unit, integration], _on_cluster(options, KUBERNETES_VERSION)]


def _lint() -> Stage:
    checks = (
        (".venv/bin/ruff", "check"),
        (".venv/bin/ruff", "format", "--check"),
        (".venv/bin/mypy",),
        (".venv/bin/lint-imports", "--no-logo"),
        ("./hack/protos", "--check"),
        ("./hack/lock", "--check"),
    )
    return Stage(name="lint", budget_s=90, commands=checks)


def _suite(
    options: Options,
    name: str,
    tests: str | Sequence[str],
    budget_s: float,
    *arguments: str,
    covered: bool = False,
    beside_cluster: bool = True,
) -> Stage:
    """One run of pytest; `covered`: with coverage."""
    report = options.reports / f"{name.replace(' ', '-')}.xml"
    command = [
        # The tests on the cluster wait for Kubernetes, which has its own deadlines: they go first.
        *(["nice", "-n", "5"] if options.everything and beside_cluster else []),
        *(_PYTHON, "-m"),
        *(["coverage", "run", "-m"] if covered else []),
        *("pytest", *([tests] if isinstance(tests, str) else tests)),
        *("--quiet", "--durations=5", f"--junit-xml={report}"),
        *arguments,
        *options.pytest_arguments,
    ]
    # No tests at all are wrong, unless the caller's own -k or -m left out this whole suite.
    accepted = frozenset({0, _NO_TESTS_RAN} if options.pytest_arguments else {0})
    return Stage(
        name=name,
        budget_s=budget_s,
        commands=(command,),
        environment=_coverage_file(options),
        report=report,
        accepted=accepted,
    )


def _kubectl(options: Options) -> list[Stage]:
    build = ("./hack/cluster", "build-kubectl", *KUBECTL_VERSIONS)
    return [
        Stage(name="kubectl build", budget_s=900, commands=(build,)),
        # It runs whatever has been built.
        _suite(options, "kubectl", "tests/integration/kube/test_kubectl.py", 180, "-n", "2"),
    ]


def _coverage_file(options: Options) -> dict[str, str]:
    return {"COVERAGE_FILE": str(options.reports / "coverage")}


def _on_cluster(options: Options, version: str) -> list[Stage]:
    # A run that was killed may have left clusters.
    start = [*_cluster_removal()]
    start += [
        ("./hack/cluster", "up", "--base-port", port, "--version", version, "--nodes", "2")
        for port in _BASE_PORTS
    ]
    arguments = ("-n", str(len(_BASE_PORTS)), "--dist", "worksteal")
    tests = _suite(
        options,
        f"cluster {version}",
        "tests/cluster",
        720,
        *arguments,
        beside_cluster=False,
    )
    environment = {"TANGRAM_CLUSTER_BASE_PORT": _BASE_PORTS[0], "TANGRAM_CLUSTER_VERSION": version}
    return [
        Stage(
            name=f"cluster start {version}",
            budget_s=1500,
            commands=[*start, ("./hack/image",)],
            others_need=True,
            stop_at_failure=True,
        ),
        Stage(
            name=tests.name,
            budget_s=tests.budget_s,
            commands=tests.commands,
            environment=environment,
            report=tests.report,
            accepted=tests.accepted,
        ),
        Stage(name=f"cluster stop {version}", budget_s=60, commands=_cluster_removal(), always=True),
    ]


def _cluster_removal() -> list[tuple[str, ...]]:
    return [("./hack/cluster", "down", "--base-port", port) for port in _BASE_PORTS]


def counted(results: Sequence[Result]) -> Totals:
    """The tests of all stages; a stage with a problem that is no failed test counts as one."""
    total = Totals()
    for result in results:
        tests = read_report(result.stage.report) if result.stage.report else Totals()
        total += tests
        if result.problem and not tests.failed:
            total += Totals(failed=1)
    return total


def main() -> int:
    mode, pytest_arguments = _parse(sys.argv[1:])
    os.chdir(REPOSITORY)
    with tempfile.TemporaryDirectory(prefix="tangram-test-") as directory:
        options = Options(mode=mode, pytest_arguments=pytest_arguments, reports=Path(directory))
        planned = lanes(options)
        run = Run(options.reports, several=len(planned) > 1)
        # hack/test has made the environment before this could run.
        started_s = float(os.environ.get("TANGRAM_TEST_STARTED_S", time.time()))
        environment = Stage(name="environment", budget_s=120, commands=())
        run.note(Result(stage=environment, seconds=time.time() - started_s))
        try:
            code = asyncio.run(_until_signal(run, planned, options))
        finally:
            if not _removed(run, planned):
                for command in _cluster_removal():
                    subprocess.run(command, check=False, stdin=subprocess.DEVNULL)
        if code:
            return code
        print()
        for result in run.results:
            print(result.line())
        print(f"total: {time.time() - started_s:.0f} s")
        total = counted(run.results)
    print(totals_text(total))
    return 1 if total.failed else 0


def _removed(run: Run, planned: Sequence[Sequence[Stage]]) -> bool:
    """Whether every stage that removes clusters had its turn."""
    removals = [stage for stages in planned for stage in stages if stage.always]
    ended = [result.stage for result in run.results]
    return all(stage in ended for stage in removals)


async def _until_signal(run: Run, planned: Sequence[Sequence[Stage]], options: Options) -> int:
    """0, or the exit code of the signal that ended it."""
    task = asyncio.current_task()
    assert task is not None
    code = 0

    def stop(number: signal.Signals) -> None:
        nonlocal code
        if not code:
            code = 128 + number
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    with contextlib.suppress(asyncio.CancelledError):
        await run.lanes(planned)
        if options.everything:
            await run.lanes([[_coverage(options)]])
    return code


def _coverage(options: Options) -> Stage:
    coverage = ".venv/bin/coverage"
    combine = (coverage, "combine", "--quiet", str(options.reports))
    return Stage(
        name="coverage",
        budget_s=60,
        commands=(combine, (coverage, "report")),
        environment=_coverage_file(options),
        stop_at_failure=True,
    )


def _parse(words: Sequence[str]) -> tuple[str, list[str]]:
    """Mode and arguments for pytest. SystemExit 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="hack/test",
        usage="./hack/test [--fast | --cluster | --matrix | --all] [-- PYTEST ARGUMENTS]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    modes = parser.add_mutually_exclusive_group()
    for name in ("fast", "cluster", "matrix", "all"):
        modes.add_argument(f"--{name}", dest="mode", action="store_const", const=name, help=argparse.SUPPRESS)
    own, pytest_arguments = list(words), []
    if "--" in own:
        at = own.index("--")
        own, pytest_arguments = own[:at], own[at + 1 :]
    return parser.parse_args(own).mode or "", pytest_arguments


if __name__ == "__main__":
    sys.exit(main())
