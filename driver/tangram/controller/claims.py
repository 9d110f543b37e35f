"""From ResourceClaims and DeviceClasses to what the allocation engine decides on, and back to an allocation.

A claim is ours if a class of one of its requests carries the guard, that is, asks for the attribute
`allocator` of our driver: for kube-scheduler such a class matches no device that this controller allocates.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tangram import DRIVER_NAME
from tangram.allocation import ClaimAllocation, ClaimKey, ClaimRequest, DeviceRequest, MatchAttribute
from tangram.api import demand_of, linked_count
from tangram.base.errors import CelError, InvalidObjectError, UsageError
from tangram.cel import Program, compile_expression
from tangram.kube.client import decode
from tangram.kube.objects import (
    DeviceClass,
    DeviceConfiguration,
    DeviceConstraint,
    DeviceSelector,
    ExactDeviceRequest,
    ResourceClaim,
)
from tangram.kube.objects import DeviceRequest as WireRequest

MAXIMUM_RESULTS = 32
"""Devices of one allocation (`AllocationResultsMaxSize`, resource/v1)."""
_MAXIMUM_SELECTOR_TEXT = 64 * 1024
"""Characters of all selectors of a claim. The API allows 10 MiB, which would take a minute to compile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRecord:
    """A device class: compiled selectors, configuration, and whether it carries the guard.

    `error` is set where a selector cannot be compiled (or uses what is not supported yet).
    """

    name: str
    selectors: tuple[Program, ...] = ()
    config: tuple[DeviceConfiguration, ...] = ()
    guarded: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The claim is ours but cannot be allocated as it stands; `cause` is for the user."""

    cause: str


def decode_class(raw: msgspec.Raw | bytes) -> ClassRecord:
    """The record of a DeviceClass object."""
    item = decode(raw, DeviceClass)
    name = item.metadata.name
    config = tuple(item.spec.config or ())
    try:
        programs = _compile(item.spec.selectors, object_name=f"DeviceClass {name}", field="spec.selectors")
    except UsageError as error:
        # The guard of a class that does not compile is found by its words, so that the claim gets a reason.
        text = b"".join(bytes(raw).split())
        guarded = DRIVER_NAME.encode() in text and b"allocator" in text
        return ClassRecord(name=name, config=config, guarded=guarded, error=str(error))
    guarded = any(
        (reference.domain, reference.id) == (DRIVER_NAME, "allocator")
        for program in programs
        for reference in program.references()
    )
    return ClassRecord(name=name, selectors=programs, config=config, guarded=guarded)


def lower_claim(claim: ResourceClaim, classes: Mapping[str, ClassRecord]) -> ClaimRequest | Refused | None:
    """What to allocate for a claim; None if the claim is not ours to allocate."""
    requests = claim.spec.devices.requests or []
    named = [(request, _class_names(request)) for request in requests]
    ours = [any((c := classes.get(n)) is not None and c.guarded for n in names) for _, names in named]
    if not any(ours):
        return None
    try:
        _refuse_mixture(named, ours, classes)
        _refuse_long_selectors(claim)
        lowered = tuple(
            _lower_request(claim, request, index, classes) for index, request in enumerate(requests)
        )
        if sum(request.count for request in lowered) > MAXIMUM_RESULTS:
            raise _invalid(claim, "spec.devices.requests", f"asks for more than {MAXIMUM_RESULTS} devices")
        constraints = tuple(
            _lower_constraint(claim, constraint, index, {r.name for r in requests})
            for index, constraint in enumerate(claim.spec.devices.constraints or ())
        )
    except UsageError as error:
        return Refused(str(error))
    return ClaimRequest(key=claim_key(claim), requests=lowered, constraints=constraints)


def claim_key(claim: ResourceClaim) -> ClaimKey:
    """The identity of a claim object."""
    return ClaimKey(claim.metadata.namespace, claim.metadata.name, claim.metadata.uid)


def _class_names(request: WireRequest) -> tuple[str, ...]:
    if request.exactly is not None:
        return (request.exactly.device_class_name,)
    return tuple(sub.device_class_name for sub in request.first_available or ())


def _refuse_mixture(
    named: Sequence[tuple[WireRequest, tuple[str, ...]]],
    ours: Sequence[bool],
    classes: Mapping[str, ClassRecord],
) -> None:
    for (request, names), mine in zip(named, ours, strict=True):
        missing = [name for name in names if name not in classes]
        if missing:
            raise UsageError(
                f"request {request.name}: device class {missing[0]} does not exist",
                next_step="kubectl get deviceclasses lists those that do",
            )
        if not mine:
            raise UsageError(
                f"request {request.name}: device class {', '.join(names)} belongs to another driver",
                next_step="put the devices of each driver into a claim of their own",
            )


def _refuse_long_selectors(claim: ResourceClaim) -> None:
    length = sum(
        len(selector.cel.expression)
        for request in claim.spec.devices.requests or ()
        for selector in (request.exactly and request.exactly.selectors) or ()
        if selector.cel is not None
    )
    if length > _MAXIMUM_SELECTOR_TEXT:
        raise _invalid(
            claim,
            "spec.devices.requests",
            f"has selectors of {length} characters together, where {_MAXIMUM_SELECTOR_TEXT} are allowed",
            "write shorter ones, or let a device class say what the claims have in common",
        )


def _invalid(claim: ResourceClaim, field: str, cause: str, next_step: str = "") -> InvalidObjectError:
    return InvalidObjectError(
        cause,
        object_name=f"ResourceClaim {claim.metadata.namespace}/{claim.metadata.name}",
        field=field,
        next_step=next_step,
    )


def _not_yet(claim: ResourceClaim, field: str) -> InvalidObjectError:
    return _invalid(claim, field, "is not supported yet by this version", "leave the field out")


def _lower_request(
    claim: ResourceClaim, request: WireRequest, index: int, classes: Mapping[str, ClassRecord]
) -> DeviceRequest:
    field = f"spec.devices.requests[{index}]"
    exactly = request.exactly
    if exactly is None:
        if request.first_available:
            raise _not_yet(claim, f"{field}.firstAvailable")
        raise _invalid(claim, field, "has neither exactly nor firstAvailable")
    count = _count(claim, exactly, f"{field}.exactly")
    device_class = classes[exactly.device_class_name]
    if device_class.error:
        raise UsageError(f"request {request.name}: {device_class.error}")
    selectors = _compile(
        exactly.selectors,
        object_name=f"ResourceClaim {claim.metadata.namespace}/{claim.metadata.name}",
        field=f"{field}.exactly.selectors",
    )
    owner = f"{claim.metadata.namespace}/{claim.metadata.name}"
    demand = demand_of(
        (request.name,),
        class_name=device_class.name,
        class_config=device_class.config,
        claim_name=owner,
        claim_config=claim.spec.devices.config or (),
    )
    count = linked_count(demand, count, object_name=f"ResourceClaim {owner}", field=f"{field}.exactly.count")
    return DeviceRequest(
        name=request.name,
        count=count,
        class_name=exactly.device_class_name,
        class_selectors=device_class.selectors,
        selectors=selectors,
        demand=demand,
        linked_set_size=demand.linked_set_size if demand else 1,
    )


def _count(claim: ResourceClaim, exactly: ExactDeviceRequest, field: str) -> int:
    if exactly.admin_access:
        raise _not_yet(claim, f"{field}.adminAccess")
    if exactly.capacity is not None and exactly.capacity.requests:
        raise _not_yet(claim, f"{field}.capacity")
    if exactly.allocation_mode == "All":
        raise _not_yet(claim, f"{field}.allocationMode All")
    if exactly.allocation_mode not in ("", "ExactCount"):
        raise _invalid(claim, f"{field}.allocationMode", f"{exactly.allocation_mode!r} is unknown")
    if (exactly.count or 0) < 0:
        raise _invalid(claim, f"{field}.count", "is negative")
    return exactly.count or 1


def _lower_constraint(
    claim: ResourceClaim, constraint: DeviceConstraint, index: int, names: set[str]
) -> MatchAttribute:
    field = f"spec.devices.constraints[{index}]"
    if constraint.distinct_attribute:
        raise _not_yet(claim, f"{field}.distinctAttribute")
    if not constraint.match_attribute:
        raise _invalid(claim, field, "is of an unknown kind")
    unknown = sorted(set(constraint.requests or ()) - names)
    if unknown:
        raise _invalid(claim, f"{field}.requests", f"names {unknown[0]!r}, which is no request of the claim")
    return MatchAttribute(attribute=constraint.match_attribute, requests=frozenset(constraint.requests or ()))


def _compile(
    selectors: Iterable[DeviceSelector] | None, *, object_name: str, field: str
) -> tuple[Program, ...]:
    programs = []
    for index, selector in enumerate(selectors or ()):
        where = f"{field}[{index}]"
        if selector.cel is None:
            raise InvalidObjectError("is of an unknown kind", object_name=object_name, field=where)
        try:
            programs.append(compile_expression(selector.cel.expression))
        except CelError as error:
            raise InvalidObjectError(
                str(error), object_name=object_name, field=f"{where}.cel.expression"
            ) from error
    return tuple(programs)


def allocation_body(
    claim: ResourceClaim,
    allocation: ClaimAllocation,
    classes: Mapping[str, ClassRecord],
    *,
    node: str,
    timestamp: str,
) -> dict[str, Any]:
    """`status.allocation` as written: results; configuration of classes, then of the claim, in the order of
    the structured allocator (KEP-4381); the one-node selector that lets the node's plugin write its status
    (`associated-node:` verbs); a time stamp, without which kube-scheduler ≥ 1.36 cannot reserve the claim.
    """
    by_name = {request.name: request.exactly for request in claim.spec.devices.requests or ()}
    results: list[dict[str, Any]] = []
    for result in allocation.results:
        body: dict[str, Any] = {
            "request": result.request,
            "driver": DRIVER_NAME,
            "pool": result.device.pool,
            "device": result.device.device,
        }
        exactly = by_name[result.request]
        if exactly is not None and exactly.tolerations:
            body["tolerations"] = [_plain(toleration) for toleration in exactly.tolerations]
        results.append(body)
    devices: dict[str, Any] = {"results": results}
    config = _configuration(claim, classes)
    if config:
        devices["config"] = config
    return {
        "devices": devices,
        "nodeSelector": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
            ]
        },
        "allocationTimestamp": timestamp,
    }


def _configuration(claim: ResourceClaim, classes: Mapping[str, ClassRecord]) -> list[dict[str, Any]]:
    requests = claim.spec.devices.requests or ()
    users: dict[str, list[str]] = {}
    for request in requests:
        if request.exactly is not None:
            users.setdefault(request.exactly.device_class_name, []).append(request.name)
    entries: list[dict[str, Any]] = []
    for class_name, names in users.items():
        for entry in classes[class_name].config if class_name in classes else ():
            body: dict[str, Any] = {"source": "FromClass"}
            if len(names) < len(requests):
                body["requests"] = names
            entries.append(body | _opaque(entry))
    for entry in claim.spec.devices.config or ():
        body = {"source": "FromClaim"}
        if entry.requests:
            body["requests"] = list(entry.requests)
        entries.append(body | _opaque(entry))
    return entries


def _opaque(entry: DeviceConfiguration) -> dict[str, Any]:
    if entry.opaque is None:
        return {}
    parameters = msgspec.json.decode(entry.opaque.parameters)
    return {"opaque": {"driver": entry.opaque.driver, "parameters": parameters}}


def _plain(item: msgspec.Struct) -> dict[str, Any]:
    """A struct in wire form without the fields that are empty or null."""
    plain: dict[str, Any] = msgspec.to_builtins(item)
    return {key: value for key, value in plain.items() if value not in (None, "")}
