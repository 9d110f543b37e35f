"""Durations and timestamps: their texts, arithmetic and parts, as Go's package `time` has them."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal

from tangram.base.errors import CelRuntimeError
from tangram.cel.declarations import Function, Overload, function, method
from tangram.cel.types import DURATION, INT, STRING, TIMESTAMP
from tangram.cel.values import INT_MAXIMUM, INT_MINIMUM, Duration, Timestamp, Value

_SECOND = 10**9
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799
"""From the year 1 to the year 9999."""
_DAY_S = 86_400
_CYCLE_S = 146_097 * _DAY_S
"""400 years."""
_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": _SECOND}
_UNITS |= {"m": 60 * _SECOND, "h": 3600 * _SECOND}
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_RFC3339 = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})T(\d{1,2}):(\d{2}):(\d{2})(?:[.,](\d+))?(?:(Z)|([+-])(\d{2}):(\d{2}))",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAXIMUM_TEXT = 200


def checked_duration(nanoseconds: int) -> Duration:
    if INT_MINIMUM <= nanoseconds <= INT_MAXIMUM:
        return Duration(nanoseconds)
    raise CelRuntimeError("duration overflow")


def checked_timestamp(seconds: int, nanoseconds: int = 0, offset_s: int = 0) -> Timestamp:
    if _FIRST_S <= seconds <= _LAST_S:
        return Timestamp(seconds, nanoseconds, offset_s)
    raise CelRuntimeError("timestamp overflow")


def nanoseconds(moment: Timestamp) -> int:
    """Since 1970."""
    return moment.seconds * _SECOND + moment.nanoseconds


def shifted(moment: Timestamp, by_ns: int) -> Timestamp:
    seconds, rest = divmod(nanoseconds(moment) + checked_duration(by_ns).nanoseconds, _SECOND)
    return checked_timestamp(seconds, rest, moment.offset_s)


def parse_duration(text: str) -> Duration:
    """Such as `1h30m`, `-1.5s` or `0`."""
    rest = text[1:] if text[:1] in {"-", "+"} else text
    if rest == "0":
        return Duration(0)
    total = position = 0
    while position < len(rest) <= _MAXIMUM_TEXT:
        match = _PART.match(rest, position)
        if match is None or not (match[1] or match[2]):
            break
        unit, fraction = _UNITS[match[3]], match[2] or ""
        # Go adds the fraction as a truncated double.
        total += int(match[1] or 0) * unit + int(int(fraction or 0) * (unit / 10 ** len(fraction)))
        position = match.end()
    negative = text.startswith("-")
    if position == 0 or position < len(rest) or total > INT_MAXIMUM + negative:
        raise CelRuntimeError(f"{text[:40]!r} does not convert to duration")
    return Duration(-total if negative else total)


def parse_timestamp(text: str) -> Timestamp:
    """RFC 3339."""
    match = _RFC3339.fullmatch(text)
    if match is not None and (match[8] or (int(match[10]) <= 24 and int(match[11]) <= 60)):
        year, month, day, hour, minute, second = map(int, match.groups()[:6])
        offset_s = 0
        if not match[8]:
            offset_s = (int(match[10]) * 3600 + int(match[11]) * 60) * (-1 if match[9] == "-" else 1)
        try:
            moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        except ValueError:
            pass
        else:
            seconds = int((moment - _EPOCH).total_seconds()) - offset_s
            return checked_timestamp(seconds, int((match[7] or "").ljust(9, "0")[:9]), offset_s)
    raise CelRuntimeError(f"{text[:40]!r} does not convert to timestamp")


def duration_text(value: Duration) -> str:
    """Seconds in decimal, the shortest that read back as the same double."""
    whole, rest = divmod(abs(value.nanoseconds), _SECOND)
    seconds = float(whole) + float(rest) / 1e9
    text = f"{Decimal(repr(seconds)):f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return ("-" if value.nanoseconds < 0 else "") + text + "s"


def timestamp_text(moment: Timestamp) -> str:
    """RFC 3339 in the zone that it was written in, without trailing zeros."""
    local = _local(moment, timezone(timedelta(seconds=moment.offset_s)))
    fraction = f".{moment.nanoseconds:09d}".rstrip("0").rstrip(".")
    sign, minutes = ("-" if moment.offset_s < 0 else "+"), abs(moment.offset_s) // 60
    zone = "Z" if moment.offset_s == 0 else f"{sign}{minutes // 60:02d}:{minutes % 60:02d}"
    return f"{_year(local):04d}-{local:%m-%dT%H:%M:%S}{fraction}{zone}"


def _local(moment: Timestamp, zone: tzinfo) -> datetime:
    """The fields of a date in a zone. Python's calendar ends in the year 9999, so that the first and the last
    day are looked up in years that begin on the same day.
    """
    seconds = moment.seconds
    if seconds < _FIRST_S + _DAY_S or seconds > _LAST_S - _DAY_S:
        cycle = _CYCLE_S if seconds < 0 else -_CYCLE_S
        date = (_EPOCH + timedelta(seconds=seconds + cycle)).astimezone(zone)
        return _Shifted(date, -400 if seconds < 0 else 400)
    return (_EPOCH + timedelta(seconds=seconds)).astimezone(zone)


class _Shifted(datetime):
    """A date whose year is `shift` more than it says."""

    shift: int

    def __new__(cls, date: datetime, shift: int) -> "_Shifted":
        made = super().__new__(
            cls, date.year, date.month, date.day, date.hour, date.minute, date.second, tzinfo=date.tzinfo
        )
        made.shift = shift
        return made


def _year(date: datetime) -> int:
    return date.year + (date.shift if isinstance(date, _Shifted) else 0)


def _zone(name: str) -> tzinfo:
    hours, colon, minutes = name.partition(":")
    if not colon:
        return _named_zone(name)
    if not (re.fullmatch(r"[+-]?[0-9]{1,9}", hours) and re.fullmatch(r"[+-]?[0-9]{1,9}", minutes)):
        raise CelRuntimeError(f"{name[:40]!r} is not the offset of a time zone")
    signed = -int(minutes) if name.startswith("-") else int(minutes)
    try:
        return timezone(timedelta(minutes=int(hours) * 60 + signed))
    except ValueError:
        raise CelRuntimeError(f"{name[:40]!r} is not the offset of a time zone") from None


def _named_zone(name: str) -> tzinfo:
    if name in {"", "UTC"}:
        return UTC
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - hardly any selector names a time zone

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise CelRuntimeError(f"there is no time zone {name[:40]!r}") from None


_PARTS: tuple[tuple[str, str, Callable[[datetime], int]], ...] = (
    ("getFullYear", "year", _year),
    ("getMonth", "month", lambda date: date.month - 1),
    ("getDayOfYear", "day_of_year", lambda date: date.timetuple().tm_yday - 1),
    ("getDayOfMonth", "day_of_month", lambda date: date.day - 1),
    ("getDate", "day_of_month_1_based", lambda date: date.day),
    ("getDayOfWeek", "day_of_week", lambda date: date.isoweekday() % 7),
    ("getHours", "hours", lambda date: date.hour),
    ("getMinutes", "minutes", lambda date: date.minute),
    ("getSeconds", "seconds", lambda date: date.second),
)
_DURATION_PARTS = {"getHours": 3600 * _SECOND, "getMinutes": 60 * _SECOND, "getSeconds": _SECOND}


def _truncated(value: int, unit: int) -> int:
    return value // unit if value >= 0 else -(-value // unit)


def _part(name: str, id_: str, read: Callable[[datetime], int]) -> Function:
    def here(moment: Value) -> int:
        return read(_local(moment, UTC))

    def there(moment: Value, zone: Value) -> int:
        return read(_local(moment, _zone(zone)))

    overloads: list[Overload] = [
        method(f"timestamp_to_{id_}", (TIMESTAMP,), INT, here),
        method(f"timestamp_to_{id_}_with_tz", (TIMESTAMP, STRING), INT, there),
    ]
    if name in _DURATION_PARTS:
        unit = _DURATION_PARTS[name]
        overloads.append(
            method(f"duration_to_{id_}", (DURATION,), INT, lambda span: _truncated(span.nanoseconds, unit))
        )
    return function(name, *overloads)


def _milliseconds_there(moment: Value, zone: Value) -> int:
    _zone(zone)
    return int(moment.nanoseconds // 10**6)


TIMES = (
    *(_part(name, id_, read) for name, id_, read in _PARTS),
    function(
        "getMilliseconds",
        method("timestamp_to_milliseconds", (TIMESTAMP,), INT, lambda moment: moment.nanoseconds // 10**6),
        method("timestamp_to_milliseconds_with_tz", (TIMESTAMP, STRING), INT, _milliseconds_there),
        method("duration_to_milliseconds", (DURATION,), INT, lambda s: _truncated(s.nanoseconds, 10**6)),
    ),
)
