"""Loops: what macros over lists and maps are made of."""

from collections.abc import Iterable

from tangram.base.errors import CelBudgetError, CelRuntimeError
from tangram.cel.attributes import UNSET
from tangram.cel.equality import plain_key
from tangram.cel.evaluation import Closure, Evaluation
from tangram.cel.values import MAPS, MAXIMUM_COST, MAXIMUM_WORK, NUMBERS, Value, too_dear, type_name
from tangram.cel.work import FAILURE


def bind(slot: int, body: Closure) -> Closure:
    """`cel.bind()`: the body, with a variable that is not evaluated yet."""

    def run(evaluation: Evaluation) -> Value:
        evaluation.variables[slot] = UNSET
        return body(evaluation)

    return run


def _entries(items: Value, *, pairs: bool) -> Iterable[tuple[Value, Value]]:
    """(item, None), or with `pairs` (index or key, item). Of maps in a fixed order: upstream's is random."""
    if type(items) is tuple:
        return enumerate(items) if pairs else ((item, None) for item in items)
    if type(items) in MAPS:
        keys = sorted(items, key=_order)
        return ((plain_key(key), items[key] if pairs else None) for key in keys)
    raise CelRuntimeError(f"a macro cannot iterate over a value of type {type_name(items)}")


def _order(key: Value) -> tuple[str, str, float]:
    """Texts and numbers in their order; other keys as they were put in."""
    plain = plain_key(key)
    if type(plain) is str:
        return ("s", plain, 0.0)
    return ("n", "", float(plain)) if type(plain) in NUMBERS or type(plain) is bool else ("", "", 0.0)


def fold(
    items: Closure,
    *,
    accumulator: int,
    first: int,
    second: int | None,
    start: Value,
    condition: Closure | None,
    step: Closure,
    result: Closure,
    turn: int,
) -> Closure:
    """For each item, while `condition` (None: always): slot `accumulator` = step; then `result`.

    An error of the step becomes the value of the accumulator, and the loop goes on. `turn`: the work of one
    turn.
    """

    def run(evaluation: Evaluation) -> Value:
        variables = evaluation.variables
        entries = _entries(items(evaluation), pairs=second is not None)
        variables[accumulator] = start
        for key, item in entries:
            evaluation.work += turn
            if evaluation.cost > MAXIMUM_COST or evaluation.work > MAXIMUM_WORK:
                raise too_dear()
            variables[first] = key
            if second is not None:
                variables[second] = item
            if condition is not None and condition(evaluation) is not True:
                break
            try:
                variables[accumulator] = step(evaluation)
            except CelBudgetError:
                raise
            except CelRuntimeError as error:
                evaluation.work += FAILURE
                variables[accumulator] = error
        return result(evaluation)

    return run
