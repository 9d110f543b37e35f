"""Objects as nobody should write them: each costs only itself, and a decision ends in a value."""

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fleet import claim, device_class, kube_node, machine, parameters, pod, slices
from tests.unit.controller.simulation import Simulation
from tests.unit.controller.world import World

from tangram.allocation import BatchDecision, allocate
from tangram.base.errors import InvalidObjectError, TangramError
from tangram.controller.inventory import decode_slice
from tangram.hardware.machines import load_machine
from tangram.hardware.simulated import SimulatedBackend

A100 = machine(count=4, switch_links=12)
Path = tuple[str | int, ...]


def objects() -> list[dict[str, Any]]:
    """One of each kind, with every field that is read."""
    node = kube_node("n1", taints=[{"key": "a", "value": "b", "effect": "NoSchedule"}], unschedulable=False)
    requirement = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [requirement], "matchFields": []}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    container = {
        "name": "c",
        "resources": {"requests": {"cpu": "1", "memory": 1000}},
        "ports": [{"hostPort": 80, "hostIP": "", "protocol": "TCP"}],
        "restartPolicy": None,
    }
    asking = pod(
        "p",
        "c",
        affinity=affinity,
        containers=[container],
        initContainers=[{**container, "restartPolicy": "Always"}],
        tolerations=[{"key": "a", "operator": "Gt", "value": "1", "effect": "", "tolerationSeconds": 5}],
        nodeSelector={"kubernetes.io/hostname": "n1"},
        overhead={"cpu": "1m"},
        resources={"requests": {"cpu": 2}},
        schedulingGates=[],
        nodeName="",
        priority=0,
    )
    asking["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": None}
    asking["status"] |= {"nominatedNodeName": "", "resourceClaimStatuses": [{"name": "x"}]}
    asked = claim(
        "c",
        count=2,
        selectors=['device.driver == "gpu.resource.admin"'],
        match="resource.kubernetes.io/numaNode",
        config=[parameters(memoryGB=40, nvLinkPeers=2)],
    )
    result = {
        "request": "gpu",
        "driver": "gpu.resource.admin",
        "pool": "gpu.resource.admin/n2",
        "device": "x",
    }
    allocation = {"devices": {"results": [result], "config": []}, "nodeSelector": terms}
    held = claim("held")
    held["status"] = {
        "allocation": allocation,
        "reservedFor": [{"resource": "pods", "uid": "u"}],
        "devices": [],
    }
    return [
        device_class(config=[parameters(gpuType="A100")]),
        node,
        *slices("n1", A100)[:2],
        asked,
        held,
        asking,
    ]


