"""Device classes carry the guard; the admission policies are about the node plugin that is installed."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from devtools.render import render
from tangram import DRIVER_NAME
from tangram.base.errors import CelError
from tangram.cel import CelDevice, compile_expression
from tangram.model.devices import Allocator

from .conftest import Rendered, rendering
from .devices import cel_device, published

GUARD = f'device.attributes["{DRIVER_NAME}"].allocator == "scheduler"'


def _expressions(device_class: dict[str, Any]) -> list[str]:
    return [selector["cel"]["expression"] for selector in device_class["spec"]["selectors"]]


def test_every_class_carries_the_guard(any_variant: Rendered) -> None:
    classes = any_variant.all("DeviceClass")
    assert {device_class["metadata"]["name"] for device_class in classes} == {
        DRIVER_NAME,
        *(f"{type_}.{DRIVER_NAME}" for type_ in ("mig", "mps", "timeslice")),
    }
    for device_class in classes:
        (expression,) = _expressions(device_class)
        terms = [term.strip() for term in expression.split("&&")]
        # In this order: other drivers' devices have none of the attributes.
        assert terms[:3] == [
            f'device.driver == "{DRIVER_NAME}"',
            f'has(device.attributes["{DRIVER_NAME}"].allocator)',
            GUARD,
        ]


@pytest.mark.parametrize(
    ("allocator", "healthy", "selected"),
    [("scheduler", True, True), ("scheduler", False, False), ("controller", True, False)],
)
def test_kube_scheduler_finds_healthy_devices_of_its_own_nodes_only(
    rendered: Rendered, allocator: Allocator, healthy: bool, selected: bool
) -> None:
    (expression,) = _expressions(rendered.one("DeviceClass", DRIVER_NAME))
    program = compile_expression(expression)
    for device in published("a100-sxm4-80gb-x8", allocator=allocator, healthy=healthy):
        assert program.evaluate(cel_device(device)) is selected


def test_the_class_never_fails_on_devices_of_other_drivers(rendered: Rendered) -> None:
    (expression,) = _expressions(rendered.one("DeviceClass", DRIVER_NAME))
    bare = CelDevice(driver="nic.example.com", attributes={"nic.example.com": {"speed": 400}})
    lookalike = CelDevice(driver="nic.example.com", attributes={DRIVER_NAME: {"allocator": "scheduler"}})
    for device in (bare, lookalike):
        assert compile_expression(expression).evaluate(device) is False


def test_policies_watch_the_node_plugin_that_is_installed() -> None:
    for namespace in ("tangram-system", "gpu"):
        rendered = Rendered(render({}, namespace=namespace))
        account = rendered.pod_specs()["node"]["serviceAccountName"]
        username = f"system:serviceaccount:{namespace}:{account}"
        for name in ("tangram-node-slices", "tangram-node-claims"):
            (condition,) = rendered.one("ValidatingAdmissionPolicy", name)["spec"]["matchConditions"]
            assert condition["expression"] == f'request.userInfo.username == "{username}"'


def test_every_policy_is_bound(rendered: Rendered) -> None:
    policies = {policy["metadata"]["name"] for policy in rendered.all("ValidatingAdmissionPolicy")}
    actions = {
        binding["spec"]["policyName"]: binding["spec"]["validationActions"]
        for binding in rendered.all("ValidatingAdmissionPolicyBinding")
    }
    assert set(actions) == policies
    assert actions == {
        "tangram-node-slices": ["Deny"],
        "tangram-node-claims": ["Deny"],
        "tangram-device-classes": ["Deny"],
        "tangram-open-device-classes": ["Warn"],
    }


def test_policies_can_be_left_out(variant: Callable[[str], Rendered]) -> None:
    assert not variant("placed").all("ValidatingAdmissionPolicy")
    assert not variant("placed").all("ValidatingAdmissionPolicyBinding")


def _pattern(rendered: Rendered, policy: str) -> str:
    """The pattern that a selector must match; RE2 reads it as Python's `re` does."""
    (validation,) = rendered.one("ValidatingAdmissionPolicy", policy)["spec"]["validations"]
    literal = re.search(r"matches\(r'''(.*)'''\)", validation["expression"])
    assert literal
    return literal.group(1)


