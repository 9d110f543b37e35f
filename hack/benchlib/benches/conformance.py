"""The engine beside Kubernetes' own allocator, on generated problems."""

import argparse
import math
import os
import sys
from collections.abc import Mapping

from benchlib.arguments import positive
from benchlib.benches.tables import goal_list, prose
from benchlib.results import Goal, Measurement, Result
from clusterlib.layout import REPOSITORY
from clusterlib.steps import step
from conformance.compare import Verdict
from conformance.recorded import Case, case, recorded_file, write, write_case
from conformance.run import Found, record, run
from conformance.versions import VERSIONS, Version, version_of

_DESCRIPTION = """\
Asks hack/oracle (Kubernetes' own allocator, built here from its Go modules at the first use) and Tangram's
engine the same generated problems: clusters with claims, every feature of the API, mostly edges. Compared is
whether the claims fit on each node, and what is fatal for the pod; under first-fit also the very devices,
shares, configurations and node selectors. A differing problem is reduced and written as a case.
"""
_EPILOG = """\
examples:
  hack/bench conformance --version 1.36 --cases 1000
  hack/bench conformance --version 1.37 --cases 100000 --seed 7 --record
  hack/bench conformance --version 1.34 --cases 1500 --write-recorded

Exit code 3: some problems differ, or more were given up than 1 of 1000 (of few problems: than chance gives).
"""

_EXPLANATION = """\
Generated problems, asked of Kubernetes' own allocator and of the engine; [differences.md](differences.md)
tells what is compared. One answer per problem and node. *Devices*: the claims fit, so devices, shares,
configurations and node selectors were compared. *Order*: the allocator of that version takes pools in no
defined order, and gives our answer in one of its orders. *Unknown*: the allocator crashed, or needed more
than 300 ms. *Given up*: the engine's search was ended by its budget, and the allocator's was not.
"""


_MANY = 10_000
"""Problems of which chance gives no other share."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("--version", default="1.36", metavar="V", help=f"one of {', '.join(VERSIONS)} (%(default)s)")
    add("--cases", type=positive, default=2000, metavar="N", help="problems (%(default)s)")
    add("--seed", type=int, default=1, metavar="S", help="for other problems (%(default)s)")
    add(
        "--jobs",
        type=positive,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="processes (%(default)s)",
    )
    add("--most", type=int, default=20, metavar="N", help="end after so many differences (%(default)s)")
    add("--differences", default="build/differences", metavar="DIR", help="where cases go (%(default)s)")
    add("--write-recorded", action="store_true", help="also write the answers for the tests without Go")


def measure(options: argparse.Namespace) -> Measurement:
    version = version_of(options.version)
    with step(f"{options.cases} problems, {version.module_version}, seed {options.seed}") as progress:
        tally = run(
            version,
            seed=options.seed,
            cases=options.cases,
            jobs=options.jobs,
            most_found=options.most,
            progress=progress.note,
            tell=lambda found: _tell(found, version, options.differences),
        )
        progress.detail = f"{len(tally.found)} differ"
    if options.write_recorded:
        with step("recording"):
            write(recorded_file(version), record(version, seed=options.seed, cases=options.cases))
    answers = tally.verdicts.total()
    return Measurement(
        variant=version.kubernetes,
        parameters={"cases": options.cases, "seed": options.seed, "module": version.module_version},
        goals=[
            Goal(name=f"differences, {version.kubernetes}", value=len(tally.found), limit=0, unit=""),
            Goal(
                name=f"given up, {version.kubernetes}",
                value=1000 * len(tally.exhausted) / options.cases,
                limit=most_given_up(options.cases),
                unit="of 1000",
            ),
        ],
        details={
            "answers": answers,
            "verdicts": {f"{name}": count for name, count in sorted(tally.verdicts.items())},
            "devicesCompared": tally.devices,
            "inAnotherOrder": tally.any_order,
            "givenUp": sorted(tally.exhausted),
            "topics": dict(sorted(tally.topics.items())),
            "unknown": tally.verdicts[Verdict.UNKNOWN],
        },
    )


def most_given_up(cases: int) -> float:
    """One of 1,000; of few problems three standard deviations more, which is chance."""
    return 1 if cases >= _MANY else round(1 + 3 * math.sqrt(1000 / cases), 1)


def _tell(found: Found, version: Version, directory: str) -> None:
    path = REPOSITORY / directory / f"{version.kubernetes}-{found.number}.json"
    write_case(path, _case(found, version))
    print(f"  ✗ problem {found.number}: {found.text}\n    {path}", file=sys.stderr)


def _case(found: Found, version: Version) -> Case:
    return case(version, found.problem, [found.oracle], note=found.text)


def section(results: Mapping[str, Result]) -> str:
    rows = [
        f"| {name} | {result.parameters['module']} | {result.parameters['cases']:,} | "
        f"{result.details['answers']:,} | {result.details['devicesCompared']:,} | "
        f"{result.details['inAnotherOrder']:,} | {result.details['unknown']:,} | "
        f"{len(result.details['givenUp']):,} | "
        f"{result.goals[0].value:.0f} |"
        for name, result in sorted(results.items())
    ]
    goals = "\n".join(goal_list(result) for _, result in sorted(results.items()))
    table = "\n".join(rows)
    return f"""\
## Conformance

{prose(_EXPLANATION)}

| Kubernetes | module | problems | answers | devices | order | unknown | given up | differences |
|---|---|---|---|---|---|---|---|---|
{table}

{goals}"""
