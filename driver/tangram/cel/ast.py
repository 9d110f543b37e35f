"""The syntax tree of a CEL expression.

Every node has the offset of the character that an error about it points at; offsets do not take part in
comparisons. Grammar: CEL language definition, "Syntax".
"""

from dataclasses import dataclass, field
from typing import Literal as OneOf

Constant = bool | int | float | str | bytes | None
"""What a literal stands for; unsigned integers are `Uint`."""

Macro = OneOf["all", "exists", "exists_one", "map", "filter"]


@dataclass(frozen=True, slots=True)
class _Node:
    offset: int = field(default=0, compare=False, kw_only=True, repr=False)

    def children(self) -> "tuple[Node, ...]":
        """The nodes directly below, from left to right."""
        return ()


@dataclass(frozen=True, slots=True)
class Literal(_Node):
    value: Constant


@dataclass(frozen=True, slots=True)
class Identifier(_Node):
    name: str


@dataclass(frozen=True, slots=True)
class Select(_Node):
    """`operand.name`, or `operand.?name`."""

    operand: "Node"
    name: str
    optional: bool = False

    def children(self) -> "tuple[Node, ...]":
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Index(_Node):
    """`operand[key]`, or `operand[?key]`."""

    operand: "Node"
    key: "Node"
    optional: bool = False

    def children(self) -> "tuple[Node, ...]":
        return (self.operand, self.key)


@dataclass(frozen=True, slots=True)
class Call(_Node):
    """`function(arguments)`, or `receiver.function(arguments)`."""

    function: str
    receiver: "Node | None"
    arguments: tuple["Node", ...]

    def children(self) -> "tuple[Node, ...]":
        return self.arguments if self.receiver is None else (self.receiver, *self.arguments)


@dataclass(frozen=True, slots=True)
class ListLiteral(_Node):
    items: tuple["Node", ...]

    def children(self) -> "tuple[Node, ...]":
        return self.items


@dataclass(frozen=True, slots=True)
class MapLiteral(_Node):
    entries: tuple[tuple["Node", "Node"], ...]

    def children(self) -> "tuple[Node, ...]":
        return tuple(node for entry in self.entries for node in entry)


@dataclass(frozen=True, slots=True)
class Unary(_Node):
    operator: OneOf["-", "!"]
    operand: "Node"

    def children(self) -> "tuple[Node, ...]":
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Binary(_Node):
    """Arithmetic, comparison or `in`."""

    operator: str
    left: "Node"
    right: "Node"

    def children(self) -> "tuple[Node, ...]":
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class Logic(_Node):
    """Two or more operands joined by one operator: flat, so that a long chain is not a deep tree."""

    operator: OneOf["&&", "||"]
    operands: tuple["Node", ...]

    def children(self) -> "tuple[Node, ...]":
        return self.operands


@dataclass(frozen=True, slots=True)
class Conditional(_Node):
    condition: "Node"
    then: "Node"
    otherwise: "Node"

    def children(self) -> "tuple[Node, ...]":
        return (self.condition, self.then, self.otherwise)


@dataclass(frozen=True, slots=True)
class Has(_Node):
    """`has(operand.name)`; `selection` is the argument."""

    selection: Select

    def children(self) -> "tuple[Node, ...]":
        return (self.selection,)


@dataclass(frozen=True, slots=True)
class Comprehension(_Node):
    """`items.macro(variable, body)`; `map` may have a filter as well: `items.map(variable, where, body)`."""

    macro: Macro
    items: "Node"
    variable: str
    body: "Node"
    where: "Node | None" = None

    def children(self) -> "tuple[Node, ...]":
        return (self.items, self.body) if self.where is None else (self.items, self.where, self.body)


@dataclass(frozen=True, slots=True)
class Bind(_Node):
    """`cel.bind(variable, value, body)`."""

    variable: str
    value: "Node"
    body: "Node"

    def children(self) -> "tuple[Node, ...]":
        return (self.value, self.body)


Node = (
    Literal
    | Identifier
    | Select
    | Index
    | Call
    | ListLiteral
    | MapLiteral
    | Unary
    | Binary
    | Logic
    | Conditional
    | Has
    | Comprehension
    | Bind
)
