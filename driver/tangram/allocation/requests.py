"""What is asked for: the pod that needs its claims together, and batches of pods."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tangram.model.kubernetes import ResourceClaim


class ClaimKey(NamedTuple):
    """Identity of a ResourceClaim; `uid` tells a re-created claim from its predecessor."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PodKey(NamedTuple):
    """Identity of a pod."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def claim_key(claim: ResourceClaim) -> ClaimKey:
    """The identity of a claim object."""
    return ClaimKey(claim.metadata.namespace, claim.metadata.name, claim.metadata.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """All claims of a pod that are to be allocated now, on one node.

    `refused_nodes` maps nodes on which the pod cannot run, whatever the devices, to the reason in words that
    read well after a count of devices ("on cordoned nodes"). `resources` is what the pod requests of each
    node resource, in milli-units. `preferred_node` wins over every score (a nomination by the scheduler).
    """

    key: PodKey
    claims: tuple[ResourceClaim, ...]
    refused_nodes: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)
    preferred_node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Pods decided one after the other; `atomic`: all of them or none."""

    pods: tuple[PodRequest, ...]
    atomic: bool = False


Batch = tuple[Group, ...]
"""Groups in queue order: each sees what the ones before it were given."""
