"""Can a pod run on a node, devices aside? The part of kube-scheduler's filters that needs no other pods.

Taints, unschedulable, nodeSelector, required node affinity and host ports as in
`k8s.io/component-helpers/scheduling/corev1`; resource requests as KEP-753 and KEP-2837 add them up. Volume
topology, inter-pod affinity and spreading are left to kube-scheduler, whose veto comes back as an exclusion.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from tangram.allocation.structured import integer
from tangram.base.errors import InvalidObjectError
from tangram.kube.decoding import CORRECT_IT, decode
from tangram.kube.objects import (
    Container,
    Node,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    Taint,
    Toleration,
)
from tangram.model.quantity import parse_quantity

_UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_BLOCKING = ("NoSchedule", "NoExecute")
HostPort = tuple[str, str, int]
"""Protocol, host IP, port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """What placing a pod needs to know of a node; heartbeats do not change it. Resources in milli-units."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    allocatable: Mapping[str, int]


def decode_node(raw: msgspec.Raw | bytes) -> NodeRecord:
    """The record of a Node object. Raises InvalidObjectError."""
    node = decode(raw, Node)
    try:
        allocatable = _milli(node.status.allocatable)
    except ValueError as error:
        raise InvalidObjectError(
            str(error),
            object_name=f"Node {node.metadata.name}",
            field="status.allocatable",
            next_step=CORRECT_IT,
        ) from error
    return NodeRecord(
        name=node.metadata.name,
        labels=node.metadata.labels or {},
        taints=tuple(node.spec.taints or ()),
        unschedulable=bool(node.spec.unschedulable),
        allocatable=allocatable,
    )


def refusal(pod: Pod, node: NodeRecord, used_ports: Collection[HostPort] = ()) -> str:
    """Why the pod cannot run on the node, in words that read well after "devices"; empty if it can."""
    taints = (*node.taints, _UNSCHEDULABLE) if node.unschedulable else node.taints
    tolerations = pod.spec.tolerations or []
    for taint in taints:
        if taint.effect in _BLOCKING and not any(tolerates(t, taint) for t in tolerations):
            if taint is _UNSCHEDULABLE:
                return "on cordoned nodes"
            return f"on nodes with the untolerated taint {taint.key}:{taint.effect}"
    selector = pod.spec.node_selector or {}
    if any(node.labels.get(key) != value for key, value in selector.items()):
        return "on nodes outside the pod's nodeSelector"
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    required = affinity and affinity.required_during_scheduling_ignored_during_execution
    if required and not node_selector_matches(required.node_selector_terms or (), node):
        return "on nodes outside the pod's node affinity"
    if used_ports and any(_ports_clash(mine, theirs) for mine in host_ports(pod) for theirs in used_ports):
        return "on nodes where a host port of the pod is taken"
    return ""


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """`Toleration.ToleratesTaint` of core/v1: an empty key with Exists tolerates every key."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator or "Equal":
        case "Exists":
            return True
        case "Equal":
            return bool(toleration.key) and toleration.value == taint.value
        case "Gt" | "Lt" as operator:  # KEP-5471
            ours, theirs = integer(toleration.value), integer(taint.value)
            if ours is None or theirs is None:
                return False
            return theirs > ours if operator == "Gt" else theirs < ours
    return False


def node_selector_matches(terms: Iterable[NodeSelectorTerm], node: NodeRecord) -> bool:
    """Terms are ORed, requirements of a term ANDed; an empty term matches nothing."""
    for term in terms:
        expressions, fields = term.match_expressions or [], term.match_fields or []
        if (
            (expressions or fields)
            and all(_matches(r, node.labels) for r in expressions)
            and all(_matches(r, {"metadata.name": node.name}) for r in fields)
        ):
            return True
    return False


def _matches(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    values = requirement.values or []
    match requirement.operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            actual, bound = integer(value), integer(values[0] if values else None)
            if actual is None or bound is None:
                return False
            return actual > bound if requirement.operator == "Gt" else actual < bound
    return False


def host_ports(pod: Pod) -> tuple[HostPort, ...]:
    """Host ports of the containers that run as long as the pod."""
    sidecars = (c for c in pod.spec.init_containers or () if c.restart_policy == "Always")
    return tuple(
        (port.protocol or "TCP", port.host_ip or "0.0.0.0", port.host_port)  # noqa: S104 - the API's wildcard
        for container in (*(pod.spec.containers or ()), *sidecars)
        for port in container.ports or ()
        if port.host_port
    )


def _ports_clash(a: HostPort, b: HostPort) -> bool:
    wildcard = "0.0.0.0"  # noqa: S104 - the API's wildcard
    return a[0] == b[0] and a[2] == b[2] and (a[1] == b[1] or wildcard in (a[1], b[1]))


def pod_resources(pod: Pod) -> dict[str, int]:
    """What a pod requests of a node, in milli-units, one `pods` included.

    The larger of the running containers' sum and the peak during initialisation (restartable init containers
    go on running beside what follows), pod-level requests instead where set, plus overhead.
    """
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.spec.init_containers or ():
        requests = _requests(container)
        if container.restart_policy == "Always":
            sidecars = _plus(sidecars, requests)
            peak = _most(peak, sidecars)
        else:
            peak = _most(peak, _plus(sidecars, requests))
    running = sidecars
    for container in pod.spec.containers or ():
        running = _plus(running, _requests(container))
    total = _most(running, peak)
    if pod.spec.resources is not None:
        total |= _milli(pod.spec.resources.requests)
    return _plus(_plus(total, _milli(pod.spec.overhead)), {"pods": 1000})


def _requests(container: Container) -> dict[str, int]:
    return _milli(container.resources.requests) if container.resources is not None else {}


def _plus(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {name: a.get(name, 0) + b.get(name, 0) for name in {*a, *b}}


def _most(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {name: max(a.get(name, 0), b.get(name, 0)) for name in {*a, *b}}


def _milli(quantities: Mapping[str, str | int | float] | None) -> dict[str, int]:
    """Milli-units, rounded up as Quantity.MilliValue does."""
    return {name: -int(-parse_quantity(str(value)) * 1000 // 1) for name, value in (quantities or {}).items()}
