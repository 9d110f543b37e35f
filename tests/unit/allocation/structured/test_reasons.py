"""Why not: each device with the term that refused it, and one line for people."""

from typing import Any

import msgspec
import pytest
from tests.unit.allocation.structured.world import (
    DRIVER,
    claim,
    device,
    distinct,
    either,
    held,
    match,
    request,
    slice_,
    solve,
    sub,
)

from tangram.allocation.structured import Allocated, Cluster, Code, Outcome, Reasons, parse_features
from tangram.base.errors import InvalidObjectError, UsageError
from tangram.model.kubernetes import ResourceClaim, ResourceSlice

Json = dict[str, Any]


def why(outcome: Outcome) -> dict[str, tuple[Code, str]]:
    assert outcome.allocations is None
    return {r.device.device: (r.code, r.text) for r in outcome.reasons.refusals}


def test_every_refused_device_with_the_term_that_refused_it() -> None:
    domain = f'device.attributes["{DRIVER}"]'
    taint = {"key": "k", "value": "v", "effect": "NoExecute"}
    items = [
        device("class", attributes={"x": 0}),
        device("selector", attributes={"x": 1, "v": {"version": "1.2.3"}}, capacity={"m": "8Gi"}),
        device("held", attributes={"x": 3}, capacity={"m": "8"}),
        device(
            "taint",
            attributes={"x": 3},
            capacity={"m": "8"},
            taints=[taint],
        ),
        device("small", attributes={"x": 3}, capacity={"m": "1"}),
        device("counter", attributes={"x": 3}, capacity={"m": "8"}, counters={"s": {"c": 3}}),
    ]
    slices = [slice_(name="sets", count=2, sets={"s": {"c": 2}}), slice_(*items, name="s2", count=2)]
    only = {"metadata": {"name": "only"}, "spec": {"selectors": [{"cel": {"expression": f"{domain}.x > 0"}}]}}
    wants = claim(request(cls="only", when=f"{domain}.x == 3", capacity={"m": "4"}))
    outcome = solve(slices, [held("held", name="other"), wants], classes=[only])
    assert why(outcome) == {
        "class": (Code.CLASS, f"is not of class only: {domain}.x > 0 (x is 0)"),
        "selector": (Code.SELECTOR, f"does not match: {domain}.x == 3 (x is 1)"),
        "held": (Code.HELD, "is held by claim ns/other"),
        "taint": (Code.TAINT, "with the taint k=v:NoExecute"),
        "small": (Code.CAPACITY, "capacity m: 4 needed, 1 there"),
        "counter": (Code.COUNTER, "counter s/c: 3 needed, 2 left"),
    }
    assert outcome.reasons.summary == (
        "request r: 1 device wanted, of 6 devices 0 can be used: 1 held by claim ns/other, 1 not of the "
        f"device class, 1 not selected by {domain}.x == 3 (x is 1), 1 with the taint k=v:NoExecute, "
        "1 without enough capacity (capacity m: 4 needed, 1 there), "
        "1 without enough counters (counter s/c: 3 needed, 2 left)"
    )


def test_what_differs_between_devices_is_left_to_each_of_them() -> None:
    domain = f'device.attributes["{DRIVER}"]'
    numbered = [device(str(n), attributes={"n": n}) for n in range(3)]
    held_twice = [held("0", name="x"), held("1", name="y")]
    outcome = solve([slice_(*numbered)], [*held_twice, claim(request(count=2, when=f"{domain}.n < 2"))])
    assert outcome.reasons.summary == (
        "request r: 2 devices wanted, of 3 devices 0 can be used: 2 held by other claims, "
        f"1 not selected by {domain}.n < 2 (n is 2)"
    )
    outcome = solve([slice_(*numbered)], [claim(request(when=f"{domain}.n > 2"))])
    assert outcome.reasons.summary == (
        f"request r: 1 device wanted, of 3 devices 0 can be used: 3 not selected by {domain}.n > 2"
    )


def test_an_overdrawn_counter_that_bars_all_is_named() -> None:
    sets = slice_(name="sets", count=2, sets={"s": {"c": 1}, "t": {"c": 1}})
    items = [device(name, counters={"s": {"c": 1}}) for name in ("a", "b")]
    other = slice_(*items, device("z", counters={"t": {"c": 1}}), name="s2", count=2)
    outcome = solve([sets, other], [held("a", "b"), claim(request())], features="k8s-1.36")
    assert why(outcome)["z"] == (
        Code.COUNTER,
        "counter s/c of the pool is overdrawn: -1 left after claim ns/old",
    )


