"""The status of a ResourceClaim: allocation, reservations and what drivers report (KEP-4381, KEP-4817)."""

import ipaddress
import re
from collections.abc import Mapping, Set
from typing import Any

from tangram.testing.apiserver import claims, devicerules
from tangram.testing.apiserver.catalog import (
    BINDING_CONDITIONS,
    CONSUMABLE_CAPACITY,
    DEVICE_STATUS,
    Version,
)
from tangram.testing.apiserver.problems import (
    Problem,
    Problems,
    checked,
    immutable,
    invalid,
    label,
    lower_case_uuid,
    not_supported,
    qualified_name,
    required,
    too_long,
    too_many,
)
from tangram.testing.apiserver.store import Object

_MAX_RESERVATIONS = 256
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_STATES = ("False", "True", "Unknown")


def apply_defaults(status: Mapping[str, Any] | None) -> None:
    """The operator of the tolerations of what was allocated, in place."""
    for result in _results(status or {}):
        for toleration in result.get("tolerations") or []:
            if not toleration.get("operator"):
                toleration["operator"] = "Equal"


def drop_disabled(new: Object, old: Object | None, *, version: Version) -> None:
    """Gated fields of the allocation, and device statuses whose device is no longer allocated, in place."""
    status = new.get("status") or {}
    before = (old or {}).get("status") or {}
    if allocation := status.get("allocation"):
        _drop_of_allocation(allocation, version=version)
    if CONSUMABLE_CAPACITY not in version.features:
        for device in status.get("devices") or []:
            device.pop("shareID", None)
    if DEVICE_STATUS not in version.features:
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


def validate(new: Object, old: Object | None, version: Version) -> Problems:
    """All rules of a claim; those of the spec only where it may still change: on create."""
    if old is None:
        yield from claims.validate_spec(new["spec"], where="spec", version=version)
        return
    if new["spec"] != old["spec"]:
        yield immutable("spec", new["spec"])
    status, before = new.get("status") or {}, old.get("status") or {}
    if status == before:
        return
    yield from _reservations(new, status, before)
    yield from _device_statuses(status)
    allocation = status.get("allocation")
    if before.get("allocation") and allocation and allocation != before["allocation"]:
        yield immutable("status.allocation", allocation)
    elif allocation and not before.get("allocation"):
        yield from _allocation(new, allocation, version)


def _drop_of_allocation(allocation: dict[str, Any], *, version: Version) -> None:
    binding = {BINDING_CONDITIONS, DEVICE_STATUS} <= version.features
    for result in (allocation.get("devices") or {}).get("results") or []:
        if CONSUMABLE_CAPACITY not in version.features:
            result.pop("shareID", None)
            result.pop("consumedCapacity", None)
        if not binding:
            result.pop("bindingConditions", None)
            result.pop("bindingFailureConditions", None)
    if not binding and version.minor < 35:
        allocation.pop("allocationTimestamp", None)


def _reservations(claim: Object, status: Mapping[str, Any], before: Mapping[str, Any]) -> Problems:
    where, reserved = "status.reservedFor", status.get("reservedFor") or []
    yield from too_many(where, reserved, _MAX_RESERVATIONS)
    seen: set[str] = set()
    for index, entry in enumerate(reserved):
        uid = entry.get("uid") or ""
        if uid and uid in seen:
            yield Problem("Duplicate", f"{where}[{index}]", f'"{uid}"')
        seen.add(uid)
        for field in ("resource", "name", "uid"):
            if not entry.get(field):
                yield required(f"{where}[{index}].{field}")
    if reserved and not status.get("allocation"):
        yield Problem("Forbidden", where, "may not be specified when `allocated` is not set")
    old_uids = {entry.get("uid") for entry in before.get("reservedFor") or []}
    if "deletionTimestamp" in claim["metadata"] and seen - old_uids:
        why = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        yield Problem("Forbidden", where, why)


