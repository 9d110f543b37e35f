"""Strings: cel-go's extension, version 2. Positions count characters."""

import string
from collections.abc import Callable, Sequence

from tangram.base.errors import CelRuntimeError
from tangram.cel.declarations import (
    Cost,
    Function,
    ceil_cost,
    function,
    kubernetes_per_character,
    method,
    overload,
    per_character,
)
from tangram.cel.equality import plain_key
from tangram.cel.estimate import Estimate, Range, Sized, Sizes, literal_number, per_character_of
from tangram.cel.library.formatting import format_text
from tangram.cel.types import DYN, INT, STRING, list_of
from tangram.cel.values import UINT_MAXIMUM, Budget, Value, kubernetes_size, too_dear, type_name

MAXIMUM_TEXT = 1_000_000
"""Characters of a string that a function makes. Upstream has no such limit."""
_TO_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_TO_UPPER = str.maketrans(string.ascii_lowercase, string.ascii_uppercase)
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
_SPACE += "\u2028\u2029\u202f\u205f\u3000"
_TEXTS = list_of(STRING)
_ESCAPES = str.maketrans(
    {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v"}
    | {"\\": r"\\", '"': r"\""}
)


def _out_of_range(index: int) -> CelRuntimeError:
    return CelRuntimeError(f"index out of range: {index}")


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise _out_of_range(index)
    return text[index : index + 1]


def _seek(budget: Budget, text: str, part: str) -> None:
    """The work of looking for a text, which may start at each place before it fails."""
    budget.labour(len(text) * min(len(part), 100) >> 8)


def _index_of(*, clamped: bool) -> Callable[..., int]:
    """`clamped`: an empty text is found at the end at most (cel-go 0.29), else wherever one asks."""

    def index_of(budget: Budget, text: str, part: str, start: int = 0) -> int:
        _seek(budget, text, part)
        if not part and not clamped:
            return start
        if start < 0:
            raise _out_of_range(start)
        if not part:
            return min(start, len(text))
        return text.find(part, start)

    return index_of


def _last_index_of(*, clamped: bool) -> Callable[..., int]:
    def last_index_of(budget: Budget, text: str, part: str, start: int | None = None) -> int:
        _seek(budget, text, part)
        if start is None:
            return _rfind(text, part)
        if not part and not clamped:
            return start
        if start < 0:
            raise _out_of_range(start)
        if not part:
            return min(start, len(text))
        return _rfind(text[: start + len(part)], part) if start < len(text) else -1

    return last_index_of


def _rfind(text: str, part: str) -> int:
    """As `text.rfind(part)`, which may take the product of their lengths; searching forwards does not."""
    found = text[::-1].find(part[::-1])
    return found if found < 0 else len(text) - len(part) - found


def _replace(budget: Budget, text: str, old: str, new: str, count: int = -1) -> str:
    _seek(budget, text, old)
    found = text.count(old)
    turns = found if count < 0 else min(found, count)
    if len(text) + turns * len(new) > MAXIMUM_TEXT:
        raise too_dear()
    return text.replace(old, new, count)


def _split(budget: Budget, text: str, separator: str, count: int = -1) -> tuple[str, ...]:
    _seek(budget, text, separator)
    budget.labour(2 * (text.count(separator) if count < 0 else max(0, min(count, len(text)))))
    if count == 0:
        return ()
    if separator:
        return tuple(text.split(separator, count - 1 if count > 0 else -1))
    if 0 < count < len(text):
        return (*text[: count - 1], text[count - 1 :])
    return tuple(text)


def _substring(text: str, start: int, end: int | None = None) -> str:
    last = len(text) if end is None else end
    if end is not None and start > end:
        raise CelRuntimeError(f"invalid substring range. start: {start}, end: {end}")
    for index in (start, last):
        if not 0 <= index <= len(text):
            raise _out_of_range(index)
    return text[start:last]


def _join(texts: tuple[Value, ...], separator: str = "") -> str:
    for text in texts:
        if type(text) is not str:
            raise CelRuntimeError(f"join: invalid input: a value of type {type_name(text)}")
    if sum(map(len, texts)) + len(separator) * len(texts) > MAXIMUM_TEXT:
        raise too_dear()
    return separator.join(texts)


def _quote(budget: Budget, text: str) -> str:
    budget.labour(2 * len(text))
    return f'"{text.translate(_ESCAPES)}"'


def _join_cost(_: Sequence[Value], result: Value) -> int:
    return ceil_cost(kubernetes_size(result), 0.2)


def index_cost(arguments: Sequence[Value], _: Value) -> int:
    """Of indexOf() and its kin: a walk over all that the list holds, or over the bytes of a string."""
    return traversal(arguments[0])


def traversal(value: Value) -> int:
    """What a walk over all that a value holds costs; maps and texts included, as Kubernetes counts."""
    if type(value) is str:
        return int(float(len(value.encode("utf-8", "surrogatepass"))) * 0.1)
    if type(value) is bytes:
        return int(float(len(value)) * 0.1)
    if type(value) is tuple:
        return sum(map(traversal, value))
    if isinstance(value, dict):
        return sum(traversal(plain_key(key)) + traversal(item) for key, item in value.items())
    return 1


def walk_estimate(sizes: Sizes, receiver: Sized | None, _: Sequence[Sized]) -> Estimate | None:
    """Of functions that walk once over a list, or over a string."""
    if receiver is None:
        return None
    items = sizes.items(receiver)
    if items is None:
        return Estimate(sizes.of(receiver).scaled(0.1))
    each = Range(1, 1)
    if items.kind.name in {"string", "bytes"}:
        each = each.plus(sizes.of(items).scaled(0.1))
    return Estimate(sizes.of(receiver).times(each))


def _replace_estimate(sizes: Sizes, receiver: Sized | None, arguments: Sequence[Sized]) -> Estimate | None:
    if receiver is None or len(arguments) < 2:
        return None
    size, old, new = sizes.of(receiver), sizes.of(arguments[0]), sizes.of(arguments[1])
    if old.low == 0:
        most, most_kept = min(size.high + 1, UINT_MAXIMUM), size.high
    elif new.high <= old.low:
        most, most_kept = 0, size.high
    else:
        most, most_kept = _float_ceil(size.high, old.low), 0
    if old.high == 0:
        least, least_kept = min(size.low + 1, UINT_MAXIMUM), size.low
    elif old.high <= new.low:
        least, least_kept = 0, size.low
    else:
        least, least_kept = _float_ceil(size.low, old.high), 0
    result = Range(least, most).times(new).plus(Range(least_kept, most_kept))
    return Estimate(size.scaled(0.2), result)


def _float_ceil(amount: int, divisor: int) -> int:
    """Divided in floating point and rounded up; what exceeds 64 bits becomes 2^63, as on amd64."""
    quotient = -int(-(float(amount) / float(divisor)) // 1)
    return quotient if quotient <= UINT_MAXIMUM else 2**63


def _split_estimate(sizes: Sizes, receiver: Sized | None, arguments: Sequence[Sized]) -> Estimate | None:
    if receiver is None:
        return None
    size = sizes.of(receiver)
    most = size.high
    if len(arguments) > 1:
        most = literal_number(arguments[1], most, unsigned=True)
    return Estimate(size.scaled(0.2), Range(0, most))


def _join_estimate(sizes: Sizes, receiver: Sized | None, arguments: Sequence[Sized]) -> Estimate | None:
    if receiver is None:
        return None
    count = sizes.of(receiver)
    items = sizes.items(receiver)
    size = Range(0, 0) if items is None else count.times(sizes.of(items))
    if arguments:
        gaps = Range(max(count.low - 1, 0), max(count.high - 1, 0))
        size = size.plus(sizes.of(arguments[0]).times(gaps))
    return Estimate(size.scaled(0.1), size)


def _format_estimate(_: Sizes, receiver: Sized | None, __: Sequence[Sized]) -> Estimate | None:
    if receiver is None:
        return None
    return Estimate((receiver.computed or Range(0, UINT_MAXIMUM)).scaled(0.1))


def _quote_estimate(_: Sizes, __: Sized | None, arguments: Sequence[Sized]) -> Estimate:
    size = arguments[0].computed or Range(0, UINT_MAXIMUM)
    return Estimate(size.scaled(0.1), Range(size.low + 2, (size.high * 2 + 2) % 2**64))


def _same_length(name: str, id_: str, call: Callable[[str], str]) -> Function:
    def budgeted(budget: Budget, text: str) -> str:
        budget.labour(len(text) >> (4 if text.isascii() else 0))
        return call(text)

    return function(
        name,
        method(id_, (STRING,), STRING, budgeted, budgeted=True),
        cost=kubernetes_per_character(),
        estimate=per_character_of(-1, sized=True),
    )


def strings(*, clamped: bool) -> tuple[Function, ...]:
    """`clamped`: see `_index_of`."""
    index_of, last_index_of = _index_of(clamped=clamped), _last_index_of(clamped=clamped)
    return (
        function(
            "indexOf",
            method("string_index_of_string", (STRING, STRING), INT, index_of, budgeted=True),
            method("string_index_of_string_int", (STRING, STRING, INT), INT, index_of, budgeted=True),
            cost=index_cost,
            walks=True,
            estimate=walk_estimate,
        ),
        function(
            "lastIndexOf",
            method("string_last_index_of_string", (STRING, STRING), INT, last_index_of, budgeted=True),
            method(
                "string_last_index_of_string_int", (STRING, STRING, INT), INT, last_index_of, budgeted=True
            ),
            cost=index_cost,
            walks=True,
            estimate=walk_estimate,
        ),
        *_STRINGS,
    )


_TWICE: Cost = kubernetes_per_character(0.2)
_STRINGS = (
    function("charAt", method("string_char_at_int", (STRING, INT), STRING, _char_at)),
    _same_length("lowerAscii", "string_lower_ascii", lambda text: text.translate(_TO_LOWER)),
    _same_length("upperAscii", "string_upper_ascii", lambda text: text.translate(_TO_UPPER)),
    _same_length("trim", "string_trim", lambda text: text.strip(_SPACE)),
    function(
        "replace",
        method("string_replace_string_string", (STRING,) * 3, STRING, _replace, budgeted=True),
        method(
            "string_replace_string_string_int", (STRING, STRING, STRING, INT), STRING, _replace, budgeted=True
        ),
        cost=_TWICE,
        estimate=_replace_estimate,
    ),
    function(
        "split",
        method("string_split_string", (STRING, STRING), _TEXTS, _split, budgeted=True),
        method("string_split_string_int", (STRING, STRING, INT), _TEXTS, _split, budgeted=True),
        cost=_TWICE,
        estimate=_split_estimate,
    ),
    function(
        "substring",
        method("string_substring_int", (STRING, INT), STRING, _substring),
        method("string_substring_int_int", (STRING, INT, INT), STRING, _substring),
        cost=kubernetes_per_character(),
        estimate=per_character_of(-1, sized=True),
    ),
    function(
        "join",
        method("list_join", (_TEXTS,), STRING, _join),
        method("list_join_string", (_TEXTS, STRING), STRING, _join),
        cost=_join_cost,
        estimate=_join_estimate,
    ),
    function(
        "format",
        method(
            "string_format",
            (STRING, list_of(DYN)),
            STRING,
            format_text,
            budgeted=True,
            cost=per_character(0),
            estimate=_format_estimate,
        ),
    ),
    function(
        "strings.quote",
        overload(
            "strings_quote",
            (STRING,),
            STRING,
            _quote,
            budgeted=True,
            cost=per_character(0),
            estimate=_quote_estimate,
        ),
    ),
)