def paths(value: Any, prefix: Path = ()) -> Iterator[Path]:
    """Every place in an object but its identity."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        path = (*prefix, key)
        if path not in (("kind",), ("metadata",), ("metadata", "name"), ("metadata", "namespace")):
            yield path
        yield from paths(inner, path)


def changed(value: Any, path: Path, new: Any) -> Any:
    result = copy.deepcopy(value)
    target = result
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = new
    return result


HOSTILE: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, 0, -1, 2**31, 2**63, -(2**70), 1.5, 1e308, "", "x", "é" * 200, "\x00", "-5"),
        *("9" * 60 + "e300", "9" * 60 + "E", "1e-300", "sw:999", "0:1,1:1", "row:" + "z" * 60, "n1"),
        *("2026-01-01T00:00:00Z", "device.driver", "true", "1 / 0 == 0", "(" * 500, "gpu.resource.admin"),
        *([], {}, [None], [[]], [{}], {"": None}, {"a": {}}, {"a": []}, ["gpu"], [{"name": "gpu"}]),
    ]
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_one_wrong_field_costs_one_object(data: st.DataObject) -> None:
    world = World(n2=A100)
    items = objects()
    victim = data.draw(st.integers(0, len(items) - 1))
    places = list(paths(items[victim]))
    for _ in range(data.draw(st.integers(1, 3))):
        path = places[data.draw(st.integers(0, len(places) - 1))]
        try:
            items[victim] = changed(items[victim], path, data.draw(HOSTILE))
        except (KeyError, IndexError, TypeError):
            continue  # a change before it took the place away
    for item in items:
        with suppress(TangramError):
            world.put(item)
    world.decide("p")
    world.put(claim("fine"))
    world.put(pod("fine", "fine"))
    world.decide("fine")


@pytest.mark.parametrize("value", ["9" * 60 + "e300", "1e300", 10**18, 1e308, -5])
def test_memory_beyond_all_reason(value: object) -> None:
    world = World(n2=A100)
    item = slices("n1", A100)[0]
    item["spec"]["devices"][0]["capacity"]["memory"]["value"] = value
    world.put(kube_node("n1"))
    with suppress(TangramError):
        world.put(item)
    world.put(claim("c"))
    world.put(pod("p", "c"))
    assert hasattr(world.decide("p"), "placement")


def test_a_pool_of_very_many_devices_ends_and_is_refused() -> None:
    """A quadratic table of links for 2,000 devices would stop the controller for minutes."""
    world = World()
    world.put(kube_node("n1"))
    device = slices("n1", A100)[0]["spec"]["devices"][0]
    for index in range(16):
        item = slices("n1", A100)[0]
        item["metadata"]["name"] = f"slice-{index}"
        item["spec"]["pool"]["resourceSliceCount"] = 16
        item["spec"]["devices"] = [
            {
                **device,
                "name": f"gpu-{n}",
                "attributes": device["attributes"] | {"ordinal": {"int": n}, "uuid": {"string": f"GPU-{n}"}},
            }
            for n in range(index * 128, index * 128 + 128)
        ]
        world.put(json.loads(json.dumps(item)))
    world.put(claim("c", config=[parameters(nvLinkPeers=4)]))
    world.put(pod("p", "c"))
    assert "of unknown links" in getattr(world.decide("p"), "why", "")


def test_a_pod_that_names_a_claim_twice() -> None:
    world = World(n1=A100)
    world.put(claim("c", count=3))
    world.put(pod("p", "c", "c"))
    action = world.decide("p")
    assert [c.metadata.name for c in getattr(action, "claims", ())] == ["c"]
    assert hasattr(action, "placement")


@pytest.mark.parametrize("value", ["x", "1e301", "9" * 65])
def test_an_engine_of_a_mig_device_that_is_no_quantity(value: str) -> None:
    found = SimulatedBackend(load_machine("h100-sxm5-80gb-x8"), node_name="n1").discover()
    item = slices("n1", found, kinds=("gpu", "mig"), dynamic=True)[0]
    (device, *_) = [each for each in item["spec"]["devices"] if "-mig-" in each["name"]]
    device["capacity"]["copyEngines"] = {"value": value}
    with pytest.raises(InvalidObjectError, match=r"quantity|exponent"):
        decode_slice(json.dumps(item).encode())


async def test_what_takes_too_long_is_not_decided_again_whenever_something_becomes_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decided: list[str] = []

    def counting(snapshot: Any, batch: Any, *rest: Any, **named: Any) -> BatchDecision:
        decided.extend(each.key.name for group in batch for each in group.pods)
        return allocate(snapshot, batch, *rest, **named)

    monkeypatch.setattr("tangram.controller.decide.allocate", counting)
    simulation = Simulation(nodes=1)
    numbers = ", ".join(["1"] * 200)
    dear = f"[{numbers}].all(x, [{numbers}].all(y, x == y))"
    different = f'{dear} && device.attributes["gpu.resource.admin"].ordinal >= 0'
    for name in ("p", "q"):
        simulation.api.create(claim(name, selectors=[different]))
        simulation.create_pod(name, name)
    simulation.deliver("ResourceClaim")
    simulation.deliver("Pod")
    for _ in range(5):
        await simulation.settle()
        simulation.state.requeue_waiting()
    assert decided == ["p"]  # the other is of its kind
    for seconds, times in ((59.0, 1), (2.0, 2)):
        await simulation.clock.advance(seconds)
        await simulation.settle()
        assert len(decided) == times
    await simulation.stop()
