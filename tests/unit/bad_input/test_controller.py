"""Objects as the API server would never store them, at the controller: each costs itself, nothing else.

Every field that the controller reads, taken from the types, with every value: decoding ends in an error that
names the object, or the pod is decided.
"""

import json
from typing import Any

import msgspec
import pytest
from tests.fleet import claim, device_class, kube_node, machine, parameters, pod, slices
from tests.unit.bad_input.hostile import VALUES, Path, changed, deep, wire_paths, without
from tests.unit.controller.world import World

from tangram import DRIVER_NAME
from tangram.base.errors import InvalidObjectError
from tangram.kube import objects

A100 = machine(count=4, switch_links=12)
_TERMS = {
    "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
}


def _held() -> dict[str, Any]:
    """A claim that is allocated, reserved and has a device status."""
    result = {"request": "gpu", "driver": DRIVER_NAME, "pool": f"{DRIVER_NAME}/n1", "device": "x"}
    item = claim("c", count=2, match="resource.kubernetes.io/numaNode", config=[parameters(memoryGB=40)])
    item["status"] = {
        "allocation": {"devices": {"results": [result], "config": []}, "nodeSelector": _TERMS},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
        "devices": [],
    }
    return item


def _pod() -> dict[str, Any]:
    item = pod("p", "c")
    item["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return item


BASES: dict[str, tuple[type[msgspec.Struct], dict[str, Any]]] = {
    "claim": (objects.ResourceClaim, claim("c", count=2, config=[parameters(memoryGB=40, nvLinkPeers=2)])),
    "allocated claim": (objects.ResourceClaim, _held()),
    "pod": (objects.Pod, _pod()),
    "class": (objects.DeviceClass, device_class(config=[parameters(gpuType="A100")])),
    "node": (objects.Node, kube_node("n1")),
    "slice": (objects.ResourceSlice, slices("n1", A100)[0]),
}
CASES = [(name, path) for name, (kind, _) in BASES.items() for path in wire_paths(kind)]
IDENTITY = {("metadata", "name"), ("metadata", "namespace"), ("metadata",)}


def variants(base: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """The object with the place left out, null, empty, huge, of a wrong type, deep."""
    if path in IDENTITY:  # what no server could store; the test's own world needs them too
        return []
    return [without(base, path), *(changed(base, path, value) for value in (*VALUES, deep(60)))]


@pytest.fixture(scope="module")
def world() -> World:
    made = World(n1=A100, n2=A100)
    for _, base in BASES.values():
        made.put(json.loads(json.dumps(base)))
    made.put(claim("fine"))
    made.put(pod("fine", "fine"))
    return made


@pytest.mark.parametrize(("name", "path"), CASES, ids=str)
def test_every_field_with_every_value(world: World, name: str, path: Path) -> None:
    _, base = BASES[name]
    world.put(json.loads(json.dumps(BASES["claim"][1])))
    for item in variants(base, path):
        try:
            world.put(item)
        except InvalidObjectError as error:
            complete(error, item)
        else:
            said(world.decide("p"))
    world.put(json.loads(json.dumps(base)))
    assert hasattr(world.decide("fine"), "placement")


def complete(error: InvalidObjectError, item: dict[str, Any]) -> None:
    assert item["metadata"]["name"] in error.object_name
    assert error.next_step
    assert str(error).isprintable()
    assert len(str(error)) < 1000


def said(action: Any) -> None:
    """A refusal is a sentence for the claim's owner, not a traceback."""
    why = getattr(action, "why", "why")
    assert why
    assert "Error(" not in why
    assert "Traceback" not in why
