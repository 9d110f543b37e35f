"""When values are equal, and how maps find their keys."""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from tangram.base.errors import CelRuntimeError
from tangram.cel.types import Type
from tangram.cel.values import (
    ABSENT,
    BROKEN,
    INT_MAXIMUM,
    INT_MINIMUM,
    MAPS,
    NUMBERS,
    Address,
    Budget,
    Domains,
    Duration,
    NamedFormat,
    OptionalValue,
    Prefix,
    Sum,
    Timestamp,
    Uint,
    Url,
    Value,
    type_name,
)
from tangram.model.semver import SemVer


def equals(left: Value, right: Value, budget: Budget) -> bool | None:  # noqa: PLR0911 - one per kind
    """CEL's `==`: numbers compare across types, values of other different types are not equal.

    None stands for an error: a quantity, version, URL, address or format compared with another type. As a
    member of a list or map, such a pair counts as equal, as upstream.
    """
    kind = type(left)
    if kind is type(right) and kind in _PLAIN:
        if kind in _TEXTS:
            budget.work += len(left) >> 8
        return bool(left == right)
    if left is None or right is None:
        return left is right
    if kind in NUMBERS:
        return type(right) in NUMBERS and _numbers_equal(left, right)
    if kind is tuple:
        return type(right) is tuple and _lists_equal(left, right, budget)
    if kind in MAPS:
        return type(right) in MAPS and _maps_equal(left, right, budget)
    if kind is OptionalValue:
        if type(right) is not OptionalValue or ABSENT in (left, right):
            return left is right
        budget.labour(1)
        return None if BROKEN in (left.value, right.value) else equals(left.value, right.value, budget)
    if kind in _OPAQUE:
        return _opaque_equal(left, right, budget)
    if kind is Timestamp and type(right) is Timestamp:
        return bool(left[:2] == right[:2])
    if kind is Type:
        return type(right) is Type and left.name == right.name
    return False


_PLAIN = frozenset({bool, int, str, float, bytes, Duration})
_TEXTS = frozenset({str, bytes})
_OPAQUE: Mapping[type, type] = {
    Fraction: Fraction,
    Sum: Fraction,
    SemVer: SemVer,
    Url: Url,
    Address: Address,
    Prefix: Prefix,
    NamedFormat: NamedFormat,
}
"""Types that only compare with one type, to others with an error."""


def _opaque_equal(left: Value, right: Value, budget: Budget) -> bool | None:
    if _OPAQUE[type(left)] is not type(right):
        return None
    if type(left) is SemVer:
        budget.work += len(left.text) >> 3
    return bool(left == right)


def _numbers_equal(left: int | float, right: int | float) -> bool:
    # cel-go converts the integer to double, which rounds; Python would compare exactly.
    if type(left) is float or type(right) is float:
        return float(left) == float(right)
    return left == right


def _lists_equal(left: tuple[Value, ...], right: tuple[Value, ...], budget: Budget) -> bool:
    if len(left) != len(right):
        return False
    budget.labour(4 + 8 * len(left))
    return all(equals(a, b, budget) is not False for a, b in zip(left, right, strict=True))


def _maps_equal(left: dict[Value, Value], right: dict[Value, Value], budget: Budget) -> bool:
    if len(left) != len(right):
        return False
    budget.labour(4 + 8 * len(left))
    for key, value in left.items():
        other = find(right, plain_key(key))
        if other is MISSING or equals(value, other, budget) is False:
            return False
    return True


def contains(items: Iterable[Value], wanted: Value, budget: Budget) -> bool:
    """True if one of the items equals the wanted value."""
    for item in items:
        budget.labour(8)
        if equals(wanted, item, budget) is True:
            return True
    return False


# --- maps --------------------------------------------------------------------------------------------------


class _Missing:
    __slots__ = ()


MISSING = _Missing()


def map_key(value: Value) -> Value:
    """The key under which a dict keeps an entry: True, 1, 1u and 1.0 are one key to Python, four to CEL.

    Raises CelRuntimeError for what cannot be a key.
    """
    kind = type(value)
    if kind is str or kind is int:
        return value
    if kind in _TAGS:
        return (_TAGS[kind], value)
    if kind in _UNEQUALLED:
        return _Key(value)
    raise CelRuntimeError(f"a value of type {type_name(value)} cannot be a key of a map")


_TAGS: Mapping[type, str] = {
    bool: "b",
    Uint: "u",
    float: "d",
    type(None): "n",
    Duration: "s",
    Timestamp: "t",
    Address: "a",
    Prefix: "p",
    Type: "y",
}
_UNEQUALLED = frozenset({Fraction, Sum, Url, tuple, dict, Domains, OptionalValue})
"""Types whose values may be keys, but no other value finds them."""


class _Key:
    """A key that is equal to itself only."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value


def plain_key(key: Value) -> Value:
    """The value that `map_key` made a key of."""
    if type(key) is tuple:
        return key[1]
    return key.value if type(key) is _Key else key


def find(entries: dict[Value, Value], key: Value) -> Value:
    """The value of a key, or MISSING. Numbers find the key of another numeric type that equals them."""
    kind = type(key)
    if kind is str:
        found = entries.get(key, MISSING)
    elif kind in NUMBERS:
        found = _find_number(entries, key)
    elif kind in _TAGS:
        found = entries.get((_TAGS[kind], key), MISSING)
    else:
        found = MISSING
    return found


def look_up(entries: dict[Value, Value], key: Value) -> Value:
    """As `find`, but a domain that the device lacks is an empty map."""
    found = find(entries, key)
    return {} if found is MISSING and type(entries) is Domains else found


def _find_number(entries: dict[Value, Value], key: int | float) -> Value:
    found = entries.get(map_key(key), MISSING)
    if found is not MISSING:
        return found
    if type(key) is float:
        if not key.is_integer():
            return MISSING
        whole = int(key)
        found = entries.get(whole, MISSING) if INT_MINIMUM <= whole < INT_MAXIMUM else MISSING
        if found is not MISSING:
            return found
        return entries.get(("u", Uint(whole)), MISSING) if whole >= 0 else MISSING
    if type(key) is Uint:
        return entries.get(int(key), MISSING)
    return entries.get(("u", Uint(key)), MISSING) if key >= 0 else MISSING
