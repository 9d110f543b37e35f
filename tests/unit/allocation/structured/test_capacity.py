"""Consumable capacity: policies, shares, what is consumed, and how it is written."""

from typing import Any
from unittest.mock import patch

import pytest
from tests.unit.allocation.structured.world import (
    VERSIONS,
    claim,
    device,
    devices,
    either,
    full,
    held,
    request,
    slice_,
    solve,
    sub,
)

from tangram.allocation.structured import Outcome, Policy
from tangram.allocation.structured.quantities import Format, Quantity, quantity

SHARE = "5a1d76ea-0000-4000-8000-000000000000"
with_shares = pytest.mark.parametrize("version", VERSIONS[1:])


def shared(name: str = "a", **capacity: Any) -> dict[str, Any]:
    return device(name, capacity=capacity, allowMultipleAllocations=True)


def policy(value: str, **fields: Any) -> dict[str, Any]:
    return {"value": value, "requestPolicy": fields}


def consumed(outcome: Outcome) -> list[dict[str, Any] | None]:
    assert outcome.allocations is not None, outcome
    return [
        r.consumed_capacity for allocation in outcome.allocations for r in allocation.devices.results or []
    ]


@with_shares
def test_without_a_request_the_default_or_the_whole_value_is_consumed(version: str) -> None:
    slices = [slice_(shared(m=policy("8Gi", default="1Gi"), n="4"))]
    outcome = solve(slices, [claim(request())], features=full(version))
    assert consumed(outcome) == [{"m": "1Gi", "n": "4"}]
    assert devices(solve(slices, [claim(request("x"), request("y"))], features=full(version))) == "no"


@with_shares
def test_without_capacities_a_device_has_any_number_of_shares(version: str) -> None:
    outcome = solve([slice_(shared())], [claim(request("x"), request("y"))], features=full(version))
    assert consumed(outcome) == [None, None]


@with_shares
def test_shares_add_up_to_no_more_than_the_value(version: str) -> None:
    slices = [slice_(shared(m="8"))]
    two = [claim(request(capacity={"m": "4"}), name=name) for name in ("c1", "c2")]
    assert devices(solve(slices, two, features=full(version))) == [["a"], ["a"]]
    old = held({"device": "a", "shareID": SHARE, "consumedCapacity": {"m": "1"}})
    assert devices(solve(slices, [old, *two], features=full(version))) == "no"
    outcome = solve(slices, [old, claim(request(capacity={"m": "8"}))], features=full(version))
    assert outcome.reasons.refusals[0].text == "capacity m: 8 needed, 7 of 8 left after claim ns/old"


@with_shares
def test_capacities_match_by_their_literal_names_and_filter_also_exclusive_devices(version: str) -> None:
    for name, wanted, ok in (
        ("m", "m", True),
        ("m", "gpu.example.com/m", False),
        ("gpu.example.com/m", "m", False),
    ):
        slices = [slice_(device("a", capacity={name: "8"}))]
        outcome = solve(slices, [claim(request(capacity={wanted: "4"}))], features=full(version))
        assert devices(outcome) == ([["a"]] if ok else "no")
    too_big = claim(request(capacity={"m": "9"}))
    assert (
        devices(solve([slice_(device("a", capacity={"m": "8"}))], [too_big], features=full(version))) == "no"
    )


@with_shares
def test_a_device_held_alone_is_not_shared(version: str) -> None:
    slices = [slice_(shared(m="8"))]
    assert devices(solve(slices, [held("a"), claim(request())], features=full(version))) == "no"


@pytest.mark.parametrize(
    ("wanted", "fields", "answer"),
    [
        ("3", {"validValues": ["2", "4"], "default": "2"}, "4"),
        ("2", {"validValues": ["2", "4"], "default": "2"}, "2"),
        ("5", {"validValues": ["2", "4"], "default": "2"}, None),
        ("1", {"validRange": {"min": "2"}, "default": "2"}, "2"),
        ("3", {"validRange": {"min": "2"}, "default": "2"}, "3"),
        ("3", {"validRange": {"min": "1", "step": "4"}, "default": "1"}, "5"),
        ("5", {"validRange": {"min": "1", "step": "4"}, "default": "1"}, "5"),
        ("6", {"validRange": {"min": "1", "step": "4", "max": "8"}, "default": "1"}, None),
        ("5", {"validRange": {"min": "1", "max": "4"}, "default": "1"}, None),
        ("3", {"default": "2"}, "3"),
    ],
)
@with_shares
def test_request_policies(wanted: str, fields: dict[str, Any], answer: str | None, version: str) -> None:
    slices = [slice_(shared(m=policy("16", **fields)))]
    outcome = solve(slices, [claim(request(capacity={"m": wanted}))], features=full(version))
    if answer is None:
        assert devices(outcome) == "no"
    else:
        assert consumed(outcome) == [{"m": answer}]


