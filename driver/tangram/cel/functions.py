"""The functions and arithmetic operators of the environment: one table serves type checks and calls.

Standard definitions: CEL language definition, "List of Standard Definitions". Quantity and Semver libraries:
`k8s.io/apiserver/pkg/cel/library`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NoReturn

from tangram.base.errors import CelRuntimeError
from tangram.cel import numbers, opaque
from tangram.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DYN,
    INT,
    LIST,
    OPTIONAL,
    QUANTITY,
    SEMVER,
    STRING,
    UINT,
    Type,
    fits,
    map_of,
)
from tangram.cel.values import (
    ABSENT,
    OptionalValue,
    Value,
    type_name,
)


@dataclass(frozen=True, slots=True)
class Overload:
    """One implementation. `linear`: its price grows with the length of its arguments."""

    parameters: tuple[Type, ...]
    result: Type
    call: Callable[..., Value]
    linear: bool = False

    def accepts(self, types: Sequence[type]) -> bool:
        """True for arguments of these run-time types."""
        return len(types) == len(self.parameters) and all(
            wanted is DYN or wanted.name == type_name(kind)
            for kind, wanted in zip(types, self.parameters, strict=True)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """All overloads of a name. `conversion`: on a constant that does not convert, compilation fails."""

    name: str
    overloads: tuple[Overload, ...]
    conversion: bool = False
    _found: dict[tuple[type, ...], Overload] = field(default_factory=dict)

    def candidates(self, arguments: Sequence[Type]) -> list[Overload]:
        """The overloads that arguments of these static types may turn out to need."""
        return [
            overload
            for overload in self.overloads
            if len(overload.parameters) == len(arguments) and all(map(fits, arguments, overload.parameters))
        ]

    def overload(self, types: tuple[type, ...]) -> Overload:
        """The overload for arguments of these run-time types; CelRuntimeError if there is none."""
        found = self._found.get(types)
        if found is None:
            found = next((overload for overload in self.overloads if overload.accepts(types)), None)
            if found is None:
                raise CelRuntimeError(f"no such overload: {self.name}({', '.join(map(type_name, types))})")
            self._found[types] = found  # the types are few: this stays small
        return found


def _on_integers(operation: Callable[[int, int], int]) -> tuple[Overload, Overload]:
    return (
        Overload((INT, INT), INT, lambda a, b: numbers.checked_int(operation(a, b))),
        Overload((UINT, UINT), UINT, lambda a, b: numbers.checked_uint(operation(int(a), int(b)))),
    )


def _table(*functions: Function) -> dict[str, Function]:
    return {function.name: function for function in functions}


def _function(name: str, *overloads: Overload, conversion: bool = False) -> Function:
    return Function(name, overloads, conversion)


def _optional_value(optional: OptionalValue) -> Value:
    if optional is ABSENT:
        raise CelRuntimeError("value() of an optional that has none", next_step="use orValue(…)")
    return optional.value


def _lazy(*_: Value) -> NoReturn:
    raise AssertionError("evaluated by closures.alternative, which leaves out the argument where it can")


def _size_overloads() -> tuple[Overload, ...]:
    return tuple(Overload((kind,), INT, len) for kind in (STRING, BYTES, LIST, map_of(DYN, DYN)))


def _on_strings(name: str, result: Type, call: Callable[..., Value]) -> Function:
    arguments = (STRING,) if result is STRING else (STRING, STRING)
    return _function(name, Overload(arguments, result, call, linear=True))


def _on_opaque(name: str, result: Type, call: Callable[[Value, Value], Value]) -> Function:
    return _function(name, *(Overload((kind, kind), result, call) for kind in (QUANTITY, SEMVER)))


def _ascii(first: str, last: str, shift: int) -> dict[int, int]:
    return {code: code + shift for code in range(ord(first), ord(last) + 1)}


_TO_LOWER, _TO_UPPER = _ascii("A", "Z", 32), _ascii("a", "z", -32)

OPERATORS = _table(
    _function(
        "+",
        *_on_integers(lambda a, b: a + b),
        Overload((DOUBLE, DOUBLE), DOUBLE, lambda a, b: a + b),
        *(Overload((kind, kind), kind, lambda a, b: a + b, linear=True) for kind in (STRING, BYTES, LIST)),
    ),
    _function("-", *_on_integers(lambda a, b: a - b), Overload((DOUBLE, DOUBLE), DOUBLE, lambda a, b: a - b)),
    _function("*", *_on_integers(lambda a, b: a * b), Overload((DOUBLE, DOUBLE), DOUBLE, lambda a, b: a * b)),
    _function(
        "/", *_on_integers(numbers.quotient), Overload((DOUBLE, DOUBLE), DOUBLE, numbers.divide_doubles)
    ),
    _function("%", *_on_integers(numbers.remainder)),
)
NEGATION = _function(
    "-", Overload((INT,), INT, lambda a: numbers.checked_int(-a)), Overload((DOUBLE,), DOUBLE, lambda a: -a)
)

FUNCTIONS = _table(
    _function("size", *_size_overloads()),
    _function("dyn", Overload((DYN,), DYN, lambda value: value)),
    _function(
        "int",
        Overload((INT,), INT, lambda value: value),
        Overload((UINT,), INT, lambda value: numbers.checked_int(int(value))),
        Overload((DOUBLE,), INT, numbers.truncate),
        Overload((STRING,), INT, numbers.parse_int),
        conversion=True,
    ),
    _function(
        "uint",
        Overload((UINT,), UINT, lambda value: value),
        Overload((INT,), UINT, numbers.checked_uint),
        Overload((DOUBLE,), UINT, numbers.truncate_unsigned),
        Overload((STRING,), UINT, numbers.parse_uint),
        conversion=True,
    ),
    _function(
        "double",
        *(Overload((kind,), DOUBLE, float) for kind in (INT, UINT, DOUBLE)),
        Overload((STRING,), DOUBLE, numbers.parse_double),
        conversion=True,
    ),
    _function(
        "string",
        Overload((STRING,), STRING, lambda value: value),
        Overload((BYTES,), STRING, numbers.decode, linear=True),
        Overload((BOOL,), STRING, lambda value: "true" if value else "false"),
        *(Overload((kind,), STRING, lambda value: str(int(value))) for kind in (INT, UINT)),
        Overload((DOUBLE,), STRING, numbers.format_double),
        conversion=True,
    ),
    _function(
        "bool",
        Overload((BOOL,), BOOL, lambda value: value),
        Overload((STRING,), BOOL, numbers.parse_bool),
        conversion=True,
    ),
    _function(
        "bytes",
        Overload((BYTES,), BYTES, lambda value: value),
        Overload((STRING,), BYTES, lambda value: value.encode("utf-8", "surrogatepass"), linear=True),
        conversion=True,
    ),
    _function("quantity", Overload((STRING,), QUANTITY, opaque.quantity)),
    _function("isQuantity", Overload((STRING,), BOOL, opaque.accepts(opaque.quantity))),
    _function("sign", Overload((QUANTITY,), INT, opaque.sign)),
    _function("semver", *(Overload(kinds, SEMVER, opaque.semver) for kinds in ((STRING,), (STRING, BOOL)))),
    _function(
        "isSemver",
        *(Overload(kinds, BOOL, opaque.accepts(opaque.semver)) for kinds in ((STRING,), (STRING, BOOL))),
    ),
    _function("optional.of", Overload((DYN,), OPTIONAL, OptionalValue)),
    _function("optional.none", Overload((), OPTIONAL, lambda: ABSENT)),
)
"""Functions that are called as `name(…)`."""

METHODS = _table(
    _function("size", *_size_overloads()),
    _on_strings("startsWith", BOOL, str.startswith),
    _on_strings("endsWith", BOOL, str.endswith),
    _on_strings("contains", BOOL, str.__contains__),
    _on_strings("lowerAscii", STRING, lambda text: text.translate(_TO_LOWER)),
    _on_strings("upperAscii", STRING, lambda text: text.translate(_TO_UPPER)),
    _on_opaque("isGreaterThan", BOOL, lambda a, b: a > b),
    _on_opaque("isLessThan", BOOL, lambda a, b: a < b),
    _on_opaque("compareTo", INT, opaque.order),
    *(
        _function(
            name,
            Overload((QUANTITY, QUANTITY), QUANTITY, operation),
            Overload((QUANTITY, INT), QUANTITY, operation),
        )
        for name, operation in (("add", Fraction.__add__), ("sub", Fraction.__sub__))
    ),
    _function("isInteger", Overload((QUANTITY,), BOOL, opaque.accepts(opaque.as_integer))),
    _function("asInteger", Overload((QUANTITY,), INT, opaque.as_integer)),
    _function("asApproximateFloat", Overload((QUANTITY,), DOUBLE, float)),
    _function("major", Overload((SEMVER,), INT, lambda version: version.major)),
    _function("minor", Overload((SEMVER,), INT, lambda version: version.minor)),
    _function("patch", Overload((SEMVER,), INT, lambda version: version.patch)),
    _function("hasValue", Overload((OPTIONAL,), BOOL, lambda optional: optional is not ABSENT)),
    _function("value", Overload((OPTIONAL,), DYN, _optional_value)),
    _function("orValue", Overload((OPTIONAL, DYN), DYN, _lazy)),
    _function("or", Overload((OPTIONAL, OPTIONAL), OPTIONAL, _lazy)),
)
"""Functions that are called as `receiver.name(…)`; the receiver is the first argument."""

_LATER_GROUPS = {
    "strings": "charAt indexOf lastIndexOf join replace split substring trim format quote reverse",
    "regular expressions": "matches find findAll",
    "lists": "sum min max isSorted includes",
    "sets": "sets.contains sets.equivalent sets.intersects",
    "time": "duration timestamp getDate getDayOfMonth getDayOfWeek getDayOfYear getFullYear getHours"
    " getMilliseconds getMinutes getMonth getSeconds",
    "URLs": "url isURL getEscapedPath getHost getHostname getPort getQuery getScheme",
    "addresses": "ip isIP ip.isCanonical cidr isCIDR containsIP containsCIDR prefixLength masked family"
    " isUnspecified isLoopback isLinkLocalMulticast isLinkLocalUnicast isGlobalUnicast",
    "images": "image isImage containsImage registry repository identifier tag digest",
    "others": "type validate optional.ofNonZeroValue optional.unwrap unwrapOpt",
}
LATER = frozenset(name for names in _LATER_GROUPS.values() for name in names.split())
"""Functions of Kubernetes' environment that this version does not evaluate yet."""
