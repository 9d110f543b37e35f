"""Run-time values of CEL.

CEL type → Python type: bool → bool, int → int (64 bits), uint → Uint, double → float, string → str,
bytes → bytes, null → None, list → tuple, map → dict (keys: see `map_key`), optional → OptionalValue, type →
Type, duration → Duration, timestamp → Timestamp, and the types of Kubernetes: quantity → Fraction, semver →
SemVer, URL → Url, IP and CIDR → Address and Prefix, format → NamedFormat.
"""

from collections.abc import Mapping
from datetime import datetime
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple

from tangram.base.errors import CelBudgetError, CelRuntimeError
from tangram.cel import types
from tangram.cel.types import Type
from tangram.model.semver import SemVer

Value = Any
"""A CEL value, see above: CEL is dynamically typed."""

INT_MINIMUM, INT_MAXIMUM = -(2**63), 2**63 - 1
UINT_MAXIMUM = 2**64 - 1


class Uint(int):
    """An unsigned 64-bit integer."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{int(self)}u"


class OptionalValue:
    """`optional.of(value)`; `ABSENT` is `optional.none()`."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def opened(self) -> Value:
        """What is inside. Raises CelRuntimeError where upstream has lost it."""
        if self.value is BROKEN:
            raise CelRuntimeError(
                "an optional read from a variable or a branch of ?: has lost its value, a type of Kubernetes",
                next_step="write the expression that makes the optional in place of the variable",
            )
        return self.value


ABSENT = OptionalValue(None)


class _Broken:
    __slots__ = ()


BROKEN = _Broken()
"""Inside of an optional, after Kubernetes before 1.37 has read it from a variable: see `native`."""


class Domains(dict[Value, Value]):
    """`device.attributes` or `device.capacity` as a value: a key that it lacks stands for an empty map."""

    __slots__ = ()


class Duration(NamedTuple):
    """A signed span of time; `nanoseconds` fits 64 bits."""

    nanoseconds: int


class Timestamp(NamedTuple):
    """A moment: `seconds` since 1970 (UTC), `nanoseconds` from 0 to 999,999,999, and the offset of the zone
    that it was written in, for its text.
    """

    seconds: int
    nanoseconds: int
    offset_s: int


class Sum(Fraction):
    """A quantity that add() or sub() made. Upstream takes it for another type where it stands on the right
    of `==`, or in a list.
    """

    __slots__ = ()


class Url(NamedTuple):
    """A parsed URL, in Go's parts."""

    scheme: str
    host: str
    path: str
    raw_path: str
    raw_query: str
    text: str


class Address(NamedTuple):
    """An IP address."""

    address: IPv4Address | IPv6Address


class Prefix(NamedTuple):
    """An IP address and how many of its leading bits are a network's."""

    address: IPv4Address | IPv6Address
    length: int


class NamedFormat(NamedTuple):
    """A format of `format.named()`; `size` of the regular expression that it would be, for costs."""

    name: str
    size: int


RUNTIME_TYPES: Mapping[type, Type] = {
    bool: types.BOOL,
    int: types.INT,
    Uint: types.UINT,
    float: types.DOUBLE,
    str: types.STRING,
    bytes: types.BYTES,
    type(None): types.NULL,
    tuple: types.LIST,
    dict: types.MAP,
    Domains: types.MAP,
    OptionalValue: types.OPTIONAL,
    Duration: types.DURATION,
    Timestamp: types.TIMESTAMP,
    Fraction: types.QUANTITY,
    Sum: types.QUANTITY,
    SemVer: types.SEMVER,
    Url: types.URL,
    Address: types.IP,
    Prefix: types.CIDR,
    NamedFormat: types.FORMAT,
    Type: types.TYPE,
}
NUMBERS = frozenset({int, Uint, float})
MAPS = frozenset({dict, Domains})


_FOREIGN = frozenset({Fraction, Sum, SemVer, Url, Address, Prefix})


def native(value: Value) -> Value:
    """What becomes of the value inside an optional that cel-go before 0.29 reads from a variable: types of
    Kubernetes are lost, a type becomes its name, an optional in an optional is opened.
    """
    if type(value) in _FOREIGN:
        return BROKEN
    if type(value) is Type:
        return value.name
    if type(value) is OptionalValue:
        return None if value is ABSENT else native(value.value)
    return value


