"""What selectors may use depends on the version whose behaviour is asked for."""

import pytest
from tests.unit.allocation.structured.world import (
    DRIVER,
    VERSIONS,
    claim,
    device,
    devices,
    request,
    slice_,
    solve,
)

from tangram.allocation.structured import Gate, parse_features

_QUOTED = f"device.attributes['{DRIVER}'].`model` == 'A'"
"""Fields in backticks came with Kubernetes 1.37."""


@pytest.mark.parametrize("version", VERSIONS)
def test_selectors_are_those_of_the_version(version: str) -> None:
    outcome = solve(
        [slice_(device("a", attributes={"model": "A"}))], [claim(request(when=_QUOTED))], features=version
    )
    expected = [["a"]] if version in ("k8s-1.37", "latest") else "fatal"
    assert devices(outcome) == expected


@pytest.mark.parametrize("features", ["k8s-1.36,none", "k8s-1.36,DeviceTaints", "k8s-1.36,-AdminAccess"])
def test_gates_do_not_change_the_version_of_selectors(features: str) -> None:
    outcome = solve(
        [slice_(device("a", attributes={"model": "A"}))], [claim(request(when=_QUOTED))], features=features
    )
    assert devices(outcome) == "fatal"


@pytest.mark.parametrize(
    ("text", "binds"),
    [
        ("DeviceBindingAndStatus", True),
        ("DeviceBinding,DeviceStatus", True),
        ("DeviceBinding", False),
        ("DeviceStatus", False),
        ("DRADeviceBindingConditions,DRAResourceClaimDeviceStatus", True),
        ("k8s-1.34,DeviceBinding", True),
        ("k8s-1.34,none,DeviceBinding", False),
        ("k8s-1.34,none,DeviceStatus,DeviceBinding", True),
        ("k8s-1.36", True),
        ("k8s-1.36,-DRADeviceBindingConditions", False),
        ("k8s-1.36,-DeviceStatus", False),
        ("k8s-1.36,-DeviceBinding,DeviceBinding", True),
        ("latest,-DeviceBindingAndStatus,DeviceStatus", False),
        ("DeviceBinding,DeviceStatus,-DeviceBindingAndStatus", False),
    ],
)
def test_binding_conditions_have_two_gates(text: str, binds: bool) -> None:
    assert parse_features(text).on(Gate.DEVICE_BINDING_AND_STATUS) is binds


def test_gates_go_by_the_names_of_feature_gates_too() -> None:
    gates = ["DRAAdminAccess", "DRAConsumableCapacity", "DRADeviceCompatibilityGroups"]
    assert parse_features(",".join(gates)).gates == {
        Gate.ADMIN_ACCESS,
        Gate.CONSUMABLE_CAPACITY,
        Gate.COMPATIBILITY_GROUPS,
    }
