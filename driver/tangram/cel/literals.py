"""What else upstream refuses when compiling: literals that cannot be right."""

from collections.abc import Iterator

from tangram.base.errors import CelCompileError, CelRuntimeError
from tangram.cel.ast import Call, ListLiteral, Literal, MapLiteral, Node
from tangram.cel.checker import Checked
from tangram.cel.library import formatting, regex
from tangram.cel.types import Type, unwrap_optional

_TIMES = frozenset({"duration", "timestamp"})


def validate(checked: Checked, text: str) -> None:
    """Raises CelCompileError for lists and maps of mixed types, for texts that are no duration, timestamp,
    pattern or format.
    """
    for node, in_format in _walk(checked.tree):
        try:
            _call(node, checked)
            if not in_format:
                _container(node, checked)
        except _LiteralError as problem:
            raise CelCompileError(str(problem), expression=text, offset=problem.node.offset) from None


class _LiteralError(ValueError):
    def __init__(self, node: Node, cause: str) -> None:
        super().__init__(cause)
        self.node = node


def _walk(tree: Node) -> Iterator[tuple[Node, bool]]:
    """All nodes, and whether they stand in a call of format(), whose arguments may be mixed."""
    pending = [(tree, False)]
    while pending:
        node, in_format = pending.pop()
        yield node, in_format
        inside = in_format or (isinstance(node, Call) and node.function == "format")
        pending.extend((child, inside) for child in reversed(node.children()))


def _call(node: Node, checked: Checked) -> None:
    if not isinstance(node, Call) or not node.arguments:
        return
    first = node.arguments[0]
    if node.function in _TIMES and isinstance(first, Literal):
        _time(node, first, checked)
    elif node.function == "matches" and isinstance(first, Literal) and isinstance(first.value, str):
        # As upstream: the first argument, which is the text where the call has no receiver.
        _pattern(first)
    elif node.function == "format" and isinstance(first, ListLiteral):
        receiver = node.receiver
        if isinstance(receiver, Literal) and isinstance(receiver.value, str):
            problem = formatting.problem(receiver.value, first.items, checked.types)
            if problem is not None:
                raise _LiteralError(problem[0] or node, problem[1])


def _time(node: Call, argument: Literal, checked: Checked) -> None:
    function, overloads = checked.calls[node]
    for overload in overloads:
        if overload.call is not None and overload.takes((argument.value,)):
            try:
                overload.call(argument.value)
            except CelRuntimeError as error:
                raise _LiteralError(argument, error.cause) from None
            return
    raise _LiteralError(argument, f"not the argument of {function.name}()")


def _pattern(argument: Literal) -> None:
    try:
        regex.compiled(argument.value)
    except CelRuntimeError as error:
        raise _LiteralError(argument, error.cause) from None


def _container(node: Node, checked: Checked) -> None:
    if isinstance(node, ListLiteral):
        kinds = [
            unwrap_optional(checked.types[item]) if index in node.optional else checked.types[item]
            for index, item in enumerate(node.items)
        ]
        _same(list(node.items), kinds, "items of a list")
    elif isinstance(node, MapLiteral):
        keys = [key for key, _ in node.entries]
        values = [value for _, value in node.entries]
        _same(keys, [checked.types[key] for key in keys], "keys of a map")
        kinds = [
            unwrap_optional(checked.types[value]) if index in node.optional else checked.types[value]
            for index, value in enumerate(values)
        ]
        _same(values, kinds, "values of a map")


def _same(nodes: list[Node], kinds: list[Type], what: str) -> None:
    for node, kind in zip(nodes, kinds, strict=True):
        if kind != kinds[0]:
            raise _LiteralError(node, f"the {what} must be of one type, not {kinds[0]} and {kind}")
