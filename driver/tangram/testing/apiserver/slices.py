"""ResourceSlices: the gated fields, and the limits and immutability rules that a driver meets (KEP-4381)."""

from collections.abc import Mapping, Set
from typing import Any

from tangram.model.semver import SemVer
from tangram.testing.apiserver import devicerules
from tangram.testing.apiserver.capacities import request_policy
from tangram.testing.apiserver.catalog import (
    BINDING_CONDITIONS,
    CONSUMABLE_CAPACITY,
    DEVICE_STATUS,
    PARTITIONABLE,
    TAINTS,
    Version,
)
from tangram.testing.apiserver.problems import (
    Problem,
    Problems,
    checked,
    duplicates,
    immutable,
    invalid,
    label,
    label_value,
    not_supported,
    qualified_name,
    required,
    subdomain,
    too_long,
    too_many,
)
from tangram.testing.apiserver.store import Object

_NODE_FIELDS = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_DEVICE_NODE_FIELDS = ("nodeName", "nodeSelector", "allNodes")
_EFFECTS = ("NoExecute", "NoSchedule", "None")
_MAX_NAMES = 32


def apply_defaults(obj: Object, *, now: str) -> None:
    """The time a taint was added."""
    for device in _devices(obj.get("spec")):
        for taint in device.get("taints") or []:
            taint.setdefault("timeAdded", now)


def drop_disabled(spec: dict[str, Any] | None, *, features: Set[str]) -> None:
    """Removes the fields whose gate is off."""
    if spec is None:
        return
    gated = ["nodeAllocatableResourceMappings"]
    if TAINTS not in features:
        gated.append("taints")
    if PARTITIONABLE not in features:
        gated += ["consumesCounters", "nodeName", "nodeSelector", "allNodes"]
        spec.pop("sharedCounters", None)
        spec.pop("perDeviceNodeSelection", None)
    if CONSUMABLE_CAPACITY not in features:
        gated.append("allowMultipleAllocations")
    if not {BINDING_CONDITIONS, DEVICE_STATUS} <= features:
        gated += ["bindsToNode", "bindingConditions", "bindingFailureConditions"]
    for device in _devices(spec):
        for field in gated:
            device.pop(field, None)
        for attribute in (device.get("attributes") or {}).values():
            for field in ("ints", "bools", "strings", "versions"):
                attribute.pop(field, None)
        if CONSUMABLE_CAPACITY not in features:
            for capacity in (device.get("capacity") or {}).values():
                capacity.pop("requestPolicy", None)


def warnings(new: Object) -> list[str]:
    """What is legal and unwise."""
    name = new["spec"].get("driver") or ""
    if name == name.lower():
        return []
    return [f'spec.driver: driver names should be lowercase; "{name}" contains uppercase characters']


def validate(new: Object, old: Object | None, version: Version) -> Problems:
    """The rules for one slice; what only a whole pool can break is not the API server's business."""
    spec = new["spec"]
    yield from _pool(spec.get("driver") or "", spec.get("pool") or {})
    yield from _nodes(spec, _NODE_FIELDS, where="spec", prefix="spec.")
    both = spec.get("devices") is not None and spec.get("sharedCounters") is not None
    if both and version.minor >= 35:
        yield invalid("spec", "{`sharedCounters`, `devices`}", "only one of them is allowed")
    devices = _devices(spec)
    limit = 64 if any(device.get("taints") or device.get("consumesCounters") for device in devices) else 128
    yield from too_many("spec.devices", devices, limit)
    if len(devices) <= limit:
        yield from duplicates("spec.devices", [device.get("name") or "" for device in devices])
        for index, device in enumerate(devices):
            yield from _device(device, spec, where=f"spec.devices[{index}]")
    yield from _counter_sets(spec.get("sharedCounters") or [])
    if old is not None:
        before = old["spec"]
        for field, now, then in (
            ("driver", spec.get("driver"), before.get("driver")),
            ("nodeName", spec.get("nodeName"), before.get("nodeName")),
            ("pool.name", (spec.get("pool") or {}).get("name"), before["pool"].get("name")),
        ):
            if (now or "") != (then or ""):
                yield immutable(f"spec.{field}", now)


