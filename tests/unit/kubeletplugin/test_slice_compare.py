from typing import Any

import pytest

from tangram.kubeletplugin.slice_compare import Difference, difference, paths

SPEC: dict[str, Any] = {
    "driver": "d",
    "nodeName": "n",
    "pool": {"name": "p", "resourceSliceCount": 1, "generation": 1},
    "devices": [
        {
            "name": "a",
            "attributes": {"healthy": {"bool": True}, "ordinal": {"int": 1}, "text": {"string": "1024Mi"}},
            "capacity": {
                "memory": {"value": "81920Mi", "requestPolicy": {"default": "1024Mi"}},
                "cores": {"value": "100"},
            },
            "taints": [{"key": "k", "effect": "NoSchedule"}],
            "consumesCounters": [{"counterSet": "s", "counters": {"memory": {"value": "1024Mi"}}}],
        }
    ],
}


def changed(**device: Any) -> dict[str, Any]:
    return {**SPEC, "devices": [{**SPEC["devices"][0], **device}]}


def test_how_the_server_writes_it_is_no_difference() -> None:
    stored = changed(
        capacity={
            "memory": {"value": "80Gi", "requestPolicy": {"default": "1Gi"}},
            "cores": {"value": 100},
        },
        taints=[{"key": "k", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}],
        consumesCounters=[{"counterSet": "s", "counters": {"memory": {"value": "1Gi"}}}],
    )
    stored["pool"] = {**SPEC["pool"], "generation": 7}
    assert difference(SPEC, stored) == Difference()
    assert difference({**SPEC, "sharedCounters": [], "allNodes": None}, SPEC) == Difference()
    assert difference(SPEC, {**SPEC, "sharedCounters": None}) == Difference()


@pytest.mark.parametrize(
    ("stored", "path"),
    [
        (changed(name="b"), "devices[].name"),
        (
            changed(attributes={**SPEC["devices"][0]["attributes"], "ordinal": {"int": 2}}),
            "devices[].attributes.ordinal.int",
        ),
        (
            changed(attributes={**SPEC["devices"][0]["attributes"], "ordinal": {"int": True}}),
            "devices[].attributes.ordinal.int",
        ),
        (
            changed(attributes={**SPEC["devices"][0]["attributes"], "text": {"string": "1Gi"}}),
            "devices[].attributes.text.string",
        ),
        (
            changed(attributes={**SPEC["devices"][0]["attributes"], "more": {"int": 0}}),
            "devices[].attributes.more",
        ),
        (
            changed(capacity={**SPEC["devices"][0]["capacity"], "cores": {"value": "99"}}),
            "devices[].capacity.cores.value",
        ),
        (
            changed(capacity={**SPEC["devices"][0]["capacity"], "cores": {"value": "lots"}}),
            "devices[].capacity.cores.value",
        ),
        ({**SPEC, "devices": SPEC["devices"] * 2}, "devices"),
        ({**SPEC, "devices": "none"}, "devices"),
        ({**SPEC, "allNodes": True}, "allNodes"),
        ({**SPEC, "pool": {**SPEC["pool"], "resourceSliceCount": 2}}, "pool.resourceSliceCount"),
    ],
)
def test_other_differences(stored: dict[str, Any], path: str) -> None:
    assert difference(SPEC, stored) == Difference(other=path)


def test_order_matters() -> None:
    first, second = {"name": "a"}, {"name": "b"}
    desired, stored = {"devices": [first, second]}, {"devices": [second, first]}
    assert difference(desired, stored).other == "devices[].name"


def test_missing_fields() -> None:
    stored = changed(
        taints=None,
        consumesCounters=[],
        capacity={"memory": {"value": "80Gi"}, "cores": {"value": "100"}},
    )
    assert difference(SPEC, stored) == Difference(
        missing=frozenset(
            {"devices[].taints", "devices[].consumesCounters", "devices[].capacity.memory.requestPolicy"}
        )
    )
    assert difference(SPEC, {**SPEC, "devices": None}) == Difference(missing=frozenset({"devices"}))


def test_paths_cover_whatever_can_be_missing() -> None:
    every = paths(SPEC)
    assert {"devices", "devices[].taints", "devices[].capacity.memory.requestPolicy", "nodeName"} <= every
    assert "sharedCounters" not in paths({**SPEC, "sharedCounters": []})
    assert difference(SPEC, {"driver": "d"}).missing <= every
