"""The engine answers recorded problems as Kubernetes' own allocator did.

`tests/oracle` has the problems with the answers of hack/oracle (`hack/bench conformance --write-recorded`):
per version a compressed file of generated ones, and in `cases` those on which the two once differed.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest

from conformance import engine
from conformance.compare import Verdict, agrees_with_one, difference, verdict_of_oracle
from conformance.recorded import Case, kept_cases, read, recorded_file
from conformance.versions import VERSIONS, Version

PARTS = 8
RECORDED = [version for version in VERSIONS.values() if recorded_file(version).exists()]
CASES = kept_cases()


def differences(case: Case) -> Iterator[str]:
    """How the engine's answers differ from the recorded ones, at each node where they do."""
    version = VERSIONS[case.version]
    ours = engine.answer(case.problem, version)
    assert [node["node"] for node in ours] == [node["node"] for node in case.nodes]
    for theirs, mine in zip(case.nodes, ours, strict=True):
        text = difference(theirs, mine)
        if text and (version.ordered(case.features) or not agrees_with_one(theirs, mine)):
            yield f"node {mine['node']}: {text}"


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("version", RECORDED, ids=lambda version: version.kubernetes)
def test_generated_problems(version: Version, part: int) -> None:
    differing = {}
    for number, case in islice(enumerate(read(recorded_file(version))), part, None, PARTS):
        if found := list(differences(case)):
            differing[number] = found
    assert not differing


@pytest.mark.parametrize("name", list(CASES))
def test_problems_that_once_differed(name: str) -> None:
    assert not list(differences(CASES[name])), CASES[name].note


@pytest.mark.parametrize("version", RECORDED, ids=lambda version: version.kubernetes)
def test_enough_is_recorded(version: Version) -> None:
    verdicts: Counter[Verdict] = Counter()
    topics: Counter[str] = Counter()
    problems = 0
    for case in read(recorded_file(version)):
        problems += 1
        topics.update(case.topics)
        verdicts.update(map(verdict_of_oracle, case.nodes))
    assert problems >= 1000
    assert verdicts[Verdict.FITS] > problems / 4
    assert verdicts[Verdict.UNFIT] > problems / 4
    assert verdicts[Verdict.FATAL] > problems / 25
    assert verdicts[Verdict.UNKNOWN] < problems / 10
    assert min(topics.values()) > 50


def test_the_oldest_the_default_and_the_newest_version_are_recorded() -> None:
    assert {"1.34", "1.36", "1.37"} <= {version.kubernetes for version in RECORDED}
