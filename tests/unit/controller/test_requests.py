"""What a claim may ask for, as the controller decides it: every kind of request of resource.k8s.io/v1."""

from typing import Any

import pytest
from tests.fleet import claim, device_class, kube_node, machine, parameters, pod, slices
from tests.unit.controller.world import World

from tangram import DRIVER_NAME
from tangram.controller.claims import allocation_body
from tangram.controller.decide import Action, Allocate, Wait

A100 = machine(count=4, switch_links=12)
T4 = machine("Tesla T4", count=2, memory_gib=15)


def asks(world: World, *requests: dict[str, Any], name: str = "c", **more: Any) -> Action:
    world.put(claim(name, *requests, **more))
    world.put(pod(f"pod-{name}", name))
    return world.decide(f"pod-{name}")


def exactly(name: str = "gpu", **fields: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": DRIVER_NAME, **fields}}


def results(action: Action) -> list[dict[str, Any]]:
    assert isinstance(action, Allocate), action
    return [
        {"request": r.request, "device": r.device, "admin": r.admin_access}
        for r in action.placement.claims[0].results
    ]


def why(action: Action) -> str:
    assert isinstance(action, Wait), action
    return action.why


def test_the_first_alternative_that_fits_is_taken() -> None:
    world = World(n1=T4)
    big = 'device.capacity["gpu.resource.admin"].memory.compareTo(quantity("40Gi")) >= 0'
    subs = [
        {"name": "big", "deviceClassName": DRIVER_NAME, "selectors": [{"cel": {"expression": big}}]},
        {"name": "small", "deviceClassName": DRIVER_NAME, "count": 2},
    ]
    assert [r["request"] for r in results(asks(world, {"name": "gpu", "firstAvailable": subs}))] == [
        "gpu/small",
        "gpu/small",
    ]


def test_all_gpus_of_a_node() -> None:
    world = World(n1=A100)
    assert len(results(asks(world, exactly(allocationMode="All")))) == 4
    held = world.put(claim("other"))
    name = slices("n1", A100)[0]["spec"]["devices"][0]["name"]
    result = {"request": "gpu", "driver": DRIVER_NAME, "pool": f"{DRIVER_NAME}/n1", "device": name}
    world.put({**held, "status": {"allocation": {"devices": {"results": [result]}}}})
    text = why(asks(world, exactly(allocationMode="All"), name="d"))
    assert "1 in use by other claims" in text
    assert "wants all 4 that match" in text


def test_different_values() -> None:
    world = World(n1=A100)
    item = claim("c", count=2)
    item["spec"]["devices"]["constraints"] = [{"distinctAttribute": "resource.kubernetes.io/pcieRoot"}]
    world.put(item)
    world.put(pod("p", "c"))
    assert isinstance(world.decide("p"), Allocate)
    item = claim("d", count=2)
    item["spec"]["devices"]["constraints"] = [{"distinctAttribute": "resource.kubernetes.io/numaNode"}]
    world.put(item)
    world.put(pod("q", "d"))
    assert "those have only 1 different" in why(world.decide("q"))


def test_administrative_access_takes_nothing() -> None:
    world = World(n1=T4)
    action = asks(world, exactly(adminAccess=True))
    (result,) = results(action)
    assert result["admin"] is True
    assert isinstance(action, Allocate)
    written = {
        "devices": {
            "results": [
                {
                    "request": "gpu",
                    "driver": DRIVER_NAME,
                    "pool": f"{DRIVER_NAME}/n1",
                    "device": result["device"],
                    "adminAccess": True,
                }
            ]
        }
    }
    world.put({**claim("c", exactly(adminAccess=True)), "status": {"allocation": written}})
    assert len(results(asks(world, exactly(count=2), name="d"))) == 2


def test_device_taints() -> None:
    world = World()
    world.put(kube_node("n1"))
    for item in slices("n1", T4):
        item["spec"]["devices"][0]["taints"] = [{"key": "ill", "effect": "NoSchedule"}]
        world.put(item)
    assert why(asks(world, exactly())) == "2 GPUs on 1 node: 2 with the taint ill:NoSchedule"
    tolerated = exactly(tolerations=[{"key": "ill", "operator": "Exists"}])
    assert len(results(asks(world, tolerated, name="d"))) == 1


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (exactly(allocationMode="Some"), ["request gpu", "count mode Some"]),
        (exactly(count=-1), ["request gpu", "negative"]),
        (exactly(count=33), ["limit of 32"]),
        (
            exactly(selectors=[{"cel": {"expression": "device.driver =="}}]),
            ["claim default/c, request gpu: selector #0: CEL compile error"],
        ),
        (exactly(capacity={"requests": {"cores": "10"}}), ["4 unfit (has no capacity cores)"]),
    ],
)
def test_what_cannot_be_allocated_says_why(request_: dict[str, Any], words: list[str]) -> None:
    text = why(asks(World(n1=A100), request_))
    assert all(word in text for word in words), text


def test_wrong_parameters_name_their_field() -> None:
    text = why(asks(World(n1=A100), config=[parameters(memoryGB="80")]))
    assert "ResourceClaim default/c" in text
    assert "spec.devices.config[0].opaque.parameters" in text


def test_a_class_that_does_not_compile_gives_a_reason() -> None:
    world = World(n1=A100)
    world.put(device_class(DRIVER_NAME, f'device.attributes["{DRIVER_NAME}"].allocator == == "scheduler"'))
    assert "compile" in why(asks(world, exactly()))


def test_what_is_written_names_the_node() -> None:
    action = asks(World(n1=A100), exactly(tolerations=[{"key": "k", "operator": "Exists"}]))
    assert isinstance(action, Allocate)
    (given,) = action.placement.claims
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    body = allocation_body(given, timestamp="2026-01-01T00:00:00Z")
    assert body["nodeSelector"] == {"nodeSelectorTerms": [term]}
    assert body["devices"]["results"][0]["tolerations"] == [{"key": "k", "operator": "Exists"}]


def test_a_reason_that_names_the_claim_is_not_given_to_others() -> None:
    world = World(n1=A100)
    wrong = exactly(selectors=[{"cel": {"expression": f'device.attributes["{DRIVER_NAME}"].nope == 1'}}])
    for name in ("c", "d"):
        action = asks(world, wrong, name=name)
        assert f"claim default/{name}, request gpu" in why(action)
        assert isinstance(action, Wait)
        assert action.kind is None
    action = asks(world, exactly(count=5), name="e")
    assert isinstance(action, Wait)
    assert action.kind is not None


def test_reasons_of_kinds_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tangram.controller.state._REFUSED_KINDS", 3)
    state = World().state
    for kind in range(10):
        state.refuse(kind, "why")
        assert state.refused[kind] == "why"
        assert len(state.refused) <= 3
