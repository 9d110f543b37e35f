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

from tangram.allocation.structured.cluster import Cluster, DeviceId
from tangram.allocation.structured.engine import Options, Policy, decide
from tangram.allocation.structured.features import LATEST, Fault, Features, Gate, parse_features
from tangram.allocation.structured.nodes import NodeFacts, selects
from tangram.allocation.structured.outcome import Code, Outcome, Reasons, Refusal
from tangram.allocation.structured.state import Allocated, Shares, claim_name

__all__ = [
    "LATEST",
    "Allocated",
    "Cluster",
    "Code",
    "DeviceId",
    "Fault",
    "Features",
    "Gate",
    "NodeFacts",
    "Options",
    "Outcome",
    "Policy",
    "Reasons",
    "Refusal",
    "Shares",
    "claim_name",
    "decide",
    "parse_features",
    "selects",
]
