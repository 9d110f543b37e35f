"""`"…".format([…])`, as cel-go's strings extension has it up to version 3: numbers in American English."""

import re
from collections.abc import Callable, Iterator, Sequence
from math import isfinite, isnan
from typing import NamedTuple

from tangram.base.errors import CelRuntimeError
from tangram.cel.ast import ListLiteral, MapLiteral, Node
from tangram.cel.equality import plain_key
from tangram.cel.library import times
from tangram.cel.library.conversions import format_double
from tangram.cel.types import Kind, Type
from tangram.cel.values import (
    INT_MAXIMUM,
    MAPS,
    Budget,
    Duration,
    Timestamp,
    Uint,
    Value,
    kind_of,
    too_dear,
)

_MAXIMUM_PRECISION = 10_000
"""Digits behind the point. Upstream has no limit before version 5 of its library."""
_DEFAULT_PRECISION = 6
_CLAUSE_WORK = 30
_CLAUSE = re.compile(r"%(?:%|(?P<precision>\.[0-9]*)?(?P<verb>.)?)", re.DOTALL)
_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_SPECIAL = frozenset({"NaN", "Infinity", "-Infinity"})
_WHAT = {
    "s": "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types,"
    " durations, and timestamps",
    "d": "decimal clause can only be used on integers",
    "f": "fixed-point clause can only be used on doubles",
    "e": "scientific clause can only be used on doubles",
    "b": "only integers and bools can be formatted as binary",
    "x": "only integers, byte buffers, and strings can be formatted as hex",
    "o": "octal clause can only be used on integers",
}


class Clause(NamedTuple):
    """`%.2f`: verb `f`, precision 2."""

    verb: str
    precision: int | None


def parse(text: str, arguments: int) -> Iterator[str | Clause]:
    """The pieces of a format; raises CelRuntimeError at one that is wrong or has no argument."""
    position = used = 0
    for match in _CLAUSE.finditer(text):
        if match.start() > position:
            yield text[position : match.start()]
        position = match.end()
        if match[0] == "%%":
            yield "%"
            continue
        if used >= arguments:
            raise CelRuntimeError(f"index {used} out of range")
        used += 1
        yield _clause(match["precision"], match["verb"])
    if position < len(text):
        yield text[position:]


def _clause(precision: str | None, verb: str | None) -> Clause:
    if verb is None:
        raise CelRuntimeError("the format ends within a clause")
    if verb.lower() not in _WHAT or verb in {"S", "D", "F", "E", "B", "O"}:
        raise CelRuntimeError(f"unrecognized formatting clause {verb!r}")
    if precision is None:
        return Clause(verb, None)
    if len(precision) == 1 or len(precision) > 20 or int(precision[1:]) > INT_MAXIMUM:
        raise CelRuntimeError(f"{precision[:30]!r} is not a precision")
    return Clause(verb, int(precision[1:]))


def _refuse(verb: str, kind: str) -> CelRuntimeError:
    return CelRuntimeError(f"{_WHAT[verb.lower()]}, was given {kind}")


# --- evaluation --------------------------------------------------------------------------------------------


def format_text(budget: Budget, text: str, arguments: tuple[Value, ...]) -> str:
    """The text with its clauses replaced. Raises CelRuntimeError where an argument does not suit."""
    made: list[str] = []
    index = 0
    for piece in parse(text, len(arguments)):
        if isinstance(piece, str):
            made.append(piece)
        else:
            budget.labour(_CLAUSE_WORK + (min(piece.precision or 0, _MAXIMUM_PRECISION) >> 1))
            made.append(_WRITERS[piece.verb](arguments[index], piece, budget))
            index += 1
    return "".join(made)


def _text(value: Value, _: Clause, budget: Budget) -> str:
    kind = type(value)
    if kind is tuple:
        budget.labour(8 * len(value))
        return f"[{', '.join(_member(item, _, budget) for item in value)}]"
    if kind in MAPS:
        budget.labour(16 * len(value))
        pairs = ((_key(plain_key(key), _, budget), _member(item, _, budget)) for key, item in value.items())
        return f"{{{', '.join(f'{key}:{item}' for key, item in sorted(pairs, key=lambda pair: pair[0]))}}}"
    if kind not in _TEXTS:
        raise _refuse("s", kind_of(value).name)
    return _TEXTS[kind](value)


