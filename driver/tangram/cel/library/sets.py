"""Sets, which are lists: cel-go's extension."""

from collections.abc import Callable, Sequence

from tangram.cel.declarations import Function, function, overload
from tangram.cel.equality import contains
from tangram.cel.estimate import ONE, Estimate, Sized, Sizes
from tangram.cel.types import (
    BOOL,
    list_of,
    parameter,
)
from tangram.cel.values import (
    Budget,
    Value,
    size,
)

_T = parameter("T")
_LIST = list_of(_T)


def _sets_contain(budget: Budget, items: tuple[Value, ...], wanted: tuple[Value, ...]) -> bool:
    return all(contains(items, item, budget) for item in wanted)


def _equivalent(budget: Budget, one: tuple[Value, ...], other: tuple[Value, ...]) -> bool:
    return _sets_contain(budget, one, other) and _sets_contain(budget, other, one)


def _intersect(budget: Budget, one: tuple[Value, ...], other: tuple[Value, ...]) -> bool:
    return any(contains(other, item, budget) for item in one)


def _set_function(name: str, call: Callable[..., bool], factor: float) -> Function:
    def cost(arguments: Sequence[Value], _: Value) -> int:
        return int(float(size(arguments[0]) * size(arguments[1])) * factor) + 1

    def estimate(sizes: Sizes, _: Sized | None, arguments: Sequence[Sized]) -> Estimate:
        one, other = arguments
        return Estimate(sizes.of(one).times(sizes.of(other)).scaled(factor).plus(ONE))

    return function(
        f"sets.{name}",
        overload(
            f"list_sets_{name}_list",
            (_LIST, _LIST),
            BOOL,
            call,
            budgeted=True,
            cost=cost,
            estimate=estimate,
        ),
    )


SETS = (
    _set_function("contains", _sets_contain, 1),
    _set_function("equivalent", _equivalent, 2),
    _set_function("intersects", _intersect, 1),
)
