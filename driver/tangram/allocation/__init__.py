"""Choosing devices for claims: pure functions over an immutable snapshot."""

from tangram.allocation.devices import Device, DeviceId, NodeDevices
from tangram.allocation.effort import Settings
from tangram.allocation.engine import (
    BatchDecision,
    ClaimAllocation,
    DeviceResult,
    Placement,
    PodDecision,
    ScoreTerms,
    allocate,
)
from tangram.allocation.reasons import Code, NodeRefusal, Reasons, Refusal, summarize
from tangram.allocation.requests import (
    Batch,
    ClaimKey,
    ClaimRequest,
    DeviceRequest,
    Group,
    MatchAttribute,
    PodKey,
    PodRequest,
)
from tangram.allocation.snapshot import Snapshot
from tangram.allocation.statistics import Statistics, observe
from tangram.allocation.topology import Topology, topology_of

__all__ = [
    "Batch",
    "BatchDecision",
    "ClaimAllocation",
    "ClaimKey",
    "ClaimRequest",
    "Code",
    "Device",
    "DeviceId",
    "DeviceRequest",
    "DeviceResult",
    "Group",
    "MatchAttribute",
    "NodeDevices",
    "NodeRefusal",
    "Placement",
    "PodDecision",
    "PodKey",
    "PodRequest",
    "Reasons",
    "Refusal",
    "ScoreTerms",
    "Settings",
    "Snapshot",
    "Statistics",
    "Topology",
    "allocate",
    "observe",
    "summarize",
    "topology_of",
]
