"""Reading what is below a value: fields, keys and indices, with the costs and errors of cel-go.

An attribute is a root, such as a variable or the result of a call, and the qualifiers behind it. Qualifiers
cost 1 each; reading the whole costs 1 more, except as a branch of `?:`.
"""

from collections.abc import Callable, Mapping, Sequence

from tangram.base.errors import CelBudgetError, CelRuntimeError
from tangram.cel.device import CelDevice
from tangram.cel.equality import MISSING, look_up
from tangram.cel.evaluation import Closure, Evaluation
from tangram.cel.references import Reference
from tangram.cel.values import (
    ABSENT,
    MAPS,
    Domains,
    OptionalValue,
    Uint,
    Value,
    native,
    no_overload,
    type_name,
)

_KEYS = frozenset({str, int, Uint, bool, float})


class Qualifier:
    """`.name`, `["key"]` or `[index]`; `optional`: written with `?`; `test`: asks whether it is there."""

    __slots__ = ("_key", "_run", "optional", "test")

    def __init__(
        self, key: Value, *, run: Closure | None = None, optional: bool = False, test: bool = False
    ) -> None:
        self._key = key
        self._run = run
        self.optional = optional
        self.test = test

    def find(self, evaluation: Evaluation, value: Value) -> Value:
        """What is there, or MISSING. Costs 1 if it is there."""
        found = _find(value, self._key if self._run is None else _valid_key(self._run(evaluation)))
        if found is not MISSING:
            evaluation.cost += 1
        return found

    def get(self, evaluation: Evaluation, value: Value) -> Value:
        """What is there; with `test`, whether it is. Costs 1."""
        try:
            key = self._key if self._run is None else _valid_key(self._run(evaluation))
            found = _find(value, key)
        finally:
            evaluation.cost += 1
        if self.test:
            return found is not MISSING
        if found is MISSING:
            raise _missing(value, key)
        return found


def _valid_key(key: Value) -> Value:
    if type(key) in _KEYS:
        return key
    raise CelRuntimeError(f"a value of type {type_name(key)} is no key or index")


def _find(value: Value, key: Value) -> Value:
    kind = type(value)
    if kind in MAPS:
        return look_up(value, key)
    if kind is tuple:
        index = _index(key)
        return value[index] if 0 <= index < len(value) else MISSING
    return MISSING


def _index(key: Value) -> int:
    if type(key) is int or type(key) is Uint:
        return int(key)
    if type(key) is float and key.is_integer():
        return int(key)
    raise CelRuntimeError(f"a list has no index of type {type_name(key)}")


def _missing(value: Value, key: Value) -> CelRuntimeError:
    shown = repr(key) if len(str(key)) <= 100 else type_name(key)
    if type(value) is tuple:
        return CelRuntimeError(f"index out of bounds: {shown}")
    return CelRuntimeError(f"no such key: {shown}")


def _qualified(root: Closure, qualifiers: Sequence[Qualifier]) -> Closure:
    def run(evaluation: Evaluation) -> Value:
        value = root(evaluation)
        optional = False
        if type(value) is OptionalValue:
            if value is ABSENT:
                return ABSENT
            optional, value = True, value.opened()
        for qualifier in qualifiers:
            if optional or qualifier.optional:
                optional = True
                value = qualifier.find(evaluation, value)
                if value is MISSING:
                    return ABSENT
            else:
                value = qualifier.get(evaluation, value)
        return OptionalValue(value) if optional else value

    return run


def renewed(root: Closure) -> Closure:
    """As cel-go before 0.29 reads an optional: see `native`."""

    def run(evaluation: Evaluation) -> Value:
        value = root(evaluation)
        if type(value) is OptionalValue and value is not ABSENT:
            return OptionalValue(native(value.value))
        return value

    return run


class Attribute:
    """`part`: what of the device the root reads, if it does, for a shorter way to it."""

    discount = 0
    """What testing it saves."""

    def __init__(self, root: Closure, part: Reference | None = None) -> None:
        self._root = root
        self._qualifiers: list[Qualifier] = []
        self.part = part

    def qualify(self, qualifier: Qualifier) -> None:
        self._qualifiers.append(qualifier)

    def resolve(self) -> Closure:
        """Reads it, without the 1 that reading the whole costs."""
        return _qualified(self._root, tuple(self._qualifiers)) if self._qualifiers else self._root

    def observed(self) -> Closure:
        """Reads it, and costs 1 more."""
        if self.part is not None and self.part.field and not self._qualifiers:
            return read_part(self.part, extra=1)
        run = self.resolve()

        def observed(evaluation: Evaluation) -> Value:
            try:
                return run(evaluation)
            finally:
                evaluation.cost += 1

        return observed

    def tested(self, *, observed: bool = True) -> Closure:
        """`has()`: the last qualifier tests. Reading the whole is free. `observed`: no branch of `?:`."""
        run = self.resolve()
        discount = self.discount if observed else 0

        def tested(evaluation: Evaluation) -> bool:
            try:
                found = run(evaluation)
            finally:
                evaluation.cost -= discount
            return found is not ABSENT if type(found) is OptionalValue else bool(found)

        return tested


