"""Run-time values of CEL, and how they compare.

CEL type → Python type: bool → bool, int → int (64 bits), uint → Uint, double → float, string → str,
bytes → bytes, null → None, list → tuple, map → dict, optional → OptionalValue, and the two opaque types of
Kubernetes: quantity → Fraction, semver → SemVer.
"""

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from tangram.base.errors import CelBudgetError, CelRuntimeError
from tangram.model.semver import SemVer

Value = Any
"""A CEL value, see above: CEL is dynamically typed."""

INT_MINIMUM, INT_MAXIMUM = -(2**63), 2**63 - 1
UINT_MAXIMUM = 2**64 - 1


class Uint(int):
    """An unsigned 64-bit integer. Equal to the int of the same value, as CEL's numbers are."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{int(self)}u"


class OptionalValue:
    """`optional.of(value)`; `ABSENT` is `optional.none()`."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value


ABSENT = OptionalValue(None)


class Domains(dict[str, dict[str, Value]]):
    """`device.attributes` or `device.capacity` as a value: an unknown domain is an empty map."""

    __slots__ = ()

    def __missing__(self, key: object) -> dict[str, Value]:
        if isinstance(key, str):
            return {}
        raise KeyError(key)


_TYPE_NAMES: dict[type, str] = {
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null",
    tuple: "list",
    dict: "map",
    Domains: "map",
    OptionalValue: "optional",
    Fraction: "quantity",
    SemVer: "semver",
}
_NUMBERS = frozenset({int, Uint, float})
_MAPS = frozenset({dict, Domains})
_OPAQUE = frozenset({Fraction, SemVer})
_PLAIN = frozenset({bool, int, Uint, float, type(None), Fraction, SemVer})
"""Types whose values compare with `==` among themselves, at a bounded price."""
_ORDERED = frozenset({bool, int, Uint, float, str, bytes})
_FREE_LENGTH = 100
"""Strings up to this length are compared for free; the budget pays for longer ones."""


def type_name(kind: type) -> str:
    """CEL's name of a run-time type."""
    return _TYPE_NAMES.get(kind, kind.__name__)


class Budget:
    """What one evaluation may still spend, in units of about 0.1 µs."""

    __slots__ = ("left",)
    left: int

    def spend(self, units: int) -> None:
        """Raises CelBudgetError once everything is spent."""
        self.left -= units
        if self.left < 0:
            raise CelBudgetError(
                "the expression costs too much to evaluate",
                next_step="use fewer or shorter lists inside all(), exists(), map() and filter()",
            )


def equal(left: Value, right: Value, budget: Budget) -> bool:
    """CEL's `==`: numbers compare across types; values of other different types are not equal.

    Raises CelRuntimeError where a quantity or semver is compared with anything else but null, as upstream.
    """
    kind = type(left)
    if kind in _OPAQUE and kind is not type(right) and right is not None:
        raise CelRuntimeError(
            f"no such overload: {type_name(kind)} == {type_name(type(right))}",
            next_step=f'write {type_name(kind)}("…") around the other side',
        )
    return same(left, right, budget)


def same(left: Value, right: Value, budget: Budget) -> bool:
    """As `equal`, for `!=`, `in` and members of containers: nothing is an error."""
    kind = type(left)
    if kind is type(right) and (kind in _PLAIN or (kind is str and len(left) <= _FREE_LENGTH)):
        return bool(left == right)
    pending = [(left, right)]
    while pending:
        a, b = pending.pop()
        kind = type(a)
        if kind is not type(b):
            if kind in _NUMBERS and type(b) in _NUMBERS:
                if not _numbers_equal(a, b):
                    return False
                continue
            if not (kind in _MAPS and type(b) in _MAPS):
                return False
        if kind in _PLAIN:
            if a != b:
                return False
        elif not _same_shape(a, b, kind, pending, budget):
            return False
    return True


def _same_shape(a: Value, b: Value, kind: type, pending: list[tuple[Value, Value]], budget: Budget) -> bool:
    """Compares two strings, or the outsides of two containers; their members go to `pending`."""
    if kind is OptionalValue:
        if (a is ABSENT) != (b is ABSENT):
            return False
        budget.spend(1)
        pending.append((a.value, b.value))
        return True
    if len(a) != len(b):
        return False
    if kind is tuple:
        budget.spend(1 + len(a))
        pending.extend(zip(a, b, strict=True))
        return True
    if kind in _MAPS:
        budget.spend(1 + len(a))
        if a.keys() != b.keys():
            return False
        pending.extend((value, b[key]) for key, value in a.items())
        return True
    if len(a) > _FREE_LENGTH:
        budget.spend(len(a) // 10)
    return bool(a == b)


def _numbers_equal(a: int | float, b: int | float) -> bool:
    # cel-go converts the integer to double, which rounds; Python would compare exactly.
    if type(a) is float or type(b) is float:
        return float(a) == float(b)
    return a == b


def compare(operator: str, left: Value, right: Value, budget: Budget) -> bool:
    """`<`, `<=`, `>` or `>=`. Raises CelRuntimeError for types without an order, and for NaN."""
    kind, other = type(left), type(right)
    if kind is not other or kind not in _ORDERED:
        if kind not in _NUMBERS or other not in _NUMBERS:
            raise CelRuntimeError(f"no such overload: {type_name(kind)} {operator} {type_name(other)}")
        if kind is float or other is float:
            left, right = float(left), float(right)
    if type(left) is float and (math.isnan(left) or math.isnan(right)):
        raise CelRuntimeError("NaN has no order")
    if kind in {str, bytes} and len(left) > _FREE_LENGTH:
        budget.spend(len(left) // 10)
    match operator:
        case "<":
            return bool(left < right)
        case "<=":
            return bool(left <= right)
        case ">":
            return bool(left > right)
        case _:
            return bool(left >= right)


def map_key(value: Value) -> Value:
    """The key under which a dict keeps an entry: True and 1 are one key to Python, two to CEL.

    Raises TypeError for a value that is no key.
    """
    if type(value) is str:
        return value
    if type(value) is bool:
        return (value,)
    if type(value) in _NUMBERS:
        return value
    raise TypeError


def elements(value: Value, budget: Budget) -> Iterable[Value]:
    """What a macro iterates over: the items of a list, the keys of a map in a fixed order."""
    if type(value) is tuple:
        return value
    if type(value) in _MAPS:
        budget.spend(len(value))
        keys = (key[0] if type(key) is tuple else key for key in value)
        return sorted(keys, key=lambda key: (type(key).__name__, key))
    raise CelRuntimeError(f"a macro cannot iterate over a value of type {type_name(type(value))}")


def contains(value: Value, container: Value, budget: Budget) -> bool:
    """`value in container`."""
    kind = type(container)
    if kind in _MAPS:
        try:
            return map_key(value) in container
        except TypeError:
            return False
    if kind is not tuple:
        raise CelRuntimeError(f"no such overload: {type_name(type(value))} in {type_name(kind)}")
    if type(value) is str:
        budget.spend(len(container) * (1 + len(value) // 10))
        return value in container
    for item in container:
        budget.spend(1)
        if same(value, item, budget):
            return True
    return False
