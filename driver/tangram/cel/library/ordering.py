"""The order of values: `<` and its kin, isSorted(), sort(), min() and max()."""

import math

from tangram.base.errors import CelRuntimeError
from tangram.cel.types import BOOL, BYTES, DOUBLE, DURATION, INT, STRING, TIMESTAMP, UINT, Type
from tangram.cel.values import NUMBERS, Duration, Timestamp, Uint, Value, no_overload

ORDERED = frozenset({bool, int, Uint, float, str, bytes, Duration, Timestamp})
"""Types whose values have an order among themselves."""
COMPARABLE: tuple[tuple[str, Type], ...] = (
    ("int", INT),
    ("uint", UINT),
    ("double", DOUBLE),
    ("bool", BOOL),
    ("duration", DURATION),
    ("timestamp", TIMESTAMP),
    ("string", STRING),
    ("bytes", BYTES),
)
"""The same types as selectors are checked with, by the names that they have in overloads."""


def compare(left: Value, right: Value) -> int:
    """-1, 0 or 1. Raises CelRuntimeError for types without an order, and for NaN."""
    kind, other = type(left), type(right)
    if kind in NUMBERS and other in NUMBERS:
        if kind is float or other is float:
            left, right = float(left), float(right)
            if math.isnan(left) or math.isnan(right):
                raise CelRuntimeError("NaN has no order")
    elif kind is not other or kind not in ORDERED:
        raise no_overload("compare", left, right)
    elif kind is Timestamp:
        left, right = left[:2], right[:2]
    return int(left > right) - int(left < right)