def _identity(device: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(device.get(field) or "" for field in ("driver", "pool", "device", "shareID"))


def _allocated(status: Mapping[str, Any]) -> set[tuple[str, ...]]:
    return {_identity(result) for result in _results(status)}


def _results(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    allocation = status.get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or []


def _device_statuses(status: Mapping[str, Any]) -> Problems:
    allocated, seen = _allocated(status), set()
    for index, device in enumerate(status.get("devices") or []):
        where, identity = f"status.devices[{index}]", _identity(device)
        if identity in seen:
            yield Problem("Duplicate", where, str(identity))
        seen.add(identity)
        yield from devicerules.driver(device.get("driver") or "", where=f"{where}.driver")
        yield from devicerules.pool(device.get("pool") or "", where=f"{where}.pool")
        yield from checked(f"{where}.device", device.get("device") or "", label(device.get("device") or ""))
        if identity not in allocated:
            yield invalid(where, identity, "must be an allocated device in the claim")
        yield from _conditions(device.get("conditions") or [], where=f"{where}.conditions")
        yield from devicerules.json_object(device.get("data"), where=f"{where}.data")
        yield from _network(device.get("networkData") or {}, where=f"{where}.networkData")


def _conditions(conditions: list[dict[str, Any]], *, where: str) -> Problems:
    yield from too_many(where, conditions, 8)
    if len(conditions) > 8:
        return
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        at, kind, reason = f"{where}[{index}]", condition.get("type") or "", condition.get("reason") or ""
        if kind in seen:
            yield Problem("Duplicate", f"{at}.type", f'"{kind}"')
        seen.add(kind)
        yield from checked(f"{at}.type", kind, qualified_name(kind))
        if condition.get("status") not in _STATES:
            yield not_supported(f"{at}.status", condition.get("status") or "", _STATES)
        if condition.get("lastTransitionTime") is None:
            yield required(f"{at}.lastTransitionTime", "must be set")
        if not reason:
            yield required(f"{at}.reason", "must be set")
        elif not _REASON.fullmatch(reason):
            yield invalid(f"{at}.reason", reason, "a condition reason must start with alphabetic character")
        yield from too_long(f"{at}.message", condition.get("message") or "", 32 * 1024)


def _network(data: Mapping[str, Any], *, where: str) -> Problems:
    yield from too_long(f"{where}.interfaceName", data.get("interfaceName") or "", 256)
    yield from too_long(f"{where}.hardwareAddress", data.get("hardwareAddress") or "", 128)
    yield from too_many(f"{where}.ips", data.get("ips") or [], 16)
    for index, address in enumerate(data.get("ips") or []):
        try:
            valid = "/" in address and bool(ipaddress.ip_interface(address))
        except ValueError:
            valid = False
        if not valid:
            why = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)"
            yield invalid(f"{where}.ips[{index}]", address, why)


def _allocation(claim: Object, allocation: Mapping[str, Any], version: Version) -> Problems:
    where = "status.allocation"
    devices = allocation.get("devices") or {}
    results, config = devices.get("results") or [], devices.get("config") or []
    known = set(claims.request_names(claim.get("spec")))
    yield from too_many(f"{where}.devices.results", results, 32)
    for index, result in enumerate(results[:32]):
        at = f"{where}.devices.results[{index}]"
        yield from _result(result, known, where=at)
        if version.minor >= 37:
            yield from devicerules.tolerations(result.get("tolerations") or [], where=f"{at}.tolerations")
    yield from too_many(f"{where}.devices.config", config, 64)
    for index, entry in enumerate(config[:64]):
        at, source = f"{where}.devices.config[{index}]", entry.get("source")
        if not source:
            yield required(f"{at}.source")
        elif source not in {"FromClass", "FromClaim"}:
            yield not_supported(f"{at}.source", source, ["FromClaim", "FromClass"])
        yield from devicerules.requests(entry.get("requests") or [], known, where=f"{at}.requests")
        yield from devicerules.opaque(entry, where=at)
    if (selector := allocation.get("nodeSelector")) is not None:
        yield from devicerules.node_selector(selector, where=f"{where}.nodeSelector")


def _result(result: Mapping[str, Any], known: Set[str], *, where: str) -> Problems:
    request, device = result.get("request") or "", result.get("device") or ""
    if request not in known:
        yield devicerules.unknown_request(f"{where}.request", request)
    yield from devicerules.driver(result.get("driver") or "", where=f"{where}.driver")
    yield from devicerules.pool(result.get("pool") or "", where=f"{where}.pool")
    yield from checked(f"{where}.device", device, label(device))
    if (share := result.get("shareID")) is not None:
        yield from checked(f"{where}.shareID", share, lower_case_uuid(share))
    yield from devicerules.binding_conditions(result, where=where)
