"""What an expression may read of a device: decided from the tree alone, for caches and for messages."""

from collections.abc import Iterator
from typing import NamedTuple

from tangram.cel.ast import (
    INDEX,
    OPTIONAL_INDEX,
    OPTIONAL_SELECT,
    Call,
    Comprehension,
    Identifier,
    Literal,
    Node,
    Select,
)

DEVICE_VARIABLE = "device"


class Reference(NamedTuple):
    """A part of a device: `field` of `device`, and `domain` and `id`, None where any may be read."""

    field: str
    domain: str | None = None
    id: str | None = None

    def __str__(self) -> str:
        domain = "" if self.domain is None else f'["{self.domain}"]'
        if self.id is None:
            return f"device.{self.field}{domain}"
        return f"device.{self.field}{domain}" + (
            f".{self.id}" if self.id.isidentifier() else f'["{self.id}"]'
        )


ALL = (
    Reference("driver"),
    Reference("allowMultipleAllocations"),
    Reference("attributes"),
    Reference("capacity"),
)
"""What is read of `device` where it is used as a whole."""


def references(tree: Node) -> frozenset[Reference]:
    """Every part of the device that evaluating the tree may read."""
    return frozenset(_references(tree, shadowed=False))


def _references(node: Node, *, shadowed: bool) -> Iterator[Reference]:
    if not shadowed:
        if isinstance(node, Identifier) and node.name == DEVICE_VARIABLE:
            yield from ALL
            return
        if (found := _reference(node)) is not None:
            yield found
            return
    if isinstance(node, Comprehension):
        yield from _in_comprehension(node, shadowed=shadowed)
        return
    for child in node.children():
        yield from _references(child, shadowed=shadowed)


def _in_comprehension(node: Comprehension, *, shadowed: bool) -> Iterator[Reference]:
    yield from _references(node.items, shadowed=shadowed)
    yield from _references(node.start, shadowed=shadowed)
    outer = shadowed or node.accumulator == DEVICE_VARIABLE
    inner = outer or DEVICE_VARIABLE in {node.variable, node.second}
    yield from _references(node.condition, shadowed=inner)
    yield from _references(node.step, shadowed=inner)
    yield from _references(node.result, shadowed=outer)


def _reference(node: Node) -> Reference | None:
    """The part of the device a node stands for, such as `device.attributes["d"].x`; None for other nodes."""
    step = _step(node)
    if step is None:
        return None
    operand, key = step
    if isinstance(operand, Identifier) and operand.name == DEVICE_VARIABLE:
        return None if key is None else Reference(key)
    parent = _reference(operand)
    if key is None or parent is None or parent.id is not None:
        return None
    if parent.field not in {"attributes", "capacity"}:
        return None
    return parent._replace(domain=key) if parent.domain is None else parent._replace(id=key)


def _step(node: Node) -> tuple[Node, str | None] | None:
    """What a node reads something of, and the constant key under which it does."""
    if isinstance(node, Select):
        return node.operand, node.name
    if isinstance(node, Call) and node.function in {INDEX, OPTIONAL_INDEX, OPTIONAL_SELECT}:
        operand, key = node.arguments
        constant = isinstance(key, Literal) and isinstance(key.value, str)
        return operand, key.value if constant and isinstance(key, Literal) else None
    return None
