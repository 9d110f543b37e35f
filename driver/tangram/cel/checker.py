"""Type check of a syntax tree: refuses what can be true for no device, before any device is looked at.

Rules: CEL language definition, "Gradual Type Checking", as cel-go applies them.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tangram.base.errors import CelCompileError
from tangram.cel import ast
from tangram.cel.ast import (
    Call,
    Comprehension,
    Identifier,
    ListLiteral,
    Literal,
    MapLiteral,
    Node,
    Select,
    qualified_name,
)
from tangram.cel.declarations import Function, Overload
from tangram.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DYN,
    INT,
    NULL,
    STRING,
    UINT,
    Kind,
    Type,
    is_optional,
    list_of,
    map_of,
    optional_of,
    parameter,
    unwrap_optional,
)
from tangram.cel.unify import most_general, substitute, unify
from tangram.cel.values import Uint

_CONSTANTS = {
    bool: BOOL,
    int: INT,
    Uint: UINT,
    float: DOUBLE,
    str: STRING,
    bytes: BYTES,
    type(None): NULL,
}
_ITERABLE = frozenset({Kind.DYN, Kind.ERROR, Kind.PARAMETER})
_HINTS = {
    ("_==_", "quantity", "string"): 'write quantity("…") around the text',
    ("_==_", "semver", "string"): 'write semver("…") around the text',
}
_SYMBOLS = {"@in": "in", "-_": "-", "!_": "!", "_[_]": "[]", "_?_:_": "?:"}

Scope = Mapping[str, Type]
Resolved = tuple[Function, tuple[Overload, ...]]


@dataclass(frozen=True, slots=True)
class Declarations:
    """What a checker knows: functions, variables, names of types, fields of the device."""

    functions: Mapping[str, Function]
    variables: Mapping[str, Type]
    type_names: Mapping[str, Type]
    device_fields: Mapping[str, Type]


@dataclass(frozen=True, slots=True)
class Checked:
    """A tree with the type of each node and the overloads that each call may need.

    `types_used`: names that stand for a type used as a value. `global_calls`: calls such as `optional.of(1)`,
    whose receiver is the first part of the function's name.
    """

    tree: Node
    types: dict[Node, Type]
    calls: dict[Node, Resolved]
    types_used: dict[Node, Type]
    global_calls: frozenset[Node]


def check(
    tree: Node, text: str, declarations: Declarations, results: Iterable[Type], *, wanted: str
) -> Checked:
    """Raises CelCompileError unless the tree is well typed and of one of the types in `results`; `wanted` are
    these in words."""
    checker = _Checker(text, declarations)
    checker.visit(tree, declarations.variables)
    types = {node: substitute(kind, checker.bindings, rest=True) for node, kind in checker.types.items()}
    if types[tree] not in results:
        raise checker.error(tree, f"the expression must evaluate to {wanted}, not {types[tree]}")
    return Checked(tree, types, checker.calls, checker.types_used, frozenset(checker.global_calls))


class _Checker:
    def __init__(self, text: str, declarations: Declarations) -> None:
        self._text = text
        self._declared = declarations
        self._fresh = 0
        self.bindings: dict[Type, Type] = {}
        self.types: dict[Node, Type] = {}
        self.calls: dict[Node, Resolved] = {}
        self.types_used: dict[Node, Type] = {}
        self.global_calls: set[Node] = set()

    def error(self, node: Node, cause: str, next_step: str = "") -> CelCompileError:
        return CelCompileError(cause, expression=self._text, offset=node.offset, next_step=next_step)

    def visit(self, node: Node, scope: Scope) -> Type:
        """The type of a node whose free variables have the types in `scope`."""
        kind = self._visit(node, scope)
        self.types[node] = kind
        return kind

    def _visit(self, node: Node, scope: Scope) -> Type:
        match node:
            case Literal(value=value):
                return _CONSTANTS[type(value)]
            case Identifier(name=name):
                return self._named(node, name, scope) or self._no_variable(node, scope)
            case Select():
                return self._select(node, scope)
            case Call():
                return self._call(node, scope)
            case ListLiteral():
                return self._list(node, scope)
            case MapLiteral():
                return self._map(node, scope)
            case Comprehension():
                return self._comprehension(node, scope)
        raise AssertionError(node)

    def _new_parameter(self) -> Type:
        self._fresh += 1
        return parameter(f"_{self._fresh}")

    def _assignable(self, actual: Type, wanted: Type) -> bool:
        found = unify((actual,), (wanted,), self.bindings)
        if found is None:
            return False
        self.bindings.update(found)
        return True

    def _known(self, kind: Type) -> Type:
        return substitute(kind, self.bindings)

    # --- names and fields ----------------------------------------------------------------------------------

    def _named(self, node: Node, name: str, scope: Scope) -> Type | None:
        if name in scope:
            return scope[name]
        named = self._declared.type_names.get(name)
        if named is None:
            return None
        self.types_used[node] = named
        return Type(Kind.TYPE, "type", (named,))

    def _no_variable(self, node: Identifier, scope: Scope) -> Type:
        raise self.error(node, f"there is no variable {node.name!r}", _did_you_mean(node.name, scope))

    def _select(self, node: Select, scope: Scope) -> Type:
        if name := qualified_name(node):
            kind = self._named(node, name, scope)
            if kind is not None:
                return kind
        kind = self._field(node, node.operand, node.name, scope, optional=False)
        return BOOL if node.test else self._known(kind)

    def _field(self, node: Node, operand: Node, name: str, scope: Scope, *, optional: bool) -> Type:
        whole = self._known(self.visit(operand, scope))
        optional = optional or is_optional(whole)
        kind = unwrap_optional(whole)
        result = DYN
        if kind.kind is Kind.MAP:
            result = kind.parameters[1]
        elif kind.kind is Kind.STRUCT:
            result = self._struct_field(node, kind, name)
        elif kind.kind is Kind.PARAMETER:
            self._assignable(DYN, kind)
        elif not kind.is_dynamic:
            raise self.error(node, f"a value of type {kind} has no fields")
        return optional_of(result) if optional else result

    def _struct_field(self, node: Node, kind: Type, name: str) -> Type:
        fields = self._declared.device_fields
        if kind.name != "kubernetes.DRADevice":
            raise self.error(node, f"a value of type {kind} has no fields")
        if name not in fields:
            hint = _did_you_mean(name, fields) or f"its fields are {', '.join(fields)}"
            raise self.error(node, f"device has no field {name!r}", hint)
        return fields[name]

    # --- calls ---------------------------------------------------------------------------------------------

    def _call(self, node: Call, scope: Scope) -> Type:
        if node.function == ast.OPTIONAL_SELECT:
            operand, name = node.arguments
            assert isinstance(name, Literal)
            self.types[name] = STRING
            self.calls[node] = self._resolved(ast.OPTIONAL_SELECT)
            return self._known(self._field(node, operand, name.value, scope, optional=True))
        arguments = [self.visit(argument, scope) for argument in node.arguments]
        if node.function in {ast.AND, ast.OR}:
            return self._logic(node, arguments)
        functions = self._declared.functions
        if node.receiver is None:
            function = functions.get(node.function)
            if function is None:
                raise self._no_function(node, scope)
            return self._overload(node, function, arguments, member=False)
        if prefix := qualified_name(node.receiver):
            function = functions.get(f"{prefix}.{node.function}")
            if function is not None:
                self.global_calls.add(node)
                return self._overload(node, function, arguments, member=False)
        receiver = self.visit(node.receiver, scope)
        function = functions.get(node.function)
        if function is None:
            raise self._no_function(node, scope)
        return self._overload(node, function, [receiver, *arguments], member=True)

    def _resolved(self, name: str) -> Resolved:
        function = self._declared.functions[name]
        return function, function.overloads

    def _logic(self, node: Call, arguments: Sequence[Type]) -> Type:
        for argument, kind in zip(node.arguments, arguments, strict=True):
            if not self._assignable(kind, BOOL):
                symbol = "&&" if node.function == ast.AND else "||"
                raise self.error(argument, f"an operand of {symbol} must be bool, not {self._shown(kind)}")
        self.calls[node] = self._resolved(node.function)
        return BOOL

    def _overload(self, node: Call, function: Function, arguments: Sequence[Type], *, member: bool) -> Type:
        found: list[Overload] = []
        result: Type | None = None
        for overload in function.overloads:
            if overload.member is not member or _clash(arguments, overload.parameters):
                continue
            parameters, declared = self._instantiated(overload)
            bindings = unify(arguments, parameters, self.bindings)
            if bindings is None:
                continue
            self.bindings.update(bindings)
            found.append(overload)
            kind = self._known(declared)
            if result is None:
                result = kind
            elif not result.is_dynamic and kind != result:
                result = DYN
        if result is None:
            raise self._no_overload(node, function, arguments, member=member)
        self.calls[node] = function, tuple(found)
        return result

    def _instantiated(self, overload: Overload) -> tuple[Sequence[Type], Type]:
        """The types of an overload with type variables of its own."""
        variables = _variables(overload)
        if not variables:
            return overload.parameters, overload.result
        fresh = {variable: self._new_parameter() for variable in variables}
        return [substitute(kind, fresh) for kind in overload.parameters], substitute(overload.result, fresh)

    def _shown(self, kind: Type) -> Type:
        return substitute(kind, self.bindings, rest=True)

    def _no_overload(
        self, node: Call, function: Function, arguments: Sequence[Type], *, member: bool
    ) -> CelCompileError:
        styles = {overload.member for overload in function.overloads}
        name = function.name
        if member not in styles:
            written = f"value.{name}(…)" if True in styles else f"{name}(…)"
            where = "called on a value" if True in styles else "not called on a value"
            return self.error(node, f"{name!r} is {where}; write {written}")
        shown = [str(self._shown(kind)) for kind in arguments]
        symbol = _SYMBOLS.get(name, name.strip("_"))
        if name == ast.CONDITIONAL:
            return self._bad_conditional(node, shown)
        if name == ast.INDEX:
            return self.error(node, f"no such overload: {shown[0]}[{shown[1]}]")
        if len(shown) == 2 and not name.replace(".", "").replace("@", "").isalnum():
            hint = _HINTS.get((name, shown[0], shown[1]), "")
            if shown[0] == shown[1] and shown[0] in {"quantity", "semver"} and symbol in "<=>=":
                hint = "use isLessThan(), isGreaterThan() or compareTo()"
            return self.error(node, f"no such overload: {shown[0]} {symbol} {shown[1]}", hint)
        if name == ast.IN:
            return self.error(node, f"no such overload: {shown[0]} in {shown[1]}")
        return self.error(node, f"no such overload: {symbol}({', '.join(shown)})")

    def _bad_conditional(self, node: Call, shown: Sequence[str]) -> CelCompileError:
        if shown[0] not in {"bool", "dyn"}:
            return self.error(node.arguments[0], f"the condition of ?: must be bool, not {shown[0]}")
        return self.error(node, f"the two results of ?: must be of one type, not {shown[1]} and {shown[2]}")

    def _no_function(self, node: Call, scope: Scope) -> CelCompileError:
        if isinstance(node.receiver, Identifier) and node.receiver.name not in scope:
            name = f"{node.receiver.name}.{node.function}"
        else:
            name = node.function
        hint = _did_you_mean(name, self._declared.functions)
        return self.error(node, f"there is no function {name!r}", hint)

    # --- containers and loops ------------------------------------------------------------------------------

    def _join(self, before: Type | None, kind: Type) -> Type:
        """The common type of items; mixed ones are refused later, except as arguments of format()."""
        if before is None:
            return kind
        return most_general(before, kind) if self._assignable(before, kind) else DYN

    def _optional(self, node: Node, kind: Type) -> Type:
        """The type inside of an item or entry that is written with `?`."""
        kind = self._known(kind)
        if not is_optional(kind) and not kind.is_dynamic:
            raise self.error(node, f"what stands behind ? must be an optional, not {self._shown(kind)}")
        return unwrap_optional(kind)

    def _list(self, node: ListLiteral, scope: Scope) -> Type:
        joined: Type | None = None
        for index, item in enumerate(node.items):
            kind = self.visit(item, scope)
            if index in node.optional:
                kind = self._optional(item, kind)
            joined = self._join(joined, kind)
        return list_of(self._new_parameter() if joined is None else joined)

    def _map(self, node: MapLiteral, scope: Scope) -> Type:
        keys: Type | None = None
        values: Type | None = None
        for index, (key, value) in enumerate(node.entries):
            keys = self._join(keys, self.visit(key, scope))
            kind = self.visit(value, scope)
            if index in node.optional:
                kind = self._optional(value, kind)
            values = self._join(values, kind)
        if keys is None or values is None:
            return map_of(self._new_parameter(), self._new_parameter())
        return map_of(keys, values)

    def _comprehension(self, node: Comprehension, scope: Scope) -> Type:
        items = self._known(self.visit(node.items, scope))
        start = self.visit(node.start, scope)
        outer = {**scope, node.accumulator: start}
        first, second = self._loop_types(node, items)
        inner = {**outer, node.variable: first}
        if node.second:
            inner[node.second] = second
        self._must_be(node.condition, self.visit(node.condition, inner), BOOL)
        self._must_be(node.step, self.visit(node.step, inner), start)
        return self._known(self.visit(node.result, outer))

    def _must_be(self, node: Node, kind: Type, wanted: Type) -> None:
        if not self._assignable(wanted, kind):
            raise self.error(node, f"must be {self._shown(wanted)}, not {self._shown(kind)}")

    def _loop_types(self, node: Comprehension, items: Type) -> tuple[Type, Type]:
        """The types of the variables of a loop."""
        if items.kind is Kind.LIST:
            return (INT, items.parameters[0]) if node.second else (items.parameters[0], DYN)
        if items.kind is Kind.MAP:
            return items.parameters[0], items.parameters[1]
        if items.kind not in _ITERABLE:
            raise self.error(node, f"a macro needs a list or a map, not {self._shown(items)}")
        self._assignable(DYN, items)
        return DYN, DYN


_FLEXIBLE = frozenset({Kind.ANY, Kind.DYN, Kind.ERROR, Kind.NULL, Kind.PARAMETER})


def _clash(arguments: Sequence[Type], parameters: Sequence[Type]) -> bool:
    """Whether types do not fit at first sight. Most overloads of an operator are ruled out by that."""
    for one, other in zip(arguments, parameters, strict=False):
        if one.name != other.name and one.kind not in _FLEXIBLE and other.kind not in _FLEXIBLE:
            return True
    return False


@lru_cache(maxsize=4096)
def _variables(overload: Overload) -> tuple[Type, ...]:
    """The type variables of an overload."""
    found: set[Type] = set()
    for kind in (*overload.parameters, overload.result):
        _collect_parameters(kind, found)
    return tuple(sorted(found, key=str))


def _collect_parameters(kind: Type, into: set[Type]) -> None:
    if kind.kind is Kind.PARAMETER:
        into.add(kind)
    for inner in kind.parameters:
        _collect_parameters(inner, into)


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name[:80], [k for k in known if k[0] not in "@_!-"], n=1)
    return f"did you mean {close[0]!r}?" if close else ""
