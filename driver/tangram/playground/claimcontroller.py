"""The resource-claim controller of kube-controller-manager: makes claims from templates, frees unused ones.

Rules: `pkg/controller/resourceclaim/controller.go`.
"""

import copy
from collections.abc import Mapping
from typing import Any

from tangram.base.clock import Clock
from tangram.base.errors import ApiError
from tangram.kube.resources import PODS, RESOURCE_CLAIMS
from tangram.playground.events import warn
from tangram.playground.objects import allocated, claim_names, finished, leaving, owner_reference, place, uid
from tangram.testing.apiserver import RESOURCE_CLAIM_TEMPLATES, FakeApiServer

Object = dict[str, Any]

_FINALIZER = "resource.kubernetes.io/delete-protection"
_POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"


def step(server: FakeApiServer, clock: Clock) -> None:
    """One look at all pods and claims."""
    pods = {uid(pod): pod for pod in server.objects(PODS)}
    for pod in pods.values():
        if not finished(pod) and not leaving(pod):
            try:
                problem = _generate(server, pod)
            except ApiError as error:
                problem = str(error)
            if problem:
                reason = "FailedResourceClaimCreation"
                warn(server, clock, pod, reason=reason, note=problem, source="resource-claim-controller")
            if pod["spec"].get("nodeName"):
                _reserve_without_scheduler(server, pod)
    for claim in server.objects(RESOURCE_CLAIMS):
        _release(server, claim, pods)


def _generate(server: FakeApiServer, pod: Object) -> str:
    """Makes the pod's claims; returns what is wrong with the first that has no template, or nothing."""
    problem = ""
    missing = {entry for entry, name in claim_names(pod) if not name}
    made = []
    templates = {
        (t["metadata"]["namespace"], t["metadata"]["name"]): t
        for t in (server.objects(RESOURCE_CLAIM_TEMPLATES) if missing else ())
    }
    for entry in pod["spec"].get("resourceClaims") or ():
        name = entry.get("resourceClaimTemplateName")
        template = templates.get((pod["metadata"]["namespace"], name))
        if entry["name"] not in missing:
            continue
        if template is None:
            problem = (
                problem or f'PodResourceClaim {entry["name"]}: resource claim template "{name}" not found'
            )
            continue
        given = copy.deepcopy(template["spec"].get("metadata") or {})
        metadata = {
            "generateName": f"{pod['metadata']['name']}-{entry['name']}-",
            "namespace": pod["metadata"]["namespace"],
            "labels": given.get("labels") or {},
            "annotations": {**(given.get("annotations") or {}), _POD_CLAIM_NAME: entry["name"]},
            "ownerReferences": [owner_reference(pod)],
        }
        claim = server.create(RESOURCE_CLAIMS, {"metadata": metadata, "spec": template["spec"]["spec"]})
        made.append({"name": entry["name"], "resourceClaimName": claim["metadata"]["name"]})
    if made:
        before = (pod.get("status") or {}).get("resourceClaimStatuses") or []
        status = {"resourceClaimStatuses": [*before, *made]}
        server.patch(PODS, {"status": status}, **place(pod), subresource="status")
    return problem


def reserve(server: FakeApiServer, claim: Object, pod: Object) -> None:
    """Enters the pod into the claim's users."""
    holders = server.get(RESOURCE_CLAIMS, **place(claim))["status"].get("reservedFor") or []
    if any(holder["uid"] == uid(pod) for holder in holders):
        return
    holder = {"resource": "pods", "name": pod["metadata"]["name"], "uid": uid(pod)}
    status = {"reservedFor": [*holders, holder]}
    server.patch(RESOURCE_CLAIMS, {"status": status}, **place(claim), subresource="status")


def _reserve_without_scheduler(server: FakeApiServer, pod: Object) -> None:
    """For a pod that was created with its node's name no scheduler does it."""
    names = {name for _, name in claim_names(pod)}
    for claim in server.objects(RESOURCE_CLAIMS):
        mine = claim["metadata"]["namespace"] == pod["metadata"]["namespace"]
        if mine and claim["metadata"]["name"] in names and allocated(claim) and not leaving(claim):
            reserve(server, claim, pod)


def _release(server: FakeApiServer, claim: Object, pods: Mapping[str, Object]) -> None:
    holders = (claim.get("status") or {}).get("reservedFor") or []
    using = [holder for holder in holders if holder["uid"] in pods and not finished(pods[holder["uid"]])]
    free = not using and allocated(claim) and (bool(holders) or leaving(claim))
    if free:
        status: dict[str, Any] = {"allocation": None, "reservedFor": None, "devices": None}
        claim = server.patch(RESOURCE_CLAIMS, {"status": status}, **place(claim), subresource="status")
    elif len(using) < len(holders):
        status = {"reservedFor": using}
        claim = server.patch(RESOURCE_CLAIMS, {"status": status}, **place(claim), subresource="status")
    finalizers = claim["metadata"].get("finalizers") or []
    if _FINALIZER in finalizers and not allocated(claim) and (free or leaving(claim)):
        rest = [each for each in finalizers if each != _FINALIZER]
        server.patch(RESOURCE_CLAIMS, {"metadata": {"finalizers": rest or None}}, **place(claim))
        if leaving(claim):
            return
    owners = [pods.get(ref["uid"]) for ref in claim["metadata"].get("ownerReferences") or ()]
    over = any(pod is not None and finished(pod) for pod in owners)
    if over and not using and not leaving(claim):
        server.delete(RESOURCE_CLAIMS, **place(claim))
