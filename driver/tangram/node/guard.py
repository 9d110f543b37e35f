"""Two claims never get the same part of a GPU: the node is the last to notice. Pure.

The API server lets two claims name one device (`resource/v1` validation looks at one claim alone), and a
force-deleted pod may still run. What is half prepared, or half let go of, counts as held. Admin access
conflicts with nobody.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tangram.base.errors import DeviceHeldError, InvalidObjectError
from tangram.kubeletplugin.driver import ClaimReference
from tangram.model.devices import Kind
from tangram.model.shares import Share, excess, total
from tangram.node.held import HeldClaim, HeldDevice, HeldShare

_NAMES: Mapping[Kind, str] = {
    "gpu": "as a whole",
    "mig": "by MIG",
    "mps": "by MPS",
    "timeslice": "by time-slicing",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTotals:
    """What the shares of a GPU may add up to."""

    memory_bytes: int | None
    replicas: int


def refuse_overlap(
    wanted: HeldClaim, others: Iterable[HeldClaim], totals: Mapping[str, GpuTotals] | None = None
) -> None:
    """Raises DeviceHeldError if another claim holds what this one wants, or too much of a shared GPU;
    InvalidObjectError if the claim's own devices overlap. `totals` by GPU UUID.
    """
    others = [other for other in others if other.uid != wanted.uid]
    own = [device for device in wanted.devices if not device.admin_access]
    for position, device in enumerate(own):
        for earlier in own[:position]:
            if reason := _conflict(device, earlier):
                raise InvalidObjectError(
                    f"device {device.device} overlaps {earlier.device} of the same claim: {reason}",
                    object_name=f"ResourceClaim {wanted.namespace}/{wanted.name}",
                    field="status.allocation.devices.results",
                    next_step="delete the pod, so that it is allocated again",
                )
        for other in others:
            for theirs in other.devices:
                if not theirs.admin_access and (reason := _conflict(device, theirs)):
                    raise _held(device, reason, other)
    for uuid in {device.uuid for device in own if device.share is not None}:
        _refuse_excess(wanted, uuid, others, (totals or {}).get(uuid))


def _conflict(one: HeldDevice, other: HeldDevice) -> str:
    """Why the two cannot be held at the same time; empty if they can."""
    if one.uuid != other.uuid:
        return ""
    if one.kind != other.kind:
        return f"GPU {one.uuid} is used {_NAMES[other.kind]} ({other.device})"
    if one.kind == "gpu":
        return f"GPU {one.uuid} is used {_NAMES['gpu']}"
    if one.kind == "mig":
        if one.mig is None or other.mig is None or one.mig.placement.mask & other.mig.placement.mask:
            return f"the memory slices of {other.device} on GPU {one.uuid} are used"
        return ""
    if (one.device, one.share_id) == (other.device, other.share_id) and one.share_id is not None:
        return f"share {one.share_id} of GPU {one.uuid} is used"
    return ""


def _refuse_excess(wanted: HeldClaim, uuid: str, others: list[HeldClaim], totals: GpuTotals | None) -> None:
    if totals is None:
        return
    holders = {
        other: [_share(device.share) for device in other.devices if _takes(device, uuid)] for other in others
    }
    mine = [device for device in wanted.devices if _takes(device, uuid)]
    taken = total(
        [_share(device.share) for device in mine] + [each for shares in holders.values() for each in shares]
    )
    if reason := excess(taken, gpu_memory_bytes=totals.memory_bytes, replicas=totals.replicas):
        holding = [other for other, shares in holders.items() if shares]
        what = f"all shares of GPU {uuid} together would be {reason}"
        if not holding:
            raise InvalidObjectError(
                f"{what} ({mine[0].device})",
                object_name=f"ResourceClaim {wanted.namespace}/{wanted.name}",
                field="status.allocation.devices.results",
                next_step="ask for less",
            )
        raise _held(mine[0], what, holding[0])


def _takes(device: HeldDevice, uuid: str) -> bool:
    return device.uuid == uuid and device.share is not None and not device.admin_access


def _share(share: HeldShare | None) -> Share:
    if share is None:
        return Share()
    return Share(memory_bytes=share.memory_bytes, cores=share.cores, replicas=share.replicas)


def _held(device: HeldDevice, reason: str, other: HeldClaim) -> DeviceHeldError:
    return DeviceHeldError(
        f"device {device.device} (GPU {device.uuid}) is held by {other.label}: {reason}",
        device=device.device,
        holder=f"{other.namespace}/{other.name}",
        holder_uid=other.uid,
        next_step=f"it is free once the pods of {other.namespace}/{other.name} have ended on this"
        " node; the kubelet tries again",
    )


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
