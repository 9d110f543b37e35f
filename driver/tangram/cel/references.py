"""What an expression may read of a device: decided from the tree alone, for caches and for messages."""

from collections.abc import Iterator
from typing import NamedTuple

from tangram.cel.ast import Bind, Comprehension, Identifier, Index, Literal, Node, Select
from tangram.cel.checker import DEVICE_VARIABLE


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


def reference(node: Node) -> Reference | None:
    """The part of the device a node stands for, such as `device.attributes["d"].x`; None for other nodes.

    `device` must not be shadowed where the node stands.
    """
    if isinstance(node, Select) and node.operand == Identifier(DEVICE_VARIABLE):
        return Reference(node.name)
    if not isinstance(node, Select | Index):
        return None
    key = _constant_key(node)
    parent = reference(node.operand)
    if (
        key is None
        or parent is None
        or parent.id is not None
        or parent.field not in {"attributes", "capacity"}
    ):
        return None
    return parent._replace(domain=key) if parent.domain is None else parent._replace(id=key)


def references(tree: Node) -> frozenset[Reference]:
    """Every part of the device that evaluating the tree may read."""
    return frozenset(_references(tree, shadowed=False))


def _references(node: Node, *, shadowed: bool) -> Iterator[Reference]:
    if not shadowed and (found := reference(node)) is not None:
        yield found
        return
    bound = node.variable if isinstance(node, Comprehension | Bind) else ""
    outside = (
        node.items if isinstance(node, Comprehension) else node.value if isinstance(node, Bind) else None
    )
    for child in node.children():
        inside = shadowed or (bound == DEVICE_VARIABLE and child is not outside)
        yield from _references(child, shadowed=inside)


def _constant_key(node: Select | Index) -> str | None:
    if isinstance(node, Select):
        return node.name
    if isinstance(node.key, Literal) and isinstance(node.key.value, str):
        return node.key.value
    return None
