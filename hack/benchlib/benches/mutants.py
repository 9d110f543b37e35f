"""Do the tests notice small changes of the code?"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping

from benchlib.benches.tables import prose
from benchlib.results import Goal, Measurement, Result
from clusterlib.layout import REPOSITORY
from clusterlib.steps import step
from devtools.mutation import SUITES, Outcome, Suite, Trial, sample

_DESCRIPTION = """\
Mutation testing: takes a seeded sample of small changes of a package (a comparison, an operator, a number,
a condition, a result or a statement), and with each runs the fast tests that execute it. A change that no
test notices survives: a test is missing, or the change makes no difference. The score is the share noticed.
"""
_EPILOG = """\
examples:
  hack/bench mutants --package cel --sample 300 --record
  hack/bench mutants --package allocation --sample 50 --seed 7
  hack/bench mutants --package allocation --module search --sample 1000     all of one module

Files are not changed: each test process replaces the module as it imports it.
"""
_EXPLANATION = """\
A seeded sample of small changes of each package, each tried on the fast tests that execute it. Noticed: a
test fails. Timed out: the tests take more CPU time than 20 s and three times what they take unchanged. What
survives is listed: a test is missing, or the change makes no difference.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("--package", choices=list(SUITES), default="cel", help="what is changed (%(default)s)")
    add("--module", default="", metavar="NAME", help="only modules whose path has this in it")
    add("--sample", type=int, default=300, metavar="N", help="changes (%(default)s)")
    add("--seed", type=int, default=1, metavar="S", help="for another sample (%(default)s)")
    add("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="processes (%(default)s)")


def measure(options: argparse.Namespace) -> Measurement:
    chosen = sample(options.package, module=options.module, size=options.sample, seed=options.seed)
    with step(f"{options.package}: its tests, unchanged") as progress:
        suite = Suite(options.package)
        progress.detail = f"{suite.seconds:.0f} s of CPU time"
    done: list[Trial] = []
    counts: Counter[Outcome] = Counter()
    with step(f"{options.package}: {len(chosen)} changes") as progress:
        for trial in suite.trials(chosen, jobs=options.jobs):
            done.append(trial)
            counts[trial.outcome] += 1
            if trial.outcome is Outcome.SURVIVED:
                where = f"line {trial.change.mutant.line}"
                print(f"  survived: {trial.change} ({where})", file=sys.stderr, flush=True)
            progress.note(f"{len(done)} tried, {counts[Outcome.SURVIVED]} survived")
    survivors = sorted(str(trial.change) for trial in done if trial.outcome is Outcome.SURVIVED)
    share = counts[Outcome.SURVIVED] / max(1, len(done))
    return Measurement(
        variant=options.package,
        parameters={"sample": len(done), "seed": options.seed, "module": options.module},
        goals=[Goal(name=f"survivors, {options.package}", value=100 * share, limit=15, unit="%")],
        details={
            "outcomes": {outcome.value: counts[outcome] for outcome in Outcome},
            "survivors": survivors,
            "suite": [f"{path.relative_to(REPOSITORY)}" for path in SUITES[options.package]],
        },
    )


def section(results: Mapping[str, Result]) -> str:
    rows = []
    for name, result in sorted(results.items()):
        outcomes = result.details["outcomes"]
        noticed = 100 - result.goals[0].value
        cells = [name, f"{result.parameters['sample']}", *(f"{outcomes[o.value]}" for o in Outcome)]
        rows.append(f"| {' | '.join(cells)} | {noticed:.0f} % |")
    heads = " | ".join(outcome.value for outcome in Outcome)
    table = "\n".join(
        [f"| package | changes | {heads} | score |", "|---|---|" + "---|" * (len(Outcome) + 1), *rows]
    )
    survivors = "\n".join(
        f"- {name} `{survivor}`"
        for name, result in sorted(results.items())
        for survivor in result.details["survivors"]
    )
    return f"""\
## Mutation testing

{prose(_EXPLANATION)}

{table}

<details><summary>What survived</summary>

{survivors}

</details>"""
