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
