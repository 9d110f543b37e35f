"""Why a pod fits on no node, in the one line that a user reads in an event."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tangram.allocation.structured import Shortage, Slice
from tangram.allocation.structured.reasons import kind_of

_NOUNS = {"gpu": "GPU", "mig": "MIG device", "mps": "MPS GPU", "timeslice": "time-sliced GPU"}
"""What devices of our driver are called, by `type`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRefusal:
    """Why a pod was not placed on a node. `whole` is set where the whole node is out, whatever its devices:
    then `shortage` only counts them (all are in `left`)."""

    name: str
    shortage: Shortage
    whole: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """All refusals of a decision; `fatal` is set where the pod cannot be placed anywhere (a CEL error).
    `dear`: because finding out takes longer than a decision may."""

    nodes: tuple[NodeRefusal, ...] = ()
    fatal: str = ""
    dear: bool = False


def of_unusable(shortage: Shortage, slices: Iterable[Slice]) -> tuple[str, Shortage]:
    """`whole` and `shortage` of a NodeRefusal, for a node with these slices: if there is nothing but pools
    that cannot be used, all its devices are out for that; else `whole` is empty, and the shortage stays."""
    if not shortage.unusable or shortage.devices or shortage.others:
        return "", shortage
    every = [device for item in slices for device in item.devices]
    whole = f"on nodes whose slices cannot be used ({shortage.unusable})"
    return whole, Shortage(left=len(every), kinds=frozenset(map(kind_of, every)))


def summarize(reasons: Reasons, *, limit_bytes: int = 1000) -> str:
    """One line: how many devices there are and what refused them, most frequent cause first.

    `16 GPUs on 2 nodes: 8 of type A100, not H100; 5 in use by other claims; 3 on node-2 fit, but …`. Every
    device is counted once; those of other device classes are not. At most `limit_bytes` long (an event holds
    1,024): what has no room is counted.
    """
    if reasons.fatal:
        return _cut(reasons.fatal, limit_bytes)
    having = [node for node in reasons.nodes if node.shortage.devices]
    if not having:
        others = sum(node.shortage.others for node in reasons.nodes)
        if not others:
            return "no node offers a GPU that this driver allocates"
        nodes = _plural(sum(1 for node in reasons.nodes if node.shortage.others), "node")
        return f"no node has a device of the class: {_plural(others, 'device')} on {nodes} are of others"
    total = sum(node.shortage.devices for node in having)
    kinds = {kind for node in having for kind in node.shortage.kinds}
    noun = _NOUNS.get(kinds.pop(), "device") if len(kinds) == 1 else "device"
    head = f"{_plural(total, noun)} on {_plural(len(having), 'node')}: "
    return head + _joined([*_refused(having), *_left(having)], limit_bytes=limit_bytes - len(head))


def _refused(nodes: Iterable[NodeRefusal]) -> Iterable[str]:
    causes: Counter[str] = Counter()
    for node in nodes:
        if node.whole:
            causes[node.whole] += node.shortage.devices
            continue
        causes.update(node.shortage.refused)
    ranked = sorted(causes.items(), key=lambda item: (-item[1], item[0]))
    return (f"{count} {text}" for text, count in ranked)


def _left(nodes: Iterable[NodeRefusal]) -> Iterable[str]:
    """The devices that nothing refused, by why there are not enough of them together."""
    nodes_by_cause: defaultdict[str, list[NodeRefusal]] = defaultdict(list)
    for node in nodes:
        if not node.whole and node.shortage.left:
            nodes_by_cause[node.shortage.cause].append(node)
    ranked = sorted(
        ((sum(node.shortage.left for node in group), text, group) for text, group in nodes_by_cause.items()),
        key=lambda item: (-item[0], item[1]),
    )
    for count, text, group in ranked:
        where, together = (f"on {group[0].name}", "")
        if len(group) > 1:
            where, together = f"on {len(group)} nodes", " on one node"
        yield f"{count} {where} {'fits' if count == 1 else 'fit'}, but {text}{together}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _joined(parts: Sequence[str], *, limit_bytes: int) -> str:
    """As many parts as there is room for, then how many more there are."""
    text = "; ".join(parts)
    shown = len(parts)
    while shown > 1 and len(text.encode()) > limit_bytes:
        shown -= 1
        text = "; ".join([*parts[:shown], _plural(len(parts) - shown, "further cause")])
    return _cut(text, limit_bytes)


def _cut(text: str, limit_bytes: int) -> str:
    if len(text.encode()) <= limit_bytes:
        return text
    return text.encode()[: limit_bytes - 3].decode(errors="ignore") + "…"
