"""One decision of the engine, beside one of Kubernetes' allocator, timed inside the Go process."""

import argparse
import time
from collections.abc import Mapping

from benchlib.benches.tables import goal_list, prose, table
from benchlib.results import Goal, Measurement, Result
from benchlib.series import summarize
from clusterlib.errors import ClusterError
from clusterlib.steps import step
from conformance.compare import difference
from conformance.engine import Asked
from conformance.oracle import Oracle, ensure_oracle
from conformance.problems import Problem
from conformance.speed import problems
from conformance.versions import VERSIONS, Version, version_of
from tangram.allocation.structured import Features, Policy, parse_features

_DESCRIPTION = """\
Times one decision about one node: eight whole GPUs; eight GPUs with all their MIG devices and counters;
four linked GPUs of eight, one of them held; three requests that are one device short. In turns: Kubernetes'
allocator, timed inside its process (a new Allocator, as for every pod, and its Allocate); the engine with
that version's faults, first fit, which must give the same devices; the default engine and policy.
"""
_EPILOG = """\
examples:
  hack/bench engine
  hack/bench engine --version 1.36 --samples 500
"""
_GOALS = {"plain": 2.0, "counters": 1.0, "linked": 1.0, "infeasible": 1.0}
"""How long a decision may take, in decisions of Kubernetes' allocator."""
_TITLES = {
    "plain": "one of 8 GPUs",
    "counters": "14 of 8 x 28 MIG devices",
    "linked": "4 linked of 8 GPUs",
    "infeasible": "3 x 3 of 8 GPUs",
}
_SERIES = {
    "go": "Kubernetes",
    "first": "engine, first fit, new cluster",
    "again": "**engine, first fit**",
    "best": "engine, default policy",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("--version", default="1.37", metavar="V", help=f"one of {', '.join(VERSIONS)} (%(default)s)")
    add("--samples", type=int, default=200, metavar="N", help="decisions of each kind (%(default)s)")


def measure(options: argparse.Namespace) -> Measurement:
    version = version_of(options.version)
    samples: dict[str, list[float]] = {}
    with Oracle(ensure_oracle(version)) as oracle:
        for name, problem in problems(version).items():
            with step(f"{_TITLES[name]}: {options.samples} decisions") as progress:
                found = _Case(version, problem, oracle).samples(options.samples)
                samples |= {f"{name}_{kind}": values for kind, values in found.items()}
                progress.detail = f"Go {min(found['go']):.0f} us, ours {min(found['again']):.0f} us"
    series = {name: summarize(values, unit="us") for name, values in samples.items()}
    return Measurement(
        parameters={"samples": options.samples, "module": version.module_version},
        series=series,
        goals=[
            Goal(
                name=f"{_TITLES[name]}, in decisions of Kubernetes",
                value=series[f"{name}_again"].p50 / series[f"{name}_go"].p50,
                limit=limit,
                unit="x",
            )
            for name, limit in _GOALS.items()
        ],
    )


class _Case:
    def __init__(self, version: Version, problem: Problem, oracle: Oracle) -> None:
        self._problem = problem
        self._oracle = oracle
        self._question = problem.question(version)
        self._features = parse_features(version.preset_with(problem.features))
        same = Asked(problem, self._features)
        (theirs,) = oracle.ask(self._question)["nodes"]
        if text := difference(theirs, same.node(same.nodes[0])):
            raise ClusterError(f"the two differ: {text}", next_step="see hack/bench conformance")
        self._again = same
        self._best = Asked(problem, parse_features("latest"), policy=Policy.TANGRAM)
        self._best.node(self._best.nodes[0])

    def samples(self, count: int) -> dict[str, list[float]]:
        """Microseconds of each kind, in turns."""
        found: dict[str, list[float]] = {kind: [] for kind in _SERIES}
        for _ in range(count):
            (theirs,) = self._oracle.ask(self._question)["nodes"]
            found["go"].append(theirs["nanoseconds"] / 1000)
            found["first"].append(self._new(self._features))
            found["again"].append(_decision_us(self._again))
            found["best"].append(_decision_us(self._best))
        return found

    def _new(self, features: Features) -> float:
        """With what slices and classes are prepared to, but not what it takes to decode them."""
        objects = Asked(self._problem, features)
        started_s = time.perf_counter()
        objects.prepare()
        objects.decide(objects.nodes[0])
        return 1e6 * (time.perf_counter() - started_s)


def _decision_us(asked: Asked) -> float:
    started_s = time.perf_counter()
    asked.decide(asked.nodes[0])
    return 1e6 * (time.perf_counter() - started_s)


def section(results: Mapping[str, Result]) -> str:
    result = results[""]
    labels = {
        f"{case}_{kind}": f"{title}: {label}"
        for case, title in _TITLES.items()
        for kind, label in _SERIES.items()
    }
    explanation = f"""\
One decision about one node, in turns: Kubernetes' allocator ({result.parameters["module"]}) timed inside
its process, and the engine. *New cluster*: slices are prepared and selectors asked anew, as after a change
of slices; else what selectors said is remembered, as between two pods."""
    return f"## Allocation engine\n\n{prose(explanation)}\n\n{goal_list(result)}\n\n{table(result, labels)}"
