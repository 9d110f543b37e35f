"""Hand-written selectors by theme, against the recorded answers of Kubernetes' own CEL library.

Compared are the result, or that there is an error, what the evaluation costs, and the estimate of it. The
answers are recorded by `hack/bench cel --write-recorded`.
"""

import json
from typing import Any

import pytest
from tests.unit.cel.support import DEVICE

from conformance.selectors import Answer, agree, ours
from conformance.themes import RECORDED, expand, read_themes
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
