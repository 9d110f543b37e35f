"""One evaluation, and the closures of calls and logic: functions from an `Evaluation` to a value.

Each closure raises CelRuntimeError where CEL has an error, and adds to the cost what Kubernetes charges for
its step, also where the step fails: `&&`, `||` and macros absorb errors, but not what they cost.
"""

from collections.abc import Callable, Sequence

from tangram.base.errors import CelBudgetError, CelRuntimeError
from tangram.cel.declarations import FAILED, Cost
from tangram.cel.device import CelDevice
from tangram.cel.equality import map_key
from tangram.cel.values import (
    ABSENT,
    MAXIMUM_COST,
    MAXIMUM_WORK,
    Budget,
    OptionalValue,
    Value,
    no_overload,
    too_dear,
    type_name,
)
from tangram.cel.work import FAILURE


class Evaluation(Budget):
    """The state of one evaluation: the device, a slot for each variable that macros bind, and the costs."""

    __slots__ = ("device", "variables")

    def __init__(self, device: CelDevice, *, slots: int, work: int) -> None:
        self.cost = 0
        self.work = work
        self.device = device
        self.variables: list[Value] = [None] * slots


Closure = Callable[[Evaluation], Value]
Implementation = Callable[..., Value]
Short = tuple[type, Callable[[Value, Value], Value]]
"""A Python type, and what an operator makes of two values of it."""


def constant(value: Value) -> Closure:
    return lambda _: value


def observed(run: Closure, look: Callable[[Evaluation, str], None]) -> Closure:
    """`look` sees the text first."""

    def observed(evaluation: Evaluation) -> Value:
        value = run(evaluation)
        if type(value) is str:
            look(evaluation, value)
        return value

    return observed


def _walked(run: Closure) -> Closure:
    """What a walk costs is found out by walking, so that its work is counted before."""

    def walked(evaluation: Evaluation) -> Value:
        value = run(evaluation)
        evaluation.walk(value)
        return value

    return walked


def attempt(run: Closure, evaluation: Evaluation) -> Value:
    """The value, or FAILED."""
    try:
        return run(evaluation)
    except CelBudgetError:
        raise
    except CelRuntimeError:
        evaluation.work += FAILURE
        return FAILED


def _charge(evaluation: Evaluation, cost: Cost | None, values: Sequence[Value], result: Value) -> None:
    evaluation.cost += 1 if cost is None else cost(values, result)
    if result is FAILED:
        evaluation.work += FAILURE
    if not 0 <= evaluation.cost <= MAXIMUM_COST or evaluation.work > MAXIMUM_WORK:
        raise too_dear()


def call(
    implementation: Implementation,
    arguments: Sequence[Closure],
    *,
    cost: Cost | None,
    budgeted: bool,
    variadic: bool,
    walks: bool,
    short: Short | None,
) -> Closure:
    """A call. `cost`: what it costs, 1 if None. `budgeted`: the implementation takes the evaluation first.

    `variadic`: arguments behind one that fails are not evaluated, and then nothing is charged; else all are.
    `walks`: the cost is that of a walk over the first argument. `short`: a way to the result that costs 1,
    for two arguments of this Python type.
    """
    if walks:
        arguments = (_walked(arguments[0]), *arguments[1:])
    if len(arguments) == 1:
        return _call_one(implementation, arguments[0], cost=cost, budgeted=budgeted)
    if len(arguments) == 2 and not variadic:
        return _call_two(implementation, *arguments, cost=cost, budgeted=budgeted, short=short)

    def run(evaluation: Evaluation) -> Value:
        values: list[Value] = []
        for argument in arguments:
            try:
                values.append(argument(evaluation))
            except CelRuntimeError:
                if len(values) == len(arguments) - 1:
                    _charge(evaluation, cost, (*values, FAILED), FAILED)
                raise
        return _finish(evaluation, implementation, values, cost, budgeted)

    return run


def _finish(
    evaluation: Evaluation,
    implementation: Implementation,
    values: Sequence[Value],
    cost: Cost | None,
    budgeted: bool,
) -> Value:
    for value in values:
        if type(value) in _LONG:
            evaluation.work += len(value) >> 4
    try:
        result = implementation(evaluation, *values) if budgeted else implementation(*values)
    except CelBudgetError:
        raise
    except CelRuntimeError:
        _charge(evaluation, cost, values, FAILED)
        raise
    if type(result) in _LONG:
        evaluation.work += len(result) >> 3
    _charge(evaluation, cost, values, result)
    return result


_LONG = frozenset({str, bytes, tuple})


