"""Why not: every refused node and device has a code and a short text; equal causes have equal texts.

`summarize` turns the refusals of a whole decision into the one line a user reads in an event.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Refusal:
    """One cause. `text` reads after a count: "5 GPUs: <text>"."""

    code: Code
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRefusal:
    """Why a pod was not placed on a node.

    Either `node` (the whole node is out), or `devices` (one refusal per refused device of the request that
    could not be met, by device name) and `chosen_from` (how many devices were left) with `set_` (why those
    do not make a set).
    """

    name: str
    device_count: int
    node: Refusal | None = None
    request: str = ""
    devices: tuple[tuple[str, Refusal], ...] = ()
    set_: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """All refusals of a decision; `fatal` is set where the pod cannot be placed anywhere (a CEL error)."""

    nodes: tuple[NodeRefusal, ...] = ()
    fatal: str = ""
    counts: Counter[str] = field(default_factory=Counter)


def summarize(reasons: Reasons, *, noun: str = "GPU") -> str:
    """One line: how many devices there are and what refused them, most frequent cause first.

    `16 GPUs on 2 nodes: 8 is A100, not H100; 5 in use; 3 fit, but a set of 4 is needed (node-1)`.
    """
    if reasons.fatal:
        return reasons.fatal
    total = sum(node.device_count for node in reasons.nodes)
    if not total:
        return f"no node offers a {noun} that this driver allocates"
    causes: Counter[str] = Counter()
    sets: list[str] = []
    for node in reasons.nodes:
        if node.node is not None:
            causes[node.node.text] += node.device_count
            continue
        for _, refusal in node.devices:
            causes[refusal.text] += 1
        left = node.device_count - len(node.devices)
        if left and node.set_ is not None:
            sets.append(f"{left} on {node.name} {'fits' if left == 1 else 'fit'}, but {node.set_.text}")
    parts = [
        f"{count} {text}" for text, count in sorted(causes.items(), key=lambda item: (-item[1], item[0]))
    ]
    head = f"{_plural(total, noun)} on {_plural(len(reasons.nodes), 'node')}"
    return f"{head}: " + "; ".join([*_capped(parts), *_capped(sorted(sets))])


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _capped(parts: Sequence[str], *, limit: int = 6) -> Iterable[str]:
    """An event holds 1,024 bytes: the most frequent causes, and how many more there are."""
    yield from parts[:limit]
    if len(parts) > limit:
        yield f"{len(parts) - limit} further causes"
