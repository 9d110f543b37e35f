"""The building blocks of a compiled expression: functions from an `Evaluation` to a value.

Each raises CelRuntimeError where CEL has an error. What may grow with the input is paid from the budget: a
macro's body at each turn, long strings and lists where they are made or compared.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import NoReturn

from tangram.base.errors import CelBudgetError, CelRuntimeError
from tangram.cel.device import CelDevice
from tangram.cel.functions import Function
from tangram.cel.references import Reference
from tangram.cel.types import DEVICE_FIELDS
from tangram.cel.values import (
    ABSENT,
    Budget,
    Domains,
    OptionalValue,
    Value,
    compare,
    contains,
    equal,
    map_key,
    same,
    type_name,
)


class Evaluation(Budget):
    """The state of one evaluation: the device, the variables of macros by slot, and the budget."""

    __slots__ = ("device", "variables")

    def __init__(self, device: CelDevice, *, slots: int, units: int) -> None:
        self.left = units
        self.device = device
        self.variables: list[Value] = [None] * slots


Closure = Callable[[Evaluation], Value]

# --- values and variables ----------------------------------------------------------------------------------


def constant(value: Value) -> Closure:
    return lambda _: value


def variable(slot: int) -> Closure:
    def run(evaluation: Evaluation) -> Value:
        value = evaluation.variables[slot]
        if isinstance(value, CelRuntimeError):
            raise value
        return value

    return run


def bind(slot: int, value: Closure, body: Closure) -> Closure:
    """`cel.bind`. An error of the value is one only where the body uses the variable."""

    def run(evaluation: Evaluation) -> Value:
        try:
            bound = value(evaluation)
        except CelBudgetError:
            raise
        except CelRuntimeError as error:
            bound = error
        evaluation.variables[slot] = bound
        return body(evaluation)

    return run


def make_list(items: Sequence[Closure]) -> Closure:
    return lambda evaluation: tuple([item(evaluation) for item in items])


def make_map(entries: Sequence[tuple[Closure, Closure]]) -> Closure:
    def run(evaluation: Evaluation) -> Value:
        made = {}
        for key, value in entries:
            found = key(evaluation)
            if type(found) is float:
                raise CelRuntimeError("a value of type double cannot be a key of a map")
            try:
                made[map_key(found)] = value(evaluation)
            except TypeError:
                raise CelRuntimeError(
                    f"a value of type {type_name(type(found))} cannot be a key of a map"
                ) from None
        return made

    return run


# --- the device, fields and indexes ------------------------------------------------------------------------


def read(part: Reference) -> Closure:
    """A part of the device. An unknown domain is an empty map, an unknown id an error."""
    if part.field == "driver":
        return attrgetter("device.driver")
    if part.field == "allowMultipleAllocations":
        return attrgetter("device.allow_multiple_allocations")
    domains = attrgetter(f"device.{part.field}")
    domain, id_ = part.domain, part.id
    if domain is None:
        return lambda evaluation: Domains(
            {name: _as_dict(values) for name, values in domains(evaluation).items()}
        )
    if id_ is None:
        return lambda evaluation: _as_dict(domains(evaluation).get(domain))

    def run(evaluation: Evaluation) -> Value:
        try:
            return domains(evaluation)[domain][id_]
        except KeyError:
            raise CelRuntimeError(f"no such key: {part}", next_step=f"guard it with has({part})") from None

    return run


def _as_dict(values: Mapping[str, Value] | None) -> dict[str, Value]:
    return values if type(values) is dict else dict(values or ())


def read_presence(part: Reference) -> Closure:
    """`has()` of a part of the device: true for every domain, as upstream, but only for known ids."""
    domain, id_ = part.domain, part.id
    if domain is None or id_ is None:
        return constant(True)
    domains = attrgetter(f"device.{part.field}")
    return lambda evaluation: id_ in domains(evaluation).get(domain, ())


def device_fields() -> Closure:
    """The device as a map of its fields, for `device.?field`."""
    fields = {name: read(Reference(name)) for name in DEVICE_FIELDS}
    return lambda evaluation: {name: field(evaluation) for name, field in fields.items()}


def lookup(operand: Closure, key: Closure) -> Closure:
    """`operand[key]` or `operand.key`."""

    def run(evaluation: Evaluation) -> Value:
        container = operand(evaluation)
        name = key(evaluation)
        if isinstance(container, dict):
            try:
                return container[map_key(name)]
            except (KeyError, TypeError):
                _no_such_key(name)
        if type(container) is tuple:
            index = _list_index(name)
            if not 0 <= index < len(container):
                raise CelRuntimeError(f"index {index} of a list of {len(container)} items")
            return container[index]
        if type(container) is OptionalValue:
            return find(container, name)
        raise CelRuntimeError(f"a value of type {type_name(type(container))} has no fields")

    return run


def optional_lookup(operand: Closure, key: Closure) -> Closure:
    """`operand[?key]` or `operand.?key`."""

    def run(evaluation: Evaluation) -> Value:
        return find(operand(evaluation), key(evaluation))

    return run


def find(container: Value, name: Value) -> OptionalValue:
    """The optional value of a key; absent in what has no fields at all, as upstream."""
    if type(container) is OptionalValue:
        return ABSENT if container is ABSENT else find(container.value, name)
    if isinstance(container, dict):
        try:
            return OptionalValue(container[map_key(name)])
        except (KeyError, TypeError):
            return ABSENT
    if type(container) is tuple:
        index = _list_index(name)
        return OptionalValue(container[index]) if 0 <= index < len(container) else ABSENT
    return ABSENT


def alternative(optional: Closure, other: Closure, *, unwrap: bool) -> Closure:
    """`optional.orValue(other)` or, without `unwrap`, `optional.or(other)`; `other` only where needed."""

    def run(evaluation: Evaluation) -> Value:
        found = _require_optional(optional(evaluation))
        if found is ABSENT:
            instead = other(evaluation)
            return instead if unwrap else _require_optional(instead)
        return found.value if unwrap else found

    return run


def _require_optional(value: Value) -> OptionalValue:
    if isinstance(value, OptionalValue):
        return value
    raise CelRuntimeError(f"an optional is needed, not a value of type {type_name(type(value))}")


def presence(operand: Closure, name: str) -> Closure:
    """`has(operand.name)`; false for what has no fields at all, as upstream."""

    def run(evaluation: Evaluation) -> bool:
        return find(operand(evaluation), name) is not ABSENT

    return run


def _no_such_key(name: Value) -> NoReturn:
    shown = repr(name) if isinstance(name, str | int) and len(str(name)) <= 100 else type_name(type(name))
    raise CelRuntimeError(f"no such key: {shown}")


def _list_index(key: Value) -> int:
    if type(key) is not bool and isinstance(key, int):
        return int(key)
    if type(key) is float and key.is_integer():
        return int(key)
    raise CelRuntimeError(f"a list has no index of type {type_name(type(key))}")


# --- operators and functions -------------------------------------------------------------------------------


def call(function: Function, arguments: Sequence[Closure]) -> Closure:
    """A call, dispatched on the run-time types of its arguments."""
    if len(arguments) == 2:
        first, second = arguments

        def run_two(evaluation: Evaluation) -> Value:
            a, b = first(evaluation), second(evaluation)
            overload = function.overload((type(a), type(b)))
            if overload.linear:
                evaluation.spend(_weight(a) + _weight(b))
            return overload.call(a, b)

        return run_two

    def run(evaluation: Evaluation) -> Value:
        values = [argument(evaluation) for argument in arguments]
        overload = function.overload(tuple(map(type, values)))
        if overload.linear:
            evaluation.spend(sum(map(_weight, values)))
        return overload.call(*values)

    return run


def _weight(value: Value) -> int:
    return len(value) if type(value) is tuple else 1 + len(value) // 10


def comparison(operator: str, left: Closure, right: Closure) -> Closure:
    """`==`, `!=`, `in`, or an ordering."""
    match operator:
        case "==":
            return lambda evaluation: equal(left(evaluation), right(evaluation), evaluation)
        case "!=":
            return lambda evaluation: not same(left(evaluation), right(evaluation), evaluation)
        case "in":
            return lambda evaluation: contains(left(evaluation), right(evaluation), evaluation)
        case _:
            return lambda evaluation: compare(operator, left(evaluation), right(evaluation), evaluation)


def negation(operand: Closure) -> Closure:
    return lambda evaluation: not require_bool(operand(evaluation), "!")


def conditional(condition: Closure, then: Closure, otherwise: Closure) -> Closure:
    def run(evaluation: Evaluation) -> Value:
        return then(evaluation) if require_bool(condition(evaluation), "?:") else otherwise(evaluation)

    return run


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
                    require_bool(value, operator)
            except CelBudgetError:
                raise
            except CelRuntimeError as found:
                error = error or found
        if error is not None:
            raise error
        return other

    return run


def require_bool(value: Value, operator: str) -> bool:
    if isinstance(value, bool):
        return value
    raise CelRuntimeError(f"no such overload: an operand of {operator} is {type_name(type(value))}, not bool")
