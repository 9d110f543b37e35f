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
    held,
    match,
    request,
    slice_,
    solve,
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
