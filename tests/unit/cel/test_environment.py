"""Environments by version, lists as attributes, estimates and their limit."""

import pytest
from tests.unit.cel.support import DEVICE, OWN, outcome

from conformance.themes import expand
from tangram.base.errors import CelCompileError, CelRuntimeError, UsageError
from tangram.cel import CelDevice, Environment, compile_expression, validate_expression
from tangram.cel.program import BUDGET
from tangram.model.semver import SemVer

LISTS = CelDevice(
    driver=OWN,
    attributes={OWN: {"models": ("a", "b"), "sizes": (1, 2), "versions": (SemVer("1.2.3"),), "flags": ()}},
)


def test_one_object_for_each_environment() -> None:
    assert Environment.of("k8s-1.36") is Environment.of("k8s-1.36")
    assert Environment.of("k8s-1.36.6").functions is Environment.of("k8s-1.36").functions
    assert repr(Environment.of("k8s-1.36")) == "Environment(version='k8s-1.36', list_attributes=False)"


@pytest.mark.parametrize("version", ["", "1.36", "k8s-1.33", "k8s-1.38", "k8s-2.36", "k8s-1.36 "])
def test_unknown_versions_are_refused(version: str) -> None:
    with pytest.raises(UsageError, match=r"no CEL environment .*use one of k8s-1\.34, .* k8s-1\.37"):
        Environment.of(version)


@pytest.mark.parametrize(
    ("expression", "by_version"),
    [
        ("[1].includes(1)", (None, None, True, True)),
        ("lists.range(60).includes(59)", (None, None, "error", True)),
        ("device.`driver` == 'x'", (None, None, None, False)),
        ('"abc".indexOf("", 9) == 3', (False, False, False, True)),
        ("@.healthy.orValue(false)", (True, True, True, "error")),
        ('cel.bind(m, %.?memory, m.value() == quantity("80Gi"))', ("error", "error", "error", True)),
        ("dyn(true)", (None, None, None, True)),
        ("dyn(optional.of(true))", (None, None, None, True)),
        ("dyn(optional.of(1))", (None, None, None, "error")),
    ],
)
def test_what_differs_between_versions(expression: str, by_version: tuple[bool | str | None, ...]) -> None:
    for minor, expected in zip((34, 35, 36, 37), by_version, strict=True):
        found = outcome(expression, Environment.of(f"k8s-1.{minor}"))
        if expected is None:
            assert str(found).startswith("invalid: ")
        elif expected == "error":
            assert str(found).startswith("error: ")
        else:
            assert found is expected


@pytest.mark.parametrize(
    ("expression", "cost"),
    [
        ("[0, 1, 2].sort().flatten(@.neg).size() == 1", 31),
        ("[0, 1, 2].sort().flatten(-13).size() == 1", 3),
        ("[0, 1, 2].sort().flatten(-14).size() == 1", BUDGET),
        ("[0, 1, 2].flatten(-5).size() == 1", BUDGET),
        ("[0, 1].sort().flatten(-7).size() == 1 || true", 18),
    ],
)
def test_before_137_a_negative_depth_takes_costs_away(expression: str, cost: int) -> None:
    """As Kubernetes 1.34 and 1.36 count: sums wrap at 64 bits, so that what is below 0 is too much."""
    program = compile_expression(expand(expression), Environment.of("k8s-1.36"))
    assert program.answer(DEVICE)[1].cost == cost


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('@.models.includes("a")', True),
        ('@.models.exists(m, m == "b")', True),
        ('"a" in @.models', True),
        ("@.sizes[1] == 2", True),
        ("@.sizes.max() == 2", True),
        ('@.versions.all(v, v.isLessThan(semver("2.0.0")))', True),
        ("@.flags == []", True),
        ("@.all(name, @[name].size() < 3)", True),
    ],
)
def test_attributes_may_be_lists(expression: str, expected: bool) -> None:
    for environment in (Environment.of("k8s-1.37"), Environment.of("k8s-1.36", list_attributes=True)):
        program = compile_expression(expand(expression), environment)
        assert program.evaluate(LISTS) is expected
        assert program.answer(LISTS)[1].result is expected


def test_before_lists_a_macro_over_an_attribute_is_refused() -> None:
    with pytest.raises(CelCompileError, match="needs a list or a map, not any"):
        compile_expression(expand("@.models.exists(m, m == 'b')"), Environment.of("k8s-1.36"))


def test_bitmask_over_devices() -> None:
    devices = [CelDevice(driver=OWN, attributes={OWN: {"index": index}}) for index in range(5)]
    program = compile_expression(expand("@.index % 2 == 0"))
    assert program.mask(devices) == 0b10101
    assert program.mask([]) == 0
    with pytest.raises(CelRuntimeError, match="no such key"):
        program.mask([*devices, CelDevice(driver=OWN)])


@pytest.mark.parametrize(
    ("expression", "estimate"),
    [
        ("true", 0),
        ('device.driver == "a"', 3),
        ("@.exists(k, k == 'a')", 196),
        ("[1, 2, 3].all(x, x > 0)", 26),
    ],
)
def test_estimates(expression: str, estimate: int) -> None:
    assert validate_expression(expand(expression)).estimated_cost == estimate


def test_what_may_cost_too_much_is_refused_as_the_api_server_does() -> None:
    text = expand("@.all(a, @.all(b, @.all(c, @.all(d, a + b + c + d != ''))))")
    program = compile_expression(text)
    assert program.estimated_cost > BUDGET
    with pytest.raises(CelCompileError, match=r"may cost up to .* units, more than 1000000"):
        validate_expression(text)
    assert compile_expression("[device].size() == 1 && dyn(device) == device").evaluate(DEVICE)
