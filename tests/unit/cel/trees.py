"""Random syntax trees: any shape that the grammar has, well typed or not."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

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
from tangram.cel.functions import FUNCTIONS, METHODS, Function
from tangram.cel.parser import POWER
from tangram.cel.values import INT_MAXIMUM, INT_MINIMUM, UINT_MAXIMUM, Uint

NAMES = st.sampled_from(["device", "x", "y", "driver", "attributes", "index", "type"])
VARIABLES = st.sampled_from(["x", "y", "device"])
LITERALS = st.builds(
    Literal,
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(INT_MINIMUM, INT_MAXIMUM),
        st.integers(-3, 3),
        st.integers(0, UINT_MAXIMUM).map(Uint),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from(["gpu", "gpu.resource.admin", "index", "1", "80Gi", "1.2.3", "true"]),
        st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=5),
        st.binary(max_size=3),
    ),
)
OWN = Index(Select(Identifier("device"), "attributes"), Literal("gpu.resource.admin"))
LEAVES = st.one_of(
    LITERALS,
    st.builds(Identifier, NAMES),
    st.builds(Select, st.just(OWN), NAMES, st.booleans()),
    st.just(Select(Identifier("device"), "driver")),
)


def _arities(table: Mapping[str, Function]) -> list[tuple[str, int]]:
    return sorted({(name, len(o.parameters)) for name, f in table.items() for o in f.overloads})


def _wider(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    few = st.lists(nodes, max_size=3).map(tuple)
    arithmetic = st.sampled_from([operator for operator in POWER if operator not in {"&&", "||"}])
    macros = st.sampled_from(["all", "exists", "exists_one", "map", "filter"])
    return st.one_of(
        st.builds(Select, nodes, NAMES, st.booleans()),
        st.builds(Index, nodes, nodes, st.booleans()),
        *(
            st.builds(Call, st.just(name), st.none(), st.tuples(*[nodes] * arity))
            for name, arity in _arities(FUNCTIONS)
            if "." not in name
        ),
        *(
            st.builds(Call, st.just(name), nodes, st.tuples(*[nodes] * (arity - 1)))
            for name, arity in _arities(METHODS)
        ),
        st.builds(Call, st.just("of"), st.just(Identifier("optional")), few),
        st.builds(ListLiteral, few),
        st.builds(MapLiteral, st.lists(st.tuples(nodes, nodes), max_size=3).map(tuple)),
        st.builds(Unary, st.sampled_from(["-", "!"]), nodes),
        st.builds(Binary, arithmetic, nodes, nodes),
        st.builds(Logic, st.sampled_from(["&&", "||"]), st.lists(nodes, min_size=2, max_size=4).map(tuple)),
        st.builds(Conditional, nodes, nodes, nodes),
        st.builds(Has, st.builds(Select, nodes, NAMES)),
        st.builds(Comprehension, macros, nodes, VARIABLES, nodes),
        st.builds(Comprehension, st.just("map"), nodes, VARIABLES, nodes, nodes),
        st.builds(Bind, VARIABLES, nodes, nodes),
    )


TREES: st.SearchStrategy[Node] = st.recursive(LEAVES, _wider, max_leaves=12)
"""Any tree."""


def loosen(node: Node, bound: frozenset[str] = frozenset()) -> Node:
    """The tree with all of its parts wrapped in `dyn()` and unknown names replaced, so that it compiles.

    What the type check would have caught then goes wrong at run time. `bound`: names that macros bind.
    """
    match node:
        case Identifier(name=name):
            return node if name in bound else _dyn(Literal(name))
        case Select(operand=Identifier("device"), name=name) if "device" not in bound:
            return _dyn(node if name in {"driver", "attributes"} else Literal(name))
        case Index(operand=operand, key=Literal()) if operand == OWN.operand and "device" not in bound:
            return node
        case Has(selection=selection):
            return Has(dataclasses.replace(selection, operand=loosen(selection.operand, bound)))
        case Call(function="of", arguments=arguments):
            value = loosen(arguments[0], bound) if arguments else Literal(1)
            return _dyn(dataclasses.replace(node, arguments=(value,))) if "optional" not in bound else value
        case Comprehension(items=items, variable=variable, where=where, body=body):
            inner = bound | {variable}
            return _dyn(
                dataclasses.replace(
                    node,
                    items=loosen(items, bound),
                    where=None if where is None else loosen(where, inner),
                    body=loosen(body, inner),
                )
            )
        case Bind(variable=variable, value=value, body=body):
            return Bind(variable, loosen(value, bound), loosen(body, bound | {variable}))
    return _dyn(_loosen_children(node, bound))


def _dyn(node: Node) -> Node:
    return Call("dyn", None, (node,))


def _loosen_children(node: Node, bound: frozenset[str]) -> Node:
    def loose(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(loose(item) for item in value)
        return loosen(value, bound) if isinstance(value, Node) else value

    fields: dict[str, Any] = {
        field.name: loose(getattr(node, field.name)) for field in dataclasses.fields(node)
    }
    return dataclasses.replace(node, **fields)


LOOSE_TREES: st.SearchStrategy[Node] = st.builds(
    lambda left, right: Binary("==", loosen(left), loosen(right)), TREES, TREES
)
"""Trees that pass the type check (nearly all)."""
