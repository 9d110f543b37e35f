"""Kubernetes' structured allocation for any driver: what one node can do for a group of claims.

Pure and typed: API objects of resource.k8s.io/v1 (`tangram.model.kubernetes`) in, the complete
`status.allocation` of each claim out, or why not. It allows exactly what the API documents (`LATEST`), or
exactly what a version of kube-scheduler allows, its faults included (`parse_features("k8s-1.36")`).

    cluster = Cluster(slices=slices, classes=classes)         # prepared once
    allocated = Allocated.of(all_claims, features)            # who has what
    outcome = decide(cluster, NodeFacts(name="node-1"), claims, allocated=allocated, options=Options())
    outcome.allocations or outcome.error or outcome.reasons.summary

The policy `first-fit` takes the very devices that upstream takes; `tangram` the best fit.
"""

from tangram.allocation.structured.account import Account
from tangram.allocation.structured.cluster import Cluster, DeviceId, Slice, prepare_slice
from tangram.allocation.structured.engine import Options, Policy, decide, offer
from tangram.allocation.structured.features import LATEST, Fault, Features, Gate, parse_features
from tangram.allocation.structured.nodes import NodeFacts, NodeSelectorError, integer, selects
from tangram.allocation.structured.outcome import Code, Outcome, Reasons, Refusal, Shortage
from tangram.allocation.structured.score import Score
from tangram.allocation.structured.state import Allocated, Shares, claim_name
from tangram.allocation.structured.view import carries_guard, reads

__all__ = [
    "LATEST",
    "Account",
    "Allocated",
    "Cluster",
    "Code",
    "DeviceId",
    "Fault",
    "Features",
    "Gate",
    "NodeFacts",
    "NodeSelectorError",
    "Options",
    "Outcome",
    "Policy",
    "Reasons",
    "Refusal",
    "Score",
    "Shares",
    "Shortage",
    "Slice",
    "carries_guard",
    "claim_name",
    "decide",
    "integer",
    "offer",
    "parse_features",
    "prepare_slice",
    "reads",
    "selects",
]
