"""Objects of resource.k8s.io/v1, as msgspec Structs: what an allocator reads, and what it writes.

Field names follow `k8s.io/api` (resource/v1, core/v1) in camel case on the wire. Unknown fields are ignored
on decoding, nullable lists and maps of the API arrive as None, and what equals its default is left out on
encoding.
"""

from typing import Annotated, Any

import msgspec

AnyQuantity = str | int | float
"""A quantity as the API accepts it; `tangram.model.quantity` reads it."""
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False, omit_defaults=True):
    """Base of all structs of the API."""


class OwnerReference(ApiStruct, frozen=True, kw_only=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool | None = None


class Metadata(ApiStruct, frozen=True, kw_only=True):
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


# --- core/v1 ----------------------------------------------------------------------------------------------


class NodeSelectorRequirement(ApiStruct, frozen=True, kw_only=True):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeSelectorTerm(ApiStruct, frozen=True, kw_only=True):
    match_expressions: list[NodeSelectorRequirement] | None = None
    match_fields: list[NodeSelectorRequirement] | None = None


class NodeSelector(ApiStruct, frozen=True, kw_only=True):
    node_selector_terms: list[NodeSelectorTerm] | None = None


# --- resource.k8s.io/v1: ResourceSlice ---------------------------------------------------------------------


class DeviceAttribute(ApiStruct, frozen=True, kw_only=True):
    """Exactly one field is set."""

    bool_: bool | None = msgspec.field(default=None, name="bool")
    int_: Int64 | None = msgspec.field(default=None, name="int")
    string: str | None = None
    version: str | None = None
    bools: list[bool] | None = None
    ints: list[Int64] | None = None
    strings: list[str] | None = None
    versions: list[str] | None = None


class CapacityRequestPolicyRange(ApiStruct, frozen=True, kw_only=True):
    min_: AnyQuantity | None = msgspec.field(default=None, name="min")
    max_: AnyQuantity | None = msgspec.field(default=None, name="max")
    step: AnyQuantity | None = None


class CapacityRequestPolicy(ApiStruct, frozen=True, kw_only=True):
    default: AnyQuantity | None = None
    valid_values: list[AnyQuantity] | None = None
    valid_range: CapacityRequestPolicyRange | None = None


class DeviceCapacity(ApiStruct, frozen=True, kw_only=True):
    value: AnyQuantity = "0"
    request_policy: CapacityRequestPolicy | None = None


class Counter(ApiStruct, frozen=True, kw_only=True):
    value: AnyQuantity = "0"


class CounterSet(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    counters: dict[str, Counter] | None = None


class DeviceCounterConsumption(ApiStruct, frozen=True, kw_only=True):
    counter_set: str = ""
    counters: dict[str, Counter] | None = None
    compatibility_groups: list[str] | None = None


class DeviceTaint(ApiStruct, frozen=True, kw_only=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class Device(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    attributes: dict[str, DeviceAttribute] | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    consumes_counters: list[DeviceCounterConsumption] | None = None
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: list[DeviceTaint] | None = None
    binds_to_node: bool | None = None
    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None
    allow_multiple_allocations: bool | None = None


class ResourcePool(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    generation: Int64 = 0
    resource_slice_count: Int64 = 0


class ResourceSliceSpec(ApiStruct, frozen=True, kw_only=True):
    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[Device] | None = None
    shared_counters: list[CounterSet] | None = None
    skip_node_operations: list[str] | None = None


class ResourceSlice(ApiStruct, frozen=True, kw_only=True):
    metadata: Metadata
    spec: ResourceSliceSpec


# --- resource.k8s.io/v1: DeviceClass, ResourceClaim --------------------------------------------------------


class CelSelector(ApiStruct, frozen=True, kw_only=True):
    expression: str = ""


class DeviceSelector(ApiStruct, frozen=True, kw_only=True):
    cel: CelSelector | None = None


class OpaqueConfiguration(ApiStruct, frozen=True, kw_only=True):
    driver: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"null")

    def __post_init__(self) -> None:
        # A Raw is a view: without a copy it would keep the whole page of a list in memory.
        msgspec.structs.force_setattr(self, "parameters", self.parameters.copy())


class DeviceConfiguration(ApiStruct, frozen=True, kw_only=True):
    """An entry of `config` of a class, a claim or (with `source`) an allocation."""

    requests: list[str] | None = None
    opaque: OpaqueConfiguration | None = None
    source: str = ""


class DeviceClassSpec(ApiStruct, frozen=True, kw_only=True):
    selectors: list[DeviceSelector] | None = None
    config: list[DeviceConfiguration] | None = None


class DeviceClass(ApiStruct, frozen=True, kw_only=True):
    metadata: Metadata
    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceToleration(ApiStruct, frozen=True, kw_only=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: Int64 | None = None


class CapacityRequirements(ApiStruct, frozen=True, kw_only=True):
    requests: dict[str, AnyQuantity] | None = None


class DeviceDerivedAttribute(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    expression: str = ""


class DeviceSubRequest(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    device_class_name: str = ""
    selectors: list[DeviceSelector] | None = None
    allocation_mode: str = ""
    count: Int64 | None = None
    tolerations: list[DeviceToleration] | None = None
    capacity: CapacityRequirements | None = None
    derived_attributes: list[DeviceDerivedAttribute] | None = None


class ExactDeviceRequest(ApiStruct, frozen=True, kw_only=True):
    device_class_name: str = ""
    selectors: list[DeviceSelector] | None = None
    allocation_mode: str = ""
    count: Int64 | None = None
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] | None = None
    capacity: CapacityRequirements | None = None
    derived_attributes: list[DeviceDerivedAttribute] | None = None


class DeviceRequest(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: list[DeviceSubRequest] | None = None


class DeviceConstraint(ApiStruct, frozen=True, kw_only=True):
    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(ApiStruct, frozen=True, kw_only=True):
    requests: list[DeviceRequest] | None = None
    constraints: list[DeviceConstraint] | None = None
    config: list[DeviceConfiguration] | None = None


class ResourceClaimSpec(ApiStruct, frozen=True, kw_only=True):
    devices: DeviceClaim = DeviceClaim()


class DeviceAllocationResult(ApiStruct, frozen=True, kw_only=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] | None = None
    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, AnyQuantity] | None = None
    skip_node_operations: list[str] | None = None


class AllocatedDevices(ApiStruct, frozen=True, kw_only=True):
    results: list[DeviceAllocationResult] | None = None
    config: list[DeviceConfiguration] | None = None


class AllocationResult(ApiStruct, frozen=True, kw_only=True):
    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


class ConsumerReference(ApiStruct, frozen=True, kw_only=True):
    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(ApiStruct, frozen=True, kw_only=True):
    allocation: AllocationResult | None = None
    reserved_for: list[ConsumerReference] | None = None
    devices: list[dict[str, Any]] | None = None


class ResourceClaim(ApiStruct, frozen=True, kw_only=True):
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
