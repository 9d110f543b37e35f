"""Jobs and Deployments, as far as a try needs them: they make pods and count them.

At most a thousand pods for each. Not here: ReplicaSets, rollouts of a changed template, back-off between
failed pods of a Job.
"""

import copy
from typing import Any

from tangram.base.clock import Clock, rfc3339
from tangram.kube.resources import PODS, Resource
from tangram.playground.manifests import MAXIMUM_PODS
from tangram.playground.objects import finished, leaving, owned_by, owner_reference, phase, place, uid
from tangram.testing.apiserver import DEPLOYMENTS, JOBS, FakeApiServer

Object = dict[str, Any]

_BACKOFF_LIMIT = 6


def step(server: FakeApiServer, clock: Clock) -> None:
    """One look at all Jobs and Deployments."""
    pods = server.objects(PODS)
    for deployment in server.objects(DEPLOYMENTS):
        if not leaving(deployment):
            _deployment(server, deployment, [pod for pod in pods if owned_by(pod, uid(deployment))])
    for job in server.objects(JOBS):
        if not leaving(job):
            _job(server, job, [pod for pod in pods if owned_by(pod, uid(job))], clock)


def _deployment(server: FakeApiServer, deployment: Object, pods: list[Object]) -> None:
    wanted = _bounded(deployment["spec"].get("replicas", 1))
    kept = [pod for pod in pods if not leaving(pod)]
    for _ in range(wanted - len(kept)):
        _make_pod(server, deployment, {})
    for pod in kept[wanted:]:
        server.delete(PODS, **place(pod), grace_s=30)
    ready = sum(phase(pod) == "Running" for pod in kept)
    status = {
        "observedGeneration": deployment["metadata"].get("generation", 1),
        "replicas": len(kept),
        "updatedReplicas": len(kept),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "unavailableReplicas": max(0, wanted - ready),
    }
    _set_status(server, DEPLOYMENTS, deployment, status)


def _job(server: FakeApiServer, job: Object, pods: list[Object], clock: Clock) -> None:
    before = job.get("status") or {}
    if before.get("conditions"):  # only ever set at its end
        return
    spec = job["spec"]
    completions, parallelism = int(spec.get("completions", 1)), _bounded(spec.get("parallelism", 1))
    succeeded = sum(phase(pod) == "Succeeded" for pod in pods)
    failed = sum(phase(pod) == "Failed" for pod in pods)
    active = sum(not finished(pod) and not leaving(pod) for pod in pods)
    now = rfc3339(clock.now())
    status: Object = {"active": active, "succeeded": succeeded, "failed": failed}
    status["startTime"] = before.get("startTime") or now
    over = {"status": "True", "lastProbeTime": now, "lastTransitionTime": now}
    if succeeded >= completions:
        status["completionTime"] = now
        status["conditions"] = [{"type": "Complete", **over}]
    elif failed > int(spec.get("backoffLimit", _BACKOFF_LIMIT)):
        status["conditions"] = [{"type": "Failed", "reason": "BackoffLimitExceeded", **over}]
    else:
        name = job["metadata"]["name"]
        for _ in range(min(parallelism, completions - succeeded) - active):
            _make_pod(server, job, {"job-name": name, "batch.kubernetes.io/job-name": name})
    _set_status(server, JOBS, job, status)


def _bounded(count: int) -> int:
    """What `kubectl scale` asks for may be more than one process can serve."""
    return min(int(count), MAXIMUM_PODS)


def _make_pod(server: FakeApiServer, owner: Object, labels: dict[str, str]) -> None:
    template = copy.deepcopy(owner["spec"]["template"])
    given = template.get("metadata") or {}
    metadata = {
        "generateName": f"{owner['metadata']['name']}-",
        "namespace": owner["metadata"]["namespace"],
        "labels": {**(given.get("labels") or {}), **labels},
        "annotations": given.get("annotations") or {},
        "ownerReferences": [owner_reference(owner)],
    }
    server.create(PODS, {"metadata": metadata, "spec": template["spec"]})


def _set_status(server: FakeApiServer, resource: Resource, obj: Object, status: Object) -> None:
    # A patch that changes nothing is no write, so that standing still makes no noise.
    server.patch(resource, {"status": status}, **place(obj), subresource="status")
