"""What is asked for: device requests, claims, the pod that needs them together, and batches of pods.

Structured input of the engine; the controller builds it from API objects.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tangram.allocation.reasons import Refusal
from tangram.api import Demand
from tangram.cel import Program


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """One request of a claim: `count` devices, each satisfying all selectors and the demand.

    `linked_set_size` > 1: the devices must split into fully linked sets of that many GPUs.
    """

    name: str
    count: int
    class_name: str
    class_selectors: tuple[Program, ...] = ()
    selectors: tuple[Program, ...] = ()
    demand: Demand | None = None
    linked_set_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchAttribute:
    """All devices of the named requests must carry this attribute with one value. No names: all requests."""

    attribute: str
    requests: frozenset[str] = frozenset()

    def covers(self, request: str) -> bool:
        """True if the constraint concerns this request."""
        return not self.requests or request in self.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """One claim to allocate."""

    key: ClaimKey
    requests: tuple[DeviceRequest, ...]
    constraints: tuple[MatchAttribute, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """All claims of a pod that are to be allocated now, on one node.

    `refused_nodes` maps nodes on which the pod cannot run, whatever the devices, to the reason (taints,
    affinity, an earlier veto of the scheduler …). `resources` is what the pod requests of each node resource,
    in milli-units. `preferred_node` wins over every score (a nomination by the scheduler).
    """

    key: PodKey
    claims: tuple[ClaimRequest, ...]
    refused_nodes: Mapping[str, Refusal] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)
    preferred_node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Pods decided one after the other; `atomic`: all of them or none."""

    pods: tuple[PodRequest, ...]
    atomic: bool = False


Batch = tuple[Group, ...]
"""Groups in queue order: each sees what the ones before it were given."""
