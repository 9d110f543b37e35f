"""Why not: every refused node and device has a code and a short text; equal causes have equal texts.

`summarize` turns the refusals of a whole decision into the one line a user reads in an event.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """What kind of cause refused a node, a device or a set of devices."""

    # the node
    NODE_UNSUITABLE = "node-unsuitable"
    NODE_RESOURCES = "node-resources"
    NODE_EXCLUDED = "node-excluded"
    POOL_INCOMPLETE = "pool-incomplete"
    # one device
    HELD = "held"
    UNHEALTHY = "unhealthy"
    CLASS_SELECTOR = "class-selector"
    SELECTOR = "selector"
    DEMAND = "demand"
    # a set of devices
    TOO_FEW = "too-few"
    NOT_LINKED = "not-linked"
    CONSTRAINT = "constraint"
    BUDGET = "search-budget"


_OF_THE_REQUEST = frozenset({Code.CLASS_SELECTOR, Code.SELECTOR, Code.DEMAND})


@dataclass(frozen=True, slots=True)
class Refusal:
    """One cause. `text` reads after a count: "5 unhealthy", "8 on cordoned nodes"."""

    code: Code
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRefusal:
    """Why a pod was not placed on a node.

    Either `node` (the whole node is out), or `devices` (one refusal per refused device of the request that
    could not be met, by device name) with `set_` (why the devices that are left do not do). `request` is set
    where the pod has several requests: the one that the refusals of devices are about.
    """

    name: str
    device_count: int
    node: Refusal | None = None
    request: str = ""
    devices: tuple[tuple[str, Refusal], ...] = ()
    set_: Refusal | None = None

    @property
    def left(self) -> int:
        """How many devices come into question."""
        return self.device_count - len(self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """All refusals of a decision; `fatal` is set where the pod cannot be placed anywhere (a CEL error)."""

    nodes: tuple[NodeRefusal, ...] = ()
    fatal: str = ""


def summarize(reasons: Reasons, *, noun: str = "GPU", limit_bytes: int = 1000) -> str:
    """One line: how many devices there are and what refused them, most frequent cause first.

    `16 GPUs on 2 nodes: 8 of type A100, not H100; 5 in use by other claims; 3 on node-2 fit, but …`. Every
    device is counted once. At most `limit_bytes` long (an event holds 1,024): what has no room is counted.
    """
    if reasons.fatal:
        return reasons.fatal
    total = sum(node.device_count for node in reasons.nodes)
    if not total:
        return f"no node offers a {noun} that this driver allocates"
    head = f"{_plural(total, noun)} on {_plural(len(reasons.nodes), 'node')}: "
    parts = [*_refused(reasons.nodes), *_left(reasons.nodes)]
    return head + _joined(parts, limit_bytes=limit_bytes - len(head))


def _refused(nodes: Iterable[NodeRefusal]) -> Iterable[str]:
    causes: Counter[str] = Counter()
    for node in nodes:
        if node.node is not None:
            causes[node.node.text] += node.device_count
        for _, refusal in node.devices:
            about = f" (request {node.request})" if node.request and refusal.code in _OF_THE_REQUEST else ""
            causes[refusal.text + about] += 1
    ranked = sorted(causes.items(), key=lambda item: (-item[1], item[0]))
    return (f"{count} {text}" for text, count in ranked)


def _left(nodes: Iterable[NodeRefusal]) -> Iterable[str]:
    """The devices that nothing refused, by why there are not enough of them together."""
    nodes_by_cause: defaultdict[str, list[NodeRefusal]] = defaultdict(list)
    for node in nodes:
        if node.node is None and node.set_ is not None and node.left:
            nodes_by_cause[node.set_.text].append(node)
    ranked = sorted(
        ((sum(node.left for node in group), text, group) for text, group in nodes_by_cause.items()),
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
    return text
