"""Macros: what looks like a call and becomes another tree before types are checked.

Definitions: CEL language definition, "Macros"; cel-go's extensions for bindings, optionals, two-variable
comprehensions and sorting.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tangram.cel.ast import (
    ADD,
    AND,
    CONDITIONAL,
    EQUALS,
    NOT,
    NOT_STRICTLY_FALSE,
    OR,
    Call,
    Comprehension,
    Identifier,
    ListLiteral,
    Literal,
    MapLiteral,
    Node,
    Select,
    copy,
)

ACCUMULATOR = "@result"
"""No name that can be written."""
_SORTED = "@__sortBy_input__"
_FORBIDDEN = "__result__"
_UNUSED = "#unused"


class MacroError(ValueError):
    """The arguments of a macro are not what it takes; `node` is the wrong one, if there is one."""

    def __init__(self, cause: str, node: Node | None = None) -> None:
        super().__init__(cause)
        self.node = node


class Use(NamedTuple):
    """One use of a macro: its name, what it is called on, its arguments, and where it stands."""

    name: str
    receiver: Node | None
    arguments: Sequence[Node]
    offset: int

    def variable(self, index: int) -> str:
        """The argument that names a variable."""
        node = self.arguments[index]
        if not isinstance(node, Identifier):
            place = "first" if index == 0 else "second"
            raise MacroError(f"the {place} argument of {self.name}() must be a simple name", node)
        if node.name == _FORBIDDEN:
            raise MacroError(f"{_FORBIDDEN!r} cannot be the name of a variable", node)
        return node.name

    def target(self) -> Node:
        assert self.receiver is not None
        return self.receiver

    def literal(self, value: object) -> Literal:
        return Literal(value, offset=self.offset)

    def call(self, function: str, *arguments: Node) -> Call:
        return Call(function, None, arguments, offset=self.offset)

    def method(self, function: str, receiver: Node, *arguments: Node) -> Call:
        return Call(function, receiver, arguments, offset=self.offset)

    def so_far(self) -> Identifier:
        """The accumulator."""
        return Identifier(ACCUMULATOR, offset=self.offset)

    def items(self, *items: Node) -> ListLiteral:
        return ListLiteral(items, offset=self.offset)

    def loop(
        self, variables: tuple[str, str], *, start: Node, condition: Node, step: Node, result: Node
    ) -> Comprehension:
        first, second = variables
        return Comprehension(
            self.target(), first, second, ACCUMULATOR, start, condition, step, result, offset=self.offset
        )

    def bind(self, name: str, value: Node, body: Node) -> Comprehension:
        """`body`, in which `name` stands for `value`."""
        nothing, never = self.items(), self.literal(value=False)
        unchanged = Identifier(name, offset=self.offset)
        return Comprehension(
            nothing, _UNUSED, "", name, value, never, unchanged, body, binds=True, offset=self.offset
        )


Expander = Callable[[Use], Node | None]
"""Gives None where the call is an ordinary one after all."""


def _has(use: Use) -> Node:
    operand = use.arguments[0]
    if isinstance(operand, Select):
        return Select(operand.operand, operand.name, test=True, offset=operand.offset)
    raise MacroError("has() takes one field, as in has(a.b)")


def _variables(use: Use, count: int) -> tuple[str, str]:
    if count == 1:
        return use.variable(0), ""
    first, second = use.variable(0), use.variable(1)
    if first == second:
        raise MacroError(f"both variables of {use.name}() are named {first!r}", use.arguments[1])
    return first, second


def _quantifier(count: int, *, decisive: bool) -> Expander:
    """`exists` (decisive: True) or `all` (False)."""

    def expand(use: Use) -> Node:
        undecided = use.call(NOT, use.so_far()) if decisive else use.so_far()
        return use.loop(
            _variables(use, count),
            start=use.literal(not decisive),
            condition=use.call(NOT_STRICTLY_FALSE, undecided),
            step=use.call(OR if decisive else AND, use.so_far(), use.arguments[count]),
            result=use.so_far(),
        )

    return expand


def _exists_one(count: int) -> Expander:
    def expand(use: Use) -> Node:
        one_more = use.call(ADD, use.so_far(), use.literal(1))
        return use.loop(
            _variables(use, count),
            start=use.literal(0),
            condition=use.literal(value=True),
            step=use.call(CONDITIONAL, use.arguments[count], one_more, use.so_far()),
            result=use.call(EQUALS, use.so_far(), use.literal(1)),
        )

    return expand


def _collect(use: Use, count: int, start: Node, where: Node | None, step: Node) -> Node:
    return use.loop(
        _variables(use, count),
        start=start,
        condition=use.literal(value=True),
        step=step if where is None else use.call(CONDITIONAL, where, step, use.so_far()),
        result=use.so_far(),
    )


def _where(use: Use, count: int) -> Node | None:
    return use.arguments[count] if len(use.arguments) > count + 1 else None


def _map(count: int) -> Expander:
    def expand(use: Use) -> Node:
        step = use.call(ADD, use.so_far(), use.items(use.arguments[-1]))
        return _collect(use, count, use.items(), _where(use, count), step)

    return expand


def _filter(use: Use) -> Node:
    step = use.call(ADD, use.so_far(), use.items(use.arguments[0]))
    return _collect(use, 1, use.items(), use.arguments[1], step)


def _transform_map(use: Use) -> Node:
    key = Identifier(use.variable(0), offset=use.offset)
    step = use.call("cel.@mapInsert", use.so_far(), key, use.arguments[-1])
    return _collect(use, 2, MapLiteral((), offset=use.offset), _where(use, 2), step)


def _transform_entry(use: Use) -> Node:
    step = use.call("cel.@mapInsert", use.so_far(), use.arguments[-1])
    return _collect(use, 2, MapLiteral((), offset=use.offset), _where(use, 2), step)


def _bind(use: Use) -> Node | None:
    if not (isinstance(use.receiver, Identifier) and use.receiver.name == "cel"):
        return None
    return use.bind(use.variable(0), use.arguments[1], use.arguments[2])


def _on_value(*, flat: bool) -> Expander:
    """`optMap`, or `optFlatMap`, whose body is an optional itself."""

    def expand(use: Use) -> Node:
        name = use.variable(0)
        receiver = use.target()
        bound = use.bind(name, use.method("value", copy(receiver)), use.arguments[1])
        some: Node = bound if flat else use.call("optional.of", bound)
        present = use.method("hasValue", receiver)
        return use.call(CONDITIONAL, present, some, use.call("optional.none"))

    return expand


def _sort_by(use: Use) -> Node:
    if isinstance(use.receiver, Literal | MapLiteral):
        raise MacroError("sortBy() sorts a list")
    named = Identifier(_SORTED, offset=use.offset)
    keys = _map(1)(use._replace(receiver=copy(named)))
    assert keys is not None
    return use.bind(_SORTED, use.target(), use.method("@sortByAssociatedKeys", named, keys))


MACROS: dict[tuple[str, int], Expander] = {
    ("all", 2): _quantifier(1, decisive=False),
    ("exists", 2): _quantifier(1, decisive=True),
    ("exists_one", 2): _exists_one(1),
    ("map", 2): _map(1),
    ("map", 3): _map(1),
    ("filter", 2): _filter,
    ("all", 3): _quantifier(2, decisive=False),
    ("exists", 3): _quantifier(2, decisive=True),
    ("exists_one", 3): _exists_one(2),
    ("existsOne", 3): _exists_one(2),
    ("transformList", 3): _map(2),
    ("transformList", 4): _map(2),
    ("transformMap", 3): _transform_map,
    ("transformMap", 4): _transform_map,
    ("transformMapEntry", 3): _transform_entry,
    ("transformMapEntry", 4): _transform_entry,
    ("bind", 3): _bind,
    ("optMap", 2): _on_value(flat=False),
    ("optFlatMap", 2): _on_value(flat=True),
    ("sortBy", 2): _sort_by,
}
"""Macros that are called on a value, by name and number of arguments."""

GLOBAL_MACROS: dict[tuple[str, int], Expander] = {("has", 1): _has}

USAGE = {
    "all": "items.all(x, x > 1)",
    "exists": "items.exists(x, x > 1)",
    "exists_one": "items.exists_one(x, x > 1)",
    "existsOne": "items.existsOne(i, x, x > 1)",
    "map": "items.map(x, x + 1)",
    "filter": "items.filter(x, x > 1)",
    "transformList": "items.transformList(i, x, x + 1)",
    "transformMap": "items.transformMap(k, x, x + 1)",
    "transformMapEntry": "items.transformMapEntry(k, x, {x: k})",
    "bind": "cel.bind(x, value, x > 1)",
    "optMap": "value.optMap(x, x + 1)",
    "optFlatMap": "value.optFlatMap(x, optional.of(x + 1))",
    "sortBy": "items.sortBy(x, x.size())",
}
"""How each macro is written, for messages about wrong numbers of arguments."""
