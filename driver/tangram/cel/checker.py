"""Type check of a syntax tree: refuses what can be true for no device, before any device is looked at."""

import difflib
from collections.abc import Mapping, Sequence

from tangram.base.errors import CelCompileError, CelNotSupportedError
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
from tangram.cel.functions import FUNCTIONS, LATER, METHODS, NEGATION, OPERATORS, Function
from tangram.cel.types import (
    BOOL,
    BYTES,
    DEVICE,
    DEVICE_FIELDS,
    DOUBLE,
    DYN,
    INT,
    LIST,
    NULL,
    NUMBERS,
    OPAQUE,
    OPTIONAL,
    STRING,
    UINT,
    Type,
    fits,
    join,
    list_of,
    map_of,
    optional_of,
)
from tangram.cel.values import Uint

Scope = Mapping[str, Type]

_CONSTANTS = {
    bool: BOOL,
    int: INT,
    Uint: UINT,
    float: DOUBLE,
    str: STRING,
    bytes: BYTES,
    type(None): NULL,
}
_ORDERED = (BOOL, STRING, BYTES)
_KEYS = (BOOL, INT, UINT, STRING)
_TYPE_NAMES = frozenset(
    {"bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type"}
)
DEVICE_VARIABLE = "device"


def check(tree: Node, text: str) -> None:
    """Raises CelCompileError unless the tree is well typed and may evaluate to bool."""
    checker = _Checker(text)
    result = checker.type_of(tree, {DEVICE_VARIABLE: DEVICE})
    if not fits(result, BOOL):
        raise checker.error(tree, f"the expression must evaluate to bool, not {result}")


def qualified_function(node: Call, scope: Mapping[str, object]) -> str:
    """`optional.of` for a call that looks like a method of a variable that does not exist; else empty."""
    if isinstance(node.receiver, Identifier) and node.receiver.name not in scope:
        return f"{node.receiver.name}.{node.function}"
    return ""