def _decode(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise CelRuntimeError("the bytes are no UTF-8 text") from None


_TEXTS: dict[type, Callable[[Value], str]] = {
    bool: lambda value: "true" if value else "false",
    int: str,
    Uint: lambda value: str(int(value)),
    float: format_double,
    str: lambda value: value,
    bytes: _decode,
    type(None): lambda _: "null",
    Duration: times.duration_text,
    Timestamp: times.timestamp_text,
    Type: lambda value: value.name,
}


def _member(value: Value, clause: Clause, budget: Budget) -> str:
    """A value inside a list or map, written as CEL would have it."""
    kind = type(value)
    if kind is str or kind is bytes:
        budget.labour(2 * len(value))
    if kind is str:
        return go_quoted(value)
    if kind is bytes:
        return "b" + go_quoted(_decode(value))
    if kind is float:
        return f"{value:.6f}" if isfinite(value) else f'"{_infinite(value)}"'
    if kind is Duration:
        return f'duration("{times.duration_text(value)}")'
    if kind is Timestamp:
        return f'timestamp("{times.timestamp_text(value)}")'
    return _text(value, clause, budget)


def _infinite(value: float) -> str:
    return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"


def _key(value: Value, clause: Clause, budget: Budget) -> str:
    if type(value) in {str, bool, int, Uint}:
        return _member(value, clause, budget)
    raise CelRuntimeError(f"no formatting function for map key of type {kind_of(value).name}")


def go_quoted(text: str) -> str:
    """As Go's `%q`."""
    return f'"{"".join(map(_go_escaped, text))}"'


def _go_escaped(character: str) -> str:
    if character in _GO_ESCAPES:
        return _GO_ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_GO_ESCAPES = dict(zip('\a\b\f\n\r\t\v\\"', [rf"\{c}" for c in 'abfnrtv\\"'], strict=True))


def _decimal(value: Value, _: Clause, __: Budget) -> str:
    if type(value) in {int, Uint}:
        return str(int(value))
    raise _refuse("d", kind_of(value).name)


def _number(value: Value, clause: Clause) -> float:
    if type(value) is str and value in _SPECIAL:
        return float(value)
    if type(value) is float:
        return value
    raise _refuse(clause.verb, kind_of(value).name)


def _localised(value: float) -> str:
    return "NaN" if isnan(value) else "∞" if value > 0 else "-∞"


def _fixed(value: Value, clause: Clause, __: Budget) -> str:
    number = _number(value, clause)
    precision = _DEFAULT_PRECISION if clause.precision is None else clause.precision
    if precision > _MAXIMUM_PRECISION:
        raise too_dear()
    return f"{number or 0.0:,.{precision}f}" if isfinite(number) else _localised(number)


def _scientific(value: Value, clause: Clause, __: Budget) -> str:
    """cel-go hands the precision on as a width."""
    number = _number(value, clause)
    width = _DEFAULT_PRECISION if clause.precision is None else clause.precision
    if width > _MAXIMUM_PRECISION:
        raise too_dear()
    if not isfinite(number):
        return _localised(number).rjust(width)
    digits, _, power = f"{number or 0.0:.6e}".partition("e")
    return f"{digits}\u00d710{power.removeprefix('+').translate(_SUPERSCRIPTS)}".rjust(width)


def _binary(value: Value, _: Clause, __: Budget) -> str:
    if type(value) in {int, Uint, bool}:
        return f"{int(value):b}"
    raise _refuse("b", kind_of(value).name)


def _octal(value: Value, _: Clause, __: Budget) -> str:
    if type(value) in {int, Uint}:
        return f"{int(value):o}"
    raise _refuse("o", kind_of(value).name)


def _hexadecimal(value: Value, clause: Clause, __: Budget) -> str:
    if type(value) in {int, Uint}:
        made = f"{int(value):x}"
    elif type(value) is str:
        made = value.encode("utf-8", "surrogatepass").hex()
    elif type(value) is bytes:
        made = value.hex()
    else:
        raise _refuse("x", kind_of(value).name)
    return made.upper() if clause.verb == "X" else made


_WRITERS: dict[str, Callable[[Value, Clause, Budget], str]] = {
    "s": _text,
    "d": _decimal,
    "f": _fixed,
    "e": _scientific,
    "b": _binary,
    "x": _hexadecimal,
    "X": _hexadecimal,
    "o": _octal,
}

# --- checks when compiling ---------------------------------------------------------------------------------

_CONTAINERS = {Kind.LIST, Kind.MAP}
_SCALARS = {Kind.INT, Kind.UINT, Kind.DOUBLE, Kind.BOOL, Kind.STRING, Kind.TIMESTAMP, Kind.BYTES}
_TAKEN = {
    "s": {*_CONTAINERS, *_SCALARS, Kind.DURATION, Kind.TYPE, Kind.NULL},
    "d": {Kind.INT, Kind.UINT},
    "f": {Kind.DOUBLE, Kind.STRING},
    "e": {Kind.DOUBLE, Kind.STRING},
    "b": {Kind.INT, Kind.UINT, Kind.BOOL},
    "x": {Kind.INT, Kind.UINT, Kind.STRING, Kind.BYTES},
    "o": {Kind.INT, Kind.UINT},
}


def problem(text: str, items: Sequence[Node], types: dict[Node, Type]) -> tuple[Node | None, str] | None:
    """What is wrong with a format that is a literal, given the literal list of its arguments; None if nothing
    is. The node is the argument that does not suit, if it is one.
    """
    index = 0
    try:
        for piece in parse(text, len(items)):
            if isinstance(piece, Clause):
                wrong = _unsuited(piece.verb.lower(), items[index], types)
                if wrong is not None:
                    return wrong, f"{_WHAT[piece.verb.lower()]}, was given {types[wrong]}"
                index += 1
    except CelRuntimeError as error:
        return None, error.cause
    if index < len(items):
        return None, f"the format takes {index} arguments, not {len(items)}"
    return None


def _unsuited(verb: str, node: Node, types: dict[Node, Type]) -> Node | None:
    kind = types[node].kind
    if kind is not Kind.DYN and kind not in _TAKEN[verb]:
        return node
    if verb == "s" and isinstance(node, ListLiteral | MapLiteral):
        for child in node.children():
            if (wrong := _unsuited(verb, child, types)) is not None:
                return wrong
    return None
