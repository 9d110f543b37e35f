"""Lists: cel-go's extension, version 3."""

from collections.abc import Callable, Sequence
from functools import cmp_to_key

from tangram.base.errors import CelRuntimeError
from tangram.cel.declarations import FAILED, Cost, Estimator, Function, function, method, overload
from tangram.cel.equality import equals
from tangram.cel.estimate import Estimate, Range, Sized, Sizes, fixed, literal_number
from tangram.cel.library.ordering import COMPARABLE, ORDERED, compare
from tangram.cel.types import (
    BYTES,
    DYN,
    INT,
    STRING,
    list_of,
    optional_of,
    parameter,
)
from tangram.cel.values import (
    ABSENT,
    UINT_MAXIMUM,
    Budget,
    OptionalValue,
    Value,
    no_overload,
    size,
    too_dear,
)

_T = parameter("T")
_LIST = list_of(_T)


def _slice(items: tuple[Value, ...], start: int, end: int) -> tuple[Value, ...]:
    if start < 0 or end < 0:
        raise CelRuntimeError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise CelRuntimeError(f"cannot slice({start}, {end}), start must be less than or equal to end")
    if len(items) < end:
        raise CelRuntimeError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]


def _flatten(budget: Budget, items: Value, depth: Value = 1) -> tuple[Value, ...]:
    if type(items) is not tuple or type(depth) is not int:
        raise no_overload("flatten", items, depth)
    if depth < 0:
        raise CelRuntimeError("level must be non-negative")
    budget.labour(8 + len(items))
    made: list[Value] = []
    for item in items:
        if type(item) is tuple and depth:
            made.extend(_flatten(budget, item, depth - 1))
        else:
            made.append(item)
    budget.labour(len(made))
    return tuple(made)


def _sort(budget: Budget, items: Value) -> tuple[Value, ...]:
    return _sort_by(budget, items, items)


def _sort_by(budget: Budget, items: Value, keys: Value) -> tuple[Value, ...]:
    if type(items) is not tuple or type(keys) is not tuple:
        raise no_overload("sort", items, keys)
    if len(items) != len(keys):
        raise CelRuntimeError("sortBy() needs as many keys as items")
    if not items:
        return items
    if type(keys[0]) not in ORDERED:
        raise CelRuntimeError("list elements must be comparable")
    if len(keys) > 1 and any(type(key) is not type(keys[0]) for key in keys):
        raise CelRuntimeError("list elements must have the same type")

    budget.labour(10 * len(keys) * len(keys).bit_length())
    budget.walk(keys)

    def by_key(one: int, other: int) -> int:
        return _lenient(keys[one], keys[other])

    return tuple([items[index] for index in sorted(range(len(keys)), key=cmp_to_key(by_key))])


def _lenient(left: Value, right: Value) -> int:
    """NaN counts as equal to everything."""
    try:
        return compare(left, right)
    except CelRuntimeError:
        return 0


_LONGEST_RANGE = 1_000_000


def _range(*, bounded: bool) -> Callable[[int], tuple[Value, ...]]:
    """`bounded`: refuse what is negative or too long, as cel-go does since 0.29."""

    def call(count: int) -> tuple[Value, ...]:
        if count < 0 and bounded:
            raise CelRuntimeError(f"lists.range: size must be non-negative, got {count}")
        if count > _LONGEST_RANGE:
            raise CelRuntimeError("lists.range: the list is too long") if bounded else too_dear()
        return tuple(range(max(count, 0)))

    return call


def _distinct(budget: Budget, items: tuple[Value, ...]) -> tuple[Value, ...]:
    kept: list[Value] = []
    for item in items:
        budget.labour(len(kept))
        if not any(equals(item, other, budget) is True for other in kept):
            kept.append(item)
    return tuple(kept)


def _made_cost(_: Sequence[Value], result: Value) -> int:
    return size(result) + 11


def _flatten_cost(*, bounded: bool) -> Cost:
    def cost(arguments: Sequence[Value], _: Value) -> int:
        depth = arguments[1] if len(arguments) == 2 else 1
        if type(depth) is not int:
            raise too_dear()  # upstream panics
        if depth < 0 and bounded:
            depth = 1
        amount = (_go_uint(float(size(arguments[0])) * float(depth)) + 11) % 2**64
        return amount if amount < 2**63 else amount - 2**64  # costs are summed up modulo 2^64

    return cost


def _compared(index: int) -> Cost:
    """Every pair of a list's items."""

    def cost(arguments: Sequence[Value], _: Value) -> int:
        items = arguments[index]
        if items is FAILED or type(items) is not tuple:
            raise too_dear()  # upstream panics
        factor = 2.1 if items and type(items[0]) in {str, bytes} else 2.0
        return int(float(len(items) ** 2) * factor) + 11

    return cost


