"""When branches may be left out of the search. test_invariants tells that this changes nothing."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
from tests.unit.allocation.structured.world import (
    DRIVER,
    claim,
    device,
    distinct,
    match,
    request,
    slice_,
    solve,
)

from tangram.allocation.structured.candidates import Taker
from tangram.allocation.structured.requests import Request
from tangram.allocation.structured.traces import safe

Json = dict[str, Any]
X = f'device.attributes["{DRIVER}"].x'
PLAIN = [slice_(*(device(f"d{i}", attributes={"x": i}) for i in range(3)))]
LISTS = [slice_(*(device(f"d{i}", attributes={"x": [i, i + 1]}) for i in range(3)))]
SHARED = [slice_(*(device(f"d{i}", allowMultipleAllocations=True) for i in range(3)))]
SIZED = [slice_(*(device(f"d{i}", capacity={"m": "2"}) for i in range(3)))]
COUNTED = [
    slice_(name="counters", count=2, sets={"s": {"c": 2}}),
    slice_(*(device(f"d{i}", counters={"s": {"c": 1}}) for i in range(3)), name="s2", count=2),
]
TWO_DRIVERS = [
    *COUNTED,
    slice_(name="counters2", driver="b.example.com", count=2, sets={"s": {"c": 2}}),
    slice_(device("e", counters={"s": {"c": 1}}), name="s3", driver="b.example.com", count=2),
]
INVALID = [slice_("a", "a")]
ONE, TWO, FOUR, ALL = request(), request(count=2), request(count=4), request(allocationMode="All")
LEFT_ON_COUNTERS = "k8s-1.35,PartitionableDevices"
SHARES_35, SHARES_34 = "k8s-1.35,ConsumableCapacity", "k8s-1.34,ConsumableCapacity"
LISTS_36 = "k8s-1.36,ListTypeAttributes"


def derived(expression: str) -> Json:
    return request(derivedAttributes=[{"name": f"{DRIVER}/x", "expression": expression}])


@pytest.mark.parametrize(
    ("features", "slices", "asked", "constraints", "expected"),
    [
        ("latest", PLAIN, TWO, (match("x"), distinct("x")), True),
        ("k8s-1.37", LISTS, TWO, (match("x"),), True),
        # What is refused or put back stays on the accounts, where there are some.
        ("k8s-1.34", PLAIN, TWO, (), True),
        (LEFT_ON_COUNTERS, PLAIN, TWO, (), True),
        (LEFT_ON_COUNTERS, COUNTED, TWO, (), False),
        ("k8s-1.35", COUNTED, TWO, (), True),
        ("k8s-1.35", SHARED, ALL, (), True),
        (SHARES_35, SHARED, TWO, (), True),
        (SHARES_35, SHARED, ALL, (), False),
        (SHARES_35, SIZED, request(capacity={"m": "1"}, allocationMode="All"), (), False),
        (SHARES_35, PLAIN, ALL, (), True),
        (SHARES_34, SHARED, TWO, (), False),
        (SHARES_34, PLAIN, TWO, (), True),
        (SHARES_34, PLAIN, FOUR, (), False),
        # Which pool is reached first decides what counters there are.
        ("k8s-1.36", COUNTED, TWO, (), True),
        ("k8s-1.36", TWO_DRIVERS, TWO, (), False),
        ("k8s-1.36.6", TWO_DRIVERS, TWO, (), True),
        # Constraints remember too much or too little.
        ("k8s-1.36", PLAIN, ONE, (distinct("x"),), True),
        ("k8s-1.36", PLAIN, TWO, (distinct("x"),), False),
        ("k8s-1.36", PLAIN, TWO, (distinct("x", "other"),), True),
        ("k8s-1.37", PLAIN, TWO, (distinct("x"),), True),
        (SHARES_34, PLAIN, ONE, (distinct("x"),), False),
        ("k8s-1.36", LISTS, TWO, (match("x"),), True),
        (LISTS_36, LISTS, TWO, (match("x"),), False),
        (LISTS_36, LISTS, TWO, (match("y"),), True),
        (LISTS_36, PLAIN, TWO, (match("x"),), True),
        (f"{LISTS_36},DerivedAttributes", PLAIN, derived("[1, 2]"), (match("x"),), False),
        (f"{LISTS_36},DerivedAttributes", PLAIN, derived("[1, 2]"), (match("y"),), True),
        # Errors must not be missed.
        ("k8s-1.34", INVALID, ONE, (), False),
        ("k8s-1.37", PLAIN, ALL, (match("x"),), False),
        ("k8s-1.37", PLAIN, ALL, (match("x", "other"),), True),
        ("latest", PLAIN, ALL, (match("x"),), True),
        ("latest", PLAIN, request(when=f"{X} < 3"), (), True),
        ("latest", LISTS, request(when=f"{X} < 3"), (), False),
        ("latest", PLAIN, derived(f"{X} + 1"), (match("x"),), True),
        ("latest", LISTS, derived(f"{X} + 1"), (match("x"),), False),
        ("latest", LISTS, derived(f"{X} + 1"), (match("y"),), True),
    ],
)
def test_where_nothing_is_left_behind_and_no_error_met(
    features: str, slices: list[Json], asked: Json, constraints: tuple[Json, ...], expected: bool
) -> None:
    seen = []

    def spy(requests: Sequence[Request], taker: Taker) -> bool:
        seen.append(safe(requests, taker))
        return seen[-1]

    with (
        patch("tangram.allocation.structured.engine._PLAIN_STEPS", 0),
        patch("tangram.allocation.structured.engine.safe", spy),
    ):
        solve(slices, [claim(asked, constraints=constraints)], features=features)
    assert seen == [expected]
