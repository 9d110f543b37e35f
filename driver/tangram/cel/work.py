"""How long we take for the parts of an evaluation, in units of work of about 0.1 µs.

Kubernetes' costs say nothing about that: a unit of theirs may be a comparison or a parsed URL. A bound on
work makes hostile selectors end soon; it depends on the selector and the device alone, not on the machine.
"""

from collections.abc import Mapping

from tangram.cel.ast import Call, Comprehension, Identifier, ListLiteral, Literal, MapLiteral, Node

TURN = 8
"""Of a loop, besides what its parts take."""
FAILURE = 20
"""Of an error that `&&`, `||` or a macro absorbs, and of each call that it passes."""
COMPILING = 400
"""Of making a selector ready, for each node of its tree."""
REFUSING = 100
"""Of a selector that does not compile, for each character."""
_CALL = 8
_NODE = 3
_ITEM = 1
_SLOW: Mapping[str, int] = {
    "@sortByAssociatedKeys": 20, "add": 30, "asApproximateFloat": 10, "asInteger": 10, "charAt": 4,
    "cidr": 60, "compareTo": 15, "containsCIDR": 25, "containsIP": 20, "distinct": 20, "duration": 15,
    "format": 40, "getEscapedPath": 20, "getHostname": 15, "getPort": 15, "getQuery": 40, "ip": 50,
    "ip.isCanonical": 70, "isCIDR": 50, "isGlobalUnicast": 20, "isGreaterThan": 15, "isIP": 45,
    "isInteger": 20, "isLessThan": 15, "isLinkLocalMulticast": 15, "isLinkLocalUnicast": 15, "isLoopback": 15,
    "isQuantity": 10, "isSemver": 10, "isURL": 60, "masked": 25, "quantity": 8, "replace": 15, "semver": 8,
    "sort": 20, "split": 8, "string": 8, "strings.quote": 20, "sub": 30, "substring": 6, "timestamp": 20,
    "url": 220, "validate": 40,
    **dict.fromkeys(
        ("getFullYear", "getMonth", "getDayOfYear", "getDayOfMonth", "getDate", "getDayOfWeek", "getHours",
         "getMinutes", "getSeconds", "getMilliseconds"), 40
    ),
}  # fmt: skip
"""Of one call, besides what its arguments make of it."""


def of_node(node: Node) -> int:
    """Of a node, without the nodes below it and the turns of its loop."""
    match node:
        case Literal() | Identifier():
            return _ITEM
        case Call():
            return _CALL + _SLOW.get(node.function, 0)
        case ListLiteral():
            return _NODE + _ITEM * len(node.items)
        case MapLiteral():
            return 2 * _NODE + 2 * _NODE * len(node.entries)
        case Comprehension():
            return 2 * _CALL
        case _:
            return _NODE
