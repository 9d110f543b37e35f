"""The fake API server answers the questions of tests/conformance as a recorded real one did."""

import pytest
from tests.conformance.compare import differences
from tests.conformance.differences import known_differences
from tests.conformance.fake import answers_of
from tests.conformance.questions import Case, load
from tests.conformance.record import recorded

CASES = load()
RECORDED = recorded()
KNOWN = known_differences()


def test_there_are_enough_questions() -> None:
    assert sum(len(answers) for answers in RECORDED.values()) >= 1000


def test_every_question_was_recorded_and_every_difference_is_one_of_them() -> None:
    assert {case.name for case in CASES} == RECORDED.keys()
    assert KNOWN.keys() <= {
        f"{name} {step}" for name, given in RECORDED.items() for step in range(len(given))
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_case(case: Case) -> None:
    given = await answers_of(case)
    for step, (answer, wanted) in enumerate(zip(given, RECORDED[case.name], strict=True)):
        found = differences(answer, wanted)
        if f"{case.name} {step}" in KNOWN:
            assert found, f"step {step} no longer differs: take it off differences.yaml"
        else:
            assert not found, f"step {step}: {'; '.join(found)}"
