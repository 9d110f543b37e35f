"""The syntax tree of a CEL expression, after macros are expanded.

Nodes are compared by identity: passes keep what they find out in dictionaries keyed by node. Grammar: CEL
language definition, "Syntax"; a comprehension is what all macros over lists and maps become.
"""

from dataclasses import dataclass, field, replace
from typing import Any

Constant = Any
"""What a literal stands for: bool, int, Uint, float, str, bytes or None."""

AND, OR, NOT, CONDITIONAL = "_&&_", "_||_", "!_", "_?_:_"
EQUALS, NOT_EQUALS, IN = "_==_", "_!=_", "@in"
ADD, SUBTRACT, MULTIPLY, DIVIDE, MODULO, NEGATE = "_+_", "_-_", "_*_", "_/_", "_%_", "-_"
LESS, LESS_EQUALS, GREATER, GREATER_EQUALS = "_<_", "_<=_", "_>_", "_>=_"
INDEX, OPTIONAL_INDEX, OPTIONAL_SELECT = "_[_]", "_[?_]", "_?._"
NOT_STRICTLY_FALSE = "@not_strictly_false"


@dataclass(slots=True, eq=False)
class Node:
    """`offset`: the character that an error about the node points at."""

    offset: int = field(kw_only=True)

    def children(self) -> "tuple[Node, ...]":
        """The nodes directly below, from left to right."""
        return ()


@dataclass(slots=True, eq=False)
class Literal(Node):
    value: Constant


@dataclass(slots=True, eq=False)
class Identifier(Node):
    name: str


@dataclass(slots=True, eq=False)
class Select(Node):
    """`operand.name`, or, with `test`, `has(operand.name)`."""

    operand: Node
    name: str
    test: bool = False

    def children(self) -> tuple[Node, ...]:
        return (self.operand,)


@dataclass(slots=True, eq=False)
class Call(Node):
    """`function(arguments)`, or `receiver.function(arguments)`; operators are calls too.

    `&&` and `||` have two or more arguments: a long chain is not a deep tree.
    """

    function: str
    receiver: Node | None
    arguments: tuple[Node, ...]

    def children(self) -> tuple[Node, ...]:
        return self.arguments if self.receiver is None else (self.receiver, *self.arguments)


@dataclass(slots=True, eq=False)
class ListLiteral(Node):
    """`optional`: indices of items written `?item`."""

    items: tuple[Node, ...]
    optional: frozenset[int] = frozenset()

    def children(self) -> tuple[Node, ...]:
        return self.items


@dataclass(slots=True, eq=False)
class MapLiteral(Node):
    """`optional`: indices of entries written `?key: value`."""

    entries: tuple[tuple[Node, Node], ...]
    optional: frozenset[int] = frozenset()

    def children(self) -> tuple[Node, ...]:
        return tuple(node for entry in self.entries for node in entry)


@dataclass(slots=True, eq=False)
class Comprehension(Node):
    """For each item of `items`, while `condition`: accumulator = step; then `result`.

    `second` is empty, or `variable` is the index or key, and `second` the item or value. `binds` marks
    cel.bind() and the like: no items, the accumulator is a name for `start`, evaluated when first read.
    """

    items: Node
    variable: str
    second: str
    accumulator: str
    start: Node
    condition: Node
    step: Node
    result: Node
    binds: bool = False

    def children(self) -> tuple[Node, ...]:
        return (self.items, self.start, self.condition, self.step, self.result)


def copy(node: Node) -> Node:
    """A tree of equal shape made of new nodes."""
    match node:
        case Literal(value=value):
            return Literal(value, offset=node.offset)
        case Identifier(name=name):
            return Identifier(name, offset=node.offset)
        case Select(operand=operand, name=name, test=test):
            return Select(copy(operand), name, test, offset=node.offset)
        case Call(function=function, receiver=receiver, arguments=arguments):
            return Call(
                function,
                None if receiver is None else copy(receiver),
                tuple(map(copy, arguments)),
                offset=node.offset,
            )
        case ListLiteral(items=items, optional=optional):
            return ListLiteral(tuple(map(copy, items)), optional, offset=node.offset)
        case MapLiteral(entries=entries, optional=optional):
            copies = tuple((copy(key), copy(value)) for key, value in entries)
            return MapLiteral(copies, optional, offset=node.offset)
        case Comprehension():
            source, start, condition, step, result = (copy(child) for child in node.children())
            return replace(node, items=source, start=start, condition=condition, step=step, result=result)
    raise AssertionError(node)


def qualified_name(node: Node) -> str:
    """`a.b.c` of a chain of fields that begins with a name; empty for other nodes."""
    if isinstance(node, Identifier):
        return node.name
    if isinstance(node, Select) and not node.test and (prefix := qualified_name(node.operand)):
        return f"{prefix}.{node.name}"
    return ""
