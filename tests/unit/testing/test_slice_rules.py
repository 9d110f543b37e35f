"""The rules of ResourceSlices that the fake API server enforces, as a real one does."""

from typing import Any

import pytest

from tangram.base.errors import ApiError, InvalidError
from tangram.kube.resources import RESOURCE_SLICES
from tangram.testing.apiserver import FakeApiServer


def device(name: str = "gpu-1", **fields: Any) -> dict[str, Any]:
    return {"name": name, **fields}


def spec(*devices: Any, **fields: Any) -> dict[str, Any]:
    made = {
        "driver": "gpu.resource.admin",
        "nodeName": "n",
        "pool": {"name": "gpu.resource.admin/n", "generation": 1, "resourceSliceCount": 1},
        "devices": list(devices),
    }
    return {key: value for key, value in (made | fields).items() if value is not None}


def create(body: dict[str, Any], **options: Any) -> dict[str, Any]:
    made = FakeApiServer(**options).create(RESOURCE_SLICES, {"metadata": {"name": "s"}, "spec": body})
    found: dict[str, Any] = made["spec"]
    return found


GOOD = device(
    attributes={
        "type": {"string": "gpu"},
        "resource.kubernetes.io/numaNode": {"int": 0},
        "healthy": {"bool": False},
        "driverVersion": {"version": "570.86.15"},
    },
    capacity={"memory": {"value": "80Gi"}},
)


def test_malformed_quantity_does_not_decode() -> None:
    with pytest.raises(ApiError, match="not a quantity") as caught:
        create(spec(device(capacity={"m": {"value": "1 Gi"}})))
    assert caught.value.status == 400


def test_what_is_empty_is_left_out() -> None:
    made = create(spec(device(attributes={}, capacity={}, taints=[], consumesCounters=None)))
    assert made["devices"] == [device()]


def test_good_slice() -> None:
    assert create(spec(GOOD)) == spec(GOOD)


def many(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [device(f"d{index}", **fields) for index in range(count)]


TAINT = {"key": "k", "effect": "NoSchedule"}
COUNTERS = [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]


def test_limits_are_reached() -> None:
    create(spec(*many(128)))
    create(spec(*many(64, taints=[TAINT])))
    create(spec(device(attributes={"a" * 32: {"int": 1}, **{f"a{i}": {"int": 1} for i in range(31)}})))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"driver": "other"}, r"spec\.driver"),
        ({"nodeName": "other"}, r"spec\.nodeName"),
        ({"pool": {"name": "other"}}, r"spec\.pool\.name"),
    ],
)
def test_identity_is_immutable(change: dict[str, Any], field: str) -> None:
    server = FakeApiServer()
    server.create(RESOURCE_SLICES, {"metadata": {"name": "s"}, "spec": spec(GOOD)})
    with pytest.raises(InvalidError, match=f"{field}: Invalid value: .*: field is immutable"):
        server.patch(RESOURCE_SLICES, {"spec": change}, name="s")
    emptied = server.patch(RESOURCE_SLICES, {"spec": {"pool": {"generation": 2}, "devices": []}}, name="s")
    assert "devices" not in emptied["spec"]


def test_what_older_servers_drop() -> None:
    full = device(
        taints=[{**TAINT, "timeAdded": "2026-01-01T00:00:00Z"}],
        allowMultipleAllocations=True,
        consumesCounters=COUNTERS,
        bindingConditions=["a"],
        bindingFailureConditions=["b"],
        capacity={"m": {"value": "1", "requestPolicy": {"default": "1"}}},
    )
    assert create(spec(full))["devices"] == [full]
    assert create(spec(full), version="1.35")["devices"] == [device(capacity={"m": {"value": "1"}})]
    counters = spec(devices=None, sharedCounters=[{"name": "s", "counters": {"c": {"value": "1"}}}])
    assert "sharedCounters" in create(counters)
    assert "sharedCounters" not in create(counters, version="1.34")


def test_server_notes_when_a_taint_was_added() -> None:
    assert create(spec(device(taints=[TAINT])))["devices"][0]["taints"][0]["timeAdded"].endswith("Z")
