"""What this node has: GPUs as known at one moment, and the devices that it offers. Pure.

A GPU that stops answering stays in the inventory, unhealthy, for as long as a claim holds it; then it goes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Literal

from tangram.base.errors import DriverUnavailableError
from tangram.hardware.backend import DeviceNode
from tangram.hardware.cdi import CdiEdits
from tangram.model.devices import Kind
from tangram.model.gpu import Gpu, GpuUuid, Machine
from tangram.model.mig import GpuInstance
from tangram.model.offers import Offer, offers

Leftovers = Literal["ignore", "warn", "refuse"]
_NOTHING: Mapping[GpuUuid, tuple[GpuInstance, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the settings of the node say about its devices.

    `kinds` are offered where the hardware reaches them; `replicas` claims share a GPU by time-slicing;
    `dynamic`: MIG mode may be switched where that needs no reset. For whole GPUs: whether one process alone
    may use one at a time, and what becomes of processes and memory that others have left on it.
    """

    kinds: tuple[Kind, ...] = ("gpu",)
    replicas: int = 4
    dynamic: bool = False
    exclusive_compute_mode: bool = False
    leftovers: Leftovers = "ignore"

    @property
    def overlaps(self) -> bool:
        """Whether two of its devices may stand for the same part of a GPU."""
        return len(self.kinds) > 1 or "mig" in self.kinds


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """The GPUs of the node at one moment.

    `machine` holds all that are published, `unhealthy` the cause for each of them that must not be used,
    `warnings` what is wrong with those that work all the same, `drained` the words of the operator who wants
    nobody new on them, `mps_failing` why the MPS daemon of a GPU serves nobody, `nodes` the device nodes of
    each; `control_nodes` and `driver_edits` are what every container with a GPU needs. `foreign` are MIG
    instances that are not ours, `stuck` GPUs whose MIG mode could not be switched.
    """

    machine: Machine
    unhealthy: Mapping[GpuUuid, str] = field(default_factory=dict)
    warnings: Mapping[GpuUuid, str] = field(default_factory=dict)
    nodes: Mapping[GpuUuid, tuple[DeviceNode, ...]] = field(default_factory=dict)
    drained: Mapping[GpuUuid, str] = field(default_factory=dict)
    mps_failing: Mapping[GpuUuid, str] = field(default_factory=dict)
    control_nodes: tuple[DeviceNode, ...] = ()
    driver_edits: CdiEdits = field(default_factory=CdiEdits)
    policy: Policy = field(default_factory=Policy)
    foreign: Mapping[GpuUuid, tuple[GpuInstance, ...]] = field(default_factory=dict)
    stuck: frozenset[GpuUuid] = frozenset()

    # Worked out when somebody asks: most looks find what the one before has found.
    @cached_property
    def devices(self) -> Mapping[str, Offer]:
        """The offers by name."""
        return self._offers(self.stuck)

    @cached_property
    def withheld(self) -> Mapping[str, Offer]:
        """What `stuck` GPUs would offer after a switch, by name: not offered to anybody new."""
        switched = self._offers(frozenset()) if self.stuck else {}
        return {name: offer for name, offer in switched.items() if name not in self.devices}

    def _offers(self, stuck: frozenset[GpuUuid]) -> dict[str, Offer]:
        found = offers(
            self.machine,
            kinds=self.policy.kinds,
            dynamic=self.policy.dynamic,
            stuck=stuck,
            foreign=self.foreign,
        )
        return {offer.name: offer for offer in found}

    def offer(self, device: str) -> Offer | None:
        """The device of that name. A claim that has a withheld one tries the switch again, and hears why it
        fails."""
        return self.devices.get(device) or self.withheld.get(device)

    def illness(self, uuid: str, kind: Kind) -> str:
        """Why a device of this kind of the GPU must not be used; empty for one that is well."""
        gpu = GpuUuid(uuid)
        return self.unhealthy.get(gpu) or (self.mps_failing.get(gpu, "") if kind == "mps" else "")

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


def merge(
    previous: Inventory | None,
    found: Machine,
    *,
    held: frozenset[str],
    policy: Policy | None = None,
    foreign: Mapping[GpuUuid, tuple[GpuInstance, ...]] = _NOTHING,
) -> Inventory:
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
        policy=policy or Policy(),
        foreign=dict(foreign),
    )


def without_driver(previous: Inventory, cause: str) -> Inventory:
    """The inventory while the driver does not answer: as last seen, nothing of it usable."""
    return replace(previous, unhealthy=dict.fromkeys((gpu.uuid for gpu in previous.machine.gpus), cause))