def test_steps_of_thousandths_need_a_feature() -> None:
    fields = policy("1", validRange={"min": "100m", "step": "100m"}, default="100m")
    wants = claim(request(capacity={"m": "250m"}))
    got = {}
    for version in VERSIONS[1:]:
        got[version] = consumed(solve([slice_(shared(m=fields))], [wants], features=full(version)))[0]
    assert got == {
        "k8s-1.35": {"m": "1"},
        "k8s-1.36": {"m": "1"},
        "k8s-1.36.6": {"m": "1"},
        "k8s-1.37": {"m": "300m"},
        "latest": {"m": "300m"},
    }


def test_a_rounded_capacity_is_written_like_its_step_since_137() -> None:
    fields = policy("16G", validRange={"min": "1G", "step": "1G"}, default="1G")
    for version, text in (("k8s-1.36", "1953125Ki"), ("k8s-1.37", "2G")):
        wants = claim(request(capacity={"m": "1500M"}))
        assert consumed(solve([slice_(shared(m=fields))], [wants], features=version)) == [{"m": text}]


@pytest.mark.parametrize(
    ("wanted", "fields"),
    [
        ("9E", {"validRange": {"min": "1", "step": "8E"}, "default": "1"}),
        ("10E", {"validRange": {"min": "1", "step": "1"}, "default": "1"}),
        ("1u", {"validRange": {"min": "0", "step": "1m"}, "default": "0"}),
    ],
)
def test_what_64_bits_cannot_hold_is_fatal_since_137(wanted: str, fields: dict[str, Any]) -> None:
    slices = [slice_(shared(m=policy("100E", **fields)))]
    wants = claim(request(capacity={"m": wanted}))
    assert devices(solve(slices, [wants])) == "fatal"
    assert devices(solve(slices, [wants], features="k8s-1.36")) != "fatal"
    everything = claim(request(capacity={"m": wanted}, allocationMode="All"))
    assert devices(solve(slices, [everything])) == "fatal"


@pytest.mark.parametrize("version", ["k8s-1.35,ConsumableCapacity", "k8s-1.36", "k8s-1.36.6"])
def test_what_64_bits_cannot_hold_wraps_before_137(version: str) -> None:
    """And what is negative then fits everywhere, as often as one likes."""
    fields = policy("7Ei", default="1Ei", validRange={"min": "1Ei", "step": "4Ei"})
    wants = claim(*[request(name, capacity={"m": "6Ei"}) for name in ("x", "y")])
    got = consumed(solve([slice_(shared(m=fields))], [wants], features=version))
    assert got == [{"m": "-7Ei"}, {"m": "-7Ei"}]


def test_a_negative_capacity_is_fatal_since_137() -> None:
    wants = claim(request(capacity={"m": "-1"}))
    assert devices(solve([slice_(shared(m="8"))], [wants])) == "fatal"
    assert devices(solve([slice_(shared(m="8"))], [wants], features="k8s-1.36")) == [["a"]]


def test_a_request_that_is_no_quantity_is_fatal() -> None:
    assert "is not a quantity" in solve([slice_("a")], [claim(request(capacity={"m": "many"}))]).error


