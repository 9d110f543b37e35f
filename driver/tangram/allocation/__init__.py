"""Choosing devices for claims: pure functions over an immutable snapshot."""

from tangram.allocation.engine import (
    BatchDecision,
    ClaimAllocation,
    Placement,
    PodDecision,
    ScoreTerms,
    Settings,
    allocate,
)
from tangram.allocation.reasons import NodeRefusal, Reasons, summarize
from tangram.allocation.remembered import Remembered
from tangram.allocation.requests import Batch, ClaimKey, Group, PodKey, PodRequest, claim_key
from tangram.allocation.snapshot import NOTHING, Holdings, Snapshot
from tangram.allocation.statistics import Statistics, observe

__all__ = [
    "NOTHING",
    "Batch",
    "BatchDecision",
    "ClaimAllocation",
    "ClaimKey",
    "Group",
    "Holdings",
    "NodeRefusal",
    "Placement",
    "PodDecision",
    "PodKey",
    "PodRequest",
    "Reasons",
    "Remembered",
    "ScoreTerms",
    "Settings",
    "Snapshot",
    "Statistics",
    "allocate",
    "claim_key",
    "observe",
    "summarize",
]
