"""A node on a directory: claims, simulated GPUs, and a process that can be killed at any file operation."""

import contextlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from tangram import DRIVER_NAME
from tangram.base.clock import Clock, SystemClock
from tangram.base.errors import HardwareError, KubeError, NotFoundError, TangramError
from tangram.hardware.cdi import CdiEdits
from tangram.hardware.machines import load_machine
from tangram.hardware.mps.directory import MpsDirectory
from tangram.hardware.mps.values import MpsShare
from tangram.hardware.simulated import SimulatedBackend
from tangram.hardware.workers import Workers
from tangram.kube.decoding import decode
from tangram.kube.objects import ResourceClaim
from tangram.kube.resources import NODES, RESOURCE_CLAIMS, Resource
from tangram.model.gpu import GpuUuid
from tangram.model.mig import GpuInstance
from tangram.node.cdifile import CdiFiles
from tangram.node.gpunotes import GpuNotes
from tangram.node.held import Damage, HeldClaim, MigStep
from tangram.node.heldstore import HeldStore
from tangram.node.inventory import Inventory, Policy, merge
from tangram.node.locks import Locks
from tangram.node.prepare import Preparer
from tangram.node.reconcile import Reconciler
from tangram.node.steps.mig import foreign_instances
from tangram.node.steps.mps import MpsClients
from tangram.node.transaction import Hardware

NODE = "node-1"
POOL = f"{DRIVER_NAME}/{NODE}"


def uid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def claim_object(
    devices: Sequence[str] | Sequence[dict[str, Any]] = (),
    *,
    number: int = 1,
    pool: str = POOL,
    config: Sequence[dict[str, Any]] | None = None,
    allocated: bool = True,
    consumers: Sequence[str] = (),
    **result: Any,
) -> dict[str, Any]:
    """A claim as the API has it; `devices` are names or whole results."""
    results = [
        {"request": "gpu", "driver": DRIVER_NAME, "pool": pool, "device": device, **result}
        if isinstance(device, str)
        else device
        for device in devices
    ]
    status: dict[str, Any] = {}
    if allocated:
        status["allocation"] = {"devices": {"results": results, "config": config}}
    if consumers:
        status["reservedFor"] = [
            {"resource": "pods", "name": name, "uid": f"uid-of-{name}"} for name in consumers
        ]
    return {
        "metadata": {"name": f"claim-{number}", "namespace": "ns", "uid": uid(number)},
        "spec": {
            "devices": {
                "requests": [
                    {"name": "gpu", "exactly": {"deviceClassName": DRIVER_NAME, "count": len(results) or 1}},
                    {
                        "name": "either",
                        "firstAvailable": [
                            {"name": "big", "deviceClassName": DRIVER_NAME},
                            {"name": "small", "deviceClassName": DRIVER_NAME},
                        ],
                    },
                ]
            }
        },
        "status": status,
    }


def make_claim(*args: Any, **kwargs: Any) -> ResourceClaim:
    return decode(json.dumps(claim_object(*args, **kwargs)).encode(), ResourceClaim)


def backend(machine: str = "a100-sxm4-80gb-x8") -> SimulatedBackend:
    return SimulatedBackend(load_machine(machine), node_name=NODE)


def inventory_of(
    hardware: SimulatedBackend,
    *,
    before: Inventory | None = None,
    policy: Policy | None = None,
    claims: Sequence[HeldClaim] = (),
    owed: Sequence[MigStep] = (),
) -> Inventory:
    """A look at the hardware, without threads."""
    machine = hardware.discover()
    foreign: dict[GpuUuid, tuple[GpuInstance, ...]] = {}
    for gpu in machine.gpus:
        if hardware.faults.hangs("gpu_instances", gpu.uuid):
            continue  # the plugin asks in a thread, and gives up
        with contextlib.suppress(HardwareError):
            instances = hardware.gpu_instances(gpu.uuid)
            if found := foreign_instances(instances, uuid=gpu.uuid, claims=claims, owed=owed):
                foreign[gpu.uuid] = found
    inventory = merge(before, machine, held=frozenset(), policy=policy, foreign=foreign)
    return replace(
        inventory,
        nodes={gpu.uuid: hardware.device_nodes(gpu) for gpu in machine.gpus},
        control_nodes=hardware.control_nodes(),
    )


