"""Checked syntax tree → closures. What is constant is worked out here, once."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tangram.base.errors import CelCompileError, CelRuntimeError
from tangram.cel import ast, attributes, evaluation, folds
from tangram.cel.ast import Call, Comprehension, Identifier, ListLiteral, Literal, MapLiteral, Node, Select
from tangram.cel.attributes import Attribute, Conditional, Qualifier
from tangram.cel.checker import Checked
from tangram.cel.declarations import Cost, Function, Overload
from tangram.cel.equality import map_key
from tangram.cel.evaluation import Closure, Evaluation, Implementation
from tangram.cel.library import regex
from tangram.cel.library.arithmetic import checked_int
from tangram.cel.library.conversions import CONVERSIONS
from tangram.cel.references import DEVICE_VARIABLE, Reference
from tangram.cel.types import Kind, Type, is_optional
from tangram.cel.values import RUNTIME_TYPES, Budget, Uint, Value, no_overload, type_name
from tangram.cel.work import TURN, of_node

_INDEXING = {ast.INDEX: False, ast.OPTIONAL_INDEX: True, ast.OPTIONAL_SELECT: True}


class _NotConstant:
    __slots__ = ()


_NOT_CONSTANT = _NotConstant()
_DEVICE = Reference("")


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a node is evaluated: as an attribute, to which qualifiers may still be added, or by `run`.

    `branch`: how it is evaluated instead as a branch of `?:`.
    """

    run: Closure | None = None
    branch: Closure | None = None
    attribute: Attribute | None = None
    constant: Value = _NOT_CONSTANT

    def closure(self) -> Closure:
        if self.attribute is not None:
            return self.attribute.observed()
        assert self.run is not None
        return self.run

    @property
    def is_constant(self) -> bool:
        return self.constant is not _NOT_CONSTANT


def _constant(value: Value) -> _Plan:
    return _Plan(run=evaluation.constant(value), constant=value)


@dataclass(frozen=True, slots=True)
class _Variable:
    """Where a variable lives; `start` is set for those of cel.bind()."""

    slot: int
    accumulates: bool = False
    start: Closure | None = None


Slots = Mapping[str, _Variable]


