"""Defaults, feature gates and validation of each resource: the one place that knows which has which."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

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
from tangram.testing.apiserver import (
    claims,
    claimstatus,
    core,
    metadata,
    poddefaults,
    pods,
    slices,
    workloads,
)
from tangram.testing.apiserver.catalog import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EXTENDED_RESOURCE,
    JOBS,
    NAMESPACES,
    RESOURCE_CLAIM_TEMPLATES,
    Version,
)
from tangram.testing.apiserver.problems import Problem, Problems, label, subdomain
from tangram.testing.apiserver.store import Object

# Their gate is off by default in all versions.
_OF_COORDINATED_ELECTION = ("strategy", "preferredHolder")
_Rule = Callable[[Object, Object | None, Version], Problems]

_VALIDATORS: Mapping[Resource, _Rule] = {
    RESOURCE_CLAIMS: claimstatus.validate,
    RESOURCE_CLAIM_TEMPLATES: claims.validate_template,
    RESOURCE_SLICES: slices.validate,
    DEVICE_CLASSES: core.validate_class,
    LEASES: core.validate_lease,
    EVENTS: core.validate_event,
    CONFIG_MAPS: core.validate_config_map,
    NAMESPACES: core.validate_namespace,
    NODES: core.validate_node,
    PODS: pods.validate,
    DEPLOYMENTS: workloads.validate_deployment,
    JOBS: workloads.validate_job,
}


def apply_defaults(resource: Resource, obj: Object, *, now: str) -> None:
    """Fills in what the API defines for absent fields, in place."""
    if resource == RESOURCE_CLAIMS:
        claims.apply_defaults(obj["spec"])
        claimstatus.apply_defaults(obj.get("status"))
    elif resource == RESOURCE_CLAIM_TEMPLATES:
        claims.apply_defaults(obj["spec"].get("spec"))
    elif resource == RESOURCE_SLICES:
        slices.apply_defaults(obj, now=now)
    elif resource == PODS:
        poddefaults.pod(obj)
    elif resource == DEPLOYMENTS:
        poddefaults.deployment(obj)
    elif resource == JOBS:
        poddefaults.job(obj)
    elif resource == NODES:
        _node_defaults(obj)
    elif resource == NAMESPACES:
        labels = obj["metadata"].get("labels") or {}
        obj["metadata"]["labels"] = {**labels, "kubernetes.io/metadata.name": obj["metadata"].get("name", "")}
        obj.setdefault("status", {}).setdefault("phase", "Active")


def prepare_new(resource: Resource, obj: Object, *, now: str) -> None:
    """What only a new object gets: a status of the server's making, and what admission adds, in place."""
    if resource == PODS:
        poddefaults.admit_pod(obj, now=now)
    elif resource == NAMESPACES:
        obj["spec"]["finalizers"] = ["kubernetes"]
        obj["status"] = {"phase": "Active"}
    elif resource in {RESOURCE_CLAIMS, DEPLOYMENTS, JOBS}:
        obj["status"] = {}


def drop_disabled_fields(resource: Resource, new: Object, old: Object | None, *, version: Version) -> None:
    """Removes, silently as a real server, the fields whose feature gate is off, in place."""
    if resource == RESOURCE_CLAIMS:
        claims.drop_disabled_spec(new["spec"], version=version)
        claimstatus.drop_disabled(new, old, version=version)
    elif resource == RESOURCE_CLAIM_TEMPLATES:
        claims.drop_disabled_spec(new["spec"].get("spec"), version=version)
    elif resource == RESOURCE_SLICES:
        slices.drop_disabled(new["spec"], features=version.features)
    elif resource == LEASES:
        for field in _OF_COORDINATED_ELECTION:
            new["spec"].pop(field, None)
    elif resource == DEVICE_CLASSES and EXTENDED_RESOURCE not in version.features:
        new["spec"].pop("extendedResourceName", None)


def validate(resource: Resource, new: Object, old: Object | None, *, version: Version) -> list[Problem]:
    """What is wrong with a write; `old` is None on create."""
    problems: list[Problem] = []
    if old is None:
        name_format = label if resource == NAMESPACES else subdomain
        problems += metadata.validate(new["metadata"], name_format=name_format)
    else:
        problems += metadata.validate_update(new["metadata"], old["metadata"])
    problems += _VALIDATORS[resource](new, old, version)
    return problems


def warnings(resource: Resource, new: Object) -> list[str]:
    """What a client is told besides success."""
    return slices.warnings(new) if resource == RESOURCE_SLICES else []


def admin_access_problems(resource: Resource, new: Object, old: Object | None) -> Iterable[Problem]:
    """Where an object newly asks for admin access, in a namespace that does not allow it."""
    why = (
        f"admin access to devices requires the `{claims.ADMIN_LABEL}: true` label on the containing namespace"
    )
    if resource in {RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES} and old is None:
        spec: Any = new["spec"] if resource == RESOURCE_CLAIMS else new["spec"].get("spec")
        for index in claims.asks_for_admin_access(spec):
            yield Problem("Forbidden", f"spec.devices.requests[{index}].adminAccess", why)
    elif resource == RESOURCE_CLAIMS and old is not None and not (old.get("status") or {}).get("allocation"):
        allocation = (new.get("status") or {}).get("allocation") or {}
        for index, result in enumerate((allocation.get("devices") or {}).get("results") or []):
            if result.get("adminAccess"):
                yield Problem("Forbidden", f"status.allocation.devices.results[{index}].adminAccess", why)


def _node_defaults(obj: Object) -> None:
    spec, status = obj["spec"], obj["status"]
    if spec.get("podCIDR"):
        spec.setdefault("podCIDRs", [spec["podCIDR"]])
    if "capacity" in status:
        status.setdefault("allocatable", dict(status["capacity"]))