class FakeMps:
    """In place of the directory of MPS daemons: who has joined, and a daemon that serves at once."""

    def __init__(self) -> None:
        self.joined: dict[GpuUuid, dict[str, MpsShare]] = {}
        self.error: TangramError | None = None
        self.slow = ""
        self.effect: Callable[[str], None] = lambda name: None

    def join(self, gpu: GpuUuid, *, claim_uid: str, share: MpsShare) -> None:
        self.effect("join")
        self.joined.setdefault(gpu, {})[claim_uid] = share
        self.effect("join")

    def leave(self, gpu: GpuUuid, *, claim_uid: str) -> None:
        self.effect("leave")
        self.joined.get(gpu, {}).pop(claim_uid, None)
        if not self.joined.get(gpu):
            self.joined.pop(gpu, None)
        self.effect("leave")

    def members(self) -> dict[GpuUuid, dict[str, MpsShare]]:
        return {gpu: dict(claims) for gpu, claims in self.joined.items()}

    async def ready(self, gpu: GpuUuid, *, slow: Callable[[str], None]) -> None:
        assert self.joined[gpu]
        if self.slow:
            slow(self.slow)
        if self.error is not None:
            raise self.error

    async def gone(self, gpu: GpuUuid) -> None:
        if self.error is not None:
            raise self.error

    def client_edits(self, gpu: GpuUuid, share: MpsShare) -> CdiEdits:
        return MpsDirectory(Path("/mps"), clock=SystemClock(), boot_id="b").client_edits(gpu, share)


