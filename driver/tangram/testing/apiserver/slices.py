"""ResourceSlices: the gated fields, and the limits and immutability rules that a driver meets (KEP-4381)."""

import re
from collections.abc import Iterator, Mapping, Set
from typing import Any

from tangram.model.quantity import parse_quantity
from tangram.model.semver import SemVer
from tangram.testing.apiserver.catalog import (
    BINDING_CONDITIONS,
    CONSUMABLE_CAPACITY,
    DEVICE_STATUS,
    PARTITIONABLE,
    TAINTS,
    Version,
)
from tangram.testing.apiserver.store import Object

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DRIVER = re.compile(_SUBDOMAIN.pattern, re.IGNORECASE)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_VALUE_FIELDS = ("bool", "int", "string", "version")


def apply_defaults(obj: Object, *, now: str) -> None:
    """The time a taint was added."""
    for device in _devices(obj.get("spec")):
        for taint in device.get("taints") or []:
            taint.setdefault("timeAdded", now)


def drop_disabled(spec: dict[str, Any] | None, *, features: Set[str]) -> None:
    """Removes the fields whose gate is off."""
    if spec is None:
        return
    gated: list[str] = []
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
        if CONSUMABLE_CAPACITY not in features:
            for capacity in (device.get("capacity") or {}).values():
                capacity.pop("requestPolicy", None)


def validate(new: Object, old: Object | None, version: Version) -> list[str]:
    """The rules for one slice; what only a whole pool can break is not the API server's business."""
    spec = new.get("spec") or {}
    problems = list(_validate_spec(spec, version))
    for index, device in enumerate(_devices(spec)):
        problems += _validate_device(device, where=f"spec.devices[{index}]")
    if old is not None:
        before = old["spec"]
        for field, now, then in (
            ("driver", spec.get("driver"), before.get("driver")),
            ("nodeName", spec.get("nodeName"), before.get("nodeName")),
            ("pool.name", (spec.get("pool") or {}).get("name"), before["pool"].get("name")),
        ):
            if now != then:
                problems.append(f"spec.{field}: Invalid value: {now!r}: field is immutable")
    return problems


def _devices(spec: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return (spec or {}).get("devices") or []


def _validate_spec(spec: Mapping[str, Any], version: Version) -> Iterator[str]:
    driver, pool = spec.get("driver") or "", spec.get("pool") or {}
    if len(driver) > 63 or not _DRIVER.fullmatch(driver):
        yield f"spec.driver: Invalid value: {driver!r}"
    name = pool.get("name") or ""
    if len(name) > 253 or not all(_SUBDOMAIN.fullmatch(part) for part in name.split("/")):
        yield f"spec.pool.name: Invalid value: {name!r}"
    if pool.get("generation", 0) < 0:
        yield "spec.pool.generation: Invalid value: must be greater than or equal to zero"
    if pool.get("resourceSliceCount", 0) < 1:
        yield "spec.pool.resourceSliceCount: Invalid value: must be greater than zero"
    placements = [
        field
        for field in ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
        if spec.get(field)
    ]
    if len(placements) != 1:
        yield (
            "spec: Invalid value: exactly one of `nodeName`, `nodeSelector`, `allNodes`, "
            "`perDeviceNodeSelection` is required"
        )
    devices, counters = _devices(spec), spec.get("sharedCounters") or []
    both = spec.get("devices") is not None and spec.get("sharedCounters") is not None
    if both and version.minor >= 35:
        yield "spec: Invalid value: only one of `sharedCounters` or `devices` is allowed"
    limit = 64 if any(device.get("taints") or device.get("consumesCounters") for device in devices) else 128
    if len(devices) > limit:
        yield f"spec.devices: Too many: {len(devices)}: must have at most {limit} items"
    names = [device.get("name") for device in devices]
    if len(set(names)) != len(names):
        yield "spec.devices: Duplicate value"
    yield from _validate_counter_sets(counters)


def _validate_counter_sets(counters: list[dict[str, Any]]) -> Iterator[str]:
    if len(counters) > 8:
        yield f"spec.sharedCounters: Too many: {len(counters)}: must have at most 8 items"
    for index, counter_set in enumerate(counters):
        if not _LABEL.fullmatch(counter_set.get("name") or ""):
            yield f"spec.sharedCounters[{index}].name: Invalid value: {counter_set.get('name')!r}"
        if not 0 < len(counter_set.get("counters") or {}) <= 32:
            yield f"spec.sharedCounters[{index}].counters: Invalid value: must have 1 to 32 items"


def _validate_device(device: Mapping[str, Any], *, where: str) -> Iterator[str]:
    if not _LABEL.fullmatch(device.get("name") or ""):
        yield f"{where}.name: Invalid value: {device.get('name')!r}"
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if len(attributes) + len(capacity) > 32:
        yield f"{where}: Invalid value: {len(attributes) + len(capacity)}: attributes and capacities above 32"
    for name, attribute in attributes.items():
        yield from _validate_name(name, where=f"{where}.attributes")
        yield from _validate_attribute(attribute, where=f"{where}.attributes[{name}]")
    for name, value in capacity.items():
        yield from _validate_name(name, where=f"{where}.capacity")
        parse_quantity(str(value["value"]))  # a malformed one does not even decode
        if value.get("requestPolicy") and not device.get("allowMultipleAllocations"):
            yield f"{where}.capacity[{name}].requestPolicy: Forbidden: needs allowMultipleAllocations"
    if len(device.get("taints") or []) > 16:
        yield f"{where}.taints: Too many: must have at most 16 items"
    for taint in device.get("taints") or []:
        if not taint.get("key") or taint.get("effect") not in {"None", "NoSchedule", "NoExecute"}:
            yield f"{where}.taints: Invalid value: {taint!r}"
    consumed = device.get("consumesCounters") or []
    if len(consumed) > 2:
        yield f"{where}.consumesCounters: Too many: must have at most 2 items"
    for entry in consumed:
        if not entry.get("counterSet") or not 0 < len(entry.get("counters") or {}) <= 32:
            yield f"{where}.consumesCounters: Invalid value: needs counterSet and 1 to 32 counters"


def _validate_name(name: str, *, where: str) -> Iterator[str]:
    domain, slash, identifier = name.rpartition("/")
    valid = _IDENTIFIER.fullmatch(identifier) and (
        not slash or (len(domain) <= 63 and _SUBDOMAIN.fullmatch(domain))
    )
    if not valid:
        yield f"{where}: Invalid value: {name!r}: must be a C identifier of at most 32 characters"


def _validate_attribute(attribute: Mapping[str, Any], *, where: str) -> Iterator[str]:
    given = [field for field in _VALUE_FIELDS if attribute.get(field) is not None]
    if len(given) != 1:
        yield f"{where}: Invalid value: exactly one value must be specified"
        return
    value = attribute[given[0]]
    if given[0] in {"string", "version"} and len(value.encode()) > 64:
        yield f"{where}.{given[0]}: Too long: may not be more than 64 bytes"
    if given[0] == "version":
        try:
            SemVer(value)
        except ValueError as error:
            yield f"{where}.version: Invalid value: {error}"
