"""ResourceClaims: defaults, gated fields, and the rules of the status that an allocator meets (KEP-4381)."""

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Set
from typing import Any

from tangram.testing.apiserver.catalog import (
    BINDING_CONDITIONS,
    CONSUMABLE_CAPACITY,
    DEVICE_STATUS,
    TAINTS,
    Version,
)
from tangram.testing.apiserver.store import Object

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
# Drivers are compared in lower case before they are checked, so upper case passes (as in pools).
_DRIVER = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.IGNORECASE)
_POOL_PART = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_OPAQUE_BYTES = 10 * 1024


def apply_defaults(spec: Mapping[str, Any] | None) -> None:
    """`allocationMode: ExactCount`, `count: 1`, and the operator of tolerations."""
    for request in _requests(spec):
        request.setdefault("allocationMode", "ExactCount")
        if request["allocationMode"] == "ExactCount":
            request.setdefault("count", 1)
        for toleration in request.get("tolerations") or []:
            toleration.setdefault("operator", "Equal")


def drop_disabled_spec(spec: Mapping[str, Any] | None, *, features: Set[str]) -> None:
    """Fields of requests and constraints whose gate is off."""
    for request in _requests(spec):
        if CONSUMABLE_CAPACITY not in features:
            request.pop("capacity", None)
        if TAINTS not in features:
            request.pop("tolerations", None)
    if CONSUMABLE_CAPACITY not in features:
        for constraint in _devices(spec).get("constraints") or []:
            constraint.pop("distinctAttribute", None)


def drop_disabled_status(new: Object, old: Object | None, *, features: Set[str]) -> None:
    """Gated fields of the allocation, and device statuses whose device is no longer allocated."""
    status = new.get("status") or {}
    before = (old or {}).get("status") or {}
    allocation = status.get("allocation")
    if allocation and not before.get("allocation"):
        for result in (allocation.get("devices") or {}).get("results") or []:
            if CONSUMABLE_CAPACITY not in features:
                result.pop("shareID", None)
                result.pop("consumedCapacity", None)
            if TAINTS not in features:
                result.pop("tolerations", None)
            if not {BINDING_CONDITIONS, DEVICE_STATUS} <= features:
                result.pop("bindingConditions", None)
                result.pop("bindingFailureConditions", None)
        if not {BINDING_CONDITIONS, DEVICE_STATUS} <= features:
            allocation.pop("allocationTimestamp", None)
    if DEVICE_STATUS not in features:
        status.pop("devices", None)
    elif status.get("devices") and before.get("devices"):
        known = {_identity(device) for device in before["devices"]}
        allocated = _allocated(status)
        status["devices"] = [
            device
            for device in status["devices"]
            if _identity(device) in allocated or _identity(device) not in known
        ]
    for field in ("devices", "reservedFor"):
        if field in status and not status[field]:
            del status[field]


def validate(new: Object, old: Object | None, _version: Version) -> list[str]:
    """All rules; the spec only where it may still change: on create."""
    if old is None:
        return list(_validate_spec(new.get("spec") or {}))
    if new.get("spec") != old.get("spec"):
        return ["spec: Invalid value: field is immutable"]
    status, before = new.get("status") or {}, old.get("status") or {}
    problems = list(_validate_reservations(new, status, before))
    problems += _validate_device_statuses(status)
    allocation = status.get("allocation")
    if before.get("allocation") and allocation and allocation != before["allocation"]:
        problems.append("status.allocation: Invalid value: field is immutable")
    elif allocation and not before.get("allocation"):
        problems += _validate_allocation(new, allocation)
    return problems