def test_a_shared_device_tells_who_has_the_rest() -> None:
    item = slice_(device("a", capacity={"m": 10}, allowMultipleAllocations=True))
    shares = [
        held({"device": "a", "shareID": name, "consumedCapacity": {"m": 4}}, name=name) for name in ("x", "y")
    ]
    outcome = solve([item], [*shares, claim(request(capacity={"m": 3}))])
    assert why(outcome)["a"] == (
        Code.CAPACITY,
        "capacity m: 3 needed, 2 of 10 left after claims ns/x, ns/y",
    )


def test_a_counter_tells_who_has_the_rest() -> None:
    one = {"s": {"c": 1}}
    items = [device(name, counters=one) for name in ("a", "b", "c")]
    slices = [slice_(name="sets", count=2, sets={"s": {"c": 2}}), slice_(*items, name="s2", count=2)]
    outcome = solve(slices, [held("a", name="x"), held("b", name="y"), claim(request())])
    assert why(outcome)["c"] == (Code.COUNTER, "counter s/c: 1 needed, 0 left after claims ns/x, ns/y")
    several = [
        slices[0],
        slice_(*items, *(device(f"o{n}", counters=one) for n in range(9)), name="s2", count=2),
    ]
    users = [held(f"o{n}", name=f"h{n}") for n in range(9)]
    assert why(solve(several, [*users, claim(request())]))["c"][1] == (
        "counter s/c: 1 needed, -7 left after claims ns/h0, ns/h1, ns/h2 and 6 more"
    )


def test_where_counters_are_of_a_slice_only_those_who_draw_on_them_are_told() -> None:
    one, two = {"s": {"c": 1}}, {"s": {"c": 2}}
    slices = [
        slice_(device(name, counters=needs), name=f"s-{name}", count=2, sets=one)
        for name, needs in (("a", one), ("b", two))
    ]
    asked = [held("a", name="x"), claim(request())]
    outcome = solve(slices, asked, features="k8s-1.34,PartitionableDevices")
    assert why(outcome)["b"] == (Code.COUNTER, "counter s/c: 2 needed, 1 left")


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        (True, "x is true"),
        ({"version": "1.2.3"}, "x is 1.2.3"),
        ([1, 2], "x is [1, 2]"),
        ("long", "x is long"),
        (1, "x is 1"),
        ("1", 'x is "1"'),
        ("", 'x is ""'),
        ("true", 'x is "true"'),
    ],
)
def test_the_values_found_are_quoted(attribute: Any, text: str) -> None:
    when = f'!has(device.attributes["{DRIVER}"].x)'
    outcome = solve([slice_(device("a", attributes={"x": attribute}))], [claim(request(when=when))])
    assert why(outcome)["a"][1].endswith(f"({text})")


def test_the_term_that_is_false_is_named_with_what_is_published() -> None:
    domain = f'device.attributes["{DRIVER}"]'
    items = [device("a", attributes={"x": 1, "y": 3}), device("b", attributes={"x": 2, "y": 3})]
    outcome = solve([slice_(*items)], [claim(request(when=f"{domain}.x == 1 && {domain}.y == 2"))])
    assert why(outcome) == {
        "a": (Code.SELECTOR, f"does not match: {domain}.y == 2 (y is 3)"),
        "b": (Code.SELECTOR, f"does not match: {domain}.x == 1 (x is 2)"),
    }


