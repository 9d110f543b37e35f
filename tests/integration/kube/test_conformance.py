"""The fake API server answers the questions of tests/conformance as a recorded real one did."""

import pytest
from tests.conformance.compare import differences
from tests.conformance.differences import known_differences
from tests.conformance.fake import answers_of
from tests.conformance.questions import Case, load
from tests.conformance.record import OTHER_VERSIONS, VERSION, dump, path_of, recorded

CASES = load()
VERSIONS = (VERSION, *OTHER_VERSIONS)
RECORDED = {version: recorded(version) for version in VERSIONS}
KNOWN = {version: known_differences(version) for version in VERSIONS}


def test_there_are_enough_questions() -> None:
    assert sum(len(answers) for answers in RECORDED[VERSION].values()) >= 1000


def test_every_question_was_recorded_and_every_difference_is_one_of_them() -> None:
    for version in VERSIONS:
        assert {case.name for case in CASES} == RECORDED[version].keys()
        assert KNOWN[version].keys() <= {
            f"{name} {step}" for name, given in RECORDED[version].items() for step in range(len(given))
        }


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recording_is_written_as_it_is_read(version: str) -> None:
    assert dump(version, RECORDED[version]) == path_of(version).read_text()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_case(case: Case, version: str) -> None:
    given = await answers_of(case, version=version)
    for step, (answer, wanted) in enumerate(zip(given, RECORDED[version][case.name], strict=True)):
        found = differences(answer, wanted)
        if f"{case.name} {step}" in KNOWN[version]:
            assert found, f"step {step} no longer differs: take it off differences.yaml"
        else:
            assert not found, f"step {step}: {'; '.join(found)}"
