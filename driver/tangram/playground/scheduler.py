"""The part of kube-scheduler that a pod with allocated claims needs: reserve, then bind; never allocate."""

from collections.abc import Iterable, Mapping
from typing import Any

from tangram.base.clock import Clock, rfc3339
from tangram.kube.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS
from tangram.playground.claimcontroller import reserve
from tangram.playground.objects import allocated, claim_names, finished, leaving, place
from tangram.testing.apiserver import FakeApiServer

Object = dict[str, Any]

NO_NODE = "no node fits the pod's nodeSelector and all of its claims"
"""Why a pod is not bound whose claims are allocated, or that has none."""
WAITING = "waiting for its resource claims to be allocated"
"""The one cause that goes away by itself."""


def step(server: FakeApiServer, clock: Clock) -> None:
    """Binds every pod that can be bound, and says of the others why they wait."""
    claims = {(c["metadata"]["namespace"], c["metadata"]["name"]): c for c in server.objects(RESOURCE_CLAIMS)}
    for pod in server.objects(PODS):
        spec = pod["spec"]
        if spec.get("nodeName") or leaving(pod) or finished(pod) or spec.get("schedulingGates"):
            continue
        named = [claims.get((pod["metadata"]["namespace"], name)) for _, name in claim_names(pod)]
        ready = [claim for claim in named if claim is not None and allocated(claim) and not leaving(claim)]
        if len(ready) < len(named):
            why = _without_class(server, [claim for claim in named if claim and not allocated(claim)])
            _explain(server, pod, why or WAITING, clock)
            continue
        node = _node(server, pod, ready)
        if not node:
            _explain(server, pod, NO_NODE, clock)
            continue
        for claim in ready:
            reserve(server, claim, pod)
        server.bind(node=node, **place(pod))
        _condition(server, pod, {"status": "True"}, clock)


def _without_class(server: FakeApiServer, claims: Iterable[Object]) -> str:
    """The first request for a class that is not there."""
    classes = {each["metadata"]["name"] for each in server.objects(DEVICE_CLASSES)}
    for claim in claims:
        for request in claim["spec"]["devices"].get("requests") or ():
            for asked in (request.get("exactly"), *(request.get("firstAvailable") or ())):
                if asked and asked["deviceClassName"] not in classes:
                    return (
                        f"request {request['name']}: device class {asked['deviceClassName']} does not exist"
                    )
    return ""


def _node(server: FakeApiServer, pod: Object, claims: list[Object]) -> str:
    wanted = pod["spec"].get("nodeSelector") or {}
    for node in server.objects(NODES):
        labels = node["metadata"].get("labels") or {}
        matches = all(labels.get(key) == value for key, value in wanted.items())
        if matches and all(_usable(claim, node["metadata"]["name"]) for claim in claims):
            return str(node["metadata"]["name"])
    return ""


def _usable(claim: Object, node: str) -> bool:
    """By the node names of the allocation: that is how Tangram's devices are bound to their node."""
    terms = (claim["status"]["allocation"].get("nodeSelector") or {}).get("nodeSelectorTerms")
    if not terms:
        return True
    return any(
        all(
            field["key"] == "metadata.name" and node in field["values"]
            for field in term.get("matchFields") or ()
        )
        for term in terms
    )


def _explain(server: FakeApiServer, pod: Object, message: str, clock: Clock) -> None:
    _condition(server, pod, {"status": "False", "reason": "Unschedulable", "message": message}, clock)


def _condition(server: FakeApiServer, pod: Object, change: Mapping[str, str], clock: Clock) -> None:
    conditions = (pod.get("status") or {}).get("conditions") or []
    others = [each for each in conditions if each["type"] != "PodScheduled"]
    before = [each for each in conditions if each["type"] == "PodScheduled"]
    if any(all(each.get(key) == value for key, value in change.items()) for each in before):
        return
    new = {"type": "PodScheduled", **change, "lastTransitionTime": rfc3339(clock.now())}
    server.patch(PODS, {"status": {"conditions": [*others, new]}}, **place(pod), subresource="status")
