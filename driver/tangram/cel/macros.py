"""The loops: closures of the macros over a list or the keys of a map.

Each turn costs `turn_cost`, so that nested loops end.
"""

from tangram.base.errors import CelBudgetError, CelRuntimeError
from tangram.cel.closures import Closure, Evaluation, require_bool
from tangram.cel.values import Value, elements


def quantifier(
    slot: int, items: Closure, body: Closure, *, decisive: bool, macro: str, turn_cost: int
) -> Closure:
    """`exists` (decisive: True) or `all` (False): the decisive value outweighs errors of other turns."""

    def run(evaluation: Evaluation) -> bool:
        error: CelRuntimeError | None = None
        for item in elements(items(evaluation), evaluation):
            evaluation.spend(turn_cost)
            evaluation.variables[slot] = item
            try:
                if require_bool(body(evaluation), macro) is decisive:
                    return decisive
            except CelBudgetError:
                raise
            except CelRuntimeError as found:
                error = error or found
        if error is not None:
            raise error
        return not decisive

    return run


def exists_one(slot: int, items: Closure, body: Closure, *, turn_cost: int) -> Closure:
    """True if the body holds exactly once; every error counts."""

    def run(evaluation: Evaluation) -> bool:
        count = 0
        for item in elements(items(evaluation), evaluation):
            evaluation.spend(turn_cost)
            evaluation.variables[slot] = item
            count += require_bool(body(evaluation), "exists_one")
        return count == 1

    return run


def filtered(slot: int, items: Closure, body: Closure, *, turn_cost: int) -> Closure:
    """The items for which the body holds."""

    def run(evaluation: Evaluation) -> Value:
        made = []
        for item in elements(items(evaluation), evaluation):
            evaluation.spend(turn_cost)
            evaluation.variables[slot] = item
            if require_bool(body(evaluation), "filter"):
                made.append(item)
        return tuple(made)

    return run


def mapped(slot: int, items: Closure, where: Closure | None, body: Closure, *, turn_cost: int) -> Closure:
    """The value of the body for each item for which `where`, if given, holds."""

    def run(evaluation: Evaluation) -> Value:
        made = []
        for item in elements(items(evaluation), evaluation):
            evaluation.spend(turn_cost)
            evaluation.variables[slot] = item
            if where is None or require_bool(where(evaluation), "map"):
                made.append(body(evaluation))
        return tuple(made)

    return run
