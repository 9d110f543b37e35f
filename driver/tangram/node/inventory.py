"""What this node has and publishes: from discovered GPUs to pools of ResourceSlices. Pure.

A GPU that stops answering stays in the inventory, unhealthy, for as long as a claim holds it; then it goes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tangram import DRIVER_NAME
from tangram.base.errors import DriverUnavailableError
from tangram.hardware.backend import DeviceNode
from tangram.hardware.cdi import CdiEdits
from tangram.kubeletplugin.slices import Pool, Slice
from tangram.model.devices import (
    Allocator,
    AttributeValue,
    PublishedDevice,
    Version,
    gpu_device_name,
    gpu_devices,
    pool_name,
    short_ids,
)
from tangram.model.gpu import Gpu, GpuUuid, Machine
from tangram.model.quantity import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The GPUs of the node at one moment.

    `machine` holds all that are published, `unhealthy` the cause for each of them that must not be used,
    `nodes` the device nodes of each; `control_nodes` and `driver_edits` are what every container with a GPU
    needs.
    """

    machine: Machine
    unhealthy: Mapping[GpuUuid, str] = field(default_factory=dict)
    nodes: Mapping[GpuUuid, tuple[DeviceNode, ...]] = field(default_factory=dict)
    control_nodes: tuple[DeviceNode, ...] = ()
    driver_edits: CdiEdits = field(default_factory=CdiEdits)

    def by_device(self) -> dict[str, Gpu]:
        """Device name → GPU."""
        ids = short_ids(gpu.uuid for gpu in self.machine.gpus)
        return {gpu_device_name(ids[gpu.uuid]): gpu for gpu in self.machine.gpus}

    def gpu(self, uuid: str) -> Gpu | None:
        """The GPU of that UUID."""
        return next((gpu for gpu in self.machine.gpus if gpu.uuid == uuid), None)

    def device_nodes(self, uuid: str) -> tuple[DeviceNode, ...]:
        """The device nodes of a GPU, never none: DriverUnavailableError if they are not known."""
        nodes = self.nodes.get(GpuUuid(uuid), ())
        if not nodes or not self.control_nodes:
            raise DriverUnavailableError(
                f"the device nodes of GPU {uuid} are not known",
                next_step="see the node plugin's log for what is missing in /dev",
            )
        return nodes


def merge(previous: Inventory | None, found: Machine, *, held: frozenset[str]) -> Inventory:
    """The inventory after a look at the hardware, without the device nodes of what was found.

    `held` are the UUIDs of GPUs that claims hold: one of those that no longer answers is kept as last seen.
    """
    present = {gpu.uuid for gpu in found.gpus}
    before = previous.machine.gpus if previous else ()
    kept = tuple(gpu for gpu in before if gpu.uuid not in present and gpu.uuid in held)
    gpus = tuple(sorted((*found.gpus, *kept), key=lambda gpu: gpu.uuid))
    known_nodes = previous.nodes if previous else {}
    return Inventory(
        machine=replace(found, gpus=gpus),
        unhealthy={gpu.uuid: found.failures.get(gpu.uuid, "the GPU is not there any more") for gpu in kept},
        nodes={gpu.uuid: known_nodes[gpu.uuid] for gpu in kept if gpu.uuid in known_nodes},
    )


def without_driver(previous: Inventory, cause: str) -> Inventory:
    """The inventory while the driver does not answer: as last seen, nothing of it usable."""
    return replace(previous, unhealthy=dict.fromkeys((gpu.uuid for gpu in previous.machine.gpus), cause))


def pools(
    inventory: Inventory, *, node_name: str, allocator: Allocator, one_slice: bool = False
) -> dict[str, Pool]:
    """The pool of this node: a slice per GPU in order of UUIDs, which is the order of preference.

    A slice per GPU leaves room for the other kinds of devices of that GPU (64 in a slice with counters).
    `one_slice` puts all into one: a server older than 1.36 keeps the order of devices but not of slices.
    """
    devices = [
        wire_device(device)
        for device in gpu_devices(
            inventory.machine, allocator=allocator, unhealthy=frozenset(inventory.unhealthy)
        )
    ]
    groups = [tuple(devices)] if one_slice else [(device,) for device in devices]
    return {pool_name(DRIVER_NAME, node_name): Pool(slices=tuple(Slice(devices=group) for group in groups))}


def wire_device(device: PublishedDevice) -> dict[str, Any]:
    """A device as the API has it (`resource/v1` Device)."""
    return {
        "name": device.name,
        "attributes": {name: _wire_attribute(value) for name, value in device.attributes.items()},
        "capacity": {
            name: {"value": format_bytes(value) if name == "memory" else str(value)}
            for name, value in device.capacity.items()
        },
    }


def _wire_attribute(value: AttributeValue | Version) -> dict[str, bool | int | str]:
    if isinstance(value, Version):
        return {"version": value.text}
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    return {"string": value}
