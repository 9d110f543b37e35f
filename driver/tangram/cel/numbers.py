"""Arithmetic and conversions of plain values, with the limits of 64-bit numbers and the errors of cel-go."""

import math
import re
from decimal import Decimal

from tangram.base.errors import CelRuntimeError
from tangram.cel.values import INT_MAXIMUM, INT_MINIMUM, UINT_MAXIMUM, Uint

_DIGITS = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[+-]?inf(?:inity)?|nan", re.IGNORECASE
)
_BOOLS = dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "false", "FALSE", "False"), False
)


def checked_int(value: int) -> int:
    if INT_MINIMUM <= value <= INT_MAXIMUM:
        return value
    raise CelRuntimeError("integer overflow")


def checked_uint(value: int) -> Uint:
    if 0 <= value <= UINT_MAXIMUM:
        return Uint(value)
    raise CelRuntimeError("unsigned integer overflow")


def quotient(left: int, right: int) -> int:
    """Rounded towards zero, as Go does."""
    if right == 0:
        raise CelRuntimeError("division by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def remainder(left: int, right: int) -> int:
    """With the sign of the dividend, as Go does."""
    if right == 0:
        raise CelRuntimeError("modulus by zero")
    checked_int(quotient(left, right))
    return left - right * quotient(left, right)


def divide_doubles(left: float, right: float) -> float:
    if right != 0:
        return left / right
    if left == 0 or math.isnan(left) or math.isnan(right):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _convert_error(text: str, wanted: str) -> CelRuntimeError:
    shown = text if len(text) <= 40 else text[:39] + "…"
    return CelRuntimeError(f"{shown!r} does not convert to {wanted}")


def parse_int(text: str) -> int:
    if len(text) > 40 or not _DIGITS.fullmatch(text):
        raise _convert_error(text, "int")
    return checked_int(int(text))


def parse_uint(text: str) -> Uint:
    if len(text) > 40 or not _DIGITS.fullmatch(text) or text[0] in "+-":
        raise _convert_error(text, "uint")
    return checked_uint(int(text))


def truncate(value: float) -> int:
    # cel-go refuses both ends of the range: they are not exact as doubles.
    if not -(2.0**63) < value < 2.0**63:
        raise CelRuntimeError("integer overflow")
    return int(value)


def truncate_unsigned(value: float) -> Uint:
    if not 0 <= value < 2.0**64:
        raise CelRuntimeError("unsigned integer overflow")
    return Uint(int(value))


def parse_double(text: str) -> float:
    if len(text) > 400 or not _DECIMAL.fullmatch(text):
        raise _convert_error(text, "double")
    value = float(text)
    if math.isinf(value) and "i" not in text.lower():
        raise _convert_error(text, "double")
    return value


def parse_bool(text: str) -> bool:
    if text not in _BOOLS:
        raise _convert_error(text, "bool")
    return _BOOLS[text]


def decode(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise CelRuntimeError("the bytes are no UTF-8 text") from None


def format_double(value: float) -> str:
    """The shortest text that reads back as the same double, written as Go's `%g`: exponents from 10⁶ on."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    sign = "-" if math.copysign(1, value) < 0 else ""
    shortest = Decimal(repr(abs(value)))
    digits = "".join(map(str, shortest.as_tuple().digits)).rstrip("0") or "0"
    power = shortest.adjusted() if shortest else 0
    if not -4 <= power < 6:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{fraction}e{power:+03d}"
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{digits}"
    whole, fraction = digits[: power + 1].ljust(power + 1, "0"), digits[power + 1 :]
    return f"{sign}{whole}.{fraction}" if fraction else sign + whole