class Planner:
    """Plans one tree. Afterwards `slots` is how many variables its macros bind, `work` what an evaluation
    takes outside of loops, `nodes` how large the tree is.
    """

    def __init__(self, checked: Checked, text: str, *, old_optionals: bool) -> None:
        self._checked = checked
        self._text = text
        self._old_optionals = old_optionals
        self.slots = 0
        self.work = 0
        self.nodes = 0
        self._pattern_size = 0

    def plan(self) -> Closure:
        """Raises CelCompileError where upstream cannot make a program of a checked tree."""
        return self._run(self._checked.tree, {})

    def _error(self, node: Node, error: CelRuntimeError) -> CelCompileError:
        return CelCompileError(error.cause, expression=self._text, offset=node.offset)

    def _run(self, node: Node, scope: Slots) -> Closure:
        return self._plan(node, scope).closure()

    def _plan(self, node: Node, scope: Slots) -> _Plan:  # noqa: PLR0911 - one return per kind of node
        self.nodes += 1
        self.work += of_node(node)
        if node in self._checked.types_used:
            return _constant(self._checked.types_used[node])
        match node:
            case Literal(value=value):
                return _constant(value)
            case Identifier():
                return self._variable(node, scope)
            case Select():
                return self._select(node, scope)
            case Call():
                return self._call(node, scope)
            case ListLiteral():
                return self._list(node, scope)
            case MapLiteral():
                return self._map(node, scope)
            case Comprehension(binds=True):
                return self._bind(node, scope)
            case Comprehension():
                return self._loop(node, scope)
        raise AssertionError(node)

    # --- attributes ----------------------------------------------------------------------------------------

    def _variable(self, node: Identifier, scope: Slots) -> _Plan:
        known = scope.get(node.name)
        if known is None:
            assert node.name == DEVICE_VARIABLE
            return _Plan(attribute=Attribute(attributes.whole_device, part=_DEVICE))
        if known.start is not None:
            run = attributes.bound(known.slot, known.start)
        else:
            read = attributes.accumulator if known.accumulates else attributes.variable
            run = read(known.slot)
        return _Plan(attribute=self._rooted(node, run))

    def _rooted(self, node: Node, run: Closure) -> Attribute:
        """An attribute that begins with the value of a node."""
        kind = self._checked.types[node]
        if self._old_optionals and (kind.is_dynamic or is_optional(kind)):
            run = attributes.renewed(run)
        return Attribute(run)

    def _attribute(self, node: Node, scope: Slots) -> Attribute:
        """The attribute of a node that something is read of."""
        plan = self._plan(node, scope)
        return self._rooted(node, plan.branch or plan.closure()) if plan.attribute is None else plan.attribute

    def _select(self, node: Select, scope: Slots) -> _Plan:
        attribute = self._attribute(node.operand, scope)
        if node.test:
            part = _below(attribute, node.name)
            if part is not None and part.id is not None:
                return _Plan(run=attributes.test_part(part))
            attribute.qualify(Qualifier(node.name, test=True))
            return _Plan(run=attribute.tested(), branch=attribute.tested(observed=False))
        return _Plan(attribute=_qualified(attribute, Qualifier(node.name), node.name))

    def _index(self, node: Call, scope: Slots, *, optional: bool) -> _Plan:
        operand, key = node.arguments
        attribute = self._attribute(operand, scope)
        index = self._plan(key, scope)
        if index.is_constant:
            value = index.constant
            if type(value) not in {str, int, Uint, bool, float}:
                cause = f"a value of type {type_name(value)} is no key or index"
                raise self._error(key, CelRuntimeError(cause))
            qualifier = Qualifier(value, optional=optional)
            return _Plan(attribute=_qualified(attribute, qualifier, value))
        run = index.closure() if index.attribute is None else index.attribute.resolve()
        attribute.qualify(Qualifier(None, run=run, optional=optional))
        attribute.part = None
        return _Plan(attribute=attribute)

    # --- calls ---------------------------------------------------------------------------------------------

    def _call(self, node: Call, scope: Slots) -> _Plan:
        if node.function in _INDEXING:
            return self._index(node, scope, optional=_INDEXING[node.function])
        if node.function == ast.CONDITIONAL:
            condition, *branches = node.arguments
            then, otherwise = (self._attribute(branch, scope) for branch in branches)
            return _Plan(attribute=Conditional(self._run(condition, scope), then, otherwise))
        arguments = [self._plan(argument, scope) for argument in self._arguments(node)]
        special = self._special(node, arguments)
        if special is not None:
            return special
        return self._ordinary(node, arguments)

    def _arguments(self, node: Call) -> Sequence[Node]:
        """What a call is evaluated with: the receiver first, unless it is a part of the function's name."""
        if node.receiver is None or node in self._checked.global_calls:
            return node.arguments
        return (node.receiver, *node.arguments)

    def _special(self, node: Call, arguments: Sequence[_Plan]) -> _Plan | None:
        if node.function in {ast.AND, ast.OR}:
            symbol = "&&" if node.function == ast.AND else "||"
            operands = [argument.closure() for argument in arguments]
            decisive = node.function == ast.OR
            return _Plan(run=evaluation.logic(operands, decisive=decisive, operator=symbol))
        if node.function == ast.NOT_STRICTLY_FALSE:
            return _Plan(run=evaluation.not_strictly_false(arguments[0].closure()))
        if node.function in {"or", "orValue"} and node.receiver is not None:
            optional, other = (argument.closure() for argument in arguments)
            unwrap = node.function == "orValue"
            lenient = self._old_optionals
            return _Plan(run=evaluation.alternative(optional, other, unwrap=unwrap, lenient=lenient))
        if node.function == ast.IN and arguments[1].is_constant:
            return self._membership(node, arguments)
        return None

    def _ordinary(self, node: Call, arguments: Sequence[_Plan]) -> _Plan:
        function, overloads = self._checked.calls[node]
        implementation, budgeted, cost = _dispatch(function, overloads)
        if function.name in CONVERSIONS and len(arguments) == 1 and arguments[0].is_constant:
            try:
                constant = arguments[0].constant
                return _constant(implementation(Budget(), constant) if budgeted else implementation(constant))
            except CelRuntimeError as error:
                raise self._error(node, error) from None
        variadic = function.dynamic is None and (len(overloads) > 1 or function.name in _VARIADIC)
        pattern = regex.PATTERNS.get(function.name)
        if pattern is not None and arguments[pattern].is_constant:
            variadic = True
            self._check_pattern(node, arguments[pattern].constant)
        closures = [argument.closure() for argument in arguments]
        if pattern is not None and not arguments[pattern].is_constant:
            closures[pattern] = evaluation.observed(closures[pattern], regex.compiling)
        if not closures:
            return _Plan(run=_call_nothing(implementation))
        return _Plan(
            run=evaluation.call(
                implementation,
                closures,
                cost=cost,
                budgeted=budgeted,
                variadic=variadic,
                walks=function.walks,
                short=self._short_way(node),
            )
        )

    def _short_way(self, node: Call) -> evaluation.Short | None:
        """For an operator on two values of one type that it is mostly used on, as far as is known before."""
        kinds = {self._checked.types[argument].kind for argument in self._arguments(node)} - _UNKNOWN
        return _SHORT.get((node.function, kinds.pop())) if len(kinds) == 1 else None

    def _check_pattern(self, node: Node, pattern: Value) -> None:
        if type(pattern) is str:
            try:
                self._pattern_size += regex.compiled(pattern).programsize
                if self._pattern_size > regex.MAXIMUM_SIZE:
                    raise regex.TOO_LARGE
            except CelRuntimeError as error:
                raise self._error(node, error) from None

    def _membership(self, node: Call, arguments: Sequence[_Plan]) -> _Plan | None:
        """`x in [constants]`, which upstream turns into a set."""
        _, overloads = self._checked.calls[node]
        items = arguments[1].constant
        if [overload.id for overload in overloads] != ["in_list"] or type(items) is not tuple:
            return None
        if not items:
            return _constant(value=False)
        if any(type(item) not in _PRIMITIVE for item in items):
            return None
        members = frozenset(key for item in items for key in _equal_keys(item))
        return _Plan(run=evaluation.membership(arguments[0].closure(), members, _member_key))

    # --- containers and loops ------------------------------------------------------------------------------

    def _list(self, node: ListLiteral, scope: Slots) -> _Plan:
        items = [self._plan(item, scope) for item in node.items]
        if all(item.is_constant for item in items) and not node.optional:  # no constant is an optional
            return _constant(tuple(item.constant for item in items))
        return _Plan(run=evaluation.make_list([item.closure() for item in items], node.optional))

    def _map(self, node: MapLiteral, scope: Slots) -> _Plan:
        keys = [self._plan(key, scope) for key, _ in node.entries]
        values = [self._plan(value, scope) for _, value in node.entries]
        if all(plan.is_constant for plan in (*keys, *values)) and not node.optional:
            try:
                pairs = zip(keys, values, strict=True)
                return _constant({map_key(key.constant): value.constant for key, value in pairs})
            except CelRuntimeError as error:
                raise self._error(node, error) from None
        entries = [(key.closure(), value.closure()) for key, value in zip(keys, values, strict=True)]
        return _Plan(run=evaluation.make_map(entries, node.optional))

    def _new_slot(self) -> int:
        # One of its own for each variable: what `cel.bind()` binds is evaluated where it is first used, among
        # the variables of inner macros.
        self.slots += 1
        return self.slots - 1

    def _bind(self, node: Comprehension, scope: Slots) -> _Plan:
        slot = self._new_slot()
        start = self._run(node.start, scope)
        inner = {**scope, node.accumulator: _Variable(slot, start=start)}
        return _Plan(run=folds.bind(slot, self._run(node.result, inner)))

    def _loop(self, node: Comprehension, scope: Slots) -> _Plan:
        items = self._run(node.items, scope)
        start = self._plan(node.start, scope)
        accumulator = self._new_slot()
        outer = {**scope, node.accumulator: _Variable(accumulator, accumulates=True)}
        first = self._new_slot()
        inner = {**outer, node.variable: _Variable(first)}
        second = None
        if node.second:
            second = self._new_slot()
            inner[node.second] = _Variable(second)
        result = self._run(node.result, outer)
        outside, self.work = self.work, TURN
        condition = self._plan(node.condition, inner)
        step = self._run(node.step, inner)
        turn, self.work = self.work, outside
        return _Plan(
            run=folds.fold(
                items,
                accumulator=accumulator,
                first=first,
                second=second,
                start=start.constant,
                condition=None if condition.is_constant else condition.closure(),
                step=step,
                result=result,
                turn=turn,
            )
        )


