"""What the API documents, for every version: order, selectors, constraints, All, admin access, pools."""

import os
import subprocess
import sys

import pytest
from tests.unit.allocation.structured.world import (
    ANY,
    DRIVER,
    VERSIONS,
    Json,
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

from tangram.allocation.structured import NodeFacts, Policy

every_version = pytest.mark.parametrize("version", VERSIONS)
since_35 = pytest.mark.parametrize("version", VERSIONS[1:])


# --- order ---


@since_35
def test_pools_by_driver_and_name_then_slices_by_name_then_devices_as_listed(version: str) -> None:
    slices = [
        slice_("d2", "d1", name="s2", pool="b", count=2),
        slice_("d3", name="s1", pool="b", count=2),
        slice_("d4", name="s0", pool="a", driver="z.example.com"),
        slice_(device("d5", bindingConditions=["x"]), name="s5", pool="a"),
    ]
    answer = solve(slices, [claim(request(count=5))], features=full(version))
    assert devices(answer) == [["d3", "d2", "d1", "d4", "d5"]]
    assert solve(slices[::-1], [claim(request(count=5))], features=full(version)) == answer


@every_version
def test_the_first_solution_in_order_of_claims_requests_and_devices(version: str) -> None:
    when = f'device.attributes["{DRIVER}"].x == 1'
    slices = [slice_(device("a", attributes={"x": 1}), device("b", attributes={"x": 2}))]
    claims = [claim(request(), name="c1"), claim(request(when=when), name="c2")]
    assert devices(solve(slices, claims, features=full(version))) == [["b"], ["a"]]


@every_version
def test_no_device_serves_two_requests_and_held_ones_serve_none(version: str) -> None:
    slices = [slice_("a", "b", "c")]
    assert devices(solve(slices, [held("b"), claim(request(count=2))], features=full(version))) == [
        ["a", "c"]
    ]
    assert devices(solve(slices, [held("b"), claim(request(count=3))], features=full(version))) == "no"


@every_version
def test_a_claim_without_requests_gets_an_empty_allocation(version: str) -> None:
    outcome = solve([slice_("a")], [claim()], features=full(version))
    assert devices(outcome) == [[]]


# --- what is fatal ---


@every_version
@pytest.mark.parametrize(
    "bad",
    [
        claim(request(cls="missing")),
        claim(request(when="device.nonsense")),
        claim(request(when=f'device.attributes["{DRIVER}"].missing == 1')),
        claim(request(count=33)),
        claim(request("a", count=20), request("b", count=13)),
        claim(request(allocationMode="Most")),
        claim({"name": "r"}),
        claim(request(count=-1)),
        claim(request(), constraints=[{"requests": ["r"]}]),
        claim({"name": "r", "exactly": {"deviceClassName": "any", "selectors": [{}]}}),
        claim({"name": "r", "exactly": {}}),
    ],
)
def test_fatal_for_the_pod(bad: dict[str, object], version: str) -> None:
    assert devices(solve([slice_("a", "b")], [bad], features=full(version))) == "fatal"


@every_version
def test_a_runtime_error_counts_only_on_a_device_that_is_reached(version: str) -> None:
    slices = [slice_(device("a", attributes={"x": 1}), device("b"))]
    when = f'device.attributes["{DRIVER}"].x == 1'
    assert devices(solve(slices, [claim(request(when=when))], features=full(version))) == [["a"]]
    assert devices(solve(slices, [claim(request(when=when, count=2))], features=full(version))) == "fatal"
    taken = [held("a"), held("b", name="o2"), claim(request(when=when))]
    assert devices(solve(slices, taken, features=full(version))) == "no"


@every_version
def test_class_selectors_come_before_those_of_the_request(version: str) -> None:
    only_b = {
        "metadata": {"name": "b"},
        "spec": {"selectors": [{"cel": {"expression": f'has(device.attributes["{DRIVER}"].x)'}}]},
    }
    slices = [slice_("a", device("b", attributes={"x": 2}))]
    claims = [claim(request(cls="b", when=f'device.attributes["{DRIVER}"].x == 2'))]
    assert devices(solve(slices, claims, classes=[only_b], features=full(version))) == [["b"]]


# --- firstAvailable ---


@every_version
def test_the_first_subrequest_that_lets_the_rest_succeed(version: str) -> None:
    wants = either("r", sub("big", count=3), sub("small", count=1))
    outcome = solve([slice_("a", "b", "c")], [claim(wants, request("s"))], features=full(version))
    assert outcome.allocations is not None
    results = outcome.allocations[0].devices.results or []
    assert [(r.request, r.device) for r in results] == [("r/small", "a"), ("s", "b")]


@every_version
def test_a_subrequest_for_too_many_devices_is_passed_over(version: str) -> None:
    many = slice_(*[f"d{i:02}" for i in range(40)])
    wants = claim(request("a", count=31), either("r", sub("big", count=2), sub("small")))
    outcome = solve([many], [wants], features=full(version))
    assert outcome.allocations is not None
    assert [r.request for r in outcome.allocations[0].devices.results or []][-1] == "r/small"


# --- constraints ---


@every_version
def test_match_attribute_compares_type_and_value(version: str) -> None:
    slices = [
        slice_(
            device("a", attributes={"n": 1}),
            device("b", attributes={"n": "1"}),
            device("c", attributes={f"{DRIVER}/n": 1}),
            device("d"),
        )
    ]
    wants = claim(request(count=2), constraints=[match("n")])
    assert devices(solve(slices, [wants], features=full(version))) == [["a", "c"]]
    three = claim(request(count=3), constraints=[match("n")])
    assert devices(solve(slices, [three], features=full(version))) == "no"
    unrelated = claim(request(count=3), constraints=[match("n", "other")])
    assert devices(solve(slices, [unrelated], features=full(version))) == [["a", "b", "c"]]


@every_version
def test_match_attribute_binds_subrequests_by_parent_and_by_full_name(version: str) -> None:
    slices = [slice_(device("a", attributes={"n": 1}), device("b", attributes={"n": 2}), device("c"))]
    for bound, expected in (("r", ["a"]), ("r/x", ["a"]), ("r/y", ["a", "b"])):
        wants = claim(either("r", sub("x", count=2), sub("y")), constraints=[match("n", bound)], name="c")
        answer = devices(solve(slices, [wants], features=full(version)))
        assert answer == [["a", "b"]] if bound == "r/y" else answer == [expected]


@since_35
def test_distinct_attribute_wants_different_values(version: str) -> None:
    slices = [slice_(*[device(f"d{i}", attributes={"n": i // 2}) for i in range(4)])]
    wants = claim(request("a"), request("b"), constraints=[distinct("n")])
    assert devices(solve(slices, [wants], features=full(version))) == [["d0", "d2"]]
    three = claim(request("a"), request("b"), request("c"), constraints=[distinct("n")])
    assert devices(solve(slices, [three], features=full(version))) == "no"
    lacking = claim(request(), constraints=[distinct("m")])
    assert devices(solve(slices, [lacking], features=full(version))) == "no"


@pytest.mark.parametrize("version", ["k8s-1.36", "k8s-1.37", "latest"])
def test_lists_match_by_a_common_element_and_differ_by_none(version: str) -> None:
    slices = [
        slice_(
            device("a", attributes={"n": [1, 2]}),
            device("b", attributes={"n": [2, 3]}),
            device("c", attributes={"n": 3}),
            device("d", attributes={"n": ["1"]}),
        )
    ]
    two = claim(request(count=2), constraints=[match("n")])
    assert devices(solve(slices, [two], features=full(version))) == [["a", "b"]]
    apart = claim(request("x"), request("y"), constraints=[distinct("n")])
    assert devices(solve(slices, [apart], features=full(version))) == [["a", "c"]]


@pytest.mark.parametrize("version", ["k8s-1.37"])
def test_without_the_feature_a_list_matches_nothing_more(version: str) -> None:
    slices = [slice_(device("a", attributes={"n": [1]}), device("b", attributes={"n": [1]}))]
    for constraint in (match("n"), distinct("n")):
        one = claim(request(), constraints=[constraint])
        assert devices(solve(slices, [one], features=version)) == [["a"]]
        two = claim(request(count=2), constraints=[constraint])
        assert devices(solve(slices, [two], features=version)) == "no"


# --- All ---


@every_version
def test_all_takes_every_matching_device_or_none(version: str) -> None:
    slices = [slice_(device("a", attributes={"x": 1}), device("b", attributes={"x": 1}), "c")]
    wants = claim(request(when=f'has(device.attributes["{DRIVER}"].x)', allocationMode="All"))
    assert devices(solve(slices, [wants], features=full(version))) == [["a", "b"]]
    assert devices(solve(slices, [held("c"), wants], features=full(version))) == [["a", "b"]]
    assert devices(solve(slices, [held("b"), wants], features=full(version))) == "no"
    assert devices(solve([slice_("c")], [wants], features=full(version))) == "no"


@every_version
def test_all_is_fatal_with_an_incomplete_pool_or_a_violated_constraint(version: str) -> None:
    everything = claim(request(allocationMode="All"))
    incomplete = [slice_("a"), slice_("b", name="s2", pool="q", count=2)]
    assert devices(solve(incomplete, [everything], features=full(version))) == "fatal"
    invalid = [slice_("a"), slice_("b", "b", name="s2", pool="q")]
    assert devices(solve(invalid, [everything], features=full(version))) == "fatal"
    apart = [slice_(device("a", attributes={"n": 1}), device("b", attributes={"n": 2}))]
    bound = claim(request(allocationMode="All"), constraints=[match("n")])
    fatal = "no" if version == "latest" else "fatal"
    assert devices(solve(apart, [bound], features=full(version))) == fatal


# --- admin access ---


@every_version
def test_admin_access_ignores_who_has_a_device(version: str) -> None:
    wants = claim(request(adminAccess=True, count=2))
    outcome = solve([slice_("a", "b")], [held("a"), wants], features=full(version))
    assert devices(outcome) == [["a", "b"]]
    assert outcome.allocations is not None
    assert all(r.admin_access for r in outcome.allocations[0].devices.results or [])


@every_version
def test_admin_access_holds_nothing(version: str) -> None:
    seen = held({"device": "a", "adminAccess": True})
    assert devices(solve([slice_("a")], [seen, claim(request())], features=full(version))) == [["a"]]


@every_version
def test_admin_access_does_not_get_a_device_twice_in_one_claim(version: str) -> None:
    twice = claim(request("x", adminAccess=True), request("y", adminAccess=True))
    assert devices(solve([slice_("a")], [twice], features=full(version))) == "no"
    apart = [claim(request(adminAccess=True), name=name) for name in ("c1", "c2")]
    assert devices(solve([slice_("a")], apart, features=full(version))) == [["a"], ["a"]]


# --- taints ---


@every_version
def test_taints_keep_away_whom_does_not_tolerate_them(version: str) -> None:
    sick = device("a", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}])
    for toleration, ok in (
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "w"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "k", "operator": "Near"}, False),
    ):
        wants = claim(request(tolerations=[toleration]))
        assert devices(solve([slice_(sick)], [wants], features=full(version))) == ([["a"]] if ok else "no")


# --- pools ---


@every_version
def test_only_the_newest_generation_counts(version: str) -> None:
    old = slice_("a", name="s1", generation=1)
    new = slice_("b", name="s2", generation=2)
    assert devices(solve([old, new], [claim(request(count=1))], features=full(version))) == [["b"]]
    assert devices(solve([new, old], [claim(request(count=2))], features=full(version))) == "no"


@since_35
def test_an_incomplete_pool_is_left_alone(version: str) -> None:
    slices = [slice_("a", pool="p1", count=2), slice_("b", name="s2", pool="p2")]
    assert devices(solve(slices, [claim(request())], features=full(version))) == [["b"]]
    assert devices(solve(slices[:1], [claim(request())], features=full(version))) == "no"


@since_35
def test_a_pool_is_complete_with_slices_of_other_nodes(version: str) -> None:
    slices = [slice_("a", count=2), slice_("b", name="s2", count=2, nodeName="m")]
    assert devices(solve(slices, [claim(request())], features=full(version))) == [["a"]]
    newer = [slice_("a"), slice_("b", name="s2", generation=2, nodeName="m")]
    assert devices(solve(newer, [claim(request())], features=full(version))) == [["a"]]  # goes unnoticed
    moved = [slice_("a", count=2), slice_("b", name="s2", generation=2, nodeName="m")]
    assert devices(solve(moved, [claim(request())], features=full(version))) == "no"


@since_35
def test_an_invalid_pool_is_left_alone_and_said(version: str) -> None:
    invalid = slice_("a", "a", name="s1", pool="p1")
    assert devices(solve([invalid], [claim(request())], features=full(version))) == "node"
    good = slice_("b", name="s2", pool="p2")
    assert devices(solve([invalid, good], [claim(request())], features=full(version))) == [["b"]]


@every_version
def test_which_slices_reach_a_node(version: str) -> None:
    def zone(value: str) -> dict[str, object]:
        requirement = {"key": "zone", "operator": "In", "values": [value]}
        return {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}

    slices = [
        slice_("a", name="s1", pool="p1", nodeName="m"),
        slice_("b", name="s2", pool="p2", allNodes=True),
        slice_("c", name="s3", pool="p3", nodeSelector=zone("a")),
        slice_("d", name="s4", pool="p4", nodeSelector=zone("b")),
        slice_("e", name="s5", pool="p5"),
        slice_(
            device("f", nodeName="n"),
            device("g", nodeName="m"),
            device("h", allNodes=True),
            device("i", nodeSelector=zone("b")),
            name="s6",
            pool="p6",
            perDeviceNodeSelection=True,
        ),
        slice_("j", name="s7", pool="p7", nodeName=None),
    ]
    wants = [claim(request(count=5))]
    assert devices(solve(slices, wants, features=full(version))) == [["b", "c", "e", "f", "h"]]
    assert devices(solve(slices, [claim(request(count=6))], features=full(version))) == "no"
    elsewhere = solve(slices, [claim(request(count=1))], node=NodeFacts(name="x"), features=full(version))
    assert devices(elsewhere) == [["b"]]


@every_version
def test_a_node_selector_that_nobody_understands_is_fatal(version: str) -> None:
    odd = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Like"}]}]}
    assert (
        devices(solve([slice_("a", nodeSelector=odd)], [claim(request())], features=full(version))) == "fatal"
    )


@pytest.mark.parametrize(
    ("requirement", "answer"),
    [
        ({"key": "zone", "operator": "In", "values": ["a b"]}, "fatal"),
        ({"key": "zone", "operator": "NotIn", "values": ["-a"]}, "fatal"),
        ({"key": "zone", "operator": "In", "values": ["x" * 64]}, "fatal"),
        ({"key": "zone", "operator": "NotIn", "values": [""]}, [["a"]]),
        ({"key": "a b", "operator": "Exists"}, "fatal"),
        ({"key": "-/a", "operator": "DoesNotExist"}, "fatal"),
        ({"key": "a/b/c", "operator": "DoesNotExist"}, "fatal"),
        ({"key": "", "operator": "DoesNotExist"}, "fatal"),
        ({"key": "A.b/C_d", "operator": "DoesNotExist"}, "fatal"),
        ({"key": "a.b/C_d", "operator": "DoesNotExist"}, [["a"]]),
        ({"key": "ten", "operator": "Gt", "values": ["9"]}, [["a"]]),
        ({"key": "ten", "operator": "Gt", "values": ["010"]}, "no"),
        ({"key": "odd", "operator": "Gt", "values": ["9"]}, "no"),
        ({"key": "large", "operator": "Gt", "values": ["9"]}, "no"),
        ({"key": "ten", "operator": "Lt", "values": ["1_000"]}, "fatal"),
        ({"key": "ten", "operator": "Lt", "values": ["9223372036854775808"]}, "fatal"),
        ({"key": "ten", "operator": "Lt", "values": ["9223372036854775807"]}, [["a"]]),
        ({"key": "ten", "operator": "Gt", "values": ["-5"]}, "fatal"),
    ],
)
def test_node_selectors_are_as_strict_as_kubernetes(requirement: Json, answer: object) -> None:
    labels = {"zone": "z", "ten": "10", "odd": "1_0", "large": "9223372036854775808"}
    selector = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
    outcome = solve(
        [slice_("a", nodeSelector=selector)], [claim(request())], node=NodeFacts(name="n", labels=labels)
    )
    assert devices(outcome) == answer


def test_the_answer_is_the_same_for_both_policies_when_there_is_no_choice() -> None:
    slices = [slice_("a", "b")]
    for policy in Policy:
        assert devices(solve(slices, [claim(request(count=2))], policy=policy)) == [["a", "b"]]


@every_version
def test_no_selector_can_be_asked_about_an_attribute_of_an_unknown_kind(version: str) -> None:
    odd = device("b", attributes={"x": {"matrix": 1}})
    everything = [claim(request(count=2, when="true"))]
    assert devices(solve([slice_("a", odd)], everything, features=full(version))) == "fatal"
    assert devices(solve([slice_("a", odd)], [claim(request(when="true"))], features=full(version))) == [
        ["a"]
    ]
    assert devices(solve([slice_(odd)], [claim(request())], features=full(version))) == [["b"]]


def test_classes_are_looked_up_by_name_only() -> None:
    assert devices(solve([slice_("a")], [claim(request())], classes=[ANY])) == [["a"]]


# --- counters ---


@since_35
def test_counters_of_an_allocated_device_count_while_it_is_published(version: str) -> None:
    sets = slice_(name="sets", count=2, sets={"s": {"c": 2}})
    both = slice_(*[device(n, counters={"s": {"c": 1}}) for n in ("a", "b", "c")], name="s2", count=2)
    one = slice_(device("c", counters={"s": {"c": 1}}), name="s2", count=2)
    taken = [held("a"), held("b", name="o2")]
    assert devices(solve([sets, both], [*taken, claim(request())], features=full(version))) == "no"
    assert devices(solve([sets, one], [*taken, claim(request())], features=full(version))) == [["c"]]


@since_35
def test_counters_of_slices_on_other_nodes_count(version: str) -> None:
    sets = slice_(name="sets", count=3, allNodes=True, sets={"s": {"c": 1}})
    here = slice_(device("a", counters={"s": {"c": 1}}), name="s1", count=3)
    there = slice_(device("b", counters={"s": {"c": 1}}), name="s2", count=3, nodeName="m")
    assert devices(solve([sets, here, there], [claim(request())], features=full(version))) == [["a"]]
    assert devices(solve([sets, here, there], [held("b"), claim(request())], features=full(version))) == "no"


@since_35
@pytest.mark.parametrize(
    "broken",
    [
        [slice_(name="s1", count=2, sets={"s": {"c": 1}}), slice_("a", name="s2", count=2)],
        [
            slice_(name="s1", count=3, sets={"s": {"c": 1}}),
            slice_(name="s2", count=3, sets={"s": {"c": 1}}),
            slice_("a", name="s3", count=3),
        ],
        [
            slice_(name="s1", count=2, sets={"s": {"c": 1}}),
            slice_(device("a", counters={"t": {"c": 1}}), name="s2", count=2),
        ],
        [
            slice_(name="s1", count=2, sets={"s": {"c": 1}}),
            slice_(device("a", counters={"s": {"d": 1}}), name="s2", count=2),
        ],
    ],
    ids=["good", "set twice", "unknown set", "unknown counter"],
)
def test_a_pool_with_counters_that_do_not_fit_together_is_invalid(broken: list[Json], version: str) -> None:
    answer = devices(solve(broken, [claim(request())], features=full(version)))
    good = broken[-1]["spec"]["devices"] == [{"name": "a"}] and len(broken) == 2
    assert answer == ([["a"]] if good else "node")


# --- CEL ---


@every_version
def test_an_unknown_domain_is_empty_and_an_unknown_id_an_error(version: str) -> None:
    slices = [slice_(device("a", attributes={"x": 1}))]
    for expression, answer in (
        ('has(device.attributes["other.example.com"].x)', "no"),
        (f'has(device.attributes["{DRIVER}"].y)', "no"),
        (f'device.attributes["{DRIVER}"].y == 1', "fatal"),
        ('device.attributes["other.example.com"].x == 1', "fatal"),
    ):
        assert devices(solve(slices, [claim(request(when=expression))], features=full(version))) == answer


# --- determinism ---

_PROGRAM = """
from tests.unit.allocation.structured.world import *
from tangram.allocation.structured import Policy
sizes = {"a": "1", "b": "2"}
items = [device(f"d{i}", attributes={"n": [i, i + 1], "m": i % 3}, capacity=sizes) for i in range(6)]
items += [device("s", allowMultipleAllocations=True, capacity={"x": "3", "y": "4"})]
for policy in Policy:
    for wants in (
        claim(request("r", count=2), request("q"), constraints=[match("n", "r"), distinct("m", "r")]),
        claim(request("r", count=4, capacity={"a": "1"}), constraints=[match("m")]),
        claim(request("r", capacity={"x": "1"})),
    ):
        outcome = solve([slice_(*items)], [held("d1"), wants], policy=policy)
        print(outcome.allocations, outcome.reasons)
"""


def test_the_answer_does_not_depend_on_how_python_hashes() -> None:
    outputs = set()
    for seed in ("1", "2", "3"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True
        )
        outputs.add(done.stdout)
    (output,) = outputs
    assert output.count("Reasons(") == 6
