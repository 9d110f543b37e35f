"""Defaults, feature gates and validation of each resource: the one place that knows which has which."""

import re
from collections.abc import Callable, Set
from typing import Any

from tangram.kube.resources import (
    DEVICE_CLASSES,
    EVENTS,
    LEASES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from tangram.testing.apiserver import claims, slices, workloads
from tangram.testing.apiserver.catalog import (
    DEPLOYMENTS,
    EXTENDED_RESOURCE,
    JOBS,
    RESOURCE_CLAIM_TEMPLATES,
    Version,
)
from tangram.testing.apiserver.store import Object

_MAX_NOTE_BYTES = 1024
_QUALIFIED_NAME = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
# Maps that Go leaves out when they are empty (`omitempty`); empty lists are left out everywhere.
_RAW = frozenset({"parameters", "data"})  # kept byte for byte
_OMITTED_MAPS = frozenset({"attributes", "capacity", "labels", "annotations"})


def omit_empty(value: Any) -> Any:
    """A copy without nulls, empty lists and the empty maps that Go's encoder leaves out.

    What a publisher reads back is compared with what it wrote: it must meet the same differences here.
    """
    if isinstance(value, list):
        return [omit_empty(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: item if key in _RAW else omit_empty(item)
        for key, item in value.items()
        if item is not None and item != [] and not (item == {} and key in _OMITTED_MAPS)
    }


def apply_defaults(resource: Resource, obj: Object, *, now: str) -> None:
    """Fills in what the API defines for absent fields, in place."""
    if resource == RESOURCE_CLAIMS:
        claims.apply_defaults(obj.get("spec"))
    elif resource == RESOURCE_CLAIM_TEMPLATES:
        claims.apply_defaults((obj.get("spec") or {}).get("spec"))
    elif resource == RESOURCE_SLICES:
        slices.apply_defaults(obj, now=now)
    elif resource == PODS:
        spec = obj.setdefault("spec", {})
        spec.setdefault("schedulerName", "default-scheduler")
        spec.setdefault("restartPolicy", "Always")
        spec.setdefault("terminationGracePeriodSeconds", 30)


def drop_disabled_fields(resource: Resource, new: Object, old: Object | None, *, features: Set[str]) -> None:
    """Removes, silently as a real server, the fields whose feature gate is off, in place."""
    if resource == RESOURCE_CLAIMS:
        claims.drop_disabled_spec(new.get("spec"), features=features)
        claims.drop_disabled_status(new, old, features=features)
    elif resource == RESOURCE_CLAIM_TEMPLATES:
        claims.drop_disabled_spec((new.get("spec") or {}).get("spec"), features=features)
    elif resource == RESOURCE_SLICES:
        slices.drop_disabled(new.get("spec"), features=features)
    elif resource == DEVICE_CLASSES and EXTENDED_RESOURCE not in features:
        (new.get("spec") or {}).pop("extendedResourceName", None)


def validate(resource: Resource, new: Object, old: Object | None, *, version: Version) -> list[str]:
    """The problems of a write, as the API server words them; `old` is None on create."""
    validator = _VALIDATORS.get(resource)
    return validator(new, old, version) if validator else []


def _validate_lease(new: Object, _old: Object | None, _version: Version) -> list[str]:
    spec = new.get("spec") or {}
    problems = []
    if (duration := spec.get("leaseDurationSeconds")) is not None and duration <= 0:
        problems.append(f"spec.leaseDurationSeconds: Invalid value: {duration}: must be greater than 0")
    if (transitions := spec.get("leaseTransitions")) is not None and transitions < 0:
        problems.append(
            f"spec.leaseTransitions: Invalid value: {transitions}: must be greater than or equal to 0"
        )
    return problems


def _validate_event(new: Object, old: Object | None, _version: Version) -> list[str]:
    problems = [
        f"{field}: Required value"
        for field in ("eventTime", "reportingController", "reportingInstance", "action", "reason")
        if not new.get(field)
    ]
    problems += [
        f"{field}: Invalid value: can have at most 128 characters"
        for field in ("reportingInstance", "action", "reason")
        if len(new.get(field) or "") > 128
    ]
    if new.get("type") not in {"Normal", "Warning"}:
        problems.append(f'type: Invalid value: "{new.get("type")}"')
    if len((new.get("note") or "").encode()) > _MAX_NOTE_BYTES:
        problems.append("note: Invalid value: can have at most 1024 bytes")
    cluster_scoped = not (new.get("regarding") or {}).get("namespace")
    if cluster_scoped and new["metadata"]["namespace"] not in {"default", "kube-system"}:
        problems.append('involvedObject.namespace: Invalid value: "": does not match event.namespace')
    if not _QUALIFIED_NAME.fullmatch(new.get("reportingController") or "x"):
        problems.append("reportingController: Invalid value: not a qualified name")
    series = new.get("series")
    if series is not None and (series.get("count", 0) < 2 or not series.get("lastObservedTime")):
        problems.append("series: Invalid value: count must be at least 2 and lastObservedTime set")
    if old is not None:
        problems += [
            f"{field}: Invalid value: field is immutable"
            for field in sorted((new.keys() | old.keys()) - {"metadata", "series"})
            if new.get(field) != old.get(field)
        ]
    return problems


_VALIDATORS: dict[Resource, Callable[[Any, Any, Version], list[str]]] = {
    RESOURCE_CLAIMS: claims.validate,
    RESOURCE_SLICES: slices.validate,
    LEASES: _validate_lease,
    EVENTS: _validate_event,
    PODS: workloads.validate_pod,
    DEPLOYMENTS: workloads.validate_deployment,
    JOBS: workloads.validate_job,
}