_VARIADIC = frozenset({"format"})


def _dispatch(function: Function, overloads: Sequence[Overload]) -> tuple[Implementation, bool, Cost | None]:
    """What evaluates a call, whether it takes a budget first, and what it costs."""
    known = overloads[0] if len(overloads) == 1 else None
    cost = (known.cost if known is not None else None) or function.cost
    if function.dynamic is not None:
        return function.dynamic, function.budgeted, cost
    candidates = overloads if known is not None else function.overloads
    return _guarded(function.name, candidates), True, cost


_SCALARS = {Kind.BOOL: bool, Kind.INT: int, Kind.UINT: Uint, Kind.DOUBLE: float}
_SHORT: Mapping[tuple[str, Kind], evaluation.Short] = {
    (ast.ADD, Kind.INT): (int, lambda left, right: checked_int(left + right)),
    (ast.SUBTRACT, Kind.INT): (int, lambda left, right: checked_int(left - right)),
    (ast.MULTIPLY, Kind.INT): (int, lambda left, right: checked_int(left * right)),
    (ast.LESS, Kind.INT): (int, operator.lt),
    (ast.LESS_EQUALS, Kind.INT): (int, operator.le),
    (ast.GREATER, Kind.INT): (int, operator.gt),
    (ast.GREATER_EQUALS, Kind.INT): (int, operator.ge),
    **{(ast.EQUALS, kind): (type_, operator.eq) for kind, type_ in _SCALARS.items()},
    **{(ast.NOT_EQUALS, kind): (type_, operator.ne) for kind, type_ in _SCALARS.items()},
}
"""They cost 1 on these types."""
_UNKNOWN = frozenset({Kind.DYN, Kind.ANY})
"""Of values whose types are known at run time only, such as attributes."""


