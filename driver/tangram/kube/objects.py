"""The parts of Kubernetes objects that Tangram reads, as msgspec Structs.

Field names follow `k8s.io/api` (resource/v1, core/v1, coordination/v1) in camel case on the wire. Unknown
fields are ignored on decoding; objects are never written back from these types (we patch), so nothing others
wrote is lost. Nullable lists and maps of the API arrive as None: accessors in this module turn them into
empty ones. What an allocator reads stands in `tangram.model.kubernetes`, and is offered here too.
"""

import msgspec

from tangram.model.kubernetes import (
    AllocatedDevices,
    AllocationResult,
    ApiStruct,
    CapacityRequirements,
    CelSelector,
    ConsumerReference,
    Device,
    DeviceAllocationResult,
    DeviceAttribute,
    DeviceCapacity,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceConfiguration,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceTaint,
    DeviceToleration,
    ExactDeviceRequest,
    Metadata,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    OpaqueConfiguration,
    OwnerReference,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)

__all__ = [
    "AllocatedDevices",
    "AllocationResult",
    "CapacityRequirements",
    "CelSelector",
    "ConsumerReference",
    "Device",
    "DeviceAllocationResult",
    "DeviceAttribute",
    "DeviceCapacity",
    "DeviceClaim",
    "DeviceClass",
    "DeviceClassSpec",
    "DeviceConfiguration",
    "DeviceConstraint",
    "DeviceRequest",
    "DeviceSelector",
    "DeviceSubRequest",
    "DeviceTaint",
    "DeviceToleration",
    "ExactDeviceRequest",
    "Metadata",
    "NodeSelector",
    "NodeSelectorRequirement",
    "NodeSelectorTerm",
    "OpaqueConfiguration",
    "OwnerReference",
    "ResourceClaim",
    "ResourceClaimSpec",
    "ResourceClaimStatus",
    "ResourcePool",
    "ResourceSlice",
    "ResourceSliceSpec",
]


# --- coordination.k8s.io/v1: Lease -------------------------------------------------------------------------


class LeaseSpec(ApiStruct, frozen=True, kw_only=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    renew_time: str | None = None


class Lease(ApiStruct, frozen=True, kw_only=True):
    metadata: Metadata
    spec: LeaseSpec = LeaseSpec()


# --- core/v1 -----------------------------------------------------------------------------------------------


class Taint(ApiStruct, frozen=True, kw_only=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class Toleration(ApiStruct, frozen=True, kw_only=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class NodeSpec(ApiStruct, frozen=True, kw_only=True):
    unschedulable: bool | None = None
    taints: list[Taint] | None = None


class NodeCondition(ApiStruct, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""


class NodeStatus(ApiStruct, frozen=True, kw_only=True):
    allocatable: dict[str, str | int | float] | None = None
    conditions: list[NodeCondition] | None = None
    declared_features: list[str] | None = None


class Node(ApiStruct, frozen=True, kw_only=True):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ResourceRequirements(ApiStruct, frozen=True, kw_only=True):
    requests: dict[str, str | int | float] | None = None


class ContainerPort(ApiStruct, frozen=True, kw_only=True):
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class Container(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    resources: ResourceRequirements | None = None
    ports: list[ContainerPort] | None = None
    restart_policy: str | None = None


class NodeAffinity(ApiStruct, frozen=True, kw_only=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class Affinity(ApiStruct, frozen=True, kw_only=True):
    node_affinity: NodeAffinity | None = None


class PodResourceClaim(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSchedulingGate(ApiStruct, frozen=True, kw_only=True):
    name: str = ""


class PodSpec(ApiStruct, frozen=True, kw_only=True):
    node_name: str = ""
    scheduler_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: dict[str, str | int | float] | None = None
    resource_claims: list[PodResourceClaim] | None = None
    resources: ResourceRequirements | None = None
    scheduling_gates: list[PodSchedulingGate] | None = None
    priority: int | None = None


class PodResourceClaimStatus(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    resource_claim_name: str | None = None


class PodCondition(ApiStruct, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class PodStatus(ApiStruct, frozen=True, kw_only=True):
    phase: str = ""
    conditions: list[PodCondition] | None = None
    resource_claim_statuses: list[PodResourceClaimStatus] | None = None
    nominated_node_name: str | None = None


class Pod(ApiStruct, frozen=True, kw_only=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
