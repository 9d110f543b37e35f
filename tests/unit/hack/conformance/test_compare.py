"""Comparing answers: what may differ does not count, what may not is found."""

from copy import deepcopy
from typing import Any

import pytest

from conformance.compare import Verdict, agrees_with_one, difference, verdict_of_oracle, verdict_of_ours

RESULT = {
    "request": "r",
    "driver": "d.example.com",
    "pool": "p",
    "device": "a",
    "shareID": "00000000-0000-4000-8000-000000000000",
    "consumedCapacity": {"memory": "1Gi"},
    "tolerations": [{"key": "k", "operator": "Exists"}],
}
CONFIG = {"source": "FromClass", "requests": ["r"], "opaque": {"driver": "d", "parameters": {"a": 1}}}
REQUIREMENTS = [{"key": "zone", "operator": "In", "values": ["east"]}, {"key": "gpu", "operator": "Exists"}]
SELECTOR = {"nodeSelectorTerms": [{"matchExpressions": REQUIREMENTS}]}
ALLOCATION: dict[str, Any] = {"devices": {"results": [RESULT], "config": [CONFIG]}, "nodeSelector": SELECTOR}
THEIRS: dict[str, Any] = {"node": "n", "fits": True, "allocations": [ALLOCATION]}


def ours(allocation: dict[str, Any] | None, error: str | None = None) -> dict[str, Any]:
    return {"node": "n", "claims": [{"name": "c", "allocation": allocation, "error": error}]}


def changed(path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    made = deepcopy(ALLOCATION)
    place: Any = made
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return made


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("devices", "results", 0, "shareID"), "another"),
        (("devices", "results", 0, "consumedCapacity"), {"memory": "1024Mi"}),
        (("devices", "results", 0, "adminAccess"), None),
        (("nodeSelector", "nodeSelectorTerms", 0, "matchExpressions"), REQUIREMENTS[::-1]),
        (("nodeSelector", "nodeSelectorTerms", 0, "matchFields"), []),
    ],
)
def test_what_may_differ_is_no_difference(path: tuple[str | int, ...], value: object) -> None:
    assert difference(THEIRS, ours(changed(path, value))) == ""


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("devices", "results", 0, "device"), "b"),
        (("devices", "results", 0, "request"), "r/s"),
        (("devices", "results", 0, "shareID"), None),
        (("devices", "results", 0, "consumedCapacity"), {"memory": "1G"}),
        (("devices", "results", 0, "consumedCapacity"), None),
        (("devices", "results", 0, "adminAccess"), True),
        (("devices", "results", 0, "tolerations"), []),
        (("devices", "results", 0, "bindingConditions"), ["c"]),
        (("devices", "results"), [RESULT, RESULT]),
        (("devices", "config"), []),
        (("devices", "config", 0, "source"), "FromClaim"),
        (("devices", "config", 0, "opaque", "parameters"), {"a": 2}),
        (("nodeSelector",), None),
        (("nodeSelector", "nodeSelectorTerms", 0, "matchExpressions", 0, "values"), ["west"]),
    ],
)
def test_what_may_not_differ_is_found(path: tuple[str | int, ...], value: object) -> None:
    assert "instead of" in difference(THEIRS, ours(changed(path, value)))


def test_verdicts_are_compared_first() -> None:
    unfit = {"node": "n", "fits": False}
    fatal = {"node": "n", "fits": False, "error": "no such class", "scope": "pod"}
    assert difference(THEIRS, ours(None)) == "does not fit instead of fits"
    assert difference(unfit, ours(ALLOCATION)) == "fits instead of does not fit"
    assert difference(fatal, ours(None)) == "does not fit instead of fatal for the pod"
    assert difference(unfit, ours(None, "boom")) == "fatal for the pod instead of does not fit"
    assert difference(fatal, ours(None, "boom")) == difference(unfit, ours(None)) == ""


def test_an_error_of_one_node_is_no_fit() -> None:
    assert verdict_of_oracle({"fits": False, "error": "invalid pool", "scope": "node"}) is Verdict.UNFIT


@pytest.mark.parametrize("unknown", [{"timedOut": True}, {"scope": "panic"}])
def test_an_oracle_without_an_answer_agrees_with_all(unknown: dict[str, Any]) -> None:
    oracle = {"node": "n", "fits": False, "error": "…", **unknown}
    assert verdict_of_oracle(oracle) is Verdict.UNKNOWN
    assert difference(oracle, ours(ALLOCATION)) == difference(oracle, ours(None)) == ""


def test_part_of_a_group_is_no_fit() -> None:
    answer = ours(ALLOCATION)
    answer["claims"].append({"name": "d", "allocation": None, "error": None})
    assert verdict_of_ours(answer) is Verdict.UNFIT


def test_any_of_several_samples_will_do() -> None:
    other = {"fits": True, "allocations": [changed(("devices", "results", 0, "device"), "b")]}
    b = ours(changed(("devices", "results", 0, "device"), "b"))
    assert not agrees_with_one(THEIRS, b)
    assert agrees_with_one({**THEIRS, "others": [other]}, b)
