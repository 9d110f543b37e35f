"""What is left out of the search holds no solution."""

from collections.abc import Callable
from unittest.mock import patch

import pytest
from tests.unit.allocation.structured.world import (
    DRIVER,
    Json,
    claim,
    device,
    devices,
    distinct,
    either,
    held,
    match,
    request,
    slice_,
    solve,
    sub,
)

from tangram.allocation.structured import Policy

SHARE = "5a1d76ea-0000-4000-8000-000000000000"


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize(
    ("constraint", "answer"), [(distinct, ["d2", "d1", "d3"]), (match, ["d1", "d2", "d3"])]
)
def test_which_of_the_requests_has_which_device_matters(
    constraint: Callable[..., Json], answer: list[str], policy: Policy
) -> None:
    """`a` and `b` may have the same devices, but only that of `a` is bound to that of `c`."""
    items = [
        device(name, attributes={"x": x, "k": k}) for name, x, k in (("d1", 1, 1), ("d2", 2, 1), ("d3", 1, 2))
    ]
    key = f'device.attributes["{DRIVER}"].k'
    wants = (
        request("a", when=f"{key} == 1"),
        request("b", when=f"{key} == 1"),
        request("c", when=f"{key} == 2"),
    )
    with patch("tangram.allocation.structured.engine._PLAIN_STEPS", 0):  # and none is tried upstream's way
        outcome = solve(
            [slice_(*items)], [claim(*wants, constraints=[constraint("x", "a", "c")])], policy=policy
        )
    assert devices(outcome) == [answer]


@pytest.mark.parametrize("policy", list(Policy))
def test_a_share_that_is_paid_for_and_a_device_that_is_not_count_both(policy: Policy) -> None:
    """Of `a` somebody has a share, which has paid its counters; there is room for `b` besides."""
    counted = {"consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]}
    items = [
        device("a", capacity={"m": "3"}, allowMultipleAllocations=True, **counted),
        device("b", capacity={"m": "1"}, **counted),
    ]
    for there, fits in ((2, True), (1, False)):
        slices = [slice_(name="sets", count=2, sets={"s": {"c": there}}), slice_(*items, name="s2", count=2)]
        old = held({"device": "a", "shareID": SHARE, "consumedCapacity": {"m": "1"}})
        with patch("tangram.allocation.structured.engine._PLAIN_STEPS", 0):
            outcome = solve(slices, [old, claim(request(count=2, capacity={"m": "1"}))], policy=policy)
        found = devices(outcome)
        assert (sorted(found[0]) if fits else found) == (["a", "b"] if fits else "no")


@pytest.mark.parametrize("policy", list(Policy))
def test_a_device_with_room_for_two_shares_counts_for_both_wherever_it_stands(policy: Policy) -> None:
    items = [
        device(f"d{i}", attributes={"i": i}, capacity={"m": "8"}, allowMultipleAllocations=True)
        for i in range(3)
    ]
    last = f'device.attributes["{DRIVER}"].i == 2'
    for amount, answer in (("4", [["d2", "d2"]]), ("5", "no")):
        wants = [request(name, when=last, capacity={"m": amount}) for name in ("a", "b")]
        with patch("tangram.allocation.structured.engine._PLAIN_STEPS", 0):
            assert devices(solve([slice_(*items)], [claim(*wants)], policy=policy)) == answer


@pytest.mark.parametrize("policy", list(Policy))
def test_how_many_devices_a_claim_has_already_matters(policy: Policy) -> None:
    """With the same devices given, `second` may have two or one of them: with two it would get 33."""
    items = [device(f"d{i:02}", attributes={"k": 1 if i < 1 else 2 if i < 3 else 3}) for i in range(34)]

    def of(kind: int) -> str:
        return f'device.attributes["{DRIVER}"].k == {kind}'

    first = claim(either("a", sub("x", when=of(1)), sub("y", count=2, when=of(2))), name="first")
    second = claim(
        either("b", sub("p", count=2, when=of(2)), sub("q", when=of(1))),
        request("c", count=31, when=of(3)),
        name="second",
    )
    with patch("tangram.allocation.structured.engine._PLAIN_STEPS", 0):
        found = devices(solve([slice_(*items)], [first, second], policy=policy))
    assert isinstance(found, list)
    assert [found[0], found[1][0], len(found[1])] == [["d01", "d02"], "d00", 32]
