"""Nodes whose claims are of every kind, and what must hold of hardware, files and claims together."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from tests.unit.node.support import NODE, Claims, Killer, Node, claim_object, uid

from tangram.base.clock import Clock, SystemClock
from tangram.hardware.machines import load_machine
from tangram.hardware.simulated import SimulatedBackend
from tangram.hardware.simulated.state import GpuState, rebooted
from tangram.hardware.simulated.store import MemoryStore
from tangram.model.devices import Kind
from tangram.model.gpu import Gpu, GpuUuid, MigMode
from tangram.model.mig import MigPlacement
from tangram.node.held import ComputeModeStep, HeldClaim, MigStep, MpsStep
from tangram.node.inventory import Policy

ALL: tuple[Kind, ...] = ("gpu", "mps", "timeslice", "mig")


class BootStore(MemoryStore):
    """Hardware that can be rebooted."""

    def __init__(self) -> None:
        super().__init__()
        self._gpus: dict[GpuUuid, Gpu] = {}

    @contextmanager
    def change(self, gpu: Gpu) -> Iterator[GpuState]:
        self._gpus[gpu.uuid] = gpu
        with super().change(gpu) as state:
            yield state

    def reboot(self) -> None:
        for gpu in list(self._gpus.values()):
            with super().change(gpu) as state:
                after = rebooted(state, gpu)
                for name in state.__struct_fields__:
                    setattr(state, name, getattr(after, name))


def machine(*, board: str, mode: MigMode, gpus: int = 2) -> tuple[SimulatedBackend, BootStore]:
    """A node with a few GPUs, all in one MIG mode."""
    description = load_machine(board)
    places = tuple(msgspec.structs.replace(gpu, mig_mode=mode) for gpu in description.gpus[:gpus])
    store = BootStore()
    description = msgspec.structs.replace(description, gpus=places)
    return SimulatedBackend(description, node_name=NODE, store=store), store


class KindsNode(Node):
    """A node of several kinds, which can be rebooted."""

    store_of_gpus: BootStore

    def reboot(self) -> None:
        """All that does not outlive it is gone; the next process starts."""
        for path in (self.root / "cdi").glob("*"):
            path.unlink()
        self.store_of_gpus.reboot()
        self.boot_id += "x"
        self.start()
        self.look()

    def gpu_at(self, position: int) -> Gpu:
        assert self.inventory is not None
        return self.inventory.machine.gpus[position]

    def device(self, gpu: int, what: str) -> str:
        """The name of a device: `gpu`, `mps`, `ts` or `mig-<profile>-<start>` of the GPU at a position."""
        assert self.inventory is not None
        own = [name for name, offer in self.inventory.devices.items() if offer.gpu == self.gpu_at(gpu)]
        suffix = "" if what == "gpu" else f"-{what}"
        found = [name for name in own if "-".join(name.split("-")[2:]) == suffix.removeprefix("-")]
        assert len(found) == 1, (what, own)
        return found[0]


def make_node(
    root: Path, *, board: str = "a100-pcie-80gb-x4", mode: MigMode = "disabled", clock: Clock | None = None,
    **policy: Any,
) -> KindsNode:  # fmt: skip
    """A node with two GPUs that offers all kinds."""
    hardware, store = machine(board=board, mode=mode)
    node = KindsNode(
        root, hardware=hardware, policy=Policy(kinds=ALL, **policy), clock=clock or SystemClock()
    )
    node.store_of_gpus = store
    return node


def claim(node: KindsNode, *devices: tuple[int, str], number: int = 1, **how: Any) -> dict[str, Any]:
    """A claim with these devices: (position of the GPU, which device of it)."""
    names = [node.device(gpu, what) for gpu, what in devices]
    made = claim_object(names, number=number, **how)
    made["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "any"
    return made


def make_foreign(node: KindsNode, *, profile_id: int = 9, start: int = 0, size: int = 4) -> str:
    """Somebody else cuts the first GPU; the UUID of what they get."""
    gpu = node.gpu_at(0).uuid
    number = node.hardware.create_gpu_instance(
        gpu, profile_id=profile_id, placement=MigPlacement(start, size)
    )
    return node.hardware.create_compute_instance(gpu, gpu_instance_id=number).uuid


def hardware_of(node: Node) -> dict[str, Any]:
    """What the GPUs and MPS daemons are like now, as far as claims change it."""
    machine = node.hardware.discover()
    return {
        "instances": {
            gpu.uuid: sorted(
                (each.placement, tuple(compute.uuid for compute in each.compute_instances))
                for each in node.hardware.gpu_instances(gpu.uuid)
            )
            for gpu in machine.gpus
        },
        "compute": {gpu.uuid: node.hardware.compute_mode(gpu.uuid) for gpu in machine.gpus},
        "mps": {gpu: set(claims) for gpu, claims in node.mps.joined.items()},
    }


def expected_hardware(
    node: Node, claims: Sequence[HeldClaim], *, foreign: Mapping[GpuUuid, list[Any]] | None = None
) -> dict[str, Any]:
    """What the hardware must be like with exactly these claims prepared."""
    instances: dict[str, list[Any]] = {gpu.uuid: [] for gpu in node.hardware.discover().gpus}
    compute: dict[str, str] = dict.fromkeys(instances, "default")
    mps: dict[str, set[str]] = {}
    for uuid, own in (foreign or {}).items():
        instances[uuid] += own
    for held in claims:
        if held.boot_id != node.boot_id:
            continue
        for step in held.undo:
            match step:
                case MigStep():
                    assert step.mig_uuid.startswith("MIG-")
                    instances[step.uuid].append((MigPlacement(step.start, step.size), (step.mig_uuid,)))
                case ComputeModeStep():
                    compute[step.uuid] = step.wanted
                case MpsStep():
                    mps.setdefault(step.uuid, set()).add(held.uid)
    return {
        "instances": {uuid: sorted(found) for uuid, found in instances.items()},
        "compute": compute,
        "mps": mps,
    }


def assert_consistent(
    node: Node, label: object = "", *, foreign: Mapping[GpuUuid, list[Any]] | None = None
) -> list[HeldClaim]:
    """Hardware = held files = CDI files, everything whole; returns what is held."""
    contents = node.store.load()
    assert contents.damaged == {}, label
    claims = sorted(contents.claims.values(), key=lambda held: held.uid)
    assert all(held.phase == "prepared" for held in claims), label
    current = [held for held in claims if held.boot_id == node.boot_id]
    assert {held.uid for held in current} <= node.cdi.uids() <= {held.uid for held in claims}, label
    assert hardware_of(node) == expected_hardware(node, claims, foreign=foreign), label
    # What is owed of compute modes is owed by claims that hold, of instances nothing.
    modes = {step.uuid for held in current for step in held.undo if isinstance(step, ComputeModeStep)}
    assert {gpu for gpu in node.notes.gpus() if not node.notes.read(gpu).is_empty} == modes, label
    assert node.notes.instances() == (), label
    return claims


@contextmanager
def killable(node: Node, killer: Killer, *, until_step: int) -> Iterator[None]:
    """The process of the node dies at this of its effects: file operations, hardware calls, MPS."""
    calls = node.workers._run

    async def call(*args: Any, **kwargs: Any) -> Any:
        killer.tick()
        result = await calls(*args, **kwargs)
        killer.tick()
        return result

    node.mps.effect = lambda name: killer.tick()
    node.workers._run = call  # type: ignore[method-assign]
    try:
        with killer.alive(until_step=until_step):
            yield
    finally:
        node.mps.effect = lambda name: None


__all__ = ["ALL", "Claims", "KindsNode", "assert_consistent", "claim", "make_node", "uid"]
