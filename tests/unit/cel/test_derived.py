"""Expressions of derived attributes. What they come to, and what they cost, hack/oracle said of 1.37.2."""

import ast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.cel.support import OWN

from conformance.celgenerate import Generator
from conformance.selectors import DEVICE, cel_device, ours_derived
from conformance.themes import expand
from tangram.base.errors import CelBudgetError, CelCompileError, CelRuntimeError
from tangram.cel import CelDevice, Environment
from tangram.cel.derived import Derivation, Derived, derivation
from tangram.model.semver import SemVer

LISTS = {
    "ints": {"ints": [3, 1]},
    "versions": {"versions": ["1.2.3", "1.0.0-rc.1+b"]},
    "strings": {"strings": ["a", "b"]},
    "bools": {"bools": [True]},
}
LOOKED_AT = cel_device({**DEVICE, "attributes": {**DEVICE["attributes"], **LISTS}})
V37 = Environment.of("k8s-1.37")


def of(text: str) -> Derivation:
    found = derivation(expand(text), V37)
    assert isinstance(found, Derivation), found
    return found


@pytest.mark.parametrize(
    ("text", "value", "cost"),
    [
        ("@.index", 3, 4),
        ("@.healthy", True, 4),
        ("@.driverVersion", SemVer("570.86.15"), 4),
        ("@.ints", (3, 1), 4),
        ("@.versions", (SemVer("1.2.3"), SemVer("1.0.0-rc.1+b")), 4),
        ("@.ints[0]", 3, 5),
        ("[]", (), 0),
        ("[1, 2]", (1, 2), 0),
        ('"rack-12/node-3".split("/")', ("rack-12", "node-3"), 3),
        ("@.?nope.orValue(7)", 7, 3),
        ("@.index % 2", 1, 5),
        ('semver("v1.2", true)', SemVer("1.2.0"), 1),
        ("dyn(optional.of(optional.of(1)))", 1, 3),
        ("dyn(type(1))", "int", 0),
        ('[dyn("a"), dyn(type(1))]', ("a", "int"), 0),
        ("[dyn(1), dyn(optional.of(2))]", (1, 2), 12),
    ],
)
def test_values(text: str, value: Derived, cost: int) -> None:
    result, spent, _ = of(text).answer(LOOKED_AT)[1]
    assert (type(result), result, spent) == (type(value), value, cost)


@pytest.mark.parametrize(
    "text",
    ["1u", "1.0", 'b"a"', "null", "[1u]", "[[1]]", "{}", "type(1)", "optional.of(1)", "@.?index", "%.memory",
     "[optional.of(1)]", 'duration("1s")', 'ip("1.2.3.4")', "device", "device.attributes"],
)  # fmt: skip
def test_types_that_no_attribute_has(text: str) -> None:
    found = derivation(expand(text), V37)
    assert isinstance(found, CelCompileError)
    assert "must evaluate to a string, an integer, a bool, a version, or a list of one of these" in str(found)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("dyn(1u)", "the expression evaluates to uint, not a string, an integer"),
        ("dyn(null)", "the expression evaluates to null, not"),
        ("dyn({})", "the expression evaluates to map, not"),
        ("dyn(%.memory)", "the expression evaluates to quantity, not"),
        ("dyn(optional.none())", "the expression evaluates to optional, not"),
        ("dyn(optional.of([1]))", "the expression evaluates to optional, not"),
        ('[dyn(1), dyn("a")]', "item 1 of the list is string, where the first is int"),
        ("[dyn(1), dyn(2u)]", "item 1 of the list is uint, no scalar"),
        ("[dyn(true), dyn(1)]", "item 1 of the list is int, where the first is bool"),
        ("[dyn([1])]", "item 0 of the list is list, no scalar"),
        ("dyn([optional.none()])", "item 0 of the list is optional, no scalar"),
        ("@.nope", "no such key"),
        ("1/0", "divi"),
    ],
)
def test_errors_on_the_device(text: str, cause: str) -> None:
    with pytest.raises(CelRuntimeError) as caught:
        of(text).evaluate(LOOKED_AT)
    assert cause in str(caught.value)


def test_an_evaluation_is_bounded() -> None:
    with pytest.raises(CelBudgetError):
        of("lists.range(2000).map(x, lists.range(2000).map(y, x).size())").evaluate(LOOKED_AT)


def test_the_estimate_is_that_of_selectors() -> None:
    assert of("@.ints.map(x, x + 1)").estimated_cost > of("@.index").estimated_cost == 4


def test_one_text_may_be_both_a_selector_and_a_derivation() -> None:
    assert of("@.healthy").evaluate(CelDevice(driver=OWN, attributes={OWN: {"healthy": False}})) is False
    assert derivation(expand("@.healthy"), V37) is of("@.healthy")


@given(st.integers(0, 10**9))
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_any_expression_gives_an_attribute_or_an_error(seed: int) -> None:
    text = Generator(V37, seed).derivation()
    ours = ours_derived(text, V37, LOOKED_AT)
    assert ours == ours_derived(text, V37, LOOKED_AT)
    if ours.outcome in {"invalid", "error"}:
        assert ours.text
        return
    written = ast.literal_eval(ours.outcome)
    for kind, value in written.items():
        values = value if kind.endswith("s") else [value]
        assert {type(item).__name__ for item in values} == {TYPES[kind.removesuffix("s")]}


TYPES = {"bool": "bool", "int": "int", "string": "str", "version": "str"}
