"""Shares where the API server keeps nothing of them: Kubernetes 1.34 and 1.35."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fleet import KIND_CLASSES, claim, pod, slices
from tests.unit.controller.kinds import KINDS, Node

from tangram import DRIVER_NAME
from tangram.controller.claims import allocation_body, unstated_shares
from tangram.controller.decide import Allocate, Wait
from tangram.kube.resources import RESOURCE_SLICES
from tangram.model.devices import Kind
from tangram.testing.apiserver import VERSIONS
from tangram.testing.apiserver.rules import drop_disabled_fields

OLD = ("1.34", "1.35")
FULL = "1 MPS GPU on 1 node: 1 without enough capacity left"


def results(node: Node, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.stored(name)["status"]["allocation"]["devices"]["results"]
    return found


def put_forgotten(node: Node, *, replicas: int | None = 4, kinds: tuple[Kind, ...] = KINDS) -> None:
    """Slices as an old server keeps them; with another attribute `replicas`, or none."""
    for item in slices("n1", node.machine, kinds=kinds, dynamic=True):
        drop_disabled_fields(RESOURCE_SLICES, item, None, version=VERSIONS["1.34"])
        for device in item["spec"]["devices"]:
            if device["attributes"].pop("replicas", None) and replicas is not None:
                device["attributes"]["replicas"] = {"int": replicas}
        node.world.put(item)


@pytest.mark.parametrize("version", OLD)
def test_two_claims_share_a_gpu_by_mps(version: str) -> None:
    node = Node(version=version)
    first = node.take("mps", mps={"threadPercent": 40, "pinnedMemory": "30Gi"})
    second = node.take("mps", mps={"threadPercent": 60, "pinnedMemory": "20Gi"})
    assert first["device"] == second["device"]
    assert not {"shareID", "consumedCapacity"} & results(node, "c1")[0].keys()  # what the server is like
    assert node.why("mps", mps={"threadPercent": 1}) == FULL
    assert not node.world.reports
    node.restart()
    assert node.why("mps", mps={"threadPercent": 1}) == FULL
    assert "on hardware that other devices in use share" in node.why("gpu")
    node.free(first)
    assert node.why("mps", mps={"threadPercent": 41}) == FULL
    assert node.take("mps", mps={"threadPercent": 40, "pinnedMemory": "30Gi"})["device"] == first["device"]
    assert not node.world.reports


@pytest.mark.parametrize("version", OLD)
def test_four_claims_share_a_gpu_in_turns(version: str) -> None:
    node = Node(version=version)
    assert len({node.take("timeslice")["device"] for _ in range(4)}) == 1
    why = "1 time-sliced GPU on 1 node: 1 without enough capacity left"
    assert node.why("timeslice") == why
    node.restart()
    assert node.why("timeslice") == why


@pytest.mark.parametrize("kind", ["mps", "timeslice"])
def test_a_share_that_does_not_say_is_as_large_as_elsewhere(kind: Kind) -> None:
    old, new = Node(version="1.34", replicas=3).take(kind), Node(replicas=3).take(kind)
    assert old["consumedCapacity"] == new["consumedCapacity"]


UNSTATED = (
    "a share of the size that a claim gets which states none (cores 25, memory 20389Mi): this API server"
    " drops capacity requests; state another size in GPUClaimParameters"
)


@pytest.mark.parametrize(
    ("version", "fields", "told"),
    [
        ("1.34", {}, UNSTATED),
        ("1.34", {"capacity": {"cores": "40"}}, UNSTATED),
        ("1.34", {"gpuType": "H100"}, UNSTATED),
        ("1.34", {"gpuType": "H100", "mps": None, "memoryGB": None}, UNSTATED),
        ("1.34", {"mps": {"threadPercent": 40}}, ""),
        ("1.34", {"memoryGB": 10}, ""),
        ("1.36", {}, ""),
    ],
)
def test_the_user_hears_that_capacity_requests_are_lost(
    version: str, fields: dict[str, Any], told: str
) -> None:
    action = Node(version=version).ask("mps", **fields)
    assert isinstance(action, Allocate)
    assert unstated_shares(action.placement.claims[0].allocation) == told


def test_nothing_is_added_where_the_server_keeps_shares() -> None:
    node = Node()
    node.take("mps")
    assert "config" not in node.stored("c1")["status"]["allocation"]["devices"]


@pytest.mark.parametrize("kind", ["gpu", "mig"])
def test_nothing_is_added_where_there_are_no_shares(kind: Kind) -> None:
    node = Node(version="1.34")
    node.take(kind)
    assert "config" not in node.stored("c1")["status"]["allocation"]["devices"]


def test_what_was_given_outlives_the_setting_it_was_given_by() -> None:
    node = Node(version="1.34", replicas=2)
    node.take("timeslice")
    node.publish(replicas=8)
    for restarted in (False, True):
        if restarted:
            node.restart()
        action = node.ask("timeslice", memoryGB=50)
        assert isinstance(action, Wait)  # half of the 80 GB are the first one's
        assert "without enough capacity left" in action.why


def test_an_upgrade_forgets_nobody() -> None:
    node = Node(version="1.35")
    first = node.take("mps", mps={"threadPercent": 40, "pinnedMemory": "30Gi"})
    node.publish(version="1.36")
    second = node.take("mps", mps={"threadPercent": 50, "pinnedMemory": "20Gi"})
    assert second["device"] == first["device"]
    assert "shareID" in results(node, "c2")[0]
    assert node.why("mps", capacity={"cores": "11"}) == FULL
    node.restart()
    assert node.why("mps", capacity={"cores": "11"}) == FULL
    node.free(first)
    assert node.take("mps", capacity={"cores": "50"})
    assert not node.world.reports


def test_the_upgraded_server_before_slices_are_written_anew() -> None:
    """Slices as the old server kept them, claims as the new one does."""
    node = Node(version="1.35")
    node.publish(version="1.36")
    put_forgotten(node)
    node.take("mps", mps={"threadPercent": 60})
    assert results(node, "c1")[0]["consumedCapacity"]["cores"] == "60"
    assert node.why("mps", mps={"threadPercent": 41}) == FULL


def test_an_older_plugin_does_not_say_how_the_gpu_is_divided() -> None:
    node = Node(version="1.34")
    put_forgotten(node, replicas=None)
    node.take("timeslice")
    assert "in use by other claims" in node.why("timeslice")


def test_a_gpu_with_shares_is_not_given_whole_when_it_is_shared_no_more() -> None:
    """An older plugin does not say how it is divided, and no other kind of the GPU would exclude it."""
    node = Node(version="1.34", kinds=("timeslice",))
    first = node.take("timeslice")
    put_forgotten(node, replicas=None, kinds=("timeslice",))
    assert "without enough capacity left" in node.why("timeslice")
    node.free(first)
    node.take("timeslice")


@pytest.mark.parametrize("replicas", [0, -1])
def test_p77_a_division_that_makes_no_sense_is_none(replicas: int) -> None:
    node = Node(version="1.34")
    put_forgotten(node, replicas=replicas)
    node.take("timeslice")
    assert "in use by other claims" in node.why("timeslice")


@pytest.mark.parametrize(
    "shares",
    [
        {"results": "many"},
        {"results": [{"request": "gpu"}]},
        {"results": [{"request": "gpu", "device": "x", "shareID": "s"}]},
        {},
    ],
)
def test_p77_a_share_of_which_nothing_can_be_read_is_the_whole_device(shares: dict[str, Any]) -> None:
    node = Node(version="1.34")
    node.take("mps", mps={"threadPercent": 10, "pinnedMemory": "1Gi"})
    item = json.loads(json.dumps(node.stored("c1")))
    (*_, entry) = item["status"]["allocation"]["devices"]["config"]
    document = entry["opaque"]["parameters"]
    assert document["kind"] == "GPUShares"
    entry["opaque"]["parameters"] = {key: document[key] for key in ("apiVersion", "kind")} | shares
    node.world.put(item)
    assert "in use by other claims" in node.why("mps", mps={"threadPercent": 10})


@pytest.mark.parametrize("amount", ["lots", "-1"])
def test_p77_a_share_of_a_size_that_is_none_is_the_whole_device(amount: str) -> None:
    node = Node(version="1.34")
    node.take("mps", mps={"threadPercent": 10, "pinnedMemory": "1Gi"})
    item = json.loads(json.dumps(node.stored("c1")))
    (*_, entry) = item["status"]["allocation"]["devices"]["config"]
    entry["opaque"]["parameters"]["results"][0]["consumedCapacity"]["cores"] = amount
    node.world.put(item)
    assert "in use by other claims" in node.why("mps", mps={"threadPercent": 10})


def test_p77_a_user_grants_himself_nothing() -> None:
    """Neither in the claim, which is refused, nor by what the claim's part of an allocation says."""
    node = Node(version="1.34")
    document = {"apiVersion": f"{DRIVER_NAME}/v1alpha1", "kind": "GPUShares", "results": []}
    entry = {"opaque": {"driver": DRIVER_NAME, "parameters": document}}
    node.world.put(claim("forged", class_name=KIND_CLASSES["mps"], config=[entry]))
    node.world.put(pod("forged", "forged"))
    action = node.world.decide("forged")
    assert isinstance(action, Wait)
    assert 'kind: is "GPUShares"' in action.why

    node.take("mps", mps={"threadPercent": 10, "pinnedMemory": "1Gi"})
    item = json.loads(json.dumps(node.stored("c1")))
    item["status"]["allocation"]["devices"]["config"][-1]["source"] = "FromClaim"
    node.world.put(item)
    assert "in use by other claims" in node.why("mps", mps={"threadPercent": 10})


