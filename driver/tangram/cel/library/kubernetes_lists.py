"""Kubernetes' list library: isSorted(), sum(), min(), max(), indexOf() and, from 1.36 on, includes()."""

from collections.abc import Callable, Sequence

from tangram.base.errors import CelRuntimeError
from tangram.cel.declarations import function, method
from tangram.cel.equality import equals
from tangram.cel.estimate import Estimate, Range, Sized, Sizes
from tangram.cel.library.arithmetic import add
from tangram.cel.library.ordering import COMPARABLE, ORDERED, compare
from tangram.cel.library.strings import index_cost, walk_estimate
from tangram.cel.types import (
    BOOL,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    UINT,
    Type,
    list_of,
    parameter,
)
from tangram.cel.values import (
    Budget,
    Duration,
    Uint,
    Value,
    no_overload,
)

_A = parameter("A")
_SUMMABLE: tuple[tuple[str, Type, Value], ...] = (
    ("int", INT, 0),
    ("uint", UINT, Uint(0)),
    ("double", DOUBLE, 0.0),
    ("duration", DURATION, Duration(0)),
)
_MAXIMUM_INCLUDES = 48
"""Values of an attribute that is a list (resource/v1)."""


def _is_sorted(budget: Budget, items: tuple[Value, ...]) -> bool:
    budget.labour(6 * len(items))
    previous: Value = None
    for index, item in enumerate(items):
        if type(item) not in ORDERED:
            raise no_overload("isSorted", item)
        if index:
            try:
                if compare(previous, item) > 0:
                    return False
            except CelRuntimeError:
                pass  # as upstream
        previous = item
    return True


def _sum(zero: Value) -> Callable[[Budget, Value], Value]:
    def call(budget: Budget, items: tuple[Value, ...]) -> Value:
        budget.labour(6 * len(items))
        total = zero
        for item in items:
            total = add(budget, total, item)
        return total

    return call


def _extreme(name: str, sign: int) -> Callable[[Budget, Value], Value]:
    def call(budget: Budget, items: tuple[Value, ...]) -> Value:
        budget.labour(6 * len(items))
        if not items:
            raise CelRuntimeError(f"{name} called on empty list")
        best: Value = None
        for index, item in enumerate(items):
            if type(item) not in ORDERED:
                raise no_overload(name, item)
            if index == 0:
                best = item
                continue
            try:
                if compare(best, item) == -sign:
                    best = item
            except CelRuntimeError:
                pass  # as upstream
        return best

    return call


def _index_of(budget: Budget, items: tuple[Value, ...], wanted: Value) -> int:
    budget.labour(6 * len(items))
    return next((i for i, item in enumerate(items) if equals(item, wanted, budget) is True), -1)


def _last_index_of(budget: Budget, items: tuple[Value, ...], wanted: Value) -> int:
    budget.labour(6 * len(items))
    backwards = range(len(items) - 1, -1, -1)
    return next((i for i in backwards if equals(items[i], wanted, budget) is True), -1)


def _includes(*, bounded: bool) -> Callable[[Budget, Value, Value], bool]:
    def call(budget: Budget, target: Value, wanted: Value) -> bool:
        if type(target) is not tuple:
            return equals(target, wanted, budget) is True
        budget.labour(6 * len(target))
        for index, item in enumerate(target):
            if bounded and index >= _MAXIMUM_INCLUDES:
                raise CelRuntimeError(
                    f"includes() cannot be applied to lists longer than {_MAXIMUM_INCLUDES} values"
                )
            if equals(item, wanted, budget) is True:
                return True
        return False

    return call


def _includes_estimate(_: Sizes, receiver: Sized | None, __: Sequence[Sized]) -> Estimate | None:
    return None if receiver is None else Estimate(Range(0, _MAXIMUM_INCLUDES))


def _includes_walk(sizes: Sizes, receiver: Sized | None, arguments: Sequence[Sized]) -> Estimate | None:
    if receiver is None or sizes.items(receiver) is not None:
        return walk_estimate(sizes, receiver, arguments)
    return Estimate(sizes.of(receiver))


INCLUDES_36 = (
    function(
        "includes",
        method("dra_includes_dyn_dyn", (DYN, DYN), BOOL, _includes(bounded=True), budgeted=True),
        estimate=_includes_estimate,
    ),
)
"""As Kubernetes 1.36 has it: for attributes that are lists."""
INCLUDES_37 = (
    function(
        "includes",
        method("list_includes_dyn_dyn", (DYN, DYN), BOOL, _includes(bounded=False), budgeted=True),
        cost=index_cost,
        walks=True,
        estimate=_includes_walk,
    ),
)
"""Since Kubernetes 1.37: for any list."""

KUBERNETES_LISTS = (
    function(
        "isSorted",
        *(
            method(f"list_{n}_is_sorted_bool", (list_of(t),), BOOL, _is_sorted, budgeted=True)
            for n, t in COMPARABLE
        ),
        cost=index_cost,
        walks=True,
        estimate=walk_estimate,
    ),
    function(
        "sum",
        *(
            method(f"list_{n}_sum_{n}", (list_of(t),), t, _sum(zero), budgeted=True)
            for n, t, zero in _SUMMABLE
        ),
        cost=index_cost,
        walks=True,
        estimate=walk_estimate,
    ),
    *(
        function(
            name,
            *(
                method(f"list_{n}_{name}_{n}", (list_of(t),), t, _extreme(name, sign), budgeted=True)
                for n, t in COMPARABLE
            ),
            cost=index_cost,
            walks=True,
            estimate=walk_estimate,
        )
        for name, sign in (("max", 1), ("min", -1))
    ),
    function("indexOf", method("list_a_index_of_int", (list_of(_A), _A), INT, _index_of, budgeted=True)),
    function(
        "lastIndexOf",
        method("list_a_last_index_of_int", (list_of(_A), _A), INT, _last_index_of, budgeted=True),
    ),
)
