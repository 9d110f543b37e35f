"""What a claim asks of this node: its allocation, checked. Pure.

Everything here may come from a user or from a broken controller: each mistake is an error that names claim,
field and cause.
"""

from collections.abc import Iterable, Sequence

from tangram import DRIVER_NAME
from tangram.base.errors import ClaimNotPreparableError, DeviceHeldError, HardwareError, InvalidObjectError
from tangram.kube.objects import DeviceAllocationResult, ResourceClaim
from tangram.kubeletplugin.driver import ClaimReference
from tangram.node.held import CdiStep, HeldClaim, HeldDevice, is_uid
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
    seen: set[tuple[str, str | None]] = set()
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
        if (result.device, result.share_id) in seen:
            raise InvalidObjectError(
                f"device {result.device[:128]!r} is allocated twice",
                object_name=label,
                field=f"{field}.device",
                next_step="delete the pod, so that it is allocated again",
            )
        seen.add((result.device, result.share_id))
    return tuple(result for _, result in own)


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
    in_use: bool = False,
) -> HeldClaim:
    """What preparing the claim would hold. Raises for a device that is not here, or is unhealthy and not
    already `in_use`."""
    label = claim_label(claim)
    devices: list[HeldDevice] = []
    for result in results:
        offer = inventory.devices.get(result.device)
        if offer is None:
            raise ClaimNotPreparableError(
                f"{label}: device {result.device[:128]!r} is not on this node (any more)",
                next_step="see the node plugin's log for lost GPUs; delete the pod to place it again",
            )
        gpu = offer.gpu
        admin_access = result.admin_access or False
        if gpu.uuid in inventory.unhealthy and not (admin_access or in_use):
            raise HardwareError(
                f"{label}: GPU {gpu.uuid} ({result.device}) is unhealthy: {inventory.unhealthy[gpu.uuid]}",
                next_step="mend or drain the node; delete the pod to place it elsewhere",
            )
        devices.append(
            HeldDevice(
                pool=result.pool,
                device=result.device,
                uuid=gpu.uuid,
                request_names=(result.request,),
                share_id=result.share_id,
                admin_access=admin_access,
            )
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


def refuse_lost_hold(
    wanted: HeldClaim, *, uid: str, gpus: frozenset[str], owner: ClaimReference | None
) -> None:
    """Raises DeviceHeldError if a CDI file without held state gives one of the GPUs to containers."""
    for device in wanted.devices:
        if device.uuid in gpus and not device.admin_access:
            raise DeviceHeldError(
                f"device {device.device} (GPU {device.uuid}) is given to containers of"
                f" {owner or 'a claim'} (uid {uid}), whose held state was lost",
                device=device.device,
                holder=f"{owner.namespace}/{owner.name}" if owner else uid,
                holder_uid=uid,
                next_step="the node plugin rebuilds or frees it within a minute; the kubelet tries again",
            )


def refuse_overlap(wanted: HeldClaim, others: Iterable[HeldClaim]) -> None:
    """Raises DeviceHeldError if another claim holds a GPU of this one; admin access conflicts with nobody.

    The API server lets two claims name one device (`resource/v1` validation looks at one claim alone), and a
    force-deleted pod may still run: the node is the last to notice.
    """
    own = {device.uuid: device for device in wanted.devices if not device.admin_access}
    for other in others:
        if other.uid == wanted.uid:
            continue
        for device in other.devices:
            if device.uuid in own and not device.admin_access:
                raise DeviceHeldError(
                    f"device {own[device.uuid].device} (GPU {device.uuid}) is held by {other.label}",
                    device=own[device.uuid].device,
                    holder=f"{other.namespace}/{other.name}",
                    holder_uid=other.uid,
                    next_step=f"it is free once the pods of {other.namespace}/{other.name} have ended on this"
                    " node; the kubelet tries again",
                )
