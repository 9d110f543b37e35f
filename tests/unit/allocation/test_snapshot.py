"""States that planners vary: the one they came from stays as it was."""

import pytest

from tangram.allocation import ClaimKey, Holdings, PodKey, Snapshot, Statistics, observe
from tangram.model.kubernetes import DeviceAllocationResult

A, B = (ClaimKey("ns", name, f"uid-{name}") for name in "ab")


def result(device: str) -> DeviceAllocationResult:
    return DeviceAllocationResult(request="r", driver="d", pool="p", device=device)


def test_what_a_claim_is_given_comes_to_what_it_has() -> None:
    empty = Snapshot(nodes={})
    one = empty.with_held("n", A, [result("x")])
    two = one.with_held("n", A, [result("y")]).with_held("n", B, [result("z")])
    assert [r.device for r in two.holdings("n").by_claim[A]] == ["x", "y"]
    assert set(two.holdings("n").by_claim) == {A, B}
    assert two.holdings("m").by_claim == {}
    assert [r.device for r in one.holdings("n").by_claim[A]] == ["x"]
    assert empty.holdings("n").by_claim == {}


def test_claims_that_are_gone_leave_what_others_have() -> None:
    full = Snapshot(nodes={}).with_held("n", A, [result("x")]).with_held("m", B, [result("x")])
    left = full.without([A])
    assert set(left.holdings("n").by_claim) == set()
    assert left.holdings("m") is full.holdings("m")
    assert left.holdings("m").by_claim == {B: (result("x"),)}
    assert full.holdings("n").by_claim == {A: (result("x"),)}


def test_the_engine_sees_holders_by_name() -> None:
    held = Holdings().with_(A, [result("x")]).allocated.held
    assert {id_.device: holder for id_, holder in held.items()} == {"x": "ns/a"}


def test_resources_are_taken_from_nodes_that_have_limits() -> None:
    state = Snapshot(nodes={}, free_resources={"n": {"cpu": 4000, "memory": 8}})
    after = state.with_consumed("n", {"cpu": 1500, "hugepages": 7})
    assert after.free_resources == {"n": {"cpu": 2500, "memory": 8}}
    assert state.free_resources["n"]["cpu"] == 4000
    assert state.with_consumed("m", {"cpu": 1}) is state
    assert state.with_consumed("n", {}) is state


def test_a_state_cannot_be_changed_in_place() -> None:
    state = Snapshot(nodes={}).with_held("n", A, [result("x")])
    with pytest.raises(TypeError):
        state.held["m"] = Holdings()  # type: ignore[index]
    with pytest.raises(TypeError):
        state.holdings("n").by_claim[B] = ()  # type: ignore[index]


def test_pods_are_counted_by_how_many_devices_they_wanted() -> None:
    none = Statistics()
    some = observe(observe(observe(none, 8), 1), 8)
    assert some.pods_by_devices == {8: 2, 1: 1}
    assert none.pods_by_devices == {}


def test_claims_and_pods_are_named_with_their_namespace() -> None:
    assert (f"{A}", f"{PodKey('ns', 'p', 'uid')}") == ("ns/a", "ns/p")
