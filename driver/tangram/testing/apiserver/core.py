"""The rules of the other kinds that Tangram writes or reads: classes, leases, events, nodes and more."""

import base64
import re
from collections.abc import Mapping
from typing import Any

from tangram.model.quantity import parse_quantity
from tangram.testing.apiserver import devicerules
from tangram.testing.apiserver.catalog import Version
from tangram.testing.apiserver.problems import (
    Problem,
    Problems,
    checked,
    immutable,
    invalid,
    label_value,
    not_supported,
    qualified_name,
    required,
    too_many,
)
from tangram.testing.apiserver.store import Object

_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_MAX_CONFIG_BYTES = 1024 * 1024
_EVENT_REQUIRED = ("reportingController", "reportingInstance", "action", "reason")
# Under which name core/v1's validation speaks of a field.
_EVENT_NAMES = {
    "note": "message",
    "regarding": "involvedObject",
    "deprecatedCount": "count",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
}
_TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def validate_class(new: Object, _old: Object | None, _version: Version) -> Problems:
    """Of a DeviceClass."""
    spec = new["spec"]
    yield from devicerules.selectors(spec.get("selectors") or [], where="spec.selectors")
    yield from too_many("spec.config", spec.get("config") or [], 32)
    for index, entry in enumerate((spec.get("config") or [])[:32]):
        yield from devicerules.opaque(entry, where=f"spec.config[{index}]")
    name = spec.get("extendedResourceName")
    if name is not None and not _is_extended_resource(name):
        yield invalid("spec.extendedResourceName", name, "must be a valid extended resource name")


def _is_extended_resource(name: str) -> bool:
    domain, slash, _ = name.partition("/")
    native = domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or domain.startswith("requests.")
    return bool(slash) and not native and not list(qualified_name(name))


def validate_lease(new: Object, _old: Object | None, _version: Version) -> Problems:
    """Of a Lease."""
    spec = new.get("spec") or {}
    if (duration := spec.get("leaseDurationSeconds")) is not None and duration <= 0:
        yield invalid("spec.leaseDurationSeconds", duration, "must be greater than 0")
    if (transitions := spec.get("leaseTransitions")) is not None and transitions < 0:
        yield invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0")


def validate_event(new: Object, old: Object | None, _version: Version) -> Problems:
    """Of an events.k8s.io/v1 Event."""
    namespace = (new.get("regarding") or {}).get("namespace") or ""
    if not namespace and new["metadata"]["namespace"] not in {"default", "kube-system"}:
        yield invalid("involvedObject.namespace", namespace, "does not match event.namespace")
    yield from _event_fields(new)
    if (series := new.get("series")) is not None:
        if series.get("count", 0) < 2:
            yield invalid("series.count", "", "should be at least 2")
        if not series.get("lastObservedTime"):
            yield required("series.lastObservedTime")
    if old is not None:
        for field in sorted((new.keys() | old.keys()) - {"metadata", "series"}):
            if new.get(field) != old.get(field):
                yield immutable(_EVENT_NAMES.get(field, field), new.get(field))


def _event_fields(new: Object) -> Problems:
    if not new.get("eventTime"):
        yield required("eventTime")
    for field in _EVENT_REQUIRED:
        value = new.get(field) or ""
        if not value:
            yield required(field)
        if field == "reportingController":
            yield from checked(field, value, qualified_name(value))
        elif len(value) > 128:
            yield invalid(field, "", "can have at most 128 characters")
    if new.get("type") not in {"Normal", "Warning"}:
        yield invalid("type", "", f"has invalid value: {new.get('type') or ''}")
    if len((new.get("note") or "").encode()) > 1024:
        yield invalid("message", "", "can have at most 1024 characters")
    for field, unset in (
        ("deprecatedCount", 0),
        ("deprecatedFirstTimestamp", None),
        ("deprecatedSource", {}),
    ):
        if (new.get(field) or unset) != unset:
            yield invalid(_EVENT_NAMES[field], "", "needs to be unset")


def validate_config_map(new: Object, old: Object | None, _version: Version) -> Problems:
    """Of a ConfigMap."""
    data, binary = new.get("data") or {}, new.get("binaryData") or {}
    for field, values in (("data", data), ("binaryData", binary)):
        for key in values:
            if not _CONFIG_KEY.fullmatch(key) or len(key) > 253 or key in {".", ".."}:
                why = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
                yield invalid(f"{field}[{key}]", key, why)
    for key in data.keys() & binary.keys():
        yield invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    size = sum(len(value.encode()) for value in data.values())
    if size + sum(len(base64.b64decode(value)) for value in binary.values()) > _MAX_CONFIG_BYTES:
        yield Problem("TooLong", "[]", f"may not be more than {_MAX_CONFIG_BYTES} bytes")
    if old is not None and old.get("immutable"):
        for field in ("immutable", "data", "binaryData"):
            if new.get(field) != old.get(field):
                yield Problem("Forbidden", field, "field is immutable when `immutable` is set")


def validate_namespace(new: Object, old: Object | None, _version: Version) -> Problems:
    """Of a Namespace."""
    phase = (new.get("status") or {}).get("phase")
    if old is not None and phase != "Active" and "deletionTimestamp" not in new["metadata"]:
        yield invalid("status.Phase", phase, "may only be 'Active' if `deletionTimestamp` is empty")


def validate_node(new: Object, old: Object | None, _version: Version) -> Problems:
    """Of a Node."""
    spec, status = new.get("spec") or {}, new.get("status") or {}
    seen: list[tuple[Any, Any]] = []
    for index, taint in enumerate(spec.get("taints") or []):
        where, key, value = f"metadata.taints[{index}]", taint.get("key") or "", taint.get("value") or ""
        yield from checked(f"{where}.key", key, qualified_name(key))
        yield from checked(f"{where}.value", value, label_value(value))
        effect = taint.get("effect") or ""
        if not effect:
            yield required(f"{where}.effect")
        elif effect not in _TAINT_EFFECTS:
            yield not_supported(f"{where}.effect", effect, _TAINT_EFFECTS)
        if (key, effect) in seen:
            yield Problem("Duplicate", where, f"{taint}: taints must be unique by key and effect pair")
        seen.append((key, effect))
    for field in ("capacity", "allocatable"):
        yield from _amounts(status.get(field) or {}, where=f"status.{field}")
    before = ((old or {}).get("spec") or {}).get("providerID")
    if before and spec.get("providerID") != before:
        why = 'node updates may not change providerID except from "" to valid'
        yield Problem("Forbidden", "spec.providerID", why)


def _amounts(amounts: Mapping[str, str], *, where: str) -> Problems:
    for name, amount in amounts.items():
        if parse_quantity(amount) < 0:
            yield invalid(f"{where}.{name}", amount, "must be greater than or equal to 0")
