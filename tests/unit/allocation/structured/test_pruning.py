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
    match,
    request,
    slice_,
    solve,
)

from tangram.allocation.structured import Policy


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