def _devices(spec: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return (spec or {}).get("devices") or []


def _pool(driver: str, pool: Mapping[str, Any]) -> Problems:
    yield from devicerules.driver(driver, where="spec.driver")
    yield from devicerules.pool(pool.get("name") or "", where="spec.pool.name")
    if (count := pool.get("resourceSliceCount", 0)) < 1:
        yield invalid("spec.pool.resourceSliceCount", count, "must be greater than zero")
    if (generation := pool.get("generation", 0)) < 0:
        yield invalid("spec.pool.generation", generation, "must be greater than or equal to zero")


def _nodes(spec: Mapping[str, Any], fields: tuple[str, ...], *, where: str, prefix: str) -> Problems:
    """Exactly one of the fields that say which nodes reach a device."""
    given = []
    for field in fields:
        value = spec.get(field)
        if field == "nodeName" and value is not None:
            if value == "":
                yield invalid(f"{prefix}nodeName", value, "must be either unset or set to a non-empty string")
                continue
            yield from checked(f"{prefix}nodeName", value, subdomain(value))
        elif field == "nodeSelector" and value is not None:
            yield from devicerules.node_selector(value, where=f"{prefix}nodeSelector")
            if len(terms := value.get("nodeSelectorTerms") or []) != 1:
                yield invalid(f"{prefix}nodeSelector.nodeSelectorTerms", terms, "must have exactly one term")
        elif value is False:
            yield invalid(f"{prefix}{field}", value, "must be either unset or set to true")
            continue
        if value is not None:
            given.append(field)
    names = ", ".join(f"`{field}`" for field in fields)
    if not given:
        yield required(where, f"exactly one of {names} is required")
    elif len(given) > 1:
        shown = "{" + ", ".join(f"`{field}`" for field in given) + "}"
        yield invalid(where, shown, f"exactly one of {names} is required")


def _counter_sets(counters: list[dict[str, Any]]) -> Problems:
    yield from too_many("spec.sharedCounters", counters, 8)
    if len(counters) > 8:
        return
    yield from duplicates("spec.sharedCounters", [each.get("name") or "" for each in counters])
    for index, counter_set in enumerate(counters):
        where, name = f"spec.sharedCounters[{index}]", counter_set.get("name") or ""
        if not name:
            yield required(f"{where}.name")
        else:
            yield from checked(f"{where}.name", name, label(name))
        yield from _counters(counter_set.get("counters") or {}, where=f"{where}.counters")


def _counters(counters: Mapping[str, Any], *, where: str) -> Problems:
    if not counters:
        yield required(where)
    yield from too_many(where, counters, _MAX_NAMES)
    for name in list(counters)[:_MAX_NAMES]:
        yield from checked(where, name, label(name))


def _device(device: Mapping[str, Any], spec: Mapping[str, Any], *, where: str) -> Problems:
    name = device.get("name") or ""
    yield from checked(f"{where}.name", name, label(name))
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if (total := len(attributes) + len(capacity)) > _MAX_NAMES:
        why = f"the total number of attributes and capacities must not exceed {_MAX_NAMES}"
        yield invalid(where, total, why)
    else:
        for key, attribute in attributes.items():
            yield from devicerules.attribute_name(key, where=f"{where}.attributes")
            yield from _attribute(attribute, where=f"{where}.attributes[{key}]")
        for key, value in capacity.items():
            yield from devicerules.attribute_name(key, where=f"{where}.capacity")
            yield from request_policy(
                value,
                shared=bool(device.get("allowMultipleAllocations")),
                where=f"{where}.capacity[{key}].requestPolicy",
            )
    yield from _taints(device.get("taints") or [], where=f"{where}.taints")
    yield from _consumed(device.get("consumesCounters") or [], where=f"{where}.consumesCounters")
    if spec.get("perDeviceNodeSelection"):
        yield from _nodes(device, _DEVICE_NODE_FIELDS, where=where, prefix=f"{where}.")
    elif any(device.get(field) is not None for field in _DEVICE_NODE_FIELDS):
        yield invalid(where, "", "node fields are only allowed when `perDeviceNodeSelection` is set to true")
    yield from devicerules.binding_conditions(device, where=where)


def _attribute(attribute: Mapping[str, Any], *, where: str) -> Problems:
    if len(attribute) != 1:
        yield invalid(where, attribute, "exactly one value must be specified")
        return
    field, value = next(iter(attribute.items()))
    if field in {"string", "version"}:
        if len(value.encode()) > 64:
            yield from too_long(f"{where}.{field}", value, 64)
        elif field == "version":
            try:
                SemVer(value)
            except ValueError as error:
                yield invalid(
                    f"{where}.version", value, f"must be a string compatible with semver.org: {error}"
                )


def _taints(taints: list[dict[str, Any]], *, where: str) -> Problems:
    yield from too_many(where, taints, 16)
    for index, taint in enumerate(taints[:16]):
        at, key, effect = f"{where}[{index}]", taint.get("key") or "", taint.get("effect") or ""
        yield from checked(f"{at}.key", key, qualified_name(key))
        yield from checked(f"{at}.value", taint.get("value") or "", label_value(taint.get("value") or ""))
        if not effect:
            yield required(f"{at}.effect")
        elif effect not in _EFFECTS:
            yield not_supported(f"{at}.effect", effect, _EFFECTS)


def _consumed(entries: list[dict[str, Any]], *, where: str) -> Problems:
    yield from too_many(where, entries, 2)
    if len(entries) > 2:
        return
    seen = set()
    for index, entry in enumerate(entries):
        at, name = f"{where}[{index}]", entry.get("counterSet") or ""
        if name and name in seen:
            yield Problem("Duplicate", at, f'"{name}"')
        seen.add(name)
        if not name:
            yield required(f"{at}.counterSet")
        else:
            yield from checked(f"{at}.counterSet", name, label(name))
        yield from _counters(entry.get("counters") or {}, where=f"{at}.counters")
