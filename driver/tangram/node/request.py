"""What a claim asks of this node: its allocation, checked. Pure.

Everything here may come from a user or from a broken controller: each mistake is an error that names claim,
field and cause.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tangram import DRIVER_NAME
from tangram.api import Grant, grants_of
from tangram.base.errors import ClaimNotPreparableError, HardwareError, InvalidObjectError, PrepareError
from tangram.kube.objects import DeviceAllocationResult, ResourceClaim
from tangram.model.offers import Offer
from tangram.model.publishing import MEBIBYTE
from tangram.model.quantity import parse_quantity
from tangram.model.shares import WantedShare, share
from tangram.node.held import CdiStep, HeldClaim, HeldDevice, HeldPlacement, HeldShare, is_uid
from tangram.node.inventory import Inventory

_RESULTS = "status.allocation.devices.results"


def claim_label(claim: ResourceClaim) -> str:
    """The claim in error messages."""
    return f"ResourceClaim {claim.metadata.namespace}/{claim.metadata.name}"


def own_results(claim: ResourceClaim, *, pool: str) -> tuple[DeviceAllocationResult, ...]:
    """The results of this driver in the claim's allocation; those of other drivers are none of our business.

    Raises ClaimNotPreparableError for a claim that is not allocated here, InvalidObjectError for a result
    that makes no sense: an unknown request, the same device twice.
    """
    label = claim_label(claim)
    if not is_uid(claim.metadata.uid):
        raise InvalidObjectError(
            f"{claim.metadata.uid[:80]!r} is not a uid",
            object_name=label,
            field="metadata.uid",
            next_step="delete claim and pod; the API server gives the new ones their uids",
        )
    allocation = claim.allocation
    results = (allocation.devices.results or []) if allocation else []
    own = tuple(
        (f"{_RESULTS}[{position}]", result)
        for position, result in enumerate(results)
        if result.driver == DRIVER_NAME
    )
    if not own:
        raise ClaimNotPreparableError(
            f"{label} has no device of {DRIVER_NAME} allocated",
            next_step="wait for its allocation; the kubelet tries again",
        )
    requests = _request_names(claim)
    seen: set[tuple[str, str, str | None]] = set()
    for field, result in own:
        if result.pool != pool:
            raise ClaimNotPreparableError(
                f"{label}: {field} is of pool {result.pool[:253]!r}, this node has {pool!r}: the pod runs on"
                " a node that the claim is not allocated for",
                next_step="delete the pod, so that it is placed again",
            )
        if result.request not in requests:
            raise InvalidObjectError(
                f"request {result.request[:128]!r} is not in the claim's spec",
                object_name=label,
                field=f"{field}.request",
                next_step="delete the pod, so that it is allocated again",
            )
        if (result.request, result.device, result.share_id) in seen:
            raise InvalidObjectError(
                f"device {result.device[:128]!r} is allocated twice",
                object_name=label,
                field=f"{field}.device",
                next_step="delete the pod, so that it is allocated again",
            )
        seen.add((result.request, result.device, result.share_id))
    assert allocation is not None  # else there were no results
    grants = grants_of(allocation, object_name=label)
    return tuple(_with_size(result, grants.get((result.request, result.device))) for _, result in own)


def _with_size(result: DeviceAllocationResult, grant: Grant | None) -> DeviceAllocationResult:
    """With what the share takes where the server has forgotten it; its id stays forgotten: the kubelet and
    the API server do not know it."""
    if grant is None or result.share_id is not None:
        return result
    return msgspec.structs.replace(result, consumed_capacity=grant.consumed_capacity)


def _request_names(claim: ResourceClaim) -> set[str]:
    """What a result may name: `request`, or `request/subrequest` of a request with alternatives."""
    names: set[str] = set()
    for request in claim.spec.devices.requests or []:
        if request.first_available:
            names |= {f"{request.name}/{alternative.name}" for alternative in request.first_available}
        else:
            names.add(request.name)
    return names


def intent(
    claim: ResourceClaim,
    results: Sequence[DeviceAllocationResult],
    inventory: Inventory,
    *,
    boot_id: str,
    shares: Mapping[str, WantedShare] | None = None,
    in_use: bool = False,
) -> HeldClaim:
    """What preparing the claim would hold. Raises for a device that is not here, or is unhealthy or drained
    and not already `in_use`. `shares`: what the parameters of each request (as results name it) want of
    shared GPUs.
    """
    label = claim_label(claim)
    devices: list[HeldDevice] = []
    for position, result in enumerate(results):
        offer = inventory.offer(result.device)
        if offer is None:
            raise ClaimNotPreparableError(
                f"{label}: device {result.device[:128]!r} is not on this node (any more)",
                next_step="see the node plugin's log for lost GPUs and switched MIG modes; delete the pod to"
                " place it again",
            )
        gpu = offer.gpu
        admin_access = result.admin_access or False
        if gpu.uuid in inventory.unhealthy and not (admin_access or in_use):
            raise HardwareError(
                f"{label}: GPU {gpu.uuid} ({result.device}) is unhealthy: {inventory.unhealthy[gpu.uuid]}",
                next_step="mend or drain the node; delete the pod to place it elsewhere",
            )
        if gpu.uuid in inventory.drained and not (admin_access or in_use):
            raise PrepareError(
                f"{label}: GPU {gpu.uuid} ({result.device}) is {inventory.drained[gpu.uuid]}",
                next_step="delete the pod to place it elsewhere, or give the GPU back on its node: tangram"
                f" node drain-gpu --undo {gpu.uuid}",
            )
        wanted = (shares or {}).get(result.request, WantedShare())
        devices.append(
            HeldDevice(
                pool=result.pool,
                device=result.device,
                uuid=gpu.uuid,
                request_names=(result.request,),
                share_id=result.share_id,
                admin_access=admin_access,
                kind=offer.kind,
                share=_share(offer, result, wanted, inventory, label=label, field=f"{_RESULTS}[{position}]"),
                mig=_placement(offer),
            )
        )
    if sum(device.kind == "mps" and not device.admin_access for device in devices) > 1:
        raise InvalidObjectError(
            "more than one share by MPS: a container can talk to one MPS daemon only",
            object_name=label,
            field=_RESULTS,
            next_step="ask for one share in each claim, and use each claim in one container",
        )
    return HeldClaim(
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        uid=claim.metadata.uid,
        boot_id=boot_id,
        phase="preparing",
        devices=tuple(devices),
        undo=(CdiStep(),),
    )


def _placement(offer: Offer) -> HeldPlacement | None:
    if offer.profile is None or offer.placement is None:
        return None
    return HeldPlacement(
        profile_id=offer.profile.profile_id,
        start=offer.placement.start,
        size=offer.placement.size,
        foreign=offer.instance.compute_instances[0].uuid if offer.instance else "",
    )


def _share(
    offer: Offer,
    result: DeviceAllocationResult,
    wanted: WantedShare,
    inventory: Inventory,
    *,
    label: str,
    field: str,
) -> HeldShare | None:
    """The claim's share: what its allocation says, else its parameters, else the default. A server that does
    not keep `consumedCapacity` (1.35 and older) leaves it to the parameters."""
    if offer.kind not in ("mps", "timeslice"):
        return None
    default = share(
        offer.kind,
        wanted,
        gpu_memory_bytes=offer.gpu.memory_bytes,
        replicas=inventory.policy.replicas,
    )
    consumed: dict[str, int] = {}
    for name, value in (result.consumed_capacity or {}).items():
        try:
            number = parse_quantity(str(value))
        except ValueError as error:
            raise InvalidObjectError(
                str(error), object_name=label, field=f"{field}.consumedCapacity[{name[:64]}]"
            ) from error
        # Rounded up: more is held than was said, never less.
        consumed[name.removeprefix(f"{DRIVER_NAME}/")] = -int(-number // 1)
    taken = {
        capacity: consumed.get(capacity, usual)
        for capacity, usual in (
            ("memory", default.memory_bytes),
            ("cores", default.cores),
            ("replicas", default.replicas),
        )
    }
    # A GPU that tells no memory is shared by time-slicing alone.
    least = {"memory": MEBIBYTE, "cores": 1} if offer.kind == "mps" else {"replicas": 1}
    for capacity, amount in taken.items():
        if amount < least.get(capacity, 0):
            raise InvalidObjectError(
                f"{amount} is no share", object_name=label, field=f"{field}.consumedCapacity[{capacity}]"
            )
    return HeldShare(
        memory_bytes=taken["memory"],
        cores=taken["cores"] if offer.kind == "mps" else 0,
        replicas=taken["replicas"] if offer.kind == "timeslice" else 0,
    )


def holds(held: HeldClaim, results: Iterable[DeviceAllocationResult]) -> bool:
    """Whether what is held is what the allocation says."""
    have = {
        (device.pool, device.device, device.share_id, device.request_names, device.admin_access)
        for device in held.devices
    }
    want = {
        (result.pool, result.device, result.share_id, (result.request,), result.admin_access or False)
        for result in results
    }
    return have == want