class _Checker:
    def __init__(self, text: str) -> None:
        self._text = text

    def error(self, node: Node, cause: str, next_step: str = "") -> CelCompileError:
        return CelCompileError(cause, expression=self._text, offset=node.offset, next_step=next_step)

    def _not_yet(self, node: Node, what: str) -> CelNotSupportedError:
        return CelNotSupportedError(f"{what} is not supported yet", expression=self._text, offset=node.offset)

    def type_of(self, node: Node, scope: Scope) -> Type:  # noqa: PLR0911 - one return per kind of node
        """The static type of a node whose free variables have the types in `scope`."""
        match node:
            case Literal(value=value):
                return _CONSTANTS[type(value)]
            case Identifier():
                return self._variable(node, scope)
            case Select():
                return self._select(node, scope)
            case Index():
                return self._index(node, scope)
            case Call():
                return self._call(node, scope)
            case ListLiteral(items=items):
                return list_of(self._one_type(node, items, scope, "items of a list"))
            case MapLiteral(entries=entries):
                return self._map(node, entries, scope)
            case Has(selection=selection):
                self._select(selection, scope)
                return BOOL
            case Comprehension():
                return self._comprehension(node, scope)
            case Bind(variable=variable, value=value, body=body):
                return self.type_of(body, {**scope, variable: self._value(value, scope)})
            case _:
                return self._operator(node, scope)

    def _value(self, node: Node, scope: Scope) -> Type:
        """The type of an operand that is used as a whole."""
        kind = self.type_of(node, scope)
        if kind is DEVICE:
            raise self._not_yet(node, "`device` as a value, without one of its fields,")
        return kind

    def _variable(self, node: Identifier, scope: Scope) -> Type:
        if node.name in scope:
            return scope[node.name]
        if node.name in _TYPE_NAMES:
            raise self._not_yet(node, f"type {node.name!r} as a value")
        raise self.error(node, f"there is no variable {node.name!r}", _did_you_mean(node.name, scope))

    def _select(self, node: Select, scope: Scope) -> Type:
        operand = self.type_of(node.operand, scope)
        chained = operand.name == "optional"
        if chained:
            operand = operand.parameters[0]
        if operand is DEVICE:
            if node.name not in DEVICE_FIELDS:
                raise self.error(
                    node,
                    f"device has no field {node.name!r}",
                    _did_you_mean(node.name, DEVICE_FIELDS) or f"its fields are {', '.join(DEVICE_FIELDS)}",
                )
            result = DEVICE_FIELDS[node.name]
        elif operand.name == "map" and fits(STRING, operand.parameters[0]):
            result = operand.parameters[1]
        elif operand is DYN:
            result = DYN
        else:
            raise self.error(node, f"a value of type {operand} has no fields")
        return optional_of(result) if chained or node.optional else result

    def _index(self, node: Index, scope: Scope) -> Type:
        operand, key = self._value(node.operand, scope), self._value(node.key, scope)
        chained = operand.name == "optional"
        if chained:
            operand = operand.parameters[0]
        if operand.name == "list" and fits(key, INT):
            result = operand.parameters[0]
        elif operand.name == "map" and fits(key, operand.parameters[0]):
            result = operand.parameters[1]
        elif operand is DYN:
            result = DYN
        else:
            raise self.error(node, f"no such overload: {operand}[{key}]")
        return optional_of(result) if chained or node.optional else result

    def _one_type(self, node: Node, items: Sequence[Node], scope: Scope, what: str) -> Type:
        kinds = [self._value(item, scope) for item in items]
        joined = join(kinds)
        if joined is None:
            names = sorted({str(kind) for kind in kinds})
            raise self.error(node, f"the {what} must be of one type, not {' and '.join(names)}")
        return joined

    def _map(self, node: Node, entries: tuple[tuple[Node, Node], ...], scope: Scope) -> Type:
        keys = [key for key, _ in entries]
        key_type = self._one_type(node, keys, scope, "keys of a map")
        if key_type is not DYN and key_type not in _KEYS:
            raise self.error(node, f"a value of type {key_type} cannot be a key of a map")
        values = [value for _, value in entries]
        return map_of(key_type, self._one_type(node, values, scope, "values of a map"))

    def _comprehension(self, node: Comprehension, scope: Scope) -> Type:
        items = self._value(node.items, scope)
        if items.name not in {"list", "map", "dyn"}:
            raise self.error(node, f"{node.macro}() needs a list or a map, not {items}")
        item = items.parameters[0] if items.parameters else DYN
        inner = {**scope, node.variable: item}
        if node.where is not None:
            self._bool(node.where, inner, f"the condition of {node.macro}()")
        if node.macro == "map":
            return list_of(self._value(node.body, inner))
        self._bool(node.body, inner, f"the condition of {node.macro}()")
        return list_of(item) if node.macro == "filter" else BOOL

    def _bool(self, node: Node, scope: Scope, what: str) -> None:
        kind = self._value(node, scope)
        if not fits(kind, BOOL):
            raise self.error(node, f"{what} must be bool, not {kind}")

    def _operator(self, node: Unary | Binary | Logic | Conditional, scope: Scope) -> Type:
        match node:
            case Logic(operator=operator, operands=operands):
                for operand in operands:
                    self._bool(operand, scope, f"an operand of {operator}")
                return BOOL
            case Conditional(condition=condition, then=then, otherwise=otherwise):
                self._bool(condition, scope, "the condition of ?:")
                return self._one_type(node, (then, otherwise), scope, "two results of ?:")
            case Unary(operator="!", operand=operand):
                self._bool(operand, scope, "the operand of !")
                return BOOL
            case Unary(operand=operand):
                return self._result(node, NEGATION, [self._value(operand, scope)])
            case Binary(operator=operator, left=left, right=right):
                kinds = [self._value(left, scope), self._value(right, scope)]
                if operator in OPERATORS:
                    return self._result(node, OPERATORS[operator], kinds)
                if not _comparable(operator, *kinds):
                    raise self.error(
                        node,
                        f"no such overload: {kinds[0]} {operator} {kinds[1]}",
                        _comparison_hint(operator, kinds),
                    )
                return BOOL

    def _call(self, node: Call, scope: Scope) -> Type:
        qualified = qualified_function(node, scope)
        if qualified in FUNCTIONS:
            return self._result(node, FUNCTIONS[qualified], [self._value(a, scope) for a in node.arguments])
        if qualified in LATER:
            raise self._not_yet(node, f"function {qualified!r}")
        table = METHODS if node.receiver is not None else FUNCTIONS
        if node.function not in table:
            raise self._unknown_function(node, table)
        operands = node.arguments if node.receiver is None else (node.receiver, *node.arguments)
        return self._result(node, table[node.function], [self._value(a, scope) for a in operands])

    def _unknown_function(self, node: Call, table: Mapping[str, Function]) -> CelCompileError:
        name = node.function
        if name in LATER:
            return self._not_yet(node, f"function {name!r}")
        if name in METHODS:
            return self.error(node, f"{name!r} is called on a value", f"write value.{name}(…)")
        if name in FUNCTIONS:
            return self.error(node, f"{name!r} is not called on a value", f"write {name}(…)")
        return self.error(node, f"there is no function {name!r}", _did_you_mean(name, table))

    def _result(self, node: Node, function: Function, arguments: list[Type]) -> Type:
        candidates = function.candidates(arguments)
        if not candidates:
            raise self.error(node, f"no such overload: {function.name}({', '.join(map(str, arguments))})")
        if function.name == "+" and candidates[0].result == LIST:
            if (joined := join(arguments)) is None:
                raise self.error(node, f"no such overload: {arguments[0]} + {arguments[1]}")
            return joined
        if function.name == "optional.of":
            return optional_of(arguments[0])
        if candidates[0].result == OPTIONAL and arguments:
            return join(arguments) or OPTIONAL
        results = {candidate.result for candidate in candidates}
        return results.pop() if len(results) == 1 else DYN


def _comparable(operator: str, left: Type, right: Type) -> bool:
    if operator == "in":
        container, key = right, left
        return container is DYN or (container.name in {"list", "map"} and fits(key, container.parameters[0]))
    if operator in {"==", "!="}:
        return fits(left, right)
    if DYN in (left, right):
        return all(kind in (DYN, *_ORDERED, *NUMBERS) for kind in (left, right))
    return (left == right and left in _ORDERED) or (left in NUMBERS and right in NUMBERS)


def _comparison_hint(operator: str, kinds: Sequence[Type]) -> str:
    opaque = next((kind for kind in kinds if kind in OPAQUE), None)
    if opaque is None:
        return ""
    if operator in {"==", "!="}:
        return f'write {opaque}("…") around the other side'
    return "use isGreaterThan(), isLessThan() or compareTo()"


def _did_you_mean(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else ""
