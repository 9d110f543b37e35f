"""Do the tests notice small changes of the code?"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchlib.benches.tables import prose
from benchlib.document import RESULTS
from benchlib.results import Goal, Measurement, Result, read_results
from clusterlib.errors import ClusterError
from clusterlib.layout import REPOSITORY
from clusterlib.steps import step
from devtools.mutation import SUITES, Change, Outcome, Suite, Trial, changes, sample

_REASONS = Path(__file__).with_name("mutants.yaml")

_DESCRIPTION = """\
Mutation testing: takes a seeded sample of small changes of a package (a comparison, an operator, a number,
a condition, a result or a statement), and with each runs the fast tests, those that execute it first. A
change that no test notices survives: a test is missing, or the change makes no difference. The score is the
share noticed.
"""
_EPILOG = """\
examples:
  hack/bench mutants --package cel --sample 300 --record
  hack/bench mutants --package allocation --sample 50 --seed 7
  hack/bench mutants --package allocation --module search --sample 1000     all of one module
  hack/bench mutants --package cel --again --record       after tests were added: what survived, once more

Files are not changed: each test process replaces the module as it imports it.
"""
_EXPLANATION = """\
A seeded sample of small changes of each package, each tried on the fast tests of the package, those that
execute it first. Noticed: a test fails. Timed out: a test takes more CPU time than 3 s and five times what it
takes unchanged. What survives is listed: a test is missing, or the change makes no difference. Where tests
were added, or code was simplified, what had survived without such a reason was tried again, and the score at
first is told.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("--package", choices=list(SUITES), default="cel", help="what is changed (%(default)s)")
    add("--module", default="", metavar="NAME", help="only modules whose path has this in it")
    add("--sample", type=int, default=300, metavar="N", help="changes (%(default)s)")
    add("--seed", type=int, default=1, metavar="S", help="for another sample (%(default)s)")
    add(
        "--again",
        action="store_true",
        help="only what survived the recorded sample, on the code as it is now",
    )
    add("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="processes (%(default)s)")


def measure(options: argparse.Namespace) -> Measurement:
    package = options.package
    if options.again:
        return _again(package, jobs=options.jobs)
    chosen = sample(package, module=options.module, size=options.sample, seed=options.seed)
    trials = _tried(package, chosen, jobs=options.jobs)
    counts = Counter(trial.outcome for trial in trials)
    return _measurement(
        package,
        outcomes={outcome.value: counts[outcome] for outcome in Outcome},
        survivors=sorted(str(trial.change) for trial in trials if trial.outcome is Outcome.SURVIVED),
        parameters={"sample": len(trials), "seed": options.seed, "module": options.module},
        first=None,
    )


def _again(package: str, *, jobs: int) -> Measurement:
    """What has a reason is not tried, and counts as before. Of one change in several places by the same name
    each must be noticed."""
    recorded = read_results(RESULTS).of("mutants").get(package)
    if recorded is None:
        raise ClusterError(f"no sample of {package} is recorded", next_step="measure one with --record")
    details = recorded.details
    names = Counter[str](details["survivors"])
    there = [change for change in changes(package) if str(change) in names]
    gone = names.keys() - {str(change) for change in there}
    alive = reasons().keys() & names.keys()
    trials = _tried(package, [change for change in there if str(change) not in alive], jobs=jobs)
    alive |= {str(trial.change) for trial in trials if trial.outcome is Outcome.SURVIVED}
    survivors = sorted(name for name in names.elements() if name in alive)
    outcomes = dict(details["outcomes"])
    outcomes[Outcome.NOTICED] += sum(names[name] for name in names.keys() - gone - alive)
    outcomes[Outcome.SURVIVED] = len(survivors)
    return _measurement(
        package,
        outcomes=outcomes,
        survivors=survivors,
        parameters=recorded.parameters,
        first=details.get("first") or {"commit": recorded.commit, "outcomes": details["outcomes"]},
    )


def _tried(package: str, chosen: Sequence[Change], *, jobs: int) -> list[Trial]:
    with step(f"{package}: its tests, unchanged") as progress:
        suite = Suite(package)
        progress.detail = f"{suite.seconds:.0f} s of CPU time"
    done: list[Trial] = []
    survived = 0
    with step(f"{package}: {len(chosen)} changes") as progress:
        for trial in suite.trials(chosen, jobs=jobs):
            done.append(trial)
            if trial.outcome is Outcome.SURVIVED:
                survived += 1
                where = f"line {trial.change.mutant.line}"
                print(f"  survived: {trial.change} ({where})", file=sys.stderr, flush=True)
            progress.note(f"{len(done)} tried, {survived} survived")
    return done


def _measurement(
    package: str,
    *,
    outcomes: Mapping[str, int],
    survivors: Sequence[str],
    parameters: Mapping[str, Any],
    first: Mapping[str, Any] | None,
) -> Measurement:
    """`first`: what the sample showed at first, where what survived was tried again."""
    share = 100 * len(survivors) / max(1, sum(outcomes.values()))
    return Measurement(
        variant=package,
        parameters=dict(parameters),
        goals=[Goal(name=f"survivors, {package}", value=share, limit=15, unit="%")],
        details={
            "outcomes": dict(outcomes),
            "survivors": survivors,
            "first": first,
            "suite": [f"{path.relative_to(REPOSITORY)}" for path in SUITES[package]],
        },
    )


def reasons() -> Mapping[str, str]:
    """Why changes that no test notices make no difference, by their names."""
    found: dict[str, str] = yaml.safe_load(_REASONS.read_text(encoding="utf-8"))
    return found


def section(results: Mapping[str, Result]) -> str:
    heads = " | ".join(outcome.value for outcome in Outcome)
    table = "\n".join(
        [
            f"| package | changes | {heads} | score | at first |",
            "|---|---|" + "---|" * (len(Outcome) + 2),
            *(_row(name, result) for name, result in sorted(results.items())),
        ]
    )
    known = reasons()
    survivors = "\n".join(
        f"- `{survivor}`: {known.get(survivor, '**a test is missing**')}"
        for _, result in sorted(results.items())
        for survivor in result.details["survivors"]
    )
    return f"""\
## Mutation testing

{prose(_EXPLANATION)}

{table}

<details><summary>What survived, and why it makes no difference</summary>

{survivors}

</details>"""


def _row(package: str, result: Result) -> str:
    outcomes, first = result.details["outcomes"], result.details.get("first")
    before = f"{_score(first['outcomes'])}, commit {first['commit']}" if first else ""
    counts = [f"{sum(outcomes.values())}", *(f"{outcomes[outcome.value]}" for outcome in Outcome)]
    return f"| {' | '.join([package, *counts, _score(outcomes), before])} |"


def _score(outcomes: Mapping[str, int]) -> str:
    return f"{100 - 100 * outcomes[Outcome.SURVIVED] / sum(outcomes.values()):.0f} %"