@dataclass(eq=False)
class Node:
    """The state of a node on disk, and processes over it one after another."""

    root: Path
    hardware: SimulatedBackend = field(default_factory=backend)
    policy: Policy = field(default_factory=Policy)
    mps: FakeMps = field(default_factory=FakeMps)
    warnings: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    vetoes: list[GpuUuid] = field(default_factory=list)
    boot_id: str = "boot-1"
    clock: Clock = field(default_factory=SystemClock)
    set_aside: list[tuple[Damage, str]] = field(default_factory=list)
    confirmed: list[tuple[ResourceClaim, HeldClaim]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.inventory: Inventory | None = None
        self.start()
        self.look()

    def look(self) -> None:
        """Discovery has looked at the GPUs."""
        claims = tuple(self.store.load().claims.values())
        inventory = inventory_of(
            self.hardware,
            before=self.inventory,
            policy=self.policy,
            claims=claims,
            owed=self.notes.instances(),
        )
        self.inventory = replace(inventory, stuck=frozenset(self.vetoes))

    def _confirmed(self, claim: ResourceClaim, held: HeldClaim, gone: list[str]) -> None:
        self.confirmed.append((claim, held))
        self.gone += gone

    async def _rescan(self) -> None:
        self.look()

    def start(self) -> None:
        """A new process over the same directories; the one before is dead."""
        self.store = HeldStore(self.root / "claims")
        self.store.create()
        self.locks = Locks(self.root / "locks", clock=self.clock)
        self.locks.create()
        self.cdi = CdiFiles(self.root / "cdi")
        self.notes = GpuNotes(self.root / "gpus", boot_id=self.boot_id)
        self.notes.create()
        self.preparer = self.process()

    def process(self) -> Preparer:
        """One more process at the same time, as in a rolling update."""
        self.workers = Workers(self.hardware, clock=self.clock)
        return Preparer(
            pool=POOL,
            store=HeldStore(self.root / "claims"),
            cdi=CdiFiles(self.root / "cdi"),
            locks=Locks(self.root / "locks", clock=self.clock),
            hardware=Hardware(
                workers=self.workers,
                mps=MpsClients(cast("MpsDirectory", self.mps)),
                clock=self.clock,
                boot_id=self.boot_id,
                notes=GpuNotes(self.root / "gpus", boot_id=self.boot_id),
                rescan=self._rescan,
                veto=self.vetoes.append,
                inventory=lambda: self.inventory,
            ),
            policy=self.policy,
            set_aside=lambda damage, path: self.set_aside.append((damage, path)),
            warn=lambda held, reason, text: self.warnings.append(f"{reason}: {text}"),
        )

    def reconciler(self, claims: "Claims") -> Reconciler:
        """The reconciler of the process."""
        return Reconciler(
            pool=POOL,
            node_name=NODE,
            store=self.store,
            cdi=self.cdi,
            preparer=self.preparer,
            client=claims,
            clock=self.clock,
            confirmed=self._confirmed,
        )

    @property
    def devices(self) -> list[str]:
        assert self.inventory is not None
        return list(self.inventory.devices)

    def gpu(self, device: str) -> GpuUuid:
        assert self.inventory is not None
        return self.inventory.devices[device].gpu.uuid

    def held_file(self, number: int) -> Path:
        return self.root / "claims" / f"{uid(number)}.json"

    def cdi_file(self, number: int) -> Path:
        return self.root / "cdi" / f"{DRIVER_NAME}_{uid(number)}.json"

    def files(self) -> set[str]:
        """Everything on disk but the lock file."""
        return {
            str(path.relative_to(self.root))
            for path in self.root.rglob("*")
            if path.is_file() and path.parent.name != "locks"
        }


class Claims:
    """The API server, as far as claims and the node can be read. `error`: what reading raises.

    `ready`: the status of the node's condition Ready, empty if there is no such node.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.error: KubeError | None = None
        self.reads = 0
        self.ready = "True"

    def put(self, claim: dict[str, Any]) -> ResourceClaim:
        self.objects[claim["metadata"]["name"]] = claim
        return decode(json.dumps(claim).encode(), ResourceClaim)

    def remove(self, number: int) -> None:
        self.objects.pop(f"claim-{number}", None)

    async def get(self, resource: Resource, *, name: str, namespace: str = "") -> bytes:
        if self.error is not None:
            raise self.error
        if resource == NODES:
            return self._node(name)
        assert (resource, namespace) == (RESOURCE_CLAIMS, "ns")
        self.reads += 1
        if name not in self.objects:
            raise NotFoundError(f"claim {name} not found", status=404)
        return json.dumps(self.objects[name]).encode()

    def _node(self, name: str) -> bytes:
        if not self.ready:
            raise NotFoundError(f"node {name} not found", status=404)
        conditions = [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": self.ready}]
        return json.dumps({"metadata": {"name": name}, "status": {"conditions": conditions}}).encode()


class Killed(BaseException):
    """The process is dead."""


class Killer:
    """Ends a process at one of its file operations below `root`, before or after the operation.

    A dead process does nothing more: whatever it tries (a `finally`, tidying up) dies too.
    """

    _CALLS: tuple[tuple[Any, str], ...] = (
        (os, "open"),
        (os, "write"),
        (os, "fsync"),
        (os, "fchmod"),
        (pathlib.Path, "replace"),
        (pathlib.Path, "rename"),
        (pathlib.Path, "unlink"),
    )

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.step = 0
        self.steps = 0
        self.dead = False

    @contextmanager
    def alive(self, *, until_step: int) -> Iterator[None]:
        """Counts operations; the process dies at number `until_step` (odd: before it, even: after it)."""
        self.step, self.steps, self.dead = until_step, 0, False
        with self._monkeypatch.context() as patch:
            for owner, name in self._CALLS:
                patch.setattr(owner, name, self._wrap(getattr(owner, name)))
            yield

    def _wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            result = call(*args, **kwargs)
            self.tick()
            return result

        return wrapped

    def tick(self) -> None:
        self.steps += 1
        if self.dead or self.steps == self.step:
            self.dead = True
            raise Killed
