"""What an expression may cost at most, worked out from the tree: the estimate that the API server limits.

Follows cel-go's cost estimator with the sizes that Kubernetes declares for the parts of a device. Sizes and
costs are ranges of unsigned 64-bit numbers that saturate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from tangram.cel import ast
from tangram.cel.ast import Call, Comprehension, Identifier, ListLiteral, Literal, MapLiteral, Node, Select
from tangram.cel.declarations import Estimator, Function, Overload
from tangram.cel.macros import ACCUMULATOR
from tangram.cel.types import Kind, Type, is_optional
from tangram.cel.values import UINT_MAXIMUM

if TYPE_CHECKING:
    from tangram.cel.checker import Checked

_TWO_TO_64 = 2.0**64


class Range(NamedTuple):
    """From `low` to `high`, both included."""

    low: int
    high: int

    def plus(self, other: "Range") -> "Range":
        return Range(_cap(self.low + other.low), _cap(self.high + other.high))

    def times(self, other: "Range") -> "Range":
        return Range(_cap(self.low * other.low), _cap(self.high * other.high))

    def scaled(self, factor: float) -> "Range":
        return Range(_scale(self.low, factor), _scale(self.high, factor))

    def union(self, other: "Range") -> "Range":
        return Range(min(self.low, other.low), max(self.high, other.high))


def fixed(amount: int) -> Range:
    return Range(amount, amount)


def _cap(amount: int) -> int:
    return min(amount, UINT_MAXIMUM)


def _scale(amount: int, factor: float) -> int:
    scaled = float(amount) * factor
    if scaled >= _TWO_TO_64:
        return UINT_MAXIMUM
    return ceil(scaled)


NONE = fixed(0)
ONE = fixed(1)
UNKNOWN = Range(0, UINT_MAXIMUM)

Path = tuple[str, ...]
"""Where a value stands under a variable: fields, `@keys`, `@values` or `@items`."""


class Estimate(NamedTuple):
    """The cost of a call without its arguments, and the size of its result where that is known."""

    cost: Range
    size: Range | None = None


class Entry(NamedTuple):
    """Sizes of the keys and values of a container, which is a list or a map."""

    container: Kind
    key: Range
    value: Range

    def union(self, other: "Entry | None") -> "Entry | None":
        if other is None:
            return None
        return Entry(self.container, self.key.union(other.key), self.value.union(other.value))


class Sized(NamedTuple):
    """What is known of a receiver or argument."""

    node: Node | None
    kind: Type
    path: Path
    computed: Range | None


@dataclass(frozen=True, slots=True, eq=False)
class Declared:
    """How long a value of a device may be, and what is in it."""

    size: int = 0
    fields: Mapping[str, "Declared"] = field(default_factory=dict)
    key: "Declared | None" = None
    item: "Declared | None" = None
    any_field: bool = False
    """A field of any name is an item."""

    def at(self, step: str) -> "Declared | None":
        """What stands one step further down."""
        if step in {"@items", "@values"}:
            return self.item
        if step == "@keys":
            return self.key
        return self.fields.get(step, self.item if self.any_field else None)


class Sizes:
    """The estimates of sizes that functions ask for. `variables`: what is declared, by name of variable."""

    def __init__(self, variables: Declared) -> None:
        self._variables = variables

    def declared(self, path: Path) -> Range | None:
        """The size of what stands at a path; None where nothing is declared."""
        place: Declared | None = self._variables
        for step in path:
            place = None if place is None else place.at(step)
        return None if place is None or not path else Range(0, place.size)

    def of(self, value: Sized) -> Range:
        if value.computed is not None:
            return value.computed
        return self.declared(value.path) or UNKNOWN

    def items(self, value: Sized) -> Sized | None:
        """The members of a container, of which only the type is known."""
        if not value.kind.parameters:
            return None
        path = (*value.path, "@items") if value.path else ()
        return Sized(None, value.kind.parameters[0], path, None)


@dataclass(slots=True)
class _Local:
    path: Path
    size: Range | None
    entry: Entry | None


@dataclass(slots=True)
class CostEstimator:
    """One estimate of one checked tree."""

    sizes: Sizes
    checked: "Checked"
    _sizes: dict[Node, Range] = field(default_factory=dict)
    _entries: dict[Node, Entry] = field(default_factory=dict)
    _paths: dict[Node, Path] = field(default_factory=dict)
    _locals: dict[str, list[_Local]] = field(default_factory=dict)

    def cost(self, node: Node) -> Range:  # noqa: PLR0911 - one return per kind of node
        """The cost of a node and all below."""
        if node in self.checked.types_used:
            return ONE
        match node:
            case Identifier(name=name):
                local = self._local(name)
                self._paths[node] = (name,) if local is None else local.path
                return ONE
            case Select():
                return self._select(node)
            case Call():
                return self._call(node)
            case ListLiteral(items=items):
                return self._list(node, items)
            case MapLiteral():
                return self._map(node)
            case Comprehension(binds=True):
                return self._bind(node)
            case Comprehension():
                return self._loop(node)
        return NONE

    # --- nodes ---------------------------------------------------------------------------------------------

    def _select(self, node: Select) -> Range:
        total = self.cost(node.operand)
        if node.test:
            return total
        if self.checked.types[node.operand].kind in _SELECTABLE:
            total = total.plus(ONE)
        self._paths[node] = (*self._path(node.operand), node.name)
        return total

    def _list(self, node: ListLiteral, items: Sequence[Node]) -> Range:
        total = fixed(10)
        size = NONE if not items else Range(UINT_MAXIMUM, 0)
        for item in items:
            total = total.plus(self.cost(item))
            size = size.union(self._size_or_unknown(item))
        self._entries[node] = Entry(Kind.LIST, ONE, size)
        return total

    def _map(self, node: MapLiteral) -> Range:
        total = fixed(30)
        keys = values = NONE if not node.entries else Range(UINT_MAXIMUM, 0)
        for key, value in node.entries:
            total = total.plus(self.cost(key)).plus(self.cost(value))
            keys = keys.union(self._size_or_unknown(key))
            values = values.union(self._size_or_unknown(value))
        self._entries[node] = Entry(Kind.MAP, keys, values)
        return total

    def _bind(self, node: Comprehension) -> Range:
        total = self.cost(node.items).plus(self.cost(node.start))
        self._push(node.accumulator, self._bound(node.start))
        total = total.plus(self.cost(node.result))
        self._locals[node.accumulator].pop()
        self._set_size(node, self._size(node.result))
        self._set_entry(node, self._entry(node.result))
        return total

    def _loop(self, node: Comprehension) -> Range:
        total = self.cost(node.items).plus(self.cost(node.start))
        self._push(node.accumulator, self._bound(node.start))
        self._push(node.variable, self._turn(node.items, second=False, alone=not node.second))
        if node.second:
            self._push(node.second, self._turn(node.items, second=True, alone=False))
        turn = self.cost(node.condition)
        turn = self.cost(node.step).plus(turn)
        self._locals[node.variable].pop()
        if node.second:
            self._locals[node.second].pop()
        total = total.plus(self.cost(node.result))
        self._locals[node.accumulator].pop()
        count = self._size_or_unknown(node.items)
        total = total.plus(count.times(turn))
        if isinstance(node.start, Literal):
            self._set_size(node, self._size(node.start))
        elif isinstance(node.start, ListLiteral | MapLiteral):
            self._set_size(node, count)
            self._set_entry(node, self._entry(node.step))
        return total

    def _bound(self, value: Node) -> _Local:
        return _Local(self._path(value), self._size(value), self._entry(value))

    def _turn(self, items: Node, *, second: bool, alone: bool) -> _Local:
        """A variable of a loop: the item, or the key or index and the value."""
        entry = self._entry(items)
        is_list = (self.checked.types[items].kind if entry is None else entry.container) is Kind.LIST
        value = second or (alone and is_list)
        size = None if entry is None else entry.value if value else entry.key
        part = ("@items" if value else "@indices") if is_list else ("@values" if value else "@keys")
        return _Local((*self._path(items), part), size, None)

    def _call(self, node: Call) -> Range:
        if node.function == "dyn":
            inner = node.arguments[0]
            cost = self.cost(inner).plus(ONE)
            self._set_size(node, self._size(inner))
            self._set_entry(node, self._entry(inner))
            return cost
        if node.function in {ast.AND, ast.OR}:
            return self._logic(node)
        costs = [self.cost(argument) for argument in node.arguments]
        arguments = [self._sized(argument) for argument in node.arguments]
        total = NONE
        receiver = None
        if node.receiver is not None and node not in self.checked.global_calls:
            total = self.cost(node.receiver)
            receiver = self._sized(node.receiver)
        function, overloads = self.checked.calls[node]
        calls = Range(UINT_MAXIMUM, 0)
        result: Range | None = None
        for overload in overloads:
            cost, size = self._overload(node, (function, overload), receiver, arguments, costs)
            calls = calls.union(cost)
            if size is not None:
                result = size if result is None else result.union(size)
            if overload.id in _INDEXING:
                entry = self._entry(node.arguments[0])
                result = None if entry is None else entry.value
                self._paths[node] = (*self._path(node.arguments[0]), _INDEXING[overload.id])
            if result is None:
                result = self._size(node)
        self._set_size(node, result)
        return total.plus(calls)

    def _logic(self, node: Call) -> Range:
        low, high = self.cost(node.arguments[0])
        for argument in node.arguments[1:]:
            high = _cap(high + self.cost(argument).high)
        return Range(low, high)

    def _overload(
        self,
        node: Call,
        called: tuple[Function, Overload],
        receiver: Sized | None,
        arguments: Sequence[Sized],
        costs: Sequence[Range],
    ) -> Estimate:
        function, overload = called
        spent = NONE
        for cost in costs:
            spent = spent.plus(cost)
        for estimator in (overload.estimate, function.estimate):
            if estimator is not None:
                found = estimator(self.sizes, receiver, arguments)
                if found is not None:
                    return Estimate(found.cost.plus(spent), found.size)
        if node.function == ast.CONDITIONAL:
            return self._conditional(node, arguments, costs)
        if overload.id in _CONCATENATIONS:
            return self._concatenation(node, overload.id, arguments, spent)
        return Estimate(spent.plus(ONE))

    def _conditional(self, node: Call, arguments: Sequence[Sized], costs: Sequence[Range]) -> Estimate:
        _, then, otherwise = arguments
        entry = self._entry(node.arguments[1])
        if entry is not None:
            self._set_entry(node, entry.union(self._entry(node.arguments[2])))
        size = (then.computed or UNKNOWN).union(otherwise.computed or UNKNOWN)
        return Estimate(costs[0].plus(costs[1].union(costs[2])), size)

    def _concatenation(self, node: Call, overload: str, arguments: Sequence[Sized], spent: Range) -> Estimate:
        left, right = arguments
        size = (left.computed or UNKNOWN).plus(right.computed or UNKNOWN)
        entry = self._entry(node.arguments[0])
        if entry is not None:
            self._set_entry(node, entry.union(self._entry(node.arguments[1])))
        return Estimate(spent.plus(ONE if overload == "add_list" else size.scaled(0.1)), size)

    # --- sizes ---------------------------------------------------------------------------------------------

    def _push(self, name: str, local: _Local) -> None:
        self._locals.setdefault(name, []).append(local)

    def _local(self, name: str) -> _Local | None:
        stack = self._locals.get(name)
        return stack[-1] if stack else None

    def _path(self, node: Node) -> Path:
        if isinstance(node, Identifier) and (local := self._local(node.name)) is not None:
            return local.path
        return self._paths.get(node, ())

    def _sized(self, node: Node) -> Sized:
        path = self._path(node)
        if path and path[0] == ACCUMULATOR:
            path = ()
        return Sized(node, self.checked.types[node], path, self._size(node))

    def _size_or_unknown(self, node: Node) -> Range:
        return self._size(node) or UNKNOWN

    def _set_size(self, node: Node, size: Range | None) -> None:
        if size is not None:
            self._sizes[node] = size

    def _set_entry(self, node: Node, entry: Entry | None) -> None:
        if entry is not None:
            self._entries[node] = entry

    def _entry(self, node: Node) -> Entry | None:
        known = self._entries.get(node)
        if known is None and isinstance(node, Identifier) and (local := self._local(node.name)) is not None:
            return local.entry
        return known

    def _size(self, node: Node) -> Range | None:  # noqa: PLR0911 - in the order of what is surest
        if (known := self._sizes.get(node)) is not None:
            return known
        match node:
            case Literal(value=str() | bytes() as value):
                return fixed(len(value))
            case Literal():
                return ONE
            case ListLiteral(items=items):
                return fixed(len(items))
            case MapLiteral(entries=entries):
                return fixed(len(entries))
        if (declared := self.sizes.declared(self._path(node))) is not None:
            self._sizes[node] = declared
            return declared
        if _is_scalar(self.checked.types[node]):
            return ONE
        if isinstance(node, Identifier) and (local := self._local(node.name)) is not None:
            return local.size
        return None


_SELECTABLE = frozenset({Kind.MAP, Kind.STRUCT, Kind.PARAMETER})
_INDEXING = {"index_list": "@items", "index_map": "@values"}
_CONCATENATIONS = frozenset({"add_list", "add_string", "add_bytes"})
_SCALARS = frozenset({Kind.BOOL, Kind.DOUBLE, Kind.DURATION, Kind.INT, Kind.TIMESTAMP, Kind.UINT})


def _is_scalar(kind: Type) -> bool:
    return kind.kind in _SCALARS or (is_optional(kind) and _is_scalar(kind.parameters[0]))


# --- what libraries share ----------------------------------------------------------------------------------


def per_character_of(index: int, *, factor: float = 0.1, sized: bool = False) -> Estimator:
    """An estimator: one walk over the receiver (index -1) or an argument; `sized`: the result is as long."""

    def estimate(sizes: Sizes, receiver: Sized | None, arguments: Sequence[Sized]) -> Estimate | None:
        value = receiver if index < 0 else arguments[index] if index < len(arguments) else None
        if value is None:
            return None
        size = sizes.of(value)
        return Estimate(size.scaled(factor), size if sized else None)

    return estimate


def flat_estimate(_: Sizes, __: Sized | None, ___: Sequence[Sized]) -> Estimate:
    return Estimate(ONE)


def literal_number(value: Sized, default: int, *, unsigned: bool = False) -> int:
    """The value of an integer literal; below 0 it is 0 or, with `unsigned`, wraps around. `default` of
    anything else.
    """
    if isinstance(value.node, Literal) and type(value.node.value) is int:
        return value.node.value % 2**64 if unsigned else max(value.node.value, 0)
    return default
