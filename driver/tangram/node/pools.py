"""From the devices of a node to pools of ResourceSlices, in the form of the API. Pure.

Where kube-scheduler allocates, devices that overlap are safe only if the server keeps the counters that say
so (KEP-4815). Until it is known to, one kind alone is published of each GPU, and only one that cannot overlap
itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Literal

from tangram import DRIVER_NAME
from tangram.kubeletplugin.slice_limits import (
    MAXIMUM_COUNTER_SETS,
    MAXIMUM_DEVICES,
    MAXIMUM_DEVICES_WITH_EXTRAS,
)
from tangram.kubeletplugin.slices import Pool, Slice
from tangram.model.devices import (
    DRAINED_TAINT,
    Allocator,
    AttributeValue,
    PublishedDevice,
    RequestPolicy,
    Version,
    gpu_device_name,
    pool_name,
    short_ids,
)
from tangram.model.offers import Offer
from tangram.model.publishing import counter_set, published
from tangram.model.quantity import format_bytes
from tangram.node.inventory import Inventory

_UNHEALTHY = {"key": f"{DRIVER_NAME}/unhealthy", "effect": "NoSchedule"}
"""For classes that do not ask whether a device is healthy; servers before 1.36 drop it."""
_DRAINED = {"key": DRAINED_TAINT, "effect": "NoSchedule"}
"""Tells a drained device, which is published as not healthy, from one that is not well."""
Counters = Literal["none", "probed", "consumed"]
"""Counter sets of a node that kube-scheduler allocates: not published; published alone, to see whether the
server keeps them; published, and consumed by the devices."""


def pools(
    inventory: Inventory,
    *,
    node_name: str,
    allocator: Allocator,
    one_slice: bool = False,
    counters: Counters = "none",
) -> dict[str, Pool]:
    """The pool of this node: a slice per GPU in order of UUIDs, which is the order of preference; counter
    sets in slices behind them.

    `one_slice` puts all into one: a server older than 1.36 keeps the order of devices but not of slices. The
    controller needs no counters: it derives what excludes what from attributes.
    """
    offered = tuple(inventory.devices.values())
    consumed = allocator == "scheduler" and counters == "consumed"
    if allocator == "scheduler" and not consumed:
        offered = _safe_without_counters(offered)
    devices = published(
        offered,
        inventory.machine,
        allocator=allocator,
        replicas=inventory.policy.replicas,
        unhealthy=frozenset(inventory.unhealthy.keys() | inventory.drained.keys()),
        counters=consumed,
    )
    devices = tuple(
        replace(device, attributes=device.attributes | {"healthy": False})
        if inventory.illness(offer.gpu.uuid, offer.kind)
        else device
        for offer, device in zip(offered, devices, strict=True)
    )
    wire = list(map(wire_device, devices))
    wire = [
        device | {"taints": taints} if (taints := _taints(offer, inventory, allocator)) else device
        for offer, device in zip(offered, wire, strict=True)
    ]
    by_gpu = [
        [device for _, device in group]
        for _, group in groupby(zip(offered, wire, strict=True), key=lambda pair: pair[0].gpu.uuid)
    ]
    groups = [wire] if one_slice and wire else by_gpu
    limit = MAXIMUM_DEVICES_WITH_EXTRAS if allocator == "scheduler" else MAXIMUM_DEVICES
    slices = [Slice(devices=tuple(part)) for group in groups for part in _parts(group, limit)]
    if allocator == "scheduler" and counters != "none":
        slices += [
            Slice(shared_counters=tuple(part))
            for part in _parts(_counter_sets(inventory), MAXIMUM_COUNTER_SETS)
        ]
    return {pool_name(DRIVER_NAME, node_name): Pool(slices=tuple(slices))}


def _taints(offer: Offer, inventory: Inventory, allocator: Allocator) -> list[dict[str, str]]:
    ill = allocator == "scheduler" and bool(inventory.illness(offer.gpu.uuid, offer.kind))
    drained = offer.gpu.uuid in inventory.drained
    return [taint for taint, holds in ((_UNHEALTHY, ill), (_DRAINED, drained)) if holds]


def _safe_without_counters(offered: Iterable[Offer]) -> tuple[Offer, ...]:
    """Of each GPU the first kind, and of MIG only what exists already: those cannot overlap."""
    safe: list[Offer] = []
    for _, group in groupby(offered, key=lambda offer: offer.gpu.uuid):
        own = list(group)
        static = [offer for offer in own if offer.instance is not None]
        safe += static or [offer for offer in own if offer.kind != "mig"][:1]
    return tuple(safe)


def _counter_sets(inventory: Inventory) -> list[dict[str, Any]]:
    ids = short_ids(gpu.uuid for gpu in inventory.machine.gpus)
    return [
        {
            "name": gpu_device_name(ids[gpu.uuid]),
            "counters": {name: {"value": str(value)} for name, value in counter_set(gpu).items()},
        }
        for gpu in inventory.machine.gpus
    ]


def _parts(items: Sequence[dict[str, Any]], size: int) -> list[Sequence[dict[str, Any]]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def wire_device(device: PublishedDevice) -> dict[str, Any]:
    """A device as the API has it (`resource/v1` Device)."""
    wire: dict[str, Any] = {
        "name": device.name,
        "attributes": {name: _wire_attribute(value) for name, value in device.attributes.items()},
        "capacity": {
            name: _wire_capacity(name, value, device.policies.get(name))
            for name, value in device.capacity.items()
        },
    }
    if device.shared:
        wire["allowMultipleAllocations"] = True
    if device.consumes:
        counters = {name: {"value": str(value)} for name, value in device.consumes.items()}
        wire["consumesCounters"] = [{"counterSet": device.counter_set, "counters": counters}]
    return wire


def _wire_attribute(value: AttributeValue | Version) -> dict[str, bool | int | str]:
    if isinstance(value, Version):
        return {"version": value.text}
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    return {"string": value}


def _wire_capacity(name: str, value: int, policy: RequestPolicy | None) -> Mapping[str, Any]:
    def text(number: int) -> str:
        return format_bytes(number) if name == "memory" else str(number)

    if policy is None:
        return {"value": text(value)}
    return {
        "value": text(value),
        "requestPolicy": {
            "default": text(policy.default),
            "validRange": {
                "min": text(policy.minimum),
                "max": text(policy.maximum),
                "step": text(policy.step),
            },
        },
    }