def _go_uint(value: float) -> int:
    """Go's conversion of a double to an unsigned integer on amd64, for costs below 0 or beyond 64 bits."""
    return int(value) % 2**64 if -(2.0**63) <= value < 2.0**64 else 2**63


def _allocating(factor: float, length: Range) -> Estimate:
    return Estimate(length.scaled(factor).plus(fixed(11)), length)


def _slice_estimate(sizes: Sizes, receiver: Sized | None, arguments: Sequence[Sized]) -> Estimate | None:
    if receiver is None or len(arguments) != 2:
        return None
    end = literal_number(arguments[1], sizes.of(receiver).high)
    return _allocating(1, fixed((end - literal_number(arguments[0], 0)) % 2**64))


def _range_estimate(_: Sizes, __: Sized | None, arguments: Sequence[Sized]) -> Estimate:
    return _allocating(1, fixed(literal_number(arguments[0], UINT_MAXIMUM)))


def _flatten_estimate(sizes: Sizes, receiver: Sized | None, arguments: Sequence[Sized]) -> Estimate | None:
    if receiver is None:
        return None
    depth = literal_number(arguments[0], UINT_MAXIMUM) if arguments else 1
    return _allocating(float(depth), sizes.of(receiver))


def _reverse_estimate(sizes: Sizes, receiver: Sized | None, _: Sequence[Sized]) -> Estimate | None:
    return None if receiver is None else _allocating(1, sizes.of(receiver))


def _pairs_estimate(factor: float, *, of_argument: bool = False) -> Estimator:
    def estimate(sizes: Sizes, receiver: Sized | None, arguments: Sequence[Sized]) -> Estimate | None:
        if receiver is None:
            return None
        length = sizes.of(arguments[0] if of_argument else receiver)
        return _allocating(factor, length.times(length))

    return estimate


def _sorting(name: str, suffix: str, call: Callable[..., Value], *, by: bool) -> Function:
    return function(
        name,
        *(
            method(
                f"list_{kind.name}_{suffix}",
                (_LIST, list_of(kind)) if by else (list_of(kind),),
                _LIST if by else list_of(kind),
                cost=_compared(1 if by else 0),
                estimate=_pairs_estimate(2.1 if kind in {STRING, BYTES} else 2.0, of_argument=by),
            )
            for _, kind in COMPARABLE
        ),
        dynamic=call,
        budgeted=True,
    )


def _first(items: tuple[Value, ...]) -> OptionalValue:
    return OptionalValue(items[0]) if items else ABSENT


def _last(items: tuple[Value, ...]) -> OptionalValue:
    return OptionalValue(items[-1]) if items else ABSENT


def lists(*, bounded: bool) -> tuple[Function, ...]:
    """`bounded`: see `_range`; flatten() to a negative depth then costs as to the depth 1."""
    return (
        function(
            "lists.range",
            overload(
                "lists_range",
                (INT,),
                list_of(INT),
                _range(bounded=bounded),
                cost=_made_cost,
                estimate=_range_estimate,
            ),
        ),
        _flattening(_flatten_cost(bounded=bounded)),
        *_LISTS,
    )


def _flattening(cost: Cost) -> Function:
    return function(
        "flatten",
        method("list_flatten", (list_of(_LIST),), _LIST, cost=cost, estimate=_flatten_estimate),
        method("list_flatten_int", (list_of(DYN), INT), list_of(DYN), cost=cost, estimate=_flatten_estimate),
        dynamic=_flatten,
        budgeted=True,
    )


_LISTS = (
    function(
        "slice",
        method("list_slice", (_LIST, INT, INT), _LIST, _slice, cost=_made_cost, estimate=_slice_estimate),
    ),
    _sorting("sort", "sort", _sort, by=False),
    _sorting("@sortByAssociatedKeys", "sortByAssociatedKeys", _sort_by, by=True),
    function(
        "reverse",
        method(
            "list_reverse",
            (_LIST,),
            _LIST,
            lambda items: items[::-1],
            cost=_made_cost,
            estimate=_reverse_estimate,
        ),
    ),
    function(
        "distinct",
        method(
            "list_distinct",
            (_LIST,),
            _LIST,
            _distinct,
            budgeted=True,
            cost=_compared(0),
            estimate=_pairs_estimate(2.0),
        ),
    ),
    *(
        function(
            name,
            method(
                f"list_{name}",
                (_LIST,),
                optional_of(_T),
                call,
            ),
        )
        for name, call in (("first", _first), ("last", _last))
    ),
)
