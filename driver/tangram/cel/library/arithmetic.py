"""Arithmetic, with the limits of 64-bit numbers and the errors of cel-go."""

import math
from collections.abc import Callable

from tangram.base.errors import CelRuntimeError
from tangram.cel.library import times
from tangram.cel.values import (
    INT_MAXIMUM,
    INT_MINIMUM,
    UINT_MAXIMUM,
    Budget,
    Duration,
    Timestamp,
    Uint,
    Value,
    no_overload,
)


def checked_int(value: int) -> int:
    if INT_MINIMUM <= value <= INT_MAXIMUM:
        return value
    raise CelRuntimeError("integer overflow")


def checked_uint(value: int) -> Uint:
    if 0 <= value <= UINT_MAXIMUM:
        return Uint(value)
    raise CelRuntimeError("unsigned integer overflow")


def _on_numbers(
    name: str,
    left: Value,
    right: Value,
    whole: Callable[[int, int], int],
    broken: Callable[[float, float], float] | None = None,
) -> Value:
    kind = type(left)
    if kind is type(right):
        if kind is int:
            return checked_int(whole(left, right))
        if kind is Uint:
            return checked_uint(whole(int(left), int(right)))
        if kind is float and broken is not None:
            return broken(left, right)
    raise no_overload(name, left, right)


def add(budget: Budget, left: Value, right: Value) -> Value:
    kind, other = type(left), type(right)
    if kind is other and kind in _JOINED:
        if kind is tuple:
            budget.labour((len(left) + len(right)) // 4)
        return left + right
    if kind is Duration and other is Duration:
        return times.checked_duration(left.nanoseconds + right.nanoseconds)
    if kind is Timestamp and other is Duration:
        return times.shifted(left, right.nanoseconds)
    if kind is Duration and other is Timestamp:
        return times.shifted(right, left.nanoseconds)
    return _on_numbers("+", left, right, int.__add__, float.__add__)


_JOINED = frozenset({str, bytes, tuple})


def subtract(left: Value, right: Value) -> Value:
    kind, other = type(left), type(right)
    if kind is Duration and other is Duration:
        return times.checked_duration(left.nanoseconds - right.nanoseconds)
    if kind is Timestamp and other is Duration:
        return times.shifted(left, -right.nanoseconds)
    if kind is Timestamp and other is Timestamp:
        return times.checked_duration(times.nanoseconds(left) - times.nanoseconds(right))
    return _on_numbers("-", left, right, int.__sub__, float.__sub__)


def multiply(left: Value, right: Value) -> Value:
    return _on_numbers("*", left, right, int.__mul__, float.__mul__)


def divide(left: Value, right: Value) -> Value:
    return _on_numbers("/", left, right, _quotient, _divide_doubles)


def modulo(left: Value, right: Value) -> Value:
    return _on_numbers("%", left, right, _remainder)


def negate(value: Value) -> Value:
    if type(value) is int:
        return checked_int(-value)
    if type(value) is float:
        return -value
    if type(value) is Duration:
        return times.checked_duration(-value.nanoseconds)
    raise no_overload("-", value)


def _quotient(left: int, right: int) -> int:
    """Rounded towards zero, as Go does."""
    if right == 0:
        raise CelRuntimeError("division by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: int, right: int) -> int:
    """With the sign of the dividend, as Go does."""
    if right == 0:
        raise CelRuntimeError("modulus by zero")
    return left - right * checked_quotient(left, right)


def checked_quotient(left: int, right: int) -> int:
    if left == INT_MINIMUM and right == -1:
        raise CelRuntimeError("integer overflow")
    return _quotient(left, right)


def _divide_doubles(left: float, right: float) -> float:
    if right != 0:
        return left / right
    if left == 0 or math.isnan(left) or math.isnan(right):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)
