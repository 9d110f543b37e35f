"""CEL selectors beside Kubernetes' own library: what they say, what they cost, how long they take."""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchlib.arguments import positive
from benchlib.benches.tables import goal_list, prose
from benchlib.results import Goal, Measurement, Result
from clusterlib.steps import step
from conformance.celgenerate import Generator
from conformance.oracle import Oracle, ensure_oracle
from conformance.selectors import (
    DEVICE,
    Answer,
    agree,
    cel_device,
    ours,
    ours_derived,
    raw_answers,
    theirs,
    theirs_derived,
)
from conformance.themes import RECORDED, WORK, expand, own_work, read_themes, record
from conformance.versions import VERSIONS, version_of
from tangram.cel import Environment
from tangram.cel.program import Program

_DESCRIPTION = """\
Asks hack/oracle (Kubernetes' own CEL library, built here from its Go modules at the first use) and our own
the same generated selectors. Compared are results, errors, what the evaluation cost, and the estimate of it.
"""
_EPILOG = """\
examples:
  hack/bench cel --version 1.36 --cases 50000
  hack/bench cel --version 1.37 --cases 50000 --derived
  hack/bench cel --write-recorded      (the answers to tests/unit/cel/themes.txt, for the tests without Go)

Exit code 3: some selectors differ.
"""
_EXPLANATION = """\
Generated selectors, asked of Kubernetes' own CEL library and of ours; [differences.md](differences.md) tells
what is left out. Compared are the result or that there is an error, the cost of the evaluation and its
estimate, which decides what the API server accepts. *Crashes*: upstream's library panics.
"""
_OWN = 'device.attributes["gpu.resource.admin"]'
_TIMED: Mapping[str, str] = {
    "one field": 'device.driver == "gpu.resource.admin"',
    "guard of a class": f'device.driver == "gpu.resource.admin" && has({_OWN}.allocator)'
    f' && {_OWN}.allocator == "controller" && {_OWN}.type == "gpu" && {_OWN}.healthy',
    "a capacity": 'device.capacity["gpu.resource.admin"].memory.compareTo(quantity("40Gi")) >= 0',
    "a version": f'{_OWN}.driverVersion.isGreaterThan(semver("550.0.0"))',
    "a pattern": f'{_OWN}.productName.matches("^NVIDIA H[0-9]+")',
    "a macro": f'["A100", "H100", "B200"].exists(name, {_OWN}.productName.contains(name))',
}
_REPEAT = 20_000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("--version", default="1.36", metavar="V", help=f"one of {', '.join(VERSIONS)} (%(default)s)")
    add("--cases", type=positive, default=5000, metavar="N", help="selectors (%(default)s)")
    add("--seed", type=int, default=1, metavar="S", help="for other selectors (%(default)s)")
    add("--most", type=int, default=20, metavar="N", help="show so many differences (%(default)s)")
    add("--derived", action="store_true", help="expressions of derived attributes in place of selectors")
    add("--write-recorded", action="store_true", help="write the answers to the hand-written selectors")


def measure(options: argparse.Namespace) -> Measurement:
    version = version_of(options.version)
    environment = Environment.of(f"k8s-{version.kubernetes}")
    with Oracle(ensure_oracle(version)) as oracle:
        tally, different = _compare(oracle, environment, options)
        timed = _timed(oracle, environment)
    if options.write_recorded:
        _write_recorded()
    worst = max(row["ours_ns"] / row["go_ns"] for row in timed.values())
    return Measurement(
        variant=version.kubernetes,
        parameters={"cases": options.cases, "seed": options.seed, "module": version.module_version},
        goals=[
            Goal(name=f"differences, {version.kubernetes}", value=different, limit=0, unit=""),
            Goal(name=f"slowest selector, times Go, {version.kubernetes}", value=worst, limit=3, unit="x"),
        ],
        details={"outcomes": dict(sorted(tally.items())), "timed": timed},
    )


