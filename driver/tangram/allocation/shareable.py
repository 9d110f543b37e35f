"""Devices that many claims share, and shares of them, where the API server keeps neither.

Servers before 1.36, and later ones whose gate DRAConsumableCapacity is off, drop `allowMultipleAllocations`
and the request policies of capacities from slices. Our driver publishes both on every device of a GPU shared
by MPS or time-slicing: where they are missing the server has dropped them, and they are worked out anew from
what it has kept, by the rule by which the driver has made them. Of allocations such a server drops which
shares they are: what our controller has written beside (`tangram.api.grants`) is put back.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tangram import DRIVER_NAME
from tangram.api import Grant, grants_of
from tangram.base.errors import InvalidObjectError
from tangram.model.devices import RequestPolicy
from tangram.model.kubernetes import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Device,
    DeviceAllocationResult,
    DeviceCapacity,
    ResourceClaim,
    ResourceSlice,
)
from tangram.model.publishing import SHARED_KINDS, as_quantity, share_policies
from tangram.model.quantity import parse_quantity


def with_shares(item: ResourceSlice) -> tuple[ResourceSlice, bool]:
    """A slice of our driver with its shared devices as they were published, and whether that made a
    difference: then the server drops of allocations too which shares they are."""
    devices = [_shared(device) for device in item.spec.devices or ()]
    if not any(devices):
        return item, False
    whole = [made or device for made, device in zip(devices, item.spec.devices or (), strict=True)]
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, devices=whole)), True


class Given(NamedTuple):
    """`results` of an allocation, with the shares that the server has forgotten. `unread`: a share of ours
    cannot be read, or is negative: it is the whole device in `results`."""

    results: Sequence[DeviceAllocationResult]
    unread: bool = False


def given_to(claim: ResourceClaim) -> Given:
    """What a claim's allocation gives it."""
    if claim.allocation is None:
        return Given(())
    results = claim.allocation.devices.results or ()
    try:
        grants = grants_of(claim.allocation, object_name=f"ResourceClaim {claim.metadata.name}")
    except InvalidObjectError:
        grants = None
    given = [_given(result, (grants or {}).get((result.request, result.device))) for result in results]
    sound = [_sound(result) for result in given]
    return Given(sound, unread=grants is None or sound != given)


def _given(result: DeviceAllocationResult, grant: Grant | None) -> DeviceAllocationResult:
    if grant is None or result.driver != DRIVER_NAME or result.share_id is not None:
        return result
    return msgspec.structs.replace(result, share_id=grant.share_id, consumed_capacity=grant.consumed_capacity)


def _sound(result: DeviceAllocationResult) -> DeviceAllocationResult:
    """A share of ours whose size cannot be read, or is negative, as the whole device: others wrote it."""
    if result.driver != DRIVER_NAME:
        return result
    try:
        sound = all(parse_quantity(str(amount)) >= 0 for amount in (result.consumed_capacity or {}).values())
    except ValueError:
        sound = False
    return result if sound else msgspec.structs.replace(result, share_id=None, consumed_capacity=None)


def _shared(device: Device) -> Device | None:
    """None for a device that is as it was published, or of which too little is known: one claim gets it."""
    attributes = device.attributes or {}
    if device.allow_multiple_allocations is not None or not {"type", "replicas"} <= attributes.keys():
        return None
    kind = next((kind for kind in SHARED_KINDS if kind == attributes["type"].string), None)
    replicas = attributes["replicas"].int_
    if kind is None or replicas is None or replicas < 1:
        return None
    capacity = device.capacity or {}
    try:
        amounts = {name: int(parse_quantity(str(each.value))) for name, each in capacity.items()}
    except ValueError:
        return None  # preparing the slice names it
    policies = share_policies(kind, amounts, replicas=replicas)
    return msgspec.structs.replace(
        device,
        allow_multiple_allocations=True,
        capacity={
            name: DeviceCapacity(value=each.value, request_policy=_wire(name, policies.get(name)))
            for name, each in capacity.items()
        },
    )


def _wire(capacity: str, policy: RequestPolicy | None) -> CapacityRequestPolicy | None:
    if policy is None:
        return None
    return CapacityRequestPolicy(
        default=as_quantity(capacity, policy.default),
        valid_range=CapacityRequestPolicyRange(
            min_=as_quantity(capacity, policy.minimum),
            max_=as_quantity(capacity, policy.maximum),
            step=as_quantity(capacity, policy.step),
        ),
    )