OURS = f'device.driver == "{DRIVER_NAME}"'
HAS = f'has(device.attributes["{DRIVER_NAME}"].allocator)'


@pytest.mark.parametrize(
    ("expression", "guarded"),
    [
        (GUARD, True),
        (GUARD.replace('"scheduler"', "'scheduler'"), True),
        (GUARD.replace(" == ", "=="), True),
        (f"\n  {OURS} &&\n  {HAS} &&\n  {GUARD} &&\n  device.attributes['{DRIVER_NAME}'].healthy\n", True),
        (f"{GUARD} && {OURS}", True),
        (f'device.attributes["{DRIVER_NAME}"].?allocator == optional.of("scheduler")', False),
        (OURS, False),
        (f'device.attributes["{DRIVER_NAME}"].allocator != "controller"', False),
        (f'device.attributes["{DRIVER_NAME}"].allocator == "controller"', False),
        (f"{GUARD} || true", False),
        (f"true || {GUARD}", False),
        (f"{OURS} || {GUARD}", False),
        (f"{GUARD} && false || true", False),
        (f"!({GUARD})", False),
        (f"!{GUARD}", False),
        (f"({GUARD}) == false", False),
        (f"{GUARD} == false", False),
        (f"{GUARD} ? true : true", False),
        (f"{GUARD} && false ? true : true", False),
        (f"true // {GUARD}", False),
        (f"true // {OURS} &&\n{GUARD}", False),
        (f"""'{GUARD}' != "" """, False),
        (f"""device.attributes["{DRIVER_NAME}'].allocator == "scheduler" """, False),
        (f"[{GUARD}].size() == 1", False),
    ],
)
def test_what_the_class_policy_takes_for_a_guard(rendered: Rendered, expression: str, guarded: bool) -> None:
    assert bool(re.search(_pattern(rendered, "tangram-device-classes"), expression)) is guarded


_PIECES = st.sampled_from(
    [
        GUARD,
        OURS,
        HAS,
        "&&",
        "||",
        "!",
        "(",
        ")",
        "?",
        ":",
        "==",
        "!=",
        "true",
        "false",
        "//",
        "\n",
        '"',
        "[",
        "]",
    ]
)


@given(st.lists(_PIECES, min_size=1, max_size=9))
@example([GUARD, "&&", "true"])
@example([OURS, "&&", GUARD, "&&", "true", "==", "true"])
def test_no_selector_with_a_guard_lets_kube_scheduler_allocate_our_devices(pieces: list[str]) -> None:
    expression = " ".join(pieces)
    if not re.search(_pattern(rendering("default"), "tangram-device-classes"), expression):
        return
    try:
        program = compile_expression(expression)
    except CelError:
        return
    device = cel_device(published("a100-sxm4-80gb-x8", allocator="controller")[0])
    assert program.evaluate(device) is False


def test_the_class_policy_accepts_our_own_classes(rendered: Rendered) -> None:
    pattern = _pattern(rendered, "tangram-device-classes")
    for device_class in rendered.all("DeviceClass"):
        assert any(re.search(pattern, expression) for expression in _expressions(device_class))


@pytest.mark.parametrize(
    ("expression", "silent"),
    [
        ("device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'", True),
        ('"nic.example.com" == device.driver', True),
        ('device.driver in ["nic.example.com", "b.example.com"] && true', True),
        ('device.driver == "nic.example.com" || true', False),
        ('device.driver == "nic.example.com" && false || true', False),
        ('device.driver == "gpu." + "resource.admin"', False),
        (r'device.driver == "gpu\x2eresource.admin"', False),
        ('device.driver == "x" ? true : true', False),
        ('device.driver in ["a"] == false', False),
        ('device.driver.startsWith("gpu.")', False),
        ('device.driver != "nic.example.com"', False),
        ("true", False),
    ],
)
def test_which_classes_the_open_policy_warns_of(rendered: Rendered, expression: str, silent: bool) -> None:
    assert bool(re.search(_pattern(rendered, "tangram-open-device-classes"), expression)) is silent
