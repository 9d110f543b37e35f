"""Device classes carry the guard; the admission policies are about the node plugin that is installed."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from devtools.render import render
from tangram import DRIVER_NAME
from tangram.cel import CelDevice, compile_expression
from tangram.model.devices import Allocator

from .conftest import Rendered
from .devices import cel_device, published

GUARD = f'device.attributes["{DRIVER_NAME}"].allocator == "scheduler"'


def _expressions(device_class: dict[str, Any]) -> list[str]:
    return [selector["cel"]["expression"] for selector in device_class["spec"]["selectors"]]


def test_every_class_carries_the_guard(any_variant: Rendered) -> None:
    classes = any_variant.all("DeviceClass")
    assert [device_class["metadata"]["name"] for device_class in classes] == [DRIVER_NAME]
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


@pytest.mark.parametrize(
    ("expression", "guarded"),
    [
        (GUARD, True),
        (GUARD.replace('"scheduler"', "'scheduler'"), True),
        (GUARD.replace(".allocator", '["allocator"]').replace(" == ", "=="), True),
        (f'device.attributes["{DRIVER_NAME}"].?allocator == optional.of("scheduler")', False),
        (f'device.driver == "{DRIVER_NAME}"', False),
        (f'device.attributes["{DRIVER_NAME}"].allocator != "controller"', False),
        (f'device.attributes["{DRIVER_NAME}"].allocator == "controller"', False),
    ],
)
def test_what_the_class_policy_takes_for_a_guard(rendered: Rendered, expression: str, guarded: bool) -> None:
    policy = rendered.one("ValidatingAdmissionPolicy", "tangram-device-classes")
    (validation,) = policy["spec"]["validations"]
    literal = re.search(r'matches\("(.*)"\)', validation["expression"])
    assert literal
    pattern = literal.group(1).replace('\\"', '"').replace("\\\\", "\\")
    assert bool(re.search(pattern, expression)) is guarded


def test_the_class_policy_accepts_our_own_classes(rendered: Rendered) -> None:
    policy = rendered.one("ValidatingAdmissionPolicy", "tangram-device-classes")
    literal = re.search(r'matches\("(.*)"\)', policy["spec"]["validations"][0]["expression"])
    assert literal
    pattern = literal.group(1).replace('\\"', '"').replace("\\\\", "\\")
    for device_class in rendered.all("DeviceClass"):
        assert any(re.search(pattern, expression) for expression in _expressions(device_class))