def test_in_134_capacity_is_checked_on_the_device_at_the_place_of_the_slot() -> None:
    slices = [slice_(device("a", capacity={"m": "1"}), device("b", capacity={"m": "8"}))]
    wants = claim(request(capacity={"m": "4"}))
    assert devices(solve(slices, [wants], features="k8s-1.34,ConsumableCapacity")) == "no"
    assert devices(solve(slices, [wants], features="k8s-1.35,ConsumableCapacity")) == [["b"]]
    # Upstream crashes where the slice has fewer devices than the request.
    apart = [slice_("a", count=2), slice_("b", name="s2", count=2)]
    crash = solve(apart, [claim(request(count=2))], features="k8s-1.34,ConsumableCapacity")
    assert devices(crash) == "fatal"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("81920Mi", "80Gi"),
        ("0.5Gi", "512Mi"),
        ("1000m", "1"),
        ("85899345920", "85899345920"),
        ("1n", "1n"),
        ("0.1n", "1n"),
        ("1500m", "1500m"),
        ("1.5Gi", "1536Mi"),
        ("0.1Gi", "107374182400m"),
        ("100Ki", "100Ki"),
        ("1023", "1023"),
        ("0", "0"),
        ("0Ki", "0"),
        ("12e6", "12e6"),
        ("1e3", "1e3"),
        ("10000000", "10M"),
        ("-5", "-5"),
        ("1000000000000000000000", "1"),
        ("20Ei", "9223372036854775807"),
    ],
)
def test_quantities_are_written_as_kubernetes_writes_them(text: str, canonical: str) -> None:
    assert str(quantity(text)) == canonical


def test_quantities_are_rounded_up() -> None:
    assert Quantity(1, Format.DECIMAL).whole() == 1
    assert quantity("1500u").milli() == 2
    assert quantity("-1500m").whole() == -1


@pytest.mark.parametrize("policy", list(Policy))
def test_the_last_share_of_a_device_needs_no_counters(policy: Policy) -> None:
    """Its first share has paid them, also where counting ahead takes the device for one given once."""
    counters = slice_(name="counters", count=2, sets={"s": {"c": 1}})
    only = shared(m="3") | {"consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]}
    slices = [counters, slice_(only, count=2)]
    old = held({"device": "a", "shareID": SHARE, "consumedCapacity": {"m": "2"}})
    one = [request(name, capacity={"m": "1"}) for name in ("x", "y")]
    with patch("tangram.allocation.structured.engine._PLAIN_STEPS", 0):
        assert devices(solve(slices, [old, claim(one[0])], policy=policy)) == [["a"]]
        assert devices(solve(slices, [old, claim(*one)], policy=policy)) == "no"
        assert devices(solve(slices, [claim(*one)], policy=policy)) == [["a", "a"]]


def test_a_device_that_is_shared_no_more_but_of_which_somebody_has_a_share() -> None:
    """It is not given whole, and looking at it takes none of the counters from others."""
    counted = {"consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]}
    items = [device(name, capacity={"m": "8"}, **counted) for name in ("a", "b")]
    slices = [slice_(name="counters", count=2, sets={"s": {"c": 2}}), slice_(*items, name="s2", count=2)]
    old = held({"device": "a", "shareID": SHARE, "consumedCapacity": {"m": "6"}})
    wants = either("r", sub("all", allocationMode="All", when='device.driver != ""'), sub("one"))
    assert devices(solve(slices, [old, claim(wants)])) == [["b"]]
    assert devices(solve(slices, [old, claim(request(capacity={"m": "2"}))])) == [["a"]]


def test_a_policy_that_refuses_the_whole_device_refuses_who_asks_for_nothing_in_particular() -> None:
    item = device("a", capacity={"m": policy("8", validRange={"min": "1", "max": "4"}), "n": "1"})
    assert devices(solve([slice_(item)], [claim(request())])) == "no"
    assert devices(solve([slice_(item)], [claim(request(capacity={"m": "4"}))])) == [["a"]]


def test_of_a_capacity_that_no_share_has_taken_all_is_left() -> None:
    item = shared(m="8", n="4")
    old = held({"device": "a", "shareID": SHARE, "consumedCapacity": {"m": "4"}})
    assert devices(solve([slice_(item)], [old, claim(request(capacity={"m": "4", "n": "4"}))])) == [["a"]]
    assert devices(solve([slice_(item)], [old, claim(request(capacity={"m": "5", "n": "4"}))])) == "no"


def test_of_what_is_overdrawn_nothing_is_left() -> None:
    old = held({"device": "a", "shareID": SHARE, "consumedCapacity": {"m": "9"}})
    outcome = solve([slice_(shared(m="8"))], [old, claim(request(capacity={"m": "1"}))])
    (refusal,) = outcome.reasons.refusals
    assert refusal.text.startswith("capacity m: 1 needed, 0 of 8 left")
