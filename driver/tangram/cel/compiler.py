"""Checked syntax tree → closures (`tangram.cel.closures`)."""

from collections.abc import Mapping, Sequence

from tangram.base.errors import CelCompileError, CelRuntimeError
from tangram.cel import closures, macros
from tangram.cel.ast import (
    Binary,
    Bind,
    Call,
    Comprehension,
    Conditional,
    Has,
    Identifier,
    Index,
    ListLiteral,
    Literal,
    Logic,
    MapLiteral,
    Node,
    Select,
    Unary,
)
from tangram.cel.checker import DEVICE_VARIABLE, qualified_function
from tangram.cel.closures import Closure
from tangram.cel.functions import FUNCTIONS, METHODS, NEGATION, OPERATORS, Function
from tangram.cel.references import Reference, reference

Slots = Mapping[str, int]
"""Slot of each variable that macros have bound."""

_LIST_COST, _MAP_COST = 10, 30


class Compiler:
    """Compiles one tree. Afterwards `cost` is its price without the turns of macros, `slots` the number of
    variables that are bound at one time.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self.cost = 0
        self.slots = 0

    def compile(self, node: Node, slots: Slots) -> Closure:  # noqa: PLR0911 - one return per kind of node
        """The closure of a node whose variables live in `slots`. Raises CelCompileError."""
        self.cost += 1
        match node:
            case Literal(value=value):
                return closures.constant(value)
            case Identifier(name=name):
                return closures.variable(slots[name])
            case Select() | Index():
                return self._access(node, slots)
            case Call():
                return self._call(node, slots)
            case ListLiteral(items=items):
                return self._list(items, slots)
            case MapLiteral(entries=entries):
                self.cost += _MAP_COST
                return closures.make_map(
                    [(self.compile(key, slots), self.compile(value, slots)) for key, value in entries]
                )
            case Has(selection=selection):
                return self._has(selection, slots)
            case Comprehension():
                return self._comprehension(node, slots)
            case Bind(variable=variable, value=value, body=body):
                bound = self.compile(value, slots)
                inner = self._with_variable(variable, slots)
                return closures.bind(inner[variable], bound, self.compile(body, inner))
            case _:
                return self._operator(node, slots)

    def _with_variable(self, name: str, slots: Slots) -> Slots:
        # Not len(slots): a shadowed variable keeps its slot, because its own macro still turns.
        slot = max(slots.values(), default=-1) + 1
        self.slots = max(self.slots, slot + 1)
        return {**slots, name: slot}

    def _access(self, node: Select | Index, slots: Slots) -> Closure:
        if (part := _device_part(node, slots)) is not None:
            return closures.read(part)
        operand = self._operand(node.operand, slots)
        key = closures.constant(node.name) if isinstance(node, Select) else self.compile(node.key, slots)
        return closures.optional_lookup(operand, key) if node.optional else closures.lookup(operand, key)

    def _has(self, selection: Select, slots: Slots) -> Closure:
        if (part := _device_part(selection, slots)) is not None:
            return closures.read_presence(part)
        return closures.presence(self._operand(selection.operand, slots), selection.name)

    def _operand(self, node: Node, slots: Slots) -> Closure:
        if isinstance(node, Identifier) and node.name == DEVICE_VARIABLE and node.name not in slots:
            return closures.device_fields()
        return self.compile(node, slots)

    def _list(self, items: Sequence[Node], slots: Slots) -> Closure:
        self.cost += _LIST_COST
        made = closures.make_list([self.compile(item, slots) for item in items])
        if constants := _constants(items):
            return closures.constant(constants)
        return made

    def _call(self, node: Call, slots: Slots) -> Closure:
        if function := FUNCTIONS.get(qualified_function(node, {DEVICE_VARIABLE: None, **slots})):
            return self._apply(node, function, node.arguments, slots)
        if node.receiver is None:
            return self._apply(node, FUNCTIONS[node.function], node.arguments, slots)
        if node.function in {"or", "orValue"}:
            optional, other = self.compile(node.receiver, slots), self.compile(node.arguments[0], slots)
            return closures.alternative(optional, other, unwrap=node.function == "orValue")
        return self._apply(node, METHODS[node.function], (node.receiver, *node.arguments), slots)

    def _apply(self, node: Node, function: Function, arguments: Sequence[Node], slots: Slots) -> Closure:
        """A call; where all arguments are constants, its result."""
        compiled = [self.compile(argument, slots) for argument in arguments]
        if constants := _constants(arguments):
            try:
                overload = function.overload(tuple(map(type, constants)))
                return closures.constant(overload.call(*constants))
            except CelRuntimeError as error:
                if function.conversion:  # as upstream; other errors may be absorbed at run time
                    raise CelCompileError(error.cause, expression=self._text, offset=node.offset) from error
        return closures.call(function, compiled)

    def _operator(self, node: Unary | Binary | Logic | Conditional, slots: Slots) -> Closure:
        match node:
            case Logic(operator=operator, operands=operands):
                compiled = [self.compile(operand, slots) for operand in operands]
                return closures.logic(compiled, decisive=operator == "||", operator=operator)
            case Conditional(condition=condition, then=then, otherwise=otherwise):
                return closures.conditional(
                    self.compile(condition, slots), self.compile(then, slots), self.compile(otherwise, slots)
                )
            case Unary(operator="!", operand=operand):
                return closures.negation(self.compile(operand, slots))
            case Unary(operand=operand):
                return self._apply(node, NEGATION, (operand,), slots)
            case Binary(operator=operator, left=left, right=right) if operator in OPERATORS:
                return self._apply(node, OPERATORS[operator], (left, right), slots)
            case Binary(operator=operator, left=left, right=right):
                first, second = self.compile(left, slots), self.compile(right, slots)
                return closures.comparison(operator, first, second)

    def _comprehension(self, node: Comprehension, slots: Slots) -> Closure:
        items = self.compile(node.items, slots)
        inner = self._with_variable(node.variable, slots)
        outside = self.cost
        where = None if node.where is None else self.compile(node.where, inner)
        body = self.compile(node.body, inner)
        turn_cost = self.cost - outside + 1
        self.cost = outside
        slot = inner[node.variable]
        match node.macro:
            case "all" | "exists":
                decisive = node.macro == "exists"
                return macros.quantifier(
                    slot, items, body, decisive=decisive, macro=node.macro, turn_cost=turn_cost
                )
            case "exists_one":
                return macros.exists_one(slot, items, body, turn_cost=turn_cost)
            case "filter":
                return macros.filtered(slot, items, body, turn_cost=turn_cost)
            case "map":
                return macros.mapped(slot, items, where, body, turn_cost=turn_cost)


def _device_part(node: Select | Index, slots: Slots) -> Reference | None:
    """The part of the device that the node reads, unless an optional is involved or `device` is shadowed."""
    if DEVICE_VARIABLE in slots:
        return None
    step: Node = node
    while isinstance(step, Select | Index):
        if step.optional:
            return None
        step = step.operand
    return reference(node)


def _constants(nodes: Sequence[Node]) -> tuple[object, ...]:
    """The values of these nodes if all are literals; empty otherwise, and of no nodes."""
    values = tuple(node.value for node in nodes if isinstance(node, Literal))
    return values if len(values) == len(nodes) else ()