def test_the_guard_of_a_class_is_not_among_what_refuses() -> None:
    own = 'device.attributes["gpu.resource.admin"]'
    expression = f'{own}.allocator == "scheduler" && {own}.type == "mig"'
    guarded = {"metadata": {"name": "g"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    gpu = device("a", attributes={"allocator": "controller", "type": "gpu", "healthy": True})
    item = slice_(gpu, driver="gpu.resource.admin")
    text = {
        controller: why(solve([item], [claim(request(cls="g"))], classes=[guarded], controller=controller))[
            "a"
        ][1]
        for controller in (True, False)
    }
    assert text == {
        True: f'is not of class g: {own}.type == "mig" (type is gpu)',
        False: f'is not of class g: {own}.allocator == "scheduler" (allocator is controller)',
    }


@pytest.mark.parametrize(("value", "features"), [([1, 2], "k8s-1.36"), ({"matrix": 1}, "latest")])
def test_an_attribute_that_no_selector_can_read_is_named(value: Any, features: str) -> None:
    odd = device("a", attributes={"n": 1, "x": value})
    outcome = solve([slice_(odd)], [claim(request(when="true"))], features=features)
    assert outcome.error == (
        f"claim ns/c, request r: selector #0 on device {DRIVER}/p/a, attribute x: CEL runtime error: "
        "unsupported attribute value"
    )


def test_capacities_and_drivers_are_quoted() -> None:
    when = f'device.driver == "x" || device.capacity["{DRIVER}"].m.compareTo(quantity("1Ti")) > 0'
    outcome = solve([slice_(device("a", capacity={"m": "8Gi"}))], [claim(request(when=when))])
    assert why(outcome)["a"][1].endswith(f"(m is 8Gi, driver is {DRIVER})")


def test_constraints_are_named_with_both_values() -> None:
    items = [device(n, attributes={"n": v}) for n, v in (("a", 1), ("b", 2), ("c", 2))]
    three = solve([slice_(*items)], [claim(request(count=3), constraints=[match("n")])])
    assert three.reasons.summary == (
        f"request r: 3 devices with one {DRIVER}/n wanted, at most 2 of 3 free ones agree (2)"
    )
    different = solve([slice_(*items)], [claim(request(count=3), constraints=[distinct("n")])])
    assert different.reasons.summary == (
        f"request r: 3 devices with different {DRIVER}/n wanted, the 3 free ones have 2"
    )
    two = solve([slice_(*items[:2])], [claim(request("x"), request("y"), constraints=[match("n")])])
    assert two.reasons.summary.startswith(f"the requests x, y must have one {DRIVER}/n")


def test_lists_agree_in_one_element_that_all_have() -> None:
    items = [device(n, attributes={"n": v}) for n, v in (("a", [1, 2]), ("b", [2, 3]), ("c", [3, 1]))]
    outcome = solve([slice_(*items)], [claim(request(count=3), constraints=[match("n")])])
    assert "at most 2 of 3 free ones agree" in outcome.reasons.summary


def test_all_alternatives_and_broken_pools_are_named() -> None:
    slices = [slice_("a"), slice_("b", name="s2", pool="q", count=2), slice_("c", "c", name="s3", pool="z")]
    outcome = solve(slices, [claim(either("r", sub("x", count=2), sub("y", count=3)))])
    assert outcome.reasons.summary == (
        "request r: 2 devices wanted, of 1 device 1 can be used; or 3 devices wanted, of 1 device 1 can be "
        f"used; pool {DRIVER}/q cannot be used: 1 of its 2 slices are there; pool {DRIVER}/z cannot be used: "
        "device name c occurs twice"
    )
    assert outcome.node_error.startswith("invalid resource pools were encountered")


def test_all_says_how_many_were_wanted() -> None:
    outcome = solve([slice_("a", "b")], [held("a"), claim(request(allocationMode="All"))])
    assert outcome.reasons.summary == (
        "request r: all matching devices wanted, of 2 devices 1 can be used: 1 held by claim ns/old"
    )
    nothing = solve([], [claim(request(allocationMode="All"))])
    assert nothing.reasons.summary == "request r: all matching devices wanted, no devices on this node"


def test_devices_of_one_request_that_take_from_each_other() -> None:
    sets = slice_(name="sets", count=2, sets={"s": {"c": 3}})
    items = [device(name, counters={"s": {"c": size}}) for name, size in (("a", 1), ("b", 2), ("c", 2))]
    outcome = solve([sets, slice_(*items, "d", name="s2", count=2)], [held("d"), claim(request(count=3))])
    assert outcome.reasons.summary == (
        "request r: 3 devices wanted, of 4 devices 3 can be used, but not so many of them together: "
        "1 held by claim ns/old"
    )
    assert outcome.reasons.shortage.cause == "no 3 of those go together"


def test_an_alternative_that_is_impossible_by_itself_is_told_as_that() -> None:
    sets = slice_(name="sets", count=2, sets={"s": {"c": 3}})
    items = [device(name, counters={"s": {"c": 2}}) for name in ("a", "b")]
    wants = claim(either("r", sub("x", count=2), sub("y", count=3)))
    outcome = solve([sets, slice_(*items, name="s2", count=2)], [wants])
    assert outcome.reasons.summary == (
        "request r: 2 devices wanted, of 2 devices 2 can be used, but not so many of them together; "
        "or 3 devices wanted, of 2 devices 2 can be used"
    )


def test_who_only_counts_gets_no_words() -> None:
    """Words take longer than counts: of a chain of terms each is evaluated."""
    domain = f'device.attributes["{DRIVER}"]'
    items = [device("a", attributes={"x": 1, "y": 3}), device("b", attributes={"x": 2, "y": 3})]
    when = f"{domain}.x >= 1 && {domain}.y == 2"
    said, counted = (
        solve([slice_(*items)], [claim(request(when=when))], in_words=in_words).reasons
        for in_words in (True, False)
    )
    assert said.summary
    assert len(said.refusals) == 2
    assert counted == Reasons(shortage=said.shortage)
    assert counted.shortage.refused == {f"not selected by {when}": 2}


def test_requests_that_compete() -> None:
    outcome = solve([slice_("a")], [claim(request("x"), request("y"))])
    assert (
        outcome.reasons.summary == "each of 2 requests could be served alone, but not all 2 devices together"
    )


def test_a_request_that_can_be_served_is_not_complained_of() -> None:
    items = [device(n, attributes={"n": 1}) for n in ("x", "y")]
    impossible = f'device.attributes["{DRIVER}"].n == 2'
    wants = claim(request("a", count=2), request("b", when=impossible), constraints=[match("n", "a")])
    outcome = solve([slice_(*items)], [wants])
    assert outcome.reasons.summary == (
        f"request b: 1 device wanted, of 2 devices 0 can be used: 2 not selected by {impossible} (n is 1)"
    )
    assert outcome.reasons.shortage.cause == "request b needs 1"


def test_the_constraint_that_is_in_the_way_is_named_wherever_it_stands() -> None:
    items = [device(n, attributes={"n": i, "m": 1}) for i, n in enumerate(("x", "y"))]
    for constraints in (
        [match("m", "b"), match("n")],
        [match("m"), match("n")],
        [distinct("m", "b"), match("n")],
    ):
        outcome = solve(
            [slice_(*items)], [claim(request("a", count=2), request("b"), constraints=constraints)]
        )
        assert outcome.reasons.shortage.cause == f"no 2 of those agree in {DRIVER}/n"


def test_what_requests_of_a_claim_cannot_agree_in_is_told_if_they_must() -> None:
    items = [device(n, attributes={"n": v}) for n, v in (("x", 1), ("y", 1), ("z", 2))]
    taken = f'device.attributes["{DRIVER}"].n == 1'
    wants = (request("a", count=2), request("b", when=taken))
    causes = {}
    for names in (("a",), ("a", "b"), ()):
        outcome = solve([slice_(*items)], [claim(*wants, constraints=[match("n", *names)])])
        causes[names] = outcome.reasons.shortage.cause
    assert causes == {
        ("a",): "no way to give each request of the pod its devices",
        ("a", "b"): f"no set for all requests of a claim agrees in {DRIVER}/n",
        (): f"no set for all requests of a claim agrees in {DRIVER}/n",
    }


def test_of_several_claims_each_request_is_named_with_its_own() -> None:
    items = [device(n, attributes={"n": n}) for n in ("a", "b")]
    small, large = claim(request(), name="small"), claim(request(count=3), name="large")
    outcome = solve([slice_(*items)], [small, large])
    assert outcome.reasons.summary == (
        "claim ns/large, request r: 3 devices wanted, of 2 devices 2 can be used"
    )
    agreeing = claim(request("x"), request("y"), name="agreeing", constraints=[match("n")])
    outcome = solve([slice_(*items)], [small, agreeing])
    assert outcome.reasons.summary.startswith(
        f"the requests x, y of claim ns/agreeing must have one {DRIVER}/n; each of 3 requests"
    )


# --- bad input ---


@pytest.mark.parametrize(
    ("item", "field"),
    [
        (slice_(device("a", capacity={"m": "lots"})), "spec.devices[0].capacity[m]"),
        (slice_("x", device("a", attributes={"v": {"version": "v1"}})), "spec.devices[1].attributes[v]"),
        (slice_(device("a", counters={"s": {"c": "?"}})), "spec.devices[0].consumesCounters"),
        (slice_(sets={"s": {"c": "?"}}), "spec.sharedCounters[0].counters"),
    ],
)
def test_objects_that_are_wrong_are_named(item: Json, field: str) -> None:
    with pytest.raises(InvalidObjectError) as caught:
        Cluster(slices=[msgspec.convert(item, ResourceSlice)], classes=[])
    assert (caught.value.object_name, caught.value.field) == ("ResourceSlice s1", field)


def test_a_claim_that_consumes_no_quantity_is_named() -> None:
    bad = held({"device": "a", "shareID": "x", "consumedCapacity": {"m": "lots"}})
    with pytest.raises(InvalidObjectError, match=r"ResourceClaim ns/old.*consumedCapacity"):
        Allocated.of([msgspec.convert(bad, ResourceClaim)], parse_features("latest"))


@pytest.mark.parametrize("text", ["", "k8s-1.33", "Everything", "k8s-1.36,-Nothing"])
def test_features_that_nobody_knows_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"give one of latest, none, k8s-1\.34"):
        parse_features(text)


def test_features_are_added_and_taken_away() -> None:
    assert parse_features("k8s-1.36,-DRADeviceTaints").gates < parse_features("k8s-1.36").gates
    assert parse_features("DeviceTaints").gates == {"DeviceTaints"}
    assert parse_features("none").gates == frozenset()
    assert parse_features("k8s-1.36,none,AdminAccess").faults == parse_features("k8s-1.36").faults
