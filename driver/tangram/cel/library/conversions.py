"""Conversions between types: `int("5")`, `string(1.5)`, `type(x)`, `dyn(x)`.

On a constant that does not convert, compilation fails, as upstream.
"""

import math
import re
from collections.abc import Callable
from decimal import Decimal

from tangram.base.errors import CelRuntimeError
from tangram.cel.declarations import Function, function, overload, per_character
from tangram.cel.estimate import Estimate, Range, Sized, Sizes
from tangram.cel.library import times
from tangram.cel.library.arithmetic import checked_int, checked_uint
from tangram.cel.types import (
    BOOL,
    BYTES,
    CIDR,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    IP,
    STRING,
    TIMESTAMP,
    UINT,
    Type,
    parameter,
    type_of,
)
from tangram.cel.values import UINT_MAXIMUM, Uint, Value, kind_of

CONVERSIONS = frozenset(
    {"bool", "bytes", "double", "dyn", "duration", "int", "string", "timestamp", "type", "uint"}
)
"""Functions whose calls with one constant are constants."""
_A = parameter("A")
_DIGITS = re.compile(r"[+-]?[0-9]+")
_D, _X = r"[0-9](?:_?[0-9])*", r"[0-9a-f](?:_?[0-9a-f])*"
_DECIMAL = re.compile(
    rf"[+-]?(?:{_D}\.?(?:{_D})?|\.{_D})(?:e[+-]?{_D})?|[+-]?inf(?:inity)?|nan", re.IGNORECASE
)
_HEXADECIMAL = re.compile(rf"[+-]?0x_?(?:{_X}\.?(?:{_X})?|\.{_X})p[+-]?{_D}", re.IGNORECASE)
_BOOLS = dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "false", "FALSE", "False"), False
)


def _convert_error(text: str, wanted: str) -> CelRuntimeError:
    shown = text if len(text) <= 40 else text[:39] + "…"
    return CelRuntimeError(f"{shown!r} does not convert to {wanted}")


def _parse_int(text: str) -> int:
    if len(text) > 400 or not _DIGITS.fullmatch(text):
        raise _convert_error(text, "int")
    return checked_int(int(text))


def _parse_uint(text: str) -> Uint:
    if len(text) > 400 or not _DIGITS.fullmatch(text) or text[0] in "+-":
        raise _convert_error(text, "uint")
    return checked_uint(int(text))


def _truncate(value: float) -> int:
    # cel-go refuses both ends of the range: they are not exact as doubles.
    if not -(2.0**63) < value < 2.0**63:
        raise CelRuntimeError("integer overflow")
    return int(value)


def _truncate_unsigned(value: float) -> Uint:
    if not 0 <= value < 2.0**64:
        raise CelRuntimeError("unsigned integer overflow")
    return Uint(int(value))


def _parse_double(text: str) -> float:
    if len(text) <= 2000:
        if _HEXADECIMAL.fullmatch(text):
            return float.fromhex(text.replace("_", ""))
        if _DECIMAL.fullmatch(text):
            value = float(text)
            if not math.isinf(value) or "i" in text.lower():
                return value
    raise _convert_error(text, "double")


def _parse_bool(text: str) -> bool:
    if text not in _BOOLS:
        raise _convert_error(text, "bool")
    return _BOOLS[text]


def _decode(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise CelRuntimeError("the bytes are no UTF-8 text") from None


def _identity(value: Value) -> Value:
    return value


def format_double(value: float) -> str:
    """The shortest text that reads back as the same double, written as Go's `%g`."""
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


def _whole(value: int) -> str:
    return str(int(value))


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _of_size(shrink: int, grow: int) -> Callable[..., Estimate]:
    """One walk over the argument; the result may be `shrink` times shorter or `grow` times longer."""

    def estimate(_: Sizes, __: Sized | None, arguments: tuple[Sized, ...]) -> Estimate:
        known = arguments[0].computed or Range(0, UINT_MAXIMUM)
        # Go multiplies without a check, so the unknown wraps around.
        size = Range(known.low // shrink, known.high * grow % 2**64)
        return Estimate(known.scaled(0.1), size)

    return estimate


_Conversion = tuple[str, Type, Callable[[Value], Value]]


def _conversion(name: str, result: Type, *sources: _Conversion) -> Function:
    costs = {"string_to_bytes": _of_size(1, 4), "bytes_to_string": _of_size(4, 1)}
    return function(
        name,
        *(
            overload(
                id_,
                (source,),
                result,
                call,
                cost=per_character(0) if id_ in costs else None,
                estimate=costs.get(id_),
            )
            for id_, source, call in sources
        ),
    )


def _fail_duration(value: int) -> Value:
    raise _convert_error(str(value), "duration")


def conversions(*, integer_durations: bool) -> tuple[Function, ...]:
    """`integer_durations`: whether `duration(nanoseconds)` is declared, though it never converts."""
    durations: list[_Conversion] = [("duration_to_duration", DURATION, _identity)]
    if integer_durations:
        durations.append(("int64_to_duration", INT, _fail_duration))
    durations.append(("string_to_duration", STRING, times.parse_duration))
    return (
        function("type", overload("type", (_A,), type_of(_A)), dynamic=kind_of),
        function("dyn", overload("to_dyn", (_A,), DYN), dynamic=_identity),
        _conversion("duration", DURATION, *durations),
        _conversion(
            "timestamp",
            TIMESTAMP,
            ("timestamp_to_timestamp", TIMESTAMP, _identity),
            ("int64_to_timestamp", INT, times.checked_timestamp),
            ("string_to_timestamp", STRING, times.parse_timestamp),
        ),
        *_CONVERSIONS,
    )


_CONVERSIONS = (
    _conversion("bool", BOOL, ("bool_to_bool", BOOL, _identity), ("string_to_bool", STRING, _parse_bool)),
    _conversion("bytes", BYTES, ("bytes_to_bytes", BYTES, _identity), ("string_to_bytes", STRING, _to_bytes)),
    _conversion(
        "double",
        DOUBLE,
        ("double_to_double", DOUBLE, _identity),
        ("int64_to_double", INT, float),
        ("string_to_double", STRING, _parse_double),
        ("uint64_to_double", UINT, float),
    ),
    _conversion(
        "int",
        INT,
        ("int64_to_int64", INT, _identity),
        ("double_to_int64", DOUBLE, _truncate),
        ("duration_to_int64", DURATION, lambda value: value.nanoseconds),
        ("string_to_int64", STRING, _parse_int),
        ("timestamp_to_int64", TIMESTAMP, lambda value: value.seconds),
        ("uint64_to_int64", UINT, lambda value: checked_int(int(value))),
    ),
    _conversion(
        "string",
        STRING,
        ("string_to_string", STRING, _identity),
        ("bool_to_string", BOOL, lambda value: "true" if value else "false"),
        ("bytes_to_string", BYTES, _decode),
        ("double_to_string", DOUBLE, format_double),
        ("duration_to_string", DURATION, times.duration_text),
        ("int64_to_string", INT, _whole),
        ("timestamp_to_string", TIMESTAMP, times.timestamp_text),
        ("uint64_to_string", UINT, _whole),
        ("ip_to_string", IP, lambda value: str(value.address)),
        ("cidr_to_string", CIDR, lambda value: f"{value.address}/{value.length}"),
    ),
    _conversion(
        "uint",
        UINT,
        ("uint64_to_uint64", UINT, _identity),
        ("double_to_uint64", DOUBLE, _truncate_unsigned),
        ("int64_to_uint64", INT, checked_uint),
        ("string_to_uint64", STRING, _parse_uint),
    ),
)
