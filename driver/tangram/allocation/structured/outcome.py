"""What the engine answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from tangram.allocation.structured.cluster import DeviceId
from tangram.allocation.structured.score import Score
from tangram.model.kubernetes import AllocationResult


class FatalError(Exception):
    """What upstream treats as fatal for the pod on all nodes; never leaves the engine."""


class Exhausted(Exception):  # noqa: N818 - not an error: an outcome that crosses frames
    """The steps are used up."""


class Code(StrEnum):
    """Why a device was refused, or all of them together."""

    HELD = "held"
    CLASS = "class"
    SELECTOR = "selector"
    ALLOCATOR = "allocator"
    UNHEALTHY = "unhealthy"
    NODE = "node"
    FEATURE = "feature"
    CAPACITY = "capacity"
    COUNTER = "counter"
    COMPATIBILITY = "compatibility"
    TAINT = "taint"
    CONSTRAINT = "constraint"
    PARAMETERS = "parameters"
    POOL = "pool"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why one device cannot serve a request; `request` is `name` or `name/subrequest`."""

    claim: str
    request: str
    device: DeviceId
    code: Code
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """What keeps the claims from their devices, counted, so that nodes can be added up.

    About the first request that cannot be served by itself, else about all of them together. `refused`: words
    that read well after a count → devices; each device counts once. `left` devices come into question, but do
    not do because of `cause`. `others`: devices that are not of the device class, in no other count. `kinds`:
    what the counted devices are (`type` of our driver's). `unusable`: what is wrong with a pool of the node,
    whose devices are not counted.
    """

    refused: Mapping[str, int] = field(default_factory=dict)
    left: int = 0
    cause: str = ""
    others: int = 0
    kinds: frozenset[str] = frozenset()
    unusable: str = ""

    @property
    def devices(self) -> int:
        """How many devices are counted."""
        return self.left + sum(self.refused.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """Why the claims do not fit on the node: one line for people, every refused device, and the counts."""

    summary: str = ""
    refusals: tuple[Refusal, ...] = ()
    shortage: Shortage = Shortage()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one node can do for claims that are decided together.

    Exactly one of these: `allocations` (one per claim, in order: the claims fit); `error` (fatal for the pod
    on every node: a failing selector, an unknown class, …); or neither: they do not fit here, see `reasons`.
    `node_error` then says what is wrong with this node only (an invalid pool). `exhausted`: the search was
    ended by its budget, so they might fit. `score`: how good the best fit is (`Score`), to compare
    nodes. `steps` is what it took, in devices looked at.
    """

    node: str
    allocations: tuple[AllocationResult, ...] | None = None
    error: str = ""
    node_error: str = ""
    reasons: Reasons = Reasons()
    score: Score | None = None
    exhausted: bool = False
    steps: int = 0