def test_a_claim_may_have_two_shares_of_one_gpu() -> None:
    node = Node(version="1.34")
    exactly = {"deviceClassName": KIND_CLASSES["timeslice"]}
    requests = [{"name": name, "exactly": exactly} for name in ("a", "b")]
    item = claim("both", *requests)
    node.world.put(item)
    node.world.put(pod("both", "both"))
    action = node.world.decide("both")
    assert isinstance(action, Allocate)
    body = allocation_body(action.placement.claims[0], timestamp="2026-01-01T00:00:00Z")
    (one, other) = body["devices"]["results"]
    assert one["device"] == other["device"]
    for result in (one, other):
        del result["shareID"], result["consumedCapacity"]
    node.world.put({**item, "status": {"allocation": body}})
    assert [node.take("timeslice")["device"] for _ in range(2)] == [one["device"]] * 2
    assert "without enough capacity left" in node.why("timeslice")
    assert not node.world.reports


_WISHES: st.SearchStrategy[tuple[Kind, dict[str, Any]]] = st.one_of(
    st.tuples(st.just("gpu"), st.just({})),
    st.tuples(st.just("mig"), st.just({})),
    st.tuples(
        st.just("mps"),
        st.fixed_dictionaries(
            {},
            optional={
                "mps": st.fixed_dictionaries(
                    {},
                    optional={
                        "threadPercent": st.integers(1, 100),
                        "pinnedMemory": st.integers(1, 90).map("{}Gi".format),
                    },
                ),
                "memoryGB": st.integers(1, 90),
            },
        ),
    ),
    st.tuples(
        st.just("timeslice"),
        st.fixed_dictionaries({}, optional={"replicas": st.integers(1, 9), "memoryGB": st.integers(1, 90)}),
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2), st.integers(2, 9), st.sampled_from(OLD), st.data())
def test_old_servers_admit_what_new_ones_do(count: int, replicas: int, version: str, data: Any) -> None:
    """Any sequence of claims coming and going, controllers restarting between them."""
    old = Node(count=count, replicas=replicas, version=version)
    new = Node(count=count, replicas=replicas)
    taken: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for _ in range(data.draw(st.integers(1, 14))):
        step = data.draw(st.sampled_from(["take", "take", "take", "free", "restart"]))
        if step == "restart":
            old.restart()
        elif step == "free" and taken:
            one, other = taken.pop(data.draw(st.integers(0, len(taken) - 1)))
            old.free(one)
            new.free(other)
        elif step == "take":
            kind, wish = data.draw(_WISHES)
            here, there = old.ask(kind, **wish), new.ask(kind, **wish)
            if isinstance(there, Wait):
                assert isinstance(here, Wait)
                assert here.why == there.why
                continue
            taken.append((old.take(kind, **wish), new.take(kind, **wish)))
            assert taken[-1][0] == taken[-1][1]
    assert not old.world.reports
