"""Regular expressions: matches(), find() and findAll(), with the syntax of RE2."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from tangram.base.errors import CelBudgetError, CelRuntimeError
from tangram.cel.declarations import Cost, Function, ceil_cost, function, method, overload
from tangram.cel.estimate import ONE, Estimate, Range, Sized, Sizes
from tangram.cel.types import BOOL, INT, STRING, list_of
from tangram.cel.values import Budget, Value, kubernetes_size, no_overload, size

PATTERNS = {"matches": 1, "find": 1, "findAll": 1}
"""Functions, and which of their arguments is a pattern."""
_MAXIMUM_MEMORY_BYTES = 1 << 20
MAXIMUM_SIZE = 30_000
"""Instructions of the programs that the patterns of one selector become. Upstream has no limit."""
TOO_LARGE = CelRuntimeError("the pattern is too large", next_step="repeat smaller parts, or less often")
_ANY_BYTE = re.compile(r"(?<!\\)(?:\\\\)*\\C")


@lru_cache(maxsize=128)
def compiled(pattern: str) -> Any:
    """Raises CelRuntimeError for what is no pattern of RE2."""
    import re2  # noqa: PLC0415 - processes that never see a pattern need not load it

    if _ANY_BYTE.search(pattern):
        raise CelRuntimeError("not a regular expression: \\C")  # Go works on characters
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAXIMUM_MEMORY_BYTES
    try:
        found = re2.compile(pattern, options)
    except re2.error as error:
        cause = _cause(error)
        raise (
            TOO_LARGE if "too large" in cause else CelRuntimeError(f"not a regular expression: {cause}")
        ) from None
    if found.programsize > MAXIMUM_SIZE:
        raise TOO_LARGE
    return found


def _cause(error: Exception) -> str:
    cause = error.args[0] if error.args else ""
    return cause.decode("utf-8", "replace") if isinstance(cause, bytes) else str(cause)


def compiling(budget: Budget, pattern: str) -> None:
    """Labours for a pattern that is made when the selector is evaluated."""
    try:
        budget.labour(_COMPILING * compiled(pattern).programsize)
    except CelBudgetError:
        raise
    except CelRuntimeError:
        budget.labour(_COMPILING * len(pattern))


_COMPILING = 20


def _ready(budget: Budget, text: str, pattern: str) -> Any:
    """The pattern, once the work of searching the whole text is counted: a pattern may hold back RE2's
    automaton, which then follows each of its instructions."""
    expression = compiled(pattern)
    budget.labour((len(text) * expression.programsize >> 3) + _SEARCH)
    return expression


_SEARCH = 60


def _matches(budget: Budget, text: Value, pattern: Value) -> bool:
    if type(text) is not str or type(pattern) is not str:
        raise no_overload("matches", text, pattern)
    return _ready(budget, text, pattern).search(text) is not None


def _find(budget: Budget, text: str, pattern: str) -> str:
    found = _ready(budget, text, pattern).search(text)
    return "" if found is None else found.group()


def _find_all(budget: Budget, text: str, pattern: str, count: int = -1) -> tuple[str, ...]:
    """As Go: an empty match right behind another match does not count."""
    expression = _ready(budget, text, pattern)
    found: list[str] = []
    position, previous_end = 0, -1
    while position <= len(text) and (count < 0 or len(found) < count):
        # Each search encodes the text anew.
        budget.labour(_SEARCH + (len(text) >> 3))
        match = expression.search(text, position)
        if match is None:
            break
        start, end = match.span()
        if not (end == position and start == previous_end):
            found.append(match.group())
        position = end if end > position else position + 1
        previous_end = end
    return tuple(found)


def _cost(measure: Callable[[Value], int]) -> Cost:
    def cost(arguments: Sequence[Value], _: Value) -> int:
        text, pattern = arguments[0], arguments[1]
        return ceil_cost(1 + measure(text), 0.1) * ceil_cost(measure(pattern), 0.25)

    return cost


def _estimate_of(text: Range, pattern: Range) -> Range:
    return text.plus(ONE).scaled(0.1).times(pattern.scaled(0.25))


def _matches_estimate(sizes: Sizes, receiver: Sized | None, arguments: Sequence[Sized]) -> Estimate:
    text, pattern = (receiver, arguments[0]) if receiver is not None else arguments
    return Estimate(_estimate_of(sizes.of(text), sizes.of(pattern)))


def _find_estimate(sizes: Sizes, receiver: Sized | None, arguments: Sequence[Sized]) -> Estimate | None:
    if receiver is None:
        return None
    text = sizes.of(receiver)
    return Estimate(_estimate_of(text, sizes.of(arguments[0])), Range(0, text.high))


def regex(*, global_matches_cost: bool) -> tuple[Function, ...]:
    """`global_matches_cost`: whether `matches(text, pattern)` is priced as `text.matches(pattern)` is, as
    cel-go does since 0.29; before, it cost 1.
    """
    priced: dict[str, Any] = {"cost": _cost(size), "estimate": _matches_estimate}
    return (
        function(
            "matches",
            overload("matches", (STRING, STRING), BOOL, **(priced if global_matches_cost else {})),
            method("matches_string", (STRING, STRING), BOOL, **priced),
            dynamic=_matches,
            budgeted=True,
        ),
        function(
            "find",
            method("string_find_string", (STRING, STRING), STRING, _find, budgeted=True),
            cost=_cost(kubernetes_size),
            estimate=_find_estimate,
        ),
        function(
            "findAll",
            method("string_find_all_string", (STRING, STRING), list_of(STRING), _find_all, budgeted=True),
            method(
                "string_find_all_string_int",
                (STRING, STRING, INT),
                list_of(STRING),
                _find_all,
                budgeted=True,
            ),
            cost=_cost(kubernetes_size),
            estimate=_find_estimate,
        ),
    )
