"""The parts of Kubernetes objects that Tangram reads, as msgspec Structs.

Field names follow `k8s.io/api` (resource/v1, core/v1, coordination/v1) in camel case on the wire. Unknown
fields are ignored on decoding; objects are never written back from these types (we patch), so nothing others
wrote is lost. Nullable lists and maps of the API arrive as None: accessors in this module turn them into
empty ones.
"""

from typing import Any

import msgspec


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Base of all structs here."""


class OwnerReference(_Object, frozen=True, kw_only=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool | None = None


class Metadata(_Object, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[OwnerReference] | None = None


# --- resource.k8s.io/v1: ResourceSlice ---------------------------------------------------------------------


class DeviceAttribute(_Object, frozen=True, kw_only=True):
    """Exactly one field is set."""

    bool_: bool | None = msgspec.field(default=None, name="bool")
    int_: int | None = msgspec.field(default=None, name="int")
    string: str | None = None
    version: str | None = None


class DeviceCapacity(_Object, frozen=True, kw_only=True):
    value: str | int | float = "0"


class DeviceTaint(_Object, frozen=True, kw_only=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class Device(_Object, frozen=True, kw_only=True):
    name: str = ""
    attributes: dict[str, DeviceAttribute] | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    taints: list[DeviceTaint] | None = None
    allow_multiple_allocations: bool | None = None


class ResourcePool(_Object, frozen=True, kw_only=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(_Object, frozen=True, kw_only=True):
    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    all_nodes: bool | None = None
    devices: list[Device] | None = None


class ResourceSlice(_Object, frozen=True, kw_only=True):
    metadata: Metadata
    spec: ResourceSliceSpec


# --- resource.k8s.io/v1: DeviceClass, ResourceClaim --------------------------------------------------------


class CelSelector(_Object, frozen=True, kw_only=True):
    expression: str = ""


class DeviceSelector(_Object, frozen=True, kw_only=True):
    cel: CelSelector | None = None


class OpaqueConfiguration(_Object, frozen=True, kw_only=True):
    driver: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"null")

    def __post_init__(self) -> None:
        # A Raw is a view: without a copy it would keep the whole page of a list in memory.
        msgspec.structs.force_setattr(self, "parameters", self.parameters.copy())


class DeviceConfiguration(_Object, frozen=True, kw_only=True):
    """An entry of `config` of a class, a claim or (with `source`) an allocation."""

    requests: list[str] | None = None
    opaque: OpaqueConfiguration | None = None
    source: str = ""


class DeviceClassSpec(_Object, frozen=True, kw_only=True):
    selectors: list[DeviceSelector] | None = None
    config: list[DeviceConfiguration] | None = None


class DeviceClass(_Object, frozen=True, kw_only=True):
    metadata: Metadata
    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceToleration(_Object, frozen=True, kw_only=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class CapacityRequirements(_Object, frozen=True, kw_only=True):
    requests: dict[str, str | int | float] | None = None


class DeviceSubRequest(_Object, frozen=True, kw_only=True):
    name: str = ""
    device_class_name: str = ""
    selectors: list[DeviceSelector] | None = None
    allocation_mode: str = ""
    count: int = 0
    tolerations: list[DeviceToleration] | None = None
    capacity: CapacityRequirements | None = None


class ExactDeviceRequest(_Object, frozen=True, kw_only=True):
    device_class_name: str = ""
    selectors: list[DeviceSelector] | None = None
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] | None = None
    capacity: CapacityRequirements | None = None


class DeviceRequest(_Object, frozen=True, kw_only=True):
    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: list[DeviceSubRequest] | None = None


class DeviceConstraint(_Object, frozen=True, kw_only=True):
    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(_Object, frozen=True, kw_only=True):
    requests: list[DeviceRequest] | None = None
    constraints: list[DeviceConstraint] | None = None
    config: list[DeviceConfiguration] | None = None


class ResourceClaimSpec(_Object, frozen=True, kw_only=True):
    devices: DeviceClaim = DeviceClaim()


class DeviceAllocationResult(_Object, frozen=True, kw_only=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, str | int | float] | None = None


class AllocatedDevices(_Object, frozen=True, kw_only=True):
    results: list[DeviceAllocationResult] | None = None
    config: list[DeviceConfiguration] | None = None


class NodeSelectorRequirement(_Object, frozen=True, kw_only=True):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeSelectorTerm(_Object, frozen=True, kw_only=True):
    match_expressions: list[NodeSelectorRequirement] | None = None
    match_fields: list[NodeSelectorRequirement] | None = None


class NodeSelector(_Object, frozen=True, kw_only=True):
    node_selector_terms: list[NodeSelectorTerm] | None = None


class AllocationResult(_Object, frozen=True, kw_only=True):
    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


class ConsumerReference(_Object, frozen=True, kw_only=True):
    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(_Object, frozen=True, kw_only=True):
    allocation: AllocationResult | None = None
    reserved_for: list[ConsumerReference] | None = None
    devices: list[dict[str, Any]] | None = None


class ResourceClaim(_Object, frozen=True, kw_only=True):
    metadata: Metadata
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus | None = None

    @property
    def allocation(self) -> AllocationResult | None:
        """`status.allocation`; None for a claim that is not allocated."""
        return self.status.allocation if self.status else None

    @property
    def consumers(self) -> list[ConsumerReference]:
        """`status.reservedFor`."""
        return (self.status.reserved_for or []) if self.status else []


# --- coordination.k8s.io/v1: Lease -------------------------------------------------------------------------


class LeaseSpec(_Object, frozen=True, kw_only=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    renew_time: str | None = None


class Lease(_Object, frozen=True, kw_only=True):
    metadata: Metadata
    spec: LeaseSpec = LeaseSpec()


# --- core/v1 -----------------------------------------------------------------------------------------------


class Taint(_Object, frozen=True, kw_only=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class Toleration(_Object, frozen=True, kw_only=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class NodeSpec(_Object, frozen=True, kw_only=True):
    unschedulable: bool | None = None
    taints: list[Taint] | None = None


class NodeCondition(_Object, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""


class NodeStatus(_Object, frozen=True, kw_only=True):
    allocatable: dict[str, str | int | float] | None = None
    conditions: list[NodeCondition] | None = None


class Node(_Object, frozen=True, kw_only=True):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ResourceRequirements(_Object, frozen=True, kw_only=True):
    requests: dict[str, str | int | float] | None = None


class ContainerPort(_Object, frozen=True, kw_only=True):
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class Container(_Object, frozen=True, kw_only=True):
    name: str = ""
    resources: ResourceRequirements | None = None
    ports: list[ContainerPort] | None = None
    restart_policy: str | None = None


class NodeAffinity(_Object, frozen=True, kw_only=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class Affinity(_Object, frozen=True, kw_only=True):
    node_affinity: NodeAffinity | None = None


class PodResourceClaim(_Object, frozen=True, kw_only=True):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSchedulingGate(_Object, frozen=True, kw_only=True):
    name: str = ""


class PodSpec(_Object, frozen=True, kw_only=True):
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


class PodResourceClaimStatus(_Object, frozen=True, kw_only=True):
    name: str = ""
    resource_claim_name: str | None = None


class PodCondition(_Object, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class PodStatus(_Object, frozen=True, kw_only=True):
    phase: str = ""
    conditions: list[PodCondition] | None = None
    resource_claim_statuses: list[PodResourceClaimStatus] | None = None
    nominated_node_name: str | None = None


class Pod(_Object, frozen=True, kw_only=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
