"""Which claims are ours to allocate, and what is written to them.

A claim is ours if a class of one of its requests carries the guard, that is, asks for the attribute
`allocator` of our driver: for kube-scheduler such a class matches no device that this controller allocates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tangram import DRIVER_NAME
from tangram.allocation import ClaimAllocation
from tangram.allocation.structured import carries_guard
from tangram.api import decode_parameters, is_grant
from tangram.kube.client import decode
from tangram.kube.objects import AllocationResult, DeviceClass, DeviceConfiguration, ResourceClaim
from tangram.kube.objects import DeviceRequest as WireRequest

_MAXIMUM_SELECTOR_TEXT = 64 * 1024
"""Characters of all selectors of a claim. The API allows 10 MiB, which would take a minute to compile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRecord:
    """A device class, and whether it carries the guard."""

    item: DeviceClass
    guarded: bool

    @property
    def name(self) -> str:
        return self.item.metadata.name


@dataclass(frozen=True, slots=True)
class Refused:
    """The claim is ours but cannot be allocated as it stands; `cause` is for the user."""

    cause: str


def decode_class(raw: msgspec.Raw | bytes) -> ClassRecord:
    """The record of a DeviceClass object."""
    item = decode(raw, DeviceClass)
    texts = [selector.cel.expression for selector in item.spec.selectors or () if selector.cel is not None]
    return ClassRecord(item=item, guarded=carries_guard(texts))


def refused_or_ours(claim: ResourceClaim, classes: Mapping[str, ClassRecord]) -> Refused | bool:
    """Whether the claim is ours to allocate, or why it cannot be although it is."""
    requests = claim.spec.devices.requests or []
    named = [(request, _class_names(request)) for request in requests]
    ours = [[(c := classes.get(name)) is not None and c.guarded for name in names] for _, names in named]
    if not any(map(any, ours)):
        return False
    for (request, names), mine in zip(named, ours, strict=True):
        for name, own in zip(names, mine, strict=True):
            if name not in classes:
                return Refused(
                    f"request {request.name}: device class {name} does not exist; kubectl get deviceclasses"
                    " lists those that do"
                )
            if not own:
                return Refused(
                    f"request {request.name}: device class {name} belongs to another driver; put the devices"
                    " of each driver into a claim of their own"
                )
    length = _selector_text(claim)
    if length > _MAXIMUM_SELECTOR_TEXT:
        return Refused(
            f"the claim has selectors of {length} characters together, where {_MAXIMUM_SELECTOR_TEXT} are"
            " allowed; write shorter ones, or let a device class say what the claims have in common"
        )
    return True


def _class_names(request: WireRequest) -> tuple[str, ...]:
    if request.exactly is not None:
        return (request.exactly.device_class_name,)
    return tuple(sub.device_class_name for sub in request.first_available or ())


def _selector_text(claim: ResourceClaim) -> int:
    return sum(
        len(selector.cel.expression)
        for request in claim.spec.devices.requests or ()
        for item in (request.exactly, *(request.first_available or ()))
        for selector in (item.selectors if item is not None else None) or ()
        if selector.cel is not None
    )


def unstated_shares(allocation: AllocationResult) -> str:
    """What the user should know of shares whose sizes nobody has stated, where the API server has dropped
    capacity requests: whoever wrote one does not learn it otherwise. Empty where there is nothing to tell.
    """
    config = [
        entry
        for entry in allocation.devices.config or ()
        if entry.opaque is not None and entry.opaque.driver == DRIVER_NAME
    ]
    if not any(map(is_grant, config)):
        return ""
    stating = [entry for entry in config if not is_grant(entry) and _states_share(entry)]
    unstated = [
        result
        for result in allocation.devices.results or ()
        if result.share_id is not None
        and not any(
            not entry.requests or {result.request, result.request.partition("/")[0]} & {*entry.requests}
            for entry in stating
        )
    ]
    if not unstated:
        return ""
    sizes = [
        f"{name} {amount}"
        for name, amount in sorted((unstated[0].consumed_capacity or {}).items())
        if str(amount) != "0"
    ]
    return (
        f"a share of the size that a claim gets which states none ({', '.join(sizes)}): this API server drops"
        " capacity requests; state another size in GPUClaimParameters"
    )


def _states_share(entry: DeviceConfiguration) -> bool:
    assert entry.opaque is not None
    parameters = decode_parameters(bytes(entry.opaque.parameters), object_name="", field="")
    return any((parameters.memory_gb, parameters.mps, parameters.replicas))


def allocation_body(allocation: ClaimAllocation, *, timestamp: str) -> dict[str, Any]:
    """`status.allocation` as written, with the time stamp without which kube-scheduler ≥ 1.36 cannot reserve
    the claim."""
    body: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(allocation.allocation))
    return body | {"allocationTimestamp": timestamp}
