"""What the API server fills in for absent fields of pods and of what makes pods."""

from collections.abc import Iterator, Mapping
from typing import Any

from tangram.model.quantity import parse_quantity
from tangram.testing.apiserver.store import Object

_SPEC: Mapping[str, Any] = {
    "dnsPolicy": "ClusterFirst",
    "restartPolicy": "Always",
    "schedulerName": "default-scheduler",
    "securityContext": {},
    "terminationGracePeriodSeconds": 30,
}
_SPEC_OF_PODS: Mapping[str, Any] = {"enableServiceLinks": True}
_CONTAINER: Mapping[str, Any] = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_DEPLOYMENT: Mapping[str, Any] = {"progressDeadlineSeconds": 600, "replicas": 1, "revisionHistoryLimit": 10}
_ROLLING_UPDATE: Mapping[str, Any] = {"maxSurge": "25%", "maxUnavailable": "25%"}
_JOB: Mapping[str, Any] = {
    "backoffLimit": 6,
    "completionMode": "NonIndexed",
    "manualSelector": False,
    "podReplacementPolicy": "TerminatingOrFailed",
    "suspend": False,
}
# By admission: a pod stays a while on a node that got lost.
_TOLERATED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_PRIORITIES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
_COMPUTE = ("cpu", "memory")


def pod(obj: Object) -> None:
    """A Pod, in place, with the tolerations that admission adds."""
    spec = obj["spec"]
    _pod_spec(spec)
    _fill(spec, _SPEC_OF_PODS)
    tolerations = list(spec.get("tolerations") or [])
    for key in _TOLERATED:
        if not any(_tolerates(each, key) for each in tolerations):
            new = {"effect": "NoExecute", "key": key, "operator": "Exists", "tolerationSeconds": 300}
            tolerations.append(new)
    spec["tolerations"] = tolerations


def admit_pod(obj: Object, *, now: str) -> None:
    """Priority and the first status of a new pod, in place."""
    spec = obj["spec"]
    spec["priority"] = _PRIORITIES.get(spec.get("priorityClassName", ""), 0)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    obj["status"] = {"phase": "Pending", "qosClass": _qos_class(spec)}
    if spec.get("schedulingGates"):
        condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
        message = "Scheduling is blocked due to non-empty scheduling gates"
        times = {"lastProbeTime": None, "lastTransitionTime": now}
        obj["status"]["conditions"] = [{**condition, "message": message, **times}]


def deployment(obj: Object) -> None:
    """A Deployment, in place."""
    spec = obj["spec"]
    _fill(spec, _DEPLOYMENT)
    strategy = spec["strategy"]
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _fill(strategy.setdefault("rollingUpdate", {}), _ROLLING_UPDATE)
    _pod_spec(spec["template"]["spec"])


def job(obj: Object) -> None:
    """A Job, in place; its pods get labels of its own."""
    spec, meta = obj["spec"], obj["metadata"]
    _fill(spec, _JOB)
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    _pod_spec(spec["template"]["spec"])
    if "selector" not in spec and "uid" in meta:
        prefixed = {
            "batch.kubernetes.io/controller-uid": meta["uid"],
            "batch.kubernetes.io/job-name": meta.get("name", ""),
        }
        labels = prefixed | {"controller-uid": meta["uid"], "job-name": meta.get("name", "")}
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": meta["uid"]}}
        template = spec["template"]["metadata"]
        template["labels"] = {**(template.get("labels") or {}), **labels}
        if not meta.get("labels"):
            meta["labels"] = template["labels"]


def containers(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All containers of a pod, init containers first."""
    for field in ("initContainers", "containers"):
        yield from spec.get(field) or []


def _pod_spec(spec: dict[str, Any]) -> None:
    _fill(spec, _SPEC)
    if spec["terminationGracePeriodSeconds"] < 0:
        spec["terminationGracePeriodSeconds"] = 1
    if spec.get("serviceAccountName"):
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    for volume in spec.get("volumes") or []:
        if len(volume) < 2:
            volume["emptyDir"] = {}
        for source in ("configMap", "secret", "downwardAPI", "projected"):
            if source in volume:
                volume[source].setdefault("defaultMode", 420)
    for container in containers(spec):
        _container(container, host_network=bool(spec.get("hostNetwork")))


def _container(container: dict[str, Any], *, host_network: bool) -> None:
    _fill(container, _CONTAINER)
    tag = container.get("image", "").rpartition("/")[2].partition(":")[2]
    container.setdefault("imagePullPolicy", "Always" if tag in {"", "latest"} else "IfNotPresent")
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
        if host_network:
            port.setdefault("hostPort", port["containerPort"])
    resources = container["resources"]
    if limits := resources.get("limits"):
        resources["requests"] = {**limits, **(resources.get("requests") or {})}
    for variable in container.get("env") or []:
        field = (variable.get("valueFrom") or {}).get("fieldRef")
        if field:
            field.setdefault("apiVersion", "v1")


def _fill(target: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    for key, value in defaults.items():
        target.setdefault(key, {} if value == {} else value)


def _tolerates(toleration: Mapping[str, Any], key: str) -> bool:
    return toleration.get("key") in {None, "", key} and toleration.get("effect") in {None, "", "NoExecute"}


def _qos_class(spec: Mapping[str, Any]) -> str:
    given, guaranteed = False, True
    for container in containers(spec):
        requests = container["resources"].get("requests") or {}
        limits = container["resources"].get("limits") or {}
        given = given or any(
            parse_quantity(each.get(name, "0")) for each in (requests, limits) for name in _COMPUTE
        )
        guaranteed = guaranteed and all(
            name in limits and requests.get(name) == limits[name] for name in _COMPUTE
        )
    if not given:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"
