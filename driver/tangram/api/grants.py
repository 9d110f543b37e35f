"""What claims were given of shared GPUs, where the API server would forget it.

Servers before 1.36 drop `shareID` and `consumedCapacity` of an allocation without a word, as do later ones
whose gate DRAConsumableCapacity is off. The controller then writes both into the allocation's configuration
too, as an entry of kind GPUShares, which every server keeps. That is a part of `status`: it comes and goes
with the allocation, in the same write, and who may only edit claims cannot change it.
"""

from collections.abc import Mapping

import msgspec

from tangram import DRIVER_NAME
from tangram.api.parameters import API_VERSION
from tangram.base.errors import InvalidObjectError
from tangram.model.kubernetes import (
    AllocationResult,
    AnyQuantity,
    DeviceConfiguration,
    OpaqueConfiguration,
)

KIND = "GPUShares"
_SOURCE = "FromClass"
"""Of the two sources that the API knows the one that no user of claims writes."""


class Grant(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is dropped of one result, which is found again by its request and device."""

    request: str
    device: str
    share_id: str = msgspec.field(name="shareID")
    consumed_capacity: dict[str, AnyQuantity] = {}


class _Kind(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    api_version: str = ""
    kind: str = ""


class _Grants(_Kind, frozen=True, kw_only=True):
    results: list[Grant] = []


def with_grants(allocation: AllocationResult) -> AllocationResult:
    """The allocation with an entry that says what each of its shares of our devices is; as it is if it has
    none."""
    grants = [
        Grant(
            request=result.request,
            device=result.device,
            share_id=result.share_id,
            consumed_capacity=result.consumed_capacity or {},
        )
        for result in allocation.devices.results or ()
        if result.driver == DRIVER_NAME and result.share_id is not None
    ]
    if not grants:
        return allocation
    written = msgspec.json.encode(_Grants(api_version=API_VERSION, kind=KIND, results=grants))
    entry = DeviceConfiguration(
        source=_SOURCE,
        opaque=OpaqueConfiguration(driver=DRIVER_NAME, parameters=msgspec.Raw(written)),
    )
    config = [*(allocation.devices.config or ()), entry]
    devices = msgspec.structs.replace(allocation.devices, config=config)
    return msgspec.structs.replace(allocation, devices=devices)


def is_grant(entry: DeviceConfiguration) -> bool:
    """Whether an entry of an allocation's configuration was made by `with_grants`, rather than parameters of
    a class or a claim."""
    if entry.source != _SOURCE or entry.opaque is None or entry.opaque.driver != DRIVER_NAME:
        return False
    try:
        found = msgspec.json.decode(entry.opaque.parameters, type=_Kind)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return found.kind == KIND


def grants_of(allocation: AllocationResult, *, object_name: str) -> Mapping[tuple[str, str], Grant]:
    """What `with_grants` has written into an allocation, by request and device of the results.

    Raises InvalidObjectError for an entry that cannot be read.
    """
    grants: dict[tuple[str, str], Grant] = {}
    for index, entry in enumerate(allocation.devices.config or ()):
        if is_grant(entry):
            assert entry.opaque is not None  # else it were none
            try:
                found = msgspec.json.decode(entry.opaque.parameters, type=_Grants)
            except msgspec.MsgspecError as error:
                raise InvalidObjectError(
                    str(error),
                    object_name=object_name,
                    field=f"status.allocation.devices.config[{index}].opaque.parameters",
                    next_step="delete the pod, so that it is allocated again",
                ) from None
            grants |= {(grant.request, grant.device): grant for grant in found.results}
    return grants