def _devices(spec: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return (spec or {}).get("devices") or {}


def _requests(spec: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    for request in _devices(spec).get("requests") or []:
        if request.get("exactly"):
            yield request["exactly"]
        yield from request.get("firstAvailable") or []


def _validate_spec(spec: Mapping[str, Any]) -> Iterator[str]:
    devices = _devices(spec)
    requests = devices.get("requests") or []
    for field in ("requests", "constraints", "config"):
        if len(devices.get(field) or []) > 32:
            yield f"spec.devices.{field}: Too many: must have at most 32 items"
    names = [request.get("name") for request in requests]
    if len(set(names)) != len(names):
        yield "spec.devices.requests: Duplicate value"
    for index, request in enumerate(requests):
        where = f"spec.devices.requests[{index}]"
        if not _LABEL.fullmatch(request.get("name") or ""):
            yield f"{where}.name: Invalid value: {request.get('name')!r}"
        if bool(request.get("exactly")) == bool(request.get("firstAvailable")):
            yield f"{where}: Invalid value: exactly one of `exactly` or `firstAvailable` is required"
        if len(request.get("firstAvailable") or []) > 8:
            yield f"{where}.firstAvailable: Too many: must have at most 8 items"
    for request in _requests(spec):
        yield from _validate_request(request)
    for index, entry in enumerate(devices.get("config") or []):
        yield from _validate_opaque(entry, where=f"spec.devices.config[{index}].opaque")


def _validate_request(request: Mapping[str, Any]) -> Iterator[str]:
    where = "spec.devices.requests"
    if not request.get("deviceClassName"):
        yield f"{where}.deviceClassName: Required value"
    if len(request.get("selectors") or []) > 32:
        yield f"{where}.selectors: Too many: must have at most 32 items"
    mode, count = request.get("allocationMode"), request.get("count", 0)
    if mode not in {"ExactCount", "All"}:
        yield f'{where}.allocationMode: Unsupported value: "{mode}"'
    elif mode == "ExactCount" and count < 1:
        yield f"{where}.count: Invalid value: {count}: must be greater than zero"
    elif mode == "All" and count:
        yield f"{where}.count: Invalid value: {count}: must not be specified when allocationMode is 'All'"


def _validate_opaque(entry: Mapping[str, Any], *, where: str) -> Iterator[str]:
    opaque = entry.get("opaque")
    if not opaque:
        yield f"{where}: Required value"
        return
    if not _DRIVER.fullmatch(opaque.get("driver") or "") or len(opaque["driver"]) > 63:
        yield f"{where}.driver: Invalid value: {opaque.get('driver')!r}"
    yield from _validate_json_object(opaque.get("parameters"), where=f"{where}.parameters")


def _validate_json_object(value: Any, *, where: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{where}: Invalid value: must be a JSON object"
    elif len(json.dumps(value)) > _MAX_OPAQUE_BYTES:
        yield f"{where}: Too long: may not be more than {_MAX_OPAQUE_BYTES} bytes"


def _validate_reservations(
    claim: Object, status: Mapping[str, Any], before: Mapping[str, Any]
) -> Iterator[str]:
    where = "status.reservedFor"
    reserved = status.get("reservedFor") or []
    if len(reserved) > 256:
        yield f"{where}: Too many: must have at most 256 items"
    uids = [entry.get("uid") for entry in reserved]
    if len(set(uids)) != len(uids):
        yield f"{where}: Duplicate value"
    for index, entry in enumerate(reserved):
        for field in ("resource", "name", "uid"):
            if not entry.get(field):
                yield f"{where}[{index}].{field}: Required value"
    if reserved and not status.get("allocation"):
        yield f"{where}: Forbidden: may not be specified when `allocated` is not set"
    old_uids = {entry.get("uid") for entry in before.get("reservedFor") or []}
    if "deletionTimestamp" in claim["metadata"] and set(uids) - old_uids:
        yield f"{where}: Forbidden: new entries may not be added while the claim is being deleted"


def _identity(device: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(device.get(field) or "" for field in ("driver", "pool", "device", "shareID"))


def _allocated(status: Mapping[str, Any]) -> set[tuple[Any, ...]]:
    allocation = status.get("allocation") or {}
    return {_identity(result) for result in (allocation.get("devices") or {}).get("results") or []}


def _validate_device_statuses(status: Mapping[str, Any]) -> Iterator[str]:
    devices = status.get("devices") or []
    identities = [_identity(device) for device in devices]
    if len(set(identities)) != len(identities):
        yield "status.devices: Duplicate value"
    allocated = _allocated(status)
    for index, device in enumerate(devices):
        where = f"status.devices[{index}]"
        if identities[index] not in allocated:
            yield f"{where}: Invalid value: must be an allocated device in the claim"
        conditions = device.get("conditions") or []
        if len(conditions) > 8:
            yield f"{where}.conditions: Too many: must have at most 8 items"
        for condition in conditions:
            for field in ("type", "status", "reason", "lastTransitionTime"):
                if not condition.get(field):
                    yield f"{where}.conditions.{field}: Required value"
        if device.get("data") is not None:
            yield from _validate_json_object(device["data"], where=f"{where}.data")


def _validate_allocation(claim: Object, allocation: Mapping[str, Any]) -> Iterator[str]:
    where = "status.allocation"
    devices = allocation.get("devices") or {}
    results, config = devices.get("results") or [], devices.get("config") or []
    if len(results) > 32:
        yield f"{where}.devices.results: Too many: must have at most 32 items"
    if len(config) > 64:
        yield f"{where}.devices.config: Too many: must have at most 64 items"
    known = set(_request_names(claim.get("spec")))
    for index, result in enumerate(results):
        yield from _validate_result(result, known, where=f"{where}.devices.results[{index}]")
    for index, entry in enumerate(config):
        path = f"{where}.devices.config[{index}]"
        if entry.get("source") not in {"FromClass", "FromClaim"}:
            yield f'{path}.source: Unsupported value: "{entry.get("source")}"'
        yield from _validate_opaque(entry, where=f"{path}.opaque")
        for name in entry.get("requests") or []:
            if name not in known:
                yield f"{path}.requests: Invalid value: {name!r}: must be the name of a request in the claim"
    selector = allocation.get("nodeSelector")
    if selector is not None and not selector.get("nodeSelectorTerms"):
        yield f"{where}.nodeSelector.nodeSelectorTerms: Required value"


def _validate_result(result: Mapping[str, Any], known: Set[str], *, where: str) -> Iterator[str]:
    if result.get("request") not in known:
        yield (
            f"{where}.request: Invalid value: {result.get('request')!r}: must be the name of a request in "
            f"the claim or the name of a request and a subrequest separated by '/'"
        )
    if not _DRIVER.fullmatch(result.get("driver") or "") or len(result["driver"]) > 63:
        yield f"{where}.driver: Invalid value: {result.get('driver')!r}"
    pool = result.get("pool") or ""
    if len(pool) > 253 or not all(_POOL_PART.fullmatch(part) for part in pool.split("/")):
        yield f"{where}.pool: Invalid value: {pool!r}"
    if not _LABEL.fullmatch(result.get("device") or ""):
        yield f"{where}.device: Invalid value: {result.get('device')!r}"
    if (share := result.get("shareID")) is not None and not _is_uuid(share):
        yield f"{where}.shareID: Invalid value: {share!r}: must be a lowercase UUID"


def _request_names(spec: Mapping[str, Any] | None) -> Iterator[str]:
    for request in _devices(spec).get("requests") or []:
        # The plain name passes for a request with alternatives too: the server does not look that closely.
        yield request["name"]
        for alternative in request.get("firstAvailable") or []:
            yield f"{request['name']}/{alternative.get('name')}"


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except (ValueError, AttributeError, TypeError):
        return False
