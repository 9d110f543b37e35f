"""What a pod asks for and the playground does not do."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_POD = {
    *("containers", "initContainers", "resourceClaims", "restartPolicy", "terminationGracePeriodSeconds"),
    *("nodeName", "nodeSelector", "schedulingGates"),
    # Without effect where there is one user, one network and no contention.
    *("serviceAccount", "serviceAccountName", "automountServiceAccountToken", "enableServiceLinks"),
    *("dnsPolicy", "schedulerName", "tolerations", "priority", "priorityClassName", "preemptionPolicy"),
}
_CONTAINER = {
    *("name", "command", "args", "env", "resources"),
    *("image", "imagePullPolicy", "ports", "stdin", "stdinOnce", "tty"),
    *("terminationMessagePath", "terminationMessagePolicy"),
}


def ignored(spec: Mapping[str, Any]) -> list[str]:
    """Paths of the fields of a pod's spec that mean something and are not honoured."""
    found = list(_beyond(spec, _POD, "spec"))
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind) or ():
            found += _beyond(container, _CONTAINER, f"spec.{kind}[{container['name']}]")
    return found


def _beyond(given: Mapping[str, Any], known: Iterable[str], path: str) -> Iterator[str]:
    return (f"{path}.{name}" for name, value in given.items() if name not in known and value)