def kind_of(value: Value) -> Type:
    """The run-time type of a value."""
    return RUNTIME_TYPES[type(value)]


def type_name(value: Value) -> str:
    """The name of a value's run-time type, for messages."""
    kind = kind_of(value)
    return types.SHORT_NAMES.get(kind.name, kind.name)


def accepts(kind: Type, value: Value) -> bool:
    """True if a function that declares `kind` takes the value: of containers, upstream looks at the first
    member only.
    """
    if kind.kind in _ANYTHING:
        return True
    actual = RUNTIME_TYPES[type(value)]
    if actual.name != kind.name:
        return False
    if kind.kind is types.Kind.LIST:
        return not value or accepts(kind.parameters[0], value[0])
    return True


_ANYTHING = frozenset({types.Kind.DYN, types.Kind.ANY, types.Kind.PARAMETER})


class Budget:
    """What one evaluation has cost in CEL's units, and how much work it has made of it.

    `cost` is Kubernetes' number. `work` is ours, see `tangram.cel.work`: it bounds time and memory, also
    where upstream counts nothing.
    """

    __slots__ = ("cost", "work")

    def __init__(self) -> None:
        self.cost = 0
        self.work = 0

    def labour(self, amount: int) -> None:
        """Raises CelBudgetError once `MAXIMUM_WORK` is done."""
        self.work += amount
        if self.work > MAXIMUM_WORK:
            raise too_dear()

    def walk(self, value: Value) -> None:
        """Labours for all that a value holds, at any depth. Members that are shared count each time."""
        if type(value) is tuple:
            self.labour(1 + 2 * len(value))
            for item in value:
                self.walk(item)
        elif type(value) in MAPS:
            self.labour(1 + 4 * len(value))
            for key, item in value.items():
                self.walk(key)
                self.walk(item)
        elif type(value) is str or type(value) is bytes:
            self.labour(len(value) >> 4)

    def check(self) -> None:
        """Raises CelBudgetError once `MAXIMUM_COST` is spent."""
        if self.cost > MAXIMUM_COST:
            raise too_dear()


MAXIMUM_COST = 1_000_000
"""Of one evaluation (`CELSelectorExpressionMaxCost` of resource/v1), in CEL's cost units."""
MAXIMUM_WORK = 2_000_000
"""Of one evaluation: some 0.2 s, and less than 100 MB."""


def too_dear() -> CelBudgetError:
    return CelBudgetError(
        "the expression costs too much to evaluate",
        next_step="use fewer or shorter lists inside all(), exists(), map() and filter()",
    )


def no_overload(function: str, *values: Value) -> CelRuntimeError:
    """The error of a call with values that no overload takes."""
    return CelRuntimeError(f"no such overload: {function}({', '.join(map(type_name, values))})")


def size(value: Value) -> int:
    """Characters of a string, bytes, items or entries; of everything else, and of an error, 1."""
    if type(value) in _SIZED:
        return len(value)
    if type(value) is OptionalValue and value is not ABSENT:
        return size(value.value)
    return _network_size(value)


def kubernetes_size(value: Value) -> int:
    """As `size`, for the libraries of Kubernetes, which do not look into optionals."""
    return len(value) if type(value) in _SIZED else _network_size(value)


_SIZED = frozenset({str, bytes, tuple, dict, Domains})


def _network_size(value: Value) -> int:
    """Bytes of an address, or of the network part of a prefix."""
    if type(value) is Address:
        return value.address.max_prefixlen // 8
    if type(value) is Prefix:
        return -(-value.length // 8)
    return 1


def is_zero(value: Value) -> bool:
    """What `optional.ofNonZeroValue()` takes for nothing."""
    if type(value) is Timestamp:
        return value[:2] == _FIRST_MOMENT
    if type(value) is Duration:
        return value.nanoseconds == 0
    return type(value) in _ZEROABLE and not value


_FIRST_MOMENT = (int((datetime(1, 1, 1) - datetime(1970, 1, 1)).total_seconds()), 0)  # noqa: DTZ001
_ZEROABLE = frozenset({bool, int, Uint, float, str, bytes, type(None), tuple, dict, Domains})