def _guarded(name: str, overloads: Sequence[Overload]) -> Callable[..., Value]:
    """The first overload that takes the values at run time: they need not be what the checker found."""
    if len(overloads) == 1 and overloads[0].call is not None and all(map(_is_plain, overloads[0].parameters)):
        return _guarded_one(name, overloads[0])

    def call(budget: Budget, *values: Value) -> Value:
        for overload in overloads:
            if overload.call is not None and overload.takes(values):
                return overload.call(budget, *values) if overload.budgeted else overload.call(*values)
        raise no_overload(name, *values)

    return call


def _is_plain(kind: Type) -> bool:
    return kind.name in _PLAIN_TYPES


_PLAIN_TYPES: Mapping[str, frozenset[type]] = {
    kind.name: frozenset(type_ for type_, other in RUNTIME_TYPES.items() if other.name == kind.name)
    for kind in RUNTIME_TYPES.values()
    if kind.kind is not Kind.LIST
}


def _guarded_one(name: str, overload: Overload) -> Callable[..., Value]:
    """The same, quicker, for one overload whose types say all in their names."""
    expected = [_PLAIN_TYPES[kind.name] for kind in overload.parameters]
    implementation, budgeted, count = overload.call, overload.budgeted, len(expected)
    assert implementation is not None

    def call(budget: Budget, *values: Value) -> Value:
        if len(values) != count:
            raise no_overload(name, *values)
        for value, types in zip(values, expected, strict=True):
            if type(value) not in types:
                raise no_overload(name, *values)
        return implementation(budget, *values) if budgeted else implementation(*values)

    return call


def _call_nothing(implementation: Implementation) -> Closure:
    def run(state: Evaluation) -> Value:
        state.cost += 1
        return implementation(state)

    return run


def _qualified(attribute: Attribute, qualifier: Qualifier, key: Value) -> Attribute:
    """The attribute with one more qualifier; a shorter way where that reads a part of the device."""
    part = None if qualifier.optional else _below(attribute, key)
    if part is not None:
        return Attribute(attributes.read_part(part, extra=0), part=part)
    attribute.qualify(qualifier)
    attribute.part = None
    return attribute


def _below(attribute: Attribute, key: Value) -> Reference | None:
    """The part of the device that a key of an attribute is, if the attribute is one and may have keys."""
    part = attribute.part
    if part is None or type(key) is not str:
        return None
    if part is _DEVICE:
        return Reference(key)
    if part.field not in {"attributes", "capacity"} or part.id is not None:
        return None
    return part._replace(domain=key) if part.domain is None else part._replace(id=key)


# --- membership --------------------------------------------------------------------------------------------

_PRIMITIVE = frozenset({bool, int, Uint, float, str})


def _member_key(value: Value) -> Value:
    if type(value) is bytes:
        raise no_overload("in", value)
    return map_key(value) if type(value) in _PRIMITIVE else _NOT_CONSTANT


def _equal_keys(item: Value) -> list[Value]:
    """The keys of all numbers that equal an item, as far as upstream looks."""
    kind = type(item)
    keys = [map_key(item)]
    if kind is float and item.is_integer():
        if -(2.0**63) < item < 2.0**63:
            keys.append(int(item))
        if 0 <= item < 2.0**64:
            keys.append(map_key(Uint(int(item))))
    elif kind is int or kind is Uint:
        keys.append(map_key(float(item)))
        if kind is int and item >= 0:
            keys.append(map_key(Uint(item)))
        if kind is Uint and item < 2**63:
            keys.append(int(item))
    return keys
