"""Where versions of Kubernetes depart from the documentation: presets copy them, the default does not."""

from typing import Any
from unittest.mock import patch

import pytest
from tests.unit.allocation.structured.world import (
    DRIVER,
    VERSIONS,
    claim,
    device,
    devices,
    distinct,
    either,
    full,
    held,
    match,
    request,
    slice_,
    solve,
    sub,
)

Json = dict[str, Any]
SHARE = "5a1d76ea-0000-4000-8000-000000000000"
SHARED: Json = {"allowMultipleAllocations": True}


def answers(slices: list[Json], claims: list[Json], **options: Any) -> dict[str, Any]:
    """Per version."""
    return {v: devices(solve(slices, claims, features=full(v), **options)) for v in VERSIONS}


def expected(*, until: str, before: Any, after: Any) -> dict[str, Any]:
    """`before` up to and including a version."""
    last = VERSIONS.index(until)
    return {v: before if i <= last else after for i, v in enumerate(VERSIONS)}


def partitioned(
    *devices_: Json, sets: Json, name: str = "p", pool: str = "p", driver: str = DRIVER
) -> list[Json]:
    """Devices beside their counters, for versions since 1.35."""
    return [
        slice_(name=f"{name}-counters", pool=pool, driver=driver, count=2, sets=sets),
        slice_(*devices_, name=f"{name}-devices", pool=pool, driver=driver, count=2),
    ]


def test_two_drivers_with_one_pool_name_mix_their_counters() -> None:
    slices = [
        *partitioned(device("a", counters={"s": {"c": 1}}), sets={"s": {"c": 1}}, name="one"),
        *partitioned(
            device("b", counters={"s": {"c": 2}}), sets={"s": {"c": 2}}, name="two", driver="z.example.com"
        ),
    ]
    got = answers(slices, [claim(request(count=2))])
    mixed, apart = "no", [["a", "b"]]
    assert got["k8s-1.35"] == got["k8s-1.36"] == mixed
    assert got["k8s-1.36.6"] == got["k8s-1.37"] == got["latest"] == apart


def test_distinct_attribute_in_one_request_remembers_only_the_last_device() -> None:
    slices = [slice_(*[device(f"d{i}", attributes={"n": n}) for i, n in enumerate((1, 2, 1))])]
    got = answers(slices, [claim(request(count=3), constraints=[distinct("n")])])
    assert got == expected(until="k8s-1.36.6", before=[["d0", "d1", "d2"]], after="no")


def test_in_134_distinct_attribute_takes_all_devices_as_different() -> None:
    slices = [slice_(*[device(f"d{i}", attributes={"n": 1}) for i in range(2)])]
    got = answers(slices, [claim(request("x"), request("y"), constraints=[distinct("n")])])
    assert got == expected(until="k8s-1.34", before=[["d0", "d1"]], after="no")


def test_match_attribute_on_lists_keeps_what_backtracking_should_restore() -> None:
    lists = ([1, 2], [1], [2], [2])
    slices = [slice_(*[device(f"d{i}", attributes={"n": n}) for i, n in enumerate(lists)])]
    wants = claim(request(count=3), constraints=[match("n")])
    for version, answer in (
        ("k8s-1.36", "no"),
        ("k8s-1.36.6", "no"),
        ("k8s-1.37", [["d0", "d2", "d3"]]),
        ("latest", [["d0", "d2", "d3"]]),
    ):
        assert devices(solve(slices, [wants], features=full(version))) == answer


def test_a_share_without_consumed_capacity_pays_its_counters_again() -> None:
    slices = partitioned(device("a", counters={"s": {"c": 1}}, capacity={}, **SHARED), sets={"s": {"c": 1}})
    old = held({"device": "a", "shareID": SHARE})
    got = answers(slices, [old, claim(request())])
    assert {v: got[v] for v in VERSIONS[2:]} == {
        "k8s-1.36": "no",
        "k8s-1.36.6": "no",
        "k8s-1.37": [["a"]],
        "latest": [["a"]],
    }


def test_configuration_is_repeated_for_each_request_it_names() -> None:
    config = {"requests": ["x", "y"], "opaque": {"driver": DRIVER, "parameters": {"k": 1}}}
    wants = claim(request("x"), request("y"), request("z"), config=[config])
    copies = {}
    for version in VERSIONS:
        outcome = solve([slice_("a", "b", "c")], [wants], features=full(version))
        assert outcome.allocations is not None
        copies[version] = [c.requests for c in outcome.allocations[0].devices.config or []]
    assert copies == expected(until="k8s-1.36.6", before=[["x", "y"], ["x", "y"]], after=[["x", "y"]])