def _compare(
    oracle: Oracle, environment: Environment, options: argparse.Namespace
) -> tuple[Counter[str], int]:
    device = cel_device(DEVICE)
    generator = Generator(environment, options.seed)
    tally: Counter[str] = Counter()
    different = 0
    with step(f"{options.cases} selectors, {environment.version}, seed {options.seed}") as progress:
        for first in range(0, options.cases, 1000):
            make = generator.derivation if options.derived else generator.expression
            expressions = [make() for _ in range(min(1000, options.cases - first))]
            answers = (theirs_derived if options.derived else theirs)(oracle, expressions)
            for expression, their in zip(expressions, answers, strict=True):
                our = (ours_derived if options.derived else ours)(expression, environment, device)
                tally["value" if their.outcome.startswith("{") else their.outcome] += 1
                if not agree(our, their):
                    different += 1
                    if different <= options.most:
                        _tell(expression, our, their)
            progress.note(f"{first + len(expressions)} asked, {different} differ")
        progress.detail = f"{different} differ"
    return tally, different


def _tell(expression: str, our: Answer, their: Answer) -> None:
    print(
        f"  ✗ {expression}\n      ours   {our.short}: {our.text}\n      theirs {their.short}: {their.text}",
        file=sys.stderr,
    )


def _timed(oracle: Oracle, environment: Environment) -> dict[str, dict[str, float]]:
    """Nanoseconds per evaluation, the oracle's measured inside of its own process."""
    device = cel_device(DEVICE)
    go = raw_answers(oracle, _TIMED.values(), repeat=_REPEAT)
    rows: dict[str, dict[str, float]] = {}
    for (name, expression), answer in zip(_TIMED.items(), go, strict=True):
        program = Program(expression, environment)
        start = time.perf_counter_ns()
        for _ in range(_REPEAT):
            program.evaluate(device)
        spent = (time.perf_counter_ns() - start) / _REPEAT
        rows[name] = {"go_ns": answer["nanoseconds"], "ours_ns": spent}
    return rows


def _write_recorded() -> None:
    with step("recording"):
        expressions = [expand(text) for texts in read_themes().values() for text in texts]
        answers: dict[str, list[Answer]] = {}
        for name in VERSIONS:
            with Oracle(ensure_oracle(version_of(name))) as oracle:
                answers[name] = list(theirs(oracle, expressions))
        RECORDED.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(record(read_themes(), answers), ensure_ascii=False, indent=0)
        RECORDED.write_text(text + "\n", encoding="utf-8")
        WORK.write_text(json.dumps(own_work(), ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


def _outcome(result: Result, *names: str) -> str:
    outcomes: Mapping[str, Any] = result.details["outcomes"]
    return f"{sum(outcomes.get(name, 0) for name in names):,}"


def section(results: Mapping[str, Result]) -> str:
    rows: Sequence[str] = [
        f"| {name} | {result.parameters['module']} | {result.parameters['cases']:,} | "
        f"{_outcome(result, 'true', 'false')} | {_outcome(result, 'error')} | "
        f"{_outcome(result, 'invalid')} | {_outcome(result, 'crash')} | {result.goals[0].value:.0f} |"
        for name, result in sorted(results.items())
    ]
    timed = [
        f"| {name} | {what} | {row['go_ns'] / 1000:.2f} | {row['ours_ns'] / 1000:.2f} |"
        for name, result in sorted(results.items())
        for what, row in result.details["timed"].items()
    ]
    goals = "\n".join(goal_list(result) for _, result in sorted(results.items()))
    table, times = "\n".join(rows), "\n".join(timed)
    return f"""\
## Selectors

{prose(_EXPLANATION)}

| Kubernetes | module | selectors | values | errors | invalid | crashes | differences |
|---|---|---|---|---|---|---|---|
{table}

One evaluation on one device, in µs:

| Kubernetes | selector | Go | ours |
|---|---|---|---|
{times}

{goals}"""
