"""`status.devices` of a claim: what the pod got, for `kubectl describe resourceclaim`. Pure.

Entries are keyed by driver, pool, device and shareID (KEP-4817). Those of other drivers are kept as read.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tangram import DRIVER_NAME
from tangram.kube.objects import ResourceClaim
from tangram.model.quantity import human_bytes
from tangram.node.held import HeldClaim, HeldDevice, HeldShare, MigStep
from tangram.node.inventory import Inventory

Entry = dict[str, Any]

MAXIMUM_MESSAGE_CHARACTERS = 1024
INSTANCE_GONE = "its MIG instance is not there any more: somebody else has destroyed it"


def prepared_entries(
    held: HeldClaim, inventory: Inventory | None, *, node_name: str, gone: Collection[str] = ()
) -> list[Entry]:
    """The entries of a prepared claim, without transition times; a GPU that fell ill is not ready, nor a
    device that is `gone`: its MIG instance was destroyed by somebody else."""
    entries = []
    # Shares of one GPU in one claim whose ids the API server has forgotten (1.35 and older) have one entry.
    for device in {(each.pool, each.device, each.share_id): each for each in held.devices}.values():
        problem = inventory.illness(device.uuid, device.kind) if inventory else ""
        if not problem and device.device in gone:
            problem = INSTANCE_GONE
        entries.append(
            _entry(
                {"pool": device.pool, "device": device.device, "shareID": device.share_id},
                ready=not problem,
                reason="GpuUnhealthy" if problem else "Prepared",
                message=problem or f"ready for containers on node {node_name}",
                data=_data(held, device, inventory),
            )
        )
    return entries


def failed_entries(claim: ResourceClaim, error: str) -> list[Entry]:
    """The entries of a claim that could not be prepared."""
    allocation = claim.allocation
    keys = {
        (result.pool, result.device, result.share_id)
        for result in (allocation.devices.results or [] if allocation else [])
        if result.driver == DRIVER_NAME and result.pool and result.device
    }
    return [
        _entry(
            {"pool": pool, "device": device, "shareID": share_id},
            ready=False,
            reason="PrepareFailed",
            message=error[:MAXIMUM_MESSAGE_CHARACTERS],
        )
        for pool, device, share_id in sorted(keys, key=lambda key: (key[0], key[1], key[2] or ""))
    ]


def _entry(
    key: Mapping[str, str | None],
    *,
    ready: bool,
    reason: str,
    message: str,
    data: Mapping[str, Any] | None = None,
) -> Entry:
    condition = {
        "type": "Ready",
        "status": "True" if ready else "False",
        "reason": reason,
        "message": message,
    }
    entry: Entry = {"driver": DRIVER_NAME} | {name: value for name, value in key.items() if value is not None}
    entry["conditions"] = [condition]
    if data is not None:
        entry["data"] = dict(data)
    return entry


def _data(held: HeldClaim, device: HeldDevice, inventory: Inventory | None) -> dict[str, Any]:
    """What the user asked for in terms of hardware: the GPU, its memory or the part of it, and whom it is
    linked to.

    `linkedDevices` maps other devices of the same claim to the NVLinks between them.
    """
    data: dict[str, Any] = {"uuid": device.uuid}
    gpu = inventory.gpu(device.uuid) if inventory else None
    if inventory is None or gpu is None:
        return data
    data["productName"] = gpu.product_name
    if device.kind == "mig":
        return data | _mig_data(held, device, inventory)
    if device.share is not None:
        return data | _share_data(
            [
                other.share
                for other in held.devices
                if other.share and (other.device, other.share_id) == (device.device, device.share_id)
            ]
        )
    if gpu.memory_bytes is not None:
        data["memory"] = human_bytes(gpu.memory_bytes)
    matrix = inventory.machine.links()
    ordinals: dict[str, int] = {other.uuid: ordinal for ordinal, other in enumerate(inventory.machine.gpus)}
    own = ordinals[gpu.uuid]
    data["nvlinkPeers"] = len(matrix.peers(own))
    data["linkedDevices"] = {
        other.device: links
        for other in held.devices
        if other.uuid in ordinals and (links := matrix.links(own, ordinals[other.uuid]))
    }
    return data


def _mig_data(held: HeldClaim, device: HeldDevice, inventory: Inventory) -> dict[str, Any]:
    steps = [step for step in held.undo if isinstance(step, MigStep) and step.device == device.device]
    mig_uuid = steps[0].mig_uuid if steps else device.mig.foreign if device.mig else ""
    data: dict[str, Any] = {"migUUID": mig_uuid} if mig_uuid else {}
    offer = inventory.offer(device.device)
    if offer is not None and offer.profile is not None:
        data["profile"] = offer.profile.name
        if offer.profile.memory_bytes is not None:
            data["memory"] = human_bytes(offer.profile.memory_bytes)
    return data


def _share_data(shares: Sequence[HeldShare]) -> dict[str, Any]:
    memory_bytes = sum(share.memory_bytes for share in shares)
    data: dict[str, Any] = {"memory": human_bytes(memory_bytes)} if memory_bytes else {}
    data["cores"] = sum(share.cores for share in shares)
    data["replicas"] = sum(share.replicas for share in shares)
    return {name: value for name, value in data.items() if value}


def merged(current: Sequence[Entry], own: Sequence[Entry], *, now: str) -> list[Entry] | None:
    """The claim's whole list with our entries in place; None if it says all that already.

    A condition whose status did not change keeps its transition time. `now` is RFC 3339.
    """
    others = [entry for entry in current if entry.get("driver") != DRIVER_NAME]
    before = {_key(entry): entry for entry in current if entry.get("driver") == DRIVER_NAME}
    result = [_timed(entry, before.get(_key(entry)), now=now) for entry in own]
    same = len(before) == len(result) and all(before.get(_key(entry)) == entry for entry in result)
    return None if same else [*others, *result]


def _key(entry: Entry) -> tuple[Any, Any, Any]:
    return entry.get("pool"), entry.get("device"), entry.get("shareID")


def _timed(entry: Entry, before: Entry | None, *, now: str) -> Entry:
    """The entry with the transition times of `before` where the status is the same."""
    old = {
        condition.get("type"): condition
        for condition in ((before or {}).get("conditions") or [])
        if isinstance(condition, dict)
    }
    conditions = []
    for condition in entry["conditions"]:
        previous = old.get(condition["type"], {})
        unchanged = previous.get("status") == condition["status"]
        since = previous.get("lastTransitionTime") if unchanged else None
        conditions.append(condition | {"lastTransitionTime": since or now})
    return entry | {"conditions": conditions}
