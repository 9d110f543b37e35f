"""What the server serves, and which features it has at which version."""

from dataclasses import dataclass

from tangram.kube.resources import (
    DEVICE_CLASSES,
    EVENTS,
    LEASES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)

NAMESPACES = Resource(group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False)
CONFIG_MAPS = Resource(group="", version="v1", plural="configmaps", kind="ConfigMap", namespaced=True)
RESOURCE_CLAIM_TEMPLATES = Resource(
    group="resource.k8s.io",
    version="v1",
    plural="resourceclaimtemplates",
    kind="ResourceClaimTemplate",
    namespaced=True,
)
DEPLOYMENTS = Resource(group="apps", version="v1", plural="deployments", kind="Deployment", namespaced=True)
JOBS = Resource(group="batch", version="v1", plural="jobs", kind="Job", namespaced=True)

RESOURCES: tuple[Resource, ...] = (
    NAMESPACES,
    NODES,
    PODS,
    DEPLOYMENTS,
    JOBS,
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    DEVICE_CLASSES,
    RESOURCE_SLICES,
    RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES,
)
SHORT_NAMES = {
    "namespaces": ["ns"],
    "nodes": ["no"],
    "pods": ["po"],
    "configmaps": ["cm"],
    "events": ["ev"],
    "deployments": ["deploy"],
}

# A write to the object leaves `status` alone, a write to /status leaves all else alone.
WITH_STATUS = frozenset({NAMESPACES, NODES, PODS, RESOURCE_CLAIMS, DEPLOYMENTS, JOBS})
# A write to /status may change labels and annotations all the same.
STATUS_WITH_METADATA = frozenset({NAMESPACES, NODES, PODS})
# `metadata.generation` counts the changes of `spec`.
WITH_GENERATION = frozenset({PODS, RESOURCE_SLICES, DEVICE_CLASSES, DEPLOYMENTS, JOBS})

# The answer to a deletion is the object rather than a Status.
RETURNS_DELETED = frozenset(
    {PODS, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES, DEVICE_CLASSES}
)

DEVICE_STATUS = "DRAResourceClaimDeviceStatus"
TAINTS = "DRADeviceTaints"
PARTITIONABLE = "DRAPartitionableDevices"
CONSUMABLE_CAPACITY = "DRAConsumableCapacity"
BINDING_CONDITIONS = "DRADeviceBindingConditions"
EXTENDED_RESOURCE = "DRAExtendedResource"
PRIORITIZED_LIST = "DRAPrioritizedList"
ADMIN_ACCESS = "DRAAdminAccess"

_BEFORE_1_36 = frozenset({DEVICE_STATUS, PRIORITIZED_LIST, ADMIN_ACCESS})
_FROM_1_36 = _BEFORE_1_36 | {
    TAINTS,
    PARTITIONABLE,
    CONSUMABLE_CAPACITY,
    BINDING_CONDITIONS,
    EXTENDED_RESOURCE,
}


@dataclass(frozen=True, slots=True)
class Version:
    """A Kubernetes release and its feature gates as they are by default (those of DRA)."""

    minor: int
    features: frozenset[str]

    @property
    def text(self) -> str:
        """E.g. `1.36`."""
        return f"1.{self.minor}"


DEFAULT_VERSION = "1.36"
VERSIONS = {
    "1.34": Version(34, _BEFORE_1_36),
    "1.35": Version(35, _BEFORE_1_36),
    "1.36": Version(36, _FROM_1_36),
    "1.37": Version(37, _FROM_1_36),
}