class Conditional(Attribute):
    """`condition ? then : otherwise`: free but for its parts. `has()` gives back 1 that was never paid."""

    discount = 1

    def __init__(self, condition: Closure, then: Attribute, otherwise: Attribute) -> None:
        super().__init__(condition)
        self._then = then
        self._otherwise = otherwise

    def qualify(self, qualifier: Qualifier) -> None:
        self._then.qualify(qualifier)
        self._otherwise.qualify(qualifier)

    def resolve(self) -> Closure:
        condition, then, otherwise = self._root, self._then.resolve(), self._otherwise.resolve()

        def run(evaluation: Evaluation) -> Value:
            chosen = condition(evaluation)
            if chosen is True:
                return then(evaluation)
            if chosen is False:
                return otherwise(evaluation)
            raise no_overload("?:", chosen)

        return run

    def observed(self) -> Closure:
        return self.resolve()


# --- the device --------------------------------------------------------------------------------------------


def whole_device(evaluation: Evaluation) -> dict[Value, Value]:
    """`device` as a value."""
    device = evaluation.device
    return {
        "driver": device.driver,
        "allowMultipleAllocations": device.allow_multiple_allocations,
        "attributes": _domains(device.attributes),
        "capacity": _domains(device.capacity),
    }


def _domains(domains: Mapping[str, Mapping[str, object]]) -> Domains:
    return Domains({domain: _values(domains[domain]) for domain in sorted(domains)})


def _values(values: Mapping[str, object]) -> dict[Value, Value]:
    return {name: values[name] for name in sorted(values)}


def read_part(part: Reference, *, extra: int) -> Closure:
    """Reads a part of the device; its qualifiers cost 1 each, and `extra`."""
    if part.field == "driver":
        return _reading(lambda device: device.driver, 1 + extra)
    if part.field == "allowMultipleAllocations":
        return _reading(lambda device: device.allow_multiple_allocations, 1 + extra)
    field = _field(part.field)
    domain, name = part.domain, part.id
    if domain is None:
        return _reading(lambda device: _domains(field(device)), 1 + extra)
    if name is None:
        return _reading(lambda device: _values(field(device).get(domain, _NOTHING)), 2 + extra)
    return _read_value(part, 3 + extra)


_NOTHING: Mapping[str, object] = {}
_Field = Callable[[CelDevice], Mapping[str, Mapping[str, object]]]


def _field(name: str) -> _Field:
    if name == "attributes":
        return lambda device: device.attributes
    return lambda device: device.capacity


def _reading(read: Callable[[CelDevice], Value], cost: int) -> Closure:
    def run(evaluation: Evaluation) -> Value:
        evaluation.cost += cost
        return read(evaluation.device)

    return run


def _read_value(part: Reference, cost: int) -> Closure:
    domain, name = part.domain, part.id
    in_attributes = part.field == "attributes"

    def run(evaluation: Evaluation) -> Value:
        evaluation.cost += cost
        device = evaluation.device
        domains = device.attributes if in_attributes else device.capacity
        values = domains.get(domain)  # type: ignore[arg-type] # a domain is not None here
        if values is not None:
            found = values.get(name, MISSING)  # type: ignore[arg-type] # nor is a name
            if found is not MISSING:
                return found
        raise CelRuntimeError(f"no such key: {part}", next_step=f"guard it with has({part})")

    return run


def test_part(part: Reference) -> Closure:
    """`has()` of a part of the device that has a domain and an id: costs 3."""
    field = _field(part.field)
    domain, name = part.domain, part.id

    def run(evaluation: Evaluation) -> bool:
        evaluation.cost += 3
        return name in field(evaluation.device).get(domain, _NOTHING)  # type: ignore[arg-type] # not None

    return run


# --- variables ---------------------------------------------------------------------------------------------


class Unset:
    """What a variable of cel.bind() holds until it is read."""

    __slots__ = ()


UNSET = Unset()


def variable(slot: int) -> Closure:
    return lambda evaluation: evaluation.variables[slot]


def accumulator(slot: int) -> Closure:
    """A variable that may hold an error."""

    def run(evaluation: Evaluation) -> Value:
        value = evaluation.variables[slot]
        if type(value) is CelRuntimeError:
            raise value.with_traceback(None)
        return value

    return run


def bound(slot: int, start: Closure) -> Closure:
    """A variable that is evaluated when it is first read."""

    def run(evaluation: Evaluation) -> Value:
        value = evaluation.variables[slot]
        if value is UNSET:
            try:
                value = start(evaluation)
            except CelBudgetError:
                raise
            except CelRuntimeError as error:
                value = error
            evaluation.variables[slot] = value
        if isinstance(value, CelRuntimeError):
            raise value.with_traceback(None)
        return value

    return run