def test_names_of_requests_are_left_out_of_what_applies_to_all() -> None:
    config = {"requests": ["x"], "opaque": {"driver": DRIVER, "parameters": {}}}
    named = {}
    for version in VERSIONS:
        outcome = solve([slice_("a")], [claim(request("x"), config=[config])], features=full(version))
        assert outcome.allocations is not None
        named[version] = [c.requests for c in outcome.allocations[0].devices.config or []]
    assert named == expected(until="k8s-1.36.6", before=[["x"]], after=[None])


def test_one_overdrawn_counter_blocks_all_devices_with_counters() -> None:
    slices = partitioned(
        device("a", counters={"s": {"c": 2}}),
        device("b", counters={"t": {"c": 1}}),
        device("plain"),
        sets={"s": {"c": 1}, "t": {"c": 1}},
    )
    got = answers(slices, [held("a"), claim(request(count=2))])
    since_35 = {v: got[v] for v in VERSIONS[1:]}
    assert since_35.pop("latest") == [["b", "plain"]]
    assert set(map(str, since_35.values())) == {"no"}
    assert devices(solve(slices, [held("a"), claim(request())], features=full("k8s-1.37"))) == [["plain"]]
    outcome = solve(slices, [held("a"), claim(request(count=2))], features=full("k8s-1.37"))
    texts = {refusal.device.device: refusal.text for refusal in outcome.reasons.refusals}
    assert texts["b"] == "counter s/c of the pool is overdrawn: -1 left after claim ns/old"


def test_admin_access_pays_for_counters() -> None:
    slices = partitioned(
        device("a", counters={"s": {"c": 1}}), device("b", counters={"s": {"c": 1}}), sets={"s": {"c": 1}}
    )
    got = answers(slices, [held("a"), claim(request(adminAccess=True))])
    assert got["latest"] == [["a"]]
    assert {got[v] for v in VERSIONS[1:-1]} == {"no"}


def test_admin_access_blocks_requests_decided_with_it() -> None:
    both = claim(request("x", adminAccess=True), request("y"))
    got = answers([slice_("a")], [both])
    assert got == expected(until="k8s-1.37", before="no", after=[["a", "a"]])
    normal_first = claim(request("y"), request("x", adminAccess=True))
    assert set(map(str, answers([slice_("a")], [normal_first]).values())) == {"no"}
    apart = [claim(request(), name="c1"), claim(request(adminAccess=True), name="c2")]
    assert set(map(str, answers([slice_("a")], apart).values())) == {"[['a'], ['a']]"}


def test_taints_of_effect_none_and_of_unknown_effects_are_ignored() -> None:
    for effect in ("None", "Later"):
        sick = device("a", taints=[{"key": "k", "effect": effect}])
        got = answers([slice_(sick)], [claim(request())])
        assert got == expected(until="k8s-1.34", before="no", after=[["a"]])


def test_tolerations_are_repeated_in_results_since_135() -> None:
    wants = claim(request(tolerations=[{"key": "k", "operator": "Exists"}]))
    kept = {}
    for version in VERSIONS:
        outcome = solve([slice_("a")], [wants], features=full(version))
        assert outcome.allocations is not None
        kept[version] = bool((outcome.allocations[0].devices.results or [])[0].tolerations)
    assert kept == expected(until="k8s-1.34", before=False, after=True)


def test_in_134_incomplete_pools_are_used_and_invalid_ones_fatal() -> None:
    incomplete = [slice_("a", count=2)]
    assert answers(incomplete, [claim(request())]) == expected(until="k8s-1.34", before=[["a"]], after="no")
    invalid = [slice_("a", "a")]
    got = answers(invalid, [claim(request())])
    assert got == expected(until="k8s-1.34", before="fatal", after="node")


def test_in_134_counters_stand_beside_their_devices() -> None:
    together = [
        slice_(
            device("a", counters={"s": {"c": 1}}),
            device("b", counters={"s": {"c": 1}}),
            sets={"s": {"c": 1}},
        )
    ]
    assert devices(solve(together, [claim(request())], features=full("k8s-1.34"))) == [["a"]]
    assert devices(solve(together, [claim(request(count=2))], features=full("k8s-1.34"))) == "no"
    assert devices(solve(together, [held("a"), claim(request())], features=full("k8s-1.34"))) == "no"
    assert devices(solve(together, [claim(request())], features="latest")) == "no"


