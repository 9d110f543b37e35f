"""Hand-written selectors by theme, against the recorded answers of Kubernetes' own CEL library.

Compared are the result, or that there is an error, what the evaluation costs, and the estimate of it. Our
own work on each is recorded too: it is to be the same wherever Tangram runs, and only to change on purpose.
Both are recorded by `hack/bench cel --write-recorded`.
"""

import json
from typing import Any

import pytest
from tests.unit.cel.support import DEVICE

from conformance.selectors import Answer, agree, ours
from conformance.themes import RECORDED, WORK, expand, own_work, read_themes
from tangram.cel import Environment

THEMES = read_themes()
ANSWERS: dict[str, dict[str, Any]] = json.loads(RECORDED.read_text(encoding="utf-8"))
VERSIONS = ("1.34", "1.35", "1.36", "1.37")


def _recorded(theme: str, text: str, version: str) -> Answer:
    answer = ANSWERS[theme][text]
    short = answer if isinstance(answer, str) else answer[version]
    outcome, *costs = short.split(" ")
    cost, estimated_cost, *_ = (*map(int, costs), 0, 0)
    return Answer(outcome, cost, estimated_cost)


def test_there_is_an_answer_to_each() -> None:
    assert {theme: list(answers) for theme, answers in ANSWERS.items()} == {
        theme: list(dict.fromkeys(texts)) for theme, texts in THEMES.items()
    }
    assert sum(map(len, THEMES.values())) >= 1000


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("theme", THEMES)
def test_as_kubernetes(theme: str, version: str) -> None:
    environment = Environment.of(f"k8s-{version}")
    wrong = []
    for text in THEMES[theme]:
        their, our = _recorded(theme, text, version), ours(expand(text), environment, DEVICE)
        if not agree(our, their):
            wrong.append(f"{text}\n    ours   {our.short} {our.text}\n    theirs {their.short}")
    assert not wrong, "\n".join(wrong)


def test_what_each_takes_of_our_time_is_as_recorded() -> None:
    recorded: dict[str, int] = json.loads(WORK.read_text(encoding="utf-8"))
    work = own_work()
    assert {
        text: (work.get(text), units) for text, units in recorded.items() if work.get(text) != units
    } == {}
    assert recorded.keys() == work.keys()