def _call_one(
    implementation: Implementation, argument: Closure, *, cost: Cost | None, budgeted: bool
) -> Closure:
    if cost is None and not budgeted:

        def run_unit(evaluation: Evaluation) -> Value:
            try:
                value = argument(evaluation)
            finally:
                evaluation.cost += 1
            return implementation(value)

        return run_unit

    def run(evaluation: Evaluation) -> Value:
        value = attempt_or_charge(argument, evaluation, cost)
        return _finish(evaluation, implementation, (value,), cost, budgeted)

    return run


def attempt_or_charge(argument: Closure, evaluation: Evaluation, cost: Cost | None) -> Value:
    """The value of the one argument of a call; if it fails, the call is charged."""
    try:
        return argument(evaluation)
    except CelBudgetError:
        raise
    except CelRuntimeError:
        _charge(evaluation, cost, (FAILED,), FAILED)
        raise


def _call_two(
    implementation: Implementation,
    first: Closure,
    second: Closure,
    *,
    cost: Cost | None,
    budgeted: bool,
    short: Short | None,
) -> Closure:
    def values(evaluation: Evaluation) -> tuple[Value, Value]:
        try:
            left = first(evaluation)
        except CelBudgetError:
            raise
        except CelRuntimeError:
            _charge(evaluation, cost, (FAILED, attempt(second, evaluation)), FAILED)
            raise
        try:
            return left, second(evaluation)
        except CelBudgetError:
            raise
        except CelRuntimeError:
            _charge(evaluation, cost, (left, FAILED), FAILED)
            raise

    def run(evaluation: Evaluation) -> Value:
        return _finish(evaluation, implementation, values(evaluation), cost, budgeted)

    if short is None:
        return run
    kind, operator = short

    def run_short(evaluation: Evaluation) -> Value:
        left, right = both = values(evaluation)
        if type(left) is kind and type(right) is kind:
            evaluation.cost += 1
            return operator(left, right)
        return _finish(evaluation, implementation, both, cost, budgeted)

    return run_short


def logic(operands: Sequence[Closure], *, decisive: bool, operator: str) -> Closure:
    """`||` (decisive: True) or `&&` (False): the decisive value outweighs errors of other operands."""
    other = not decisive

    def run(evaluation: Evaluation) -> bool:
        error: CelRuntimeError | None = None
        for operand in operands:
            try:
                value = operand(evaluation)
                if value is decisive:
                    return not other
                if value is not other:
                    raise no_overload(operator, value)
            except CelBudgetError:
                raise
            except CelRuntimeError as found:
                evaluation.work += FAILURE
                error = error or found
        if error is not None:
            raise error
        return other

    return run


def not_strictly_false(operand: Closure) -> Closure:
    """What keeps `all` and `exists` going: true for true and for errors."""

    def run(evaluation: Evaluation) -> bool:
        value: object = attempt(operand, evaluation)
        evaluation.cost += 1
        return value is not False

    return run


def alternative(optional: Closure, other: Closure, *, unwrap: bool, lenient: bool) -> Closure:
    """`optional.orValue(other)` or, without `unwrap`, `optional.or(other)`; `other` only where needed.

    `lenient`: what is no optional is the result itself, as in cel-go before 0.29.
    """

    def run(evaluation: Evaluation) -> Value:
        found = optional(evaluation)
        if type(found) is not OptionalValue:
            if lenient:
                return found
            raise no_overload("orValue" if unwrap else "or", found)
        if found is ABSENT:
            return other(evaluation)
        return found.opened() if unwrap else found

    return run


def make_list(items: Sequence[Closure], optional: frozenset[int]) -> Closure:
    def run(evaluation: Evaluation) -> Value:
        evaluation.cost += 10
        made: list[Value] = []
        for index, item in enumerate(items):
            value = item(evaluation)
            if index in optional:
                if type(value) is not OptionalValue:
                    raise CelRuntimeError(f"an optional is needed behind ?, not a {type_name(value)}")
                if value is ABSENT:
                    continue
                value = value.opened()
            made.append(value)
        return tuple(made)

    return run


def make_map(entries: Sequence[tuple[Closure, Closure]], optional: frozenset[int]) -> Closure:
    def run(evaluation: Evaluation) -> Value:
        evaluation.cost += 30
        made: dict[Value, Value] = {}
        for index, (key, item) in enumerate(entries):
            name, value = key(evaluation), item(evaluation)
            if index in optional:
                if type(value) is not OptionalValue:
                    raise CelRuntimeError(f"an optional is needed behind ?, not a {type_name(value)}")
                if value is ABSENT:
                    made.pop(map_key(name), None)
                    continue
                value = value.opened()
            made[map_key(name)] = value
        return made

    return run


def membership(item: Closure, members: frozenset[Value], key: Callable[[Value], Value]) -> Closure:
    """`item in […]` where the list is constant: costs nothing, as upstream."""
    return lambda evaluation: key(item(evaluation)) in members
