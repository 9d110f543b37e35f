"""Pods as the controller needs them: their claims, and whether they still wait for devices."""

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from tangram.allocation import PodKey
from tangram.base.errors import InvalidObjectError
from tangram.controller.nodefit import HostPort, host_ports, pod_resources
from tangram.kube.decoding import CORRECT_IT, decode
from tangram.kube.objects import Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """A pod with what is derived from its specification once.

    `kind`: equal for pods that may run on the same nodes and take the same there besides devices; empty for
    pods without claims.
    """

    pod: Pod
    resources: dict[str, int]
    ports: tuple[HostPort, ...]
    kind: bytes

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

    def asks_as(self, other: "PodRecord") -> bool:
        """The same pod, unchanged in what it asks for."""
        return self.key == other.key and self.pod.spec == other.pod.spec

    def decides_as(self, other: "PodRecord") -> bool:
        """Also unchanged in all else that a decision reads: conditions, for example, are not part of that."""
        mine, theirs = self.pod.status, other.pod.status
        return (
            self.asks_as(other)
            and self.waits == other.waits
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
    return PodRecord(pod=pod, resources=resources, ports=ports, kind=kind)


def claim_names(pod: Pod) -> tuple[tuple[ClaimName, ...], bool]:
    """The names of the pod's claims, each once, and whether all of them are known.

    A claim from a template has a name once the resource-claim controller has made it; an entry of the status
    without a name means that the pod needs no claim there (`core/v1` PodResourceClaimStatus).
    """
    statuses = {status.name: status for status in pod.status.resource_claim_statuses or ()}
    generated: dict[str, bool] = {}
    complete = True
    for entry in pod.spec.resource_claims or ():
        if entry.resource_claim_name:
            generated.setdefault(entry.resource_claim_name, False)
        elif (status := statuses.get(entry.name)) is None:
            complete = False
        elif status.resource_claim_name:
            generated[status.resource_claim_name] = True
    return tuple(ClaimName(name, made) for name, made in generated.items()), complete
