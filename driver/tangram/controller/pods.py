"""Pods as the controller needs them: their claims, and whether they still wait for devices."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from tangram.allocation import PodKey
from tangram.base.errors import InvalidObjectError
from tangram.controller.nodefit import HostPort, host_ports, pod_resources
from tangram.kube.decoding import CORRECT_IT, decode
from tangram.kube.objects import Pod, PodStatus

_ABOUT_DEVICES = re.compile(r"\ballocate\b|resource ?claim|device ?class", re.IGNORECASE)
"""Words of kube-scheduler's plugin DynamicResources (1.34 to 1.37), as in `cannot allocate all claims`."""

_MAXIMUM_OBJECTION = 500
"""Characters of the scheduler's message that a user gets to see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """A pod with what is derived from its specification once.

    `kind`: equal for pods that may run on the same nodes and take the same there besides devices; empty for
    pods without claims. `verdict`: the condition PodScheduled as it stands, empty if there is none.
    `objection`: the scheduler's message, if the pod cannot be scheduled for another cause than its devices.
    """

    pod: Pod
    resources: dict[str, int]
    ports: tuple[HostPort, ...]
    kind: bytes
    verdict: str = ""
    objection: str = ""

    @property
    def key(self) -> PodKey:
        """The pod's identity."""
        meta = self.pod.metadata
        return PodKey(meta.namespace, meta.name, meta.uid)

    @property
    def finished(self) -> bool:
        """Terminal: uses neither devices nor node resources any more."""
        return self.pod.status.phase in ("Succeeded", "Failed")

    @property
    def waits(self) -> bool:
        """A live pod that has not started: its claims may still need devices."""
        return self.pod.status.phase in ("", "Pending") and not self.pod.metadata.deletion_timestamp

    @property
    def bound(self) -> bool:
        """The pod has a node (given by the scheduler or by its creator)."""
        return bool(self.pod.spec.node_name)

    @property
    def gated(self) -> bool:
        """Somebody holds the pod back; it must not hold devices meanwhile."""
        return bool(self.pod.spec.scheduling_gates)

    def names(self, entry: str) -> bool:
        """Whether the status says which claim was made for this entry, or that none was."""
        return any(status.name == entry for status in self.pod.status.resource_claim_statuses or ())

    def asks_as(self, other: "PodRecord") -> bool:
        """The same pod, unchanged in what it asks for."""
        return self.key == other.key and self.pod.spec == other.pod.spec

    def decides_as(self, other: "PodRecord") -> bool:
        """Also unchanged in all else that a decision reads."""
        mine, theirs = self.pod.status, other.pod.status
        return (
            self.asks_as(other)
            and self.waits == other.waits
            and self.objection == other.objection
            and mine.nominated_node_name == theirs.nominated_node_name
            and mine.resource_claim_statuses == theirs.resource_claim_statuses
        )


class ClaimName(NamedTuple):
    """A claim of a pod. `generated`: made from a template, so it must be owned by the pod."""

    name: str
    generated: bool


def decode_pod(raw: msgspec.Raw | bytes) -> PodRecord:
    """The record of a Pod object. Raises InvalidObjectError."""
    pod = decode(raw, Pod)
    try:
        resources = pod_resources(pod)
    except ValueError as error:
        raise InvalidObjectError(
            str(error),
            object_name=f"Pod {pod.metadata.namespace}/{pod.metadata.name}",
            field="spec",
            next_step=CORRECT_IT,
        ) from error
    ports = host_ports(pod)
    kind = b""
    if (spec := pod.spec).resource_claims:
        where = (spec.node_name, spec.node_selector, spec.affinity, spec.tolerations)
        kind = msgspec.json.encode((where, resources, ports), order="sorted")
    verdict, objection = _verdict(pod.status)
    return PodRecord(
        pod=pod, resources=resources, ports=ports, kind=kind, verdict=verdict, objection=objection
    )


def _verdict(status: PodStatus) -> tuple[str, str]:
    """`verdict` and `objection` of a pod.

    Filters run node by node and that of the devices comes last: if the message speaks of devices, some node
    has passed all others. A nominated pod waits for victims to end: nothing stands against it.
    """
    condition = next((c for c in status.conditions or () if c.type == "PodScheduled"), None)
    if condition is None:
        return "", ""
    message = condition.message or "unschedulable, without a message"
    verdict = f"{condition.status} {condition.reason} {message}"
    if (condition.status, condition.reason) != ("False", "Unschedulable") or status.nominated_node_name:
        return verdict, ""
    if _ABOUT_DEVICES.search(message):
        return verdict, ""
    return verdict, message.partition(" preemption:")[0].rstrip(". ")[:_MAXIMUM_OBJECTION]


def claim_names(pod: Pod, made: Mapping[str, str]) -> tuple[tuple[ClaimName, ...], bool]:
    """The names of the pod's claims, each once, and whether all of them are known.

    A claim from a template has a name once the resource-claim controller has made it: the pod's status says
    it, or else `made`. An entry of the status without a name means that the pod needs no claim there
    (`core/v1` PodResourceClaimStatus).
    """
    statuses = {status.name: status for status in pod.status.resource_claim_statuses or ()}
    generated: dict[str, bool] = {}
    complete = True
    for entry in pod.spec.resource_claims or ():
        if entry.resource_claim_name:
            generated.setdefault(entry.resource_claim_name, False)
        elif (status := statuses.get(entry.name)) is None:
            if name := made.get(entry.name):
                generated[name] = True
            else:
                complete = False
        elif status.resource_claim_name:
            generated[status.resource_claim_name] = True
    return tuple(ClaimName(name, made) for name, made in generated.items()), complete