def test_until_135_a_subrequest_for_all_goes_on_as_the_first_one() -> None:
    wants = claim(either("r", sub("two", count=2, cls="none"), sub("all", allocationMode="All")))
    none = {"metadata": {"name": "none"}, "spec": {"selectors": [{"cel": {"expression": "false"}}]}}
    any_ = {"metadata": {"name": "any"}, "spec": {}}
    got = answers([slice_("a", "b")], [wants], classes=[none, any_])
    assert got == expected(until="k8s-1.35", before="no", after=[["a", "b"]])


def test_one_request_never_gets_the_same_shared_device_twice_since_136() -> None:
    shared = slice_(device("a", capacity={"m": {"value": "8", "requestPolicy": {"default": "1"}}}, **SHARED))
    got = answers([shared], [claim(request(count=2))])
    assert {v: got[v] for v in VERSIONS[1:]} == {
        v: [["a", "a"]] if v == "k8s-1.35" else "no" for v in VERSIONS[1:]
    }
    two = answers([shared], [claim(request("x"), request("y"))])
    assert {str(two[v]) for v in VERSIONS[1:]} == {"[['a', 'a']]"}


def test_all_leaves_out_devices_without_remaining_capacity_until_136() -> None:
    shared = slice_(*[device(n, capacity={"m": "4"}, **SHARED) for n in ("a", "b")])
    old = held({"device": "a", "shareID": SHARE, "consumedCapacity": {"m": "4"}})
    got = answers([shared], [old, claim(request(allocationMode="All"))])
    known = {v: got[v] for v in VERSIONS[1:]}
    assert known == {v: "no" if v in ("k8s-1.37", "latest") else [["b"]] for v in VERSIONS[1:]}


@pytest.mark.parametrize("version", VERSIONS)
def test_feature_off_and_data_there_is_not_uniform(version: str) -> None:
    off = f"{version},none,ConsumableCapacity" if version != "latest" else "ConsumableCapacity"
    cases: list[tuple[Json, Json, Any]] = [
        (device("a"), either("r", sub("x")), "fatal"),
        (device("a"), request(adminAccess=False), "fatal"),
        (device("a", bindingConditions=["x"]), request(), "no"),
        (device("a", taints=[{"key": "k", "effect": "NoSchedule"}]), request(), [["a"]]),
    ]
    for item, wants, answer in cases:
        assert devices(solve([slice_(item)], [claim(wants)], features=off)) == answer
    per_device = slice_(device("a", allNodes=True), perDeviceNodeSelection=True)
    assert devices(solve([per_device], [claim(request())], features=off)) == "no"
    no_capacity = (
        f"{version},none,DeviceBindingAndStatus" if version != "latest" else "DeviceBindingAndStatus"
    )
    wants = claim(request(capacity={"m": "1"}))
    assert devices(solve([slice_("a")], [wants], features=no_capacity)) == "fatal"


def test_counters_with_the_feature_off_make_a_device_unusable() -> None:
    slices = [slice_(device("a", counters={"s": {"c": 1}}), "b")]
    for version in VERSIONS[:-1]:
        off = f"{version},none,ConsumableCapacity"
        assert devices(solve(slices, [claim(request())], features=off)) == [["b"]]


def test_the_oldest_code_knows_neither_distinct_nor_binds_to_node() -> None:
    basic = "k8s-1.36,none,AdminAccess"
    apart = claim(request(), constraints=[distinct("n")])
    assert devices(solve([slice_("a")], [apart], features=basic)) == "fatal"
    bound = slice_(device("a", bindsToNode=True), allNodes=True)
    for features, selected in ((basic, False), ("k8s-1.36", True)):
        outcome = solve([bound], [claim(request())], features=features)
        assert outcome.allocations is not None
        assert (outcome.allocations[0].node_selector is not None) is selected


def test_pruning_does_not_take_a_tainted_device_for_its_like() -> None:
    """In 1.36.3 taints are looked at after counters, whose accounts of two pools may be one."""
    tainted = device("a", taints=[{"key": "k", "effect": "NoSchedule"}])
    with patch("tangram.allocation.structured.engine._PLAIN_STEPS", 0):
        got = answers([slice_(tainted, "b")], [claim(request())])
    assert set(map(str, got.values())) == {"[['b']]"}
