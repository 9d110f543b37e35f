"""The back end over a machine description: descriptions, states and faults brought together."""

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from tangram.base.errors import DriverUnavailableError, GpuLostError, InvalidObjectError
from tangram.hardware.backend import ComputeMode, DeviceNode, GpuProcess, MigModes
from tangram.hardware.health import GpuConditions, XidEvent
from tangram.hardware.machines import (
    MachineDescription,
    load_machine,
    machine_file,
    parse_machine,
    read_machine,
)
from tangram.hardware.machines.faultplan import Call, Fault
from tangram.hardware.machines.schema import convert
from tangram.hardware.simulated.describing import describe_machine
from tangram.hardware.simulated.faults import Faults, Hang
from tangram.hardware.simulated.state import GpuState, SimulatedGpu
from tangram.hardware.simulated.store import FileStore, MemoryStore, Store
from tangram.model.gpu import Gpu, GpuUuid, Machine, MigMode
from tangram.model.mig import ComputeInstance, GpuInstance, MigPlacement

_LOST = "GPU is lost"
_KILLED = 128 + signal.SIGKILL
_LOOK_FOR_EVENTS_S = 0.2
_CONTROL_PATHS = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_CAPABILITIES_PER_GPU = 135
_CAPABILITIES_PER_INSTANCE = 9
_FIRST_CAPABILITY = 3
"""Minor numbers of capabilities, as drivers number them: fifteen instances a GPU, eight in each."""
_WITHOUT_DRIVER = frozenset({"device_nodes", "control_nodes", "mig_nodes"})
"""Nodes come from names alone: a driver that is away does not keep them from being told."""
_WITHHELD: dict[str, Any] = {
    "product_name": "unknown",
    "brand": "unknown",
    "architecture": "unknown",
    "compute_capability": (0, 0),
    "memory_bytes": None,
    "multiprocessors": None,
    "pci_bus_id": None,
    "pcie_root": None,
    "numa_node": None,
    "mig_mode": "unsupported",
    "nvlinks": (),
    "fabric_clique": None,
    "mig_profiles": (),
}
"""What stands in a Gpu for a field that the hardware does not support."""


def _null_device(path: str) -> DeviceNode:
    """A container can open it like /dev/null, and the host needs no such node."""
    return DeviceNode(path=path, major=1, minor=3)


class SimulatedBackend:
    """A `tangram.hardware.backend.Backend` over a machine description.

    With `source` the description is read again at every `discover`, so that an edited file is hot plug.
    A file that has become invalid makes `discover` raise DriverUnavailableError until it is mended.

    `store` keeps what the hardware would keep: instances, modes, processes. Several back ends, also of other
    processes, may share a directory (`FileStore`). `latencies_s` of calls pass by `pause`.
    """

    name = "simulated"

    def __init__(
        self,
        description: MachineDescription,
        *,
        node_name: str,
        source: str = "",
        store: Store | None = None,
        latencies_s: Mapping[Call, float] | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._node_name = node_name
        self._source = source
        self._store = store or MemoryStore()
        self._latencies_s = latencies_s or {}
        self._pause = pause
        self._text: bytes | None = None
        self._lock = threading.Lock()
        self._withheld: dict[GpuUuid, dict[str, Any]] = {}
        self._unavailable = ""
        self._raised = threading.Condition()
        self._seen: dict[GpuUuid, int] = {}
        self._unmonitored: set[GpuUuid] = set()
        self.faults = Faults(kill=self._kill)
        self._description = description
        self._described: dict[GpuUuid, Gpu] = {}
        self._failures: dict[str, str] = {}
        self._adopt(description)

    @classmethod
    def load(cls, source: str, *, node_name: str, state_directory: Path | None = None) -> "SimulatedBackend":
        """The back end for a shipped machine's name or a file; InvalidObjectError if it is not valid.

        With `state_directory` the state of the GPUs outlives this process, until the next reboot.
        """
        watched = source if machine_file(source) is not None else ""
        store = FileStore(state_directory) if state_directory else None
        return cls(load_machine(source), node_name=node_name, source=watched, store=store)

    # --- the protocol

    def open(self) -> None:
        with self._calling("open"):
            pass

    def close(self) -> None:
        """Nothing to let go of."""

    def discover(self) -> Machine:
        with self._calling("discover"):
            self._reload()
            machine = self._machine()
            with self._lock:
                withheld = dict(self._withheld)
            gpus = tuple(replace(gpu, **withheld.get(gpu.uuid, {})) for gpu in machine.gpus)
            return replace(machine, gpus=gpus)

    def probe(self, uuid: GpuUuid) -> None:
        with self._calling("probe", uuid), self._gpu(uuid):
            pass

    def device_nodes(self, gpu: Gpu) -> tuple[DeviceNode, ...]:
        with self._calling("device_nodes", gpu.uuid):
            return (_null_device(f"/dev/nvidia{gpu.minor}"),)

    def control_nodes(self) -> tuple[DeviceNode, ...]:
        with self._calling("control_nodes"):
            return tuple(_null_device(path) for path in _CONTROL_PATHS)

    def mig_nodes(
        self, gpu: Gpu, *, gpu_instance_id: int, compute_instance_id: int
    ) -> tuple[DeviceNode, ...]:
        with self._calling("mig_nodes", gpu.uuid):
            first = _FIRST_CAPABILITY + gpu.minor * _CAPABILITIES_PER_GPU
            of_instance = first + gpu_instance_id * _CAPABILITIES_PER_INSTANCE
            minors = (of_instance, of_instance + 1 + compute_instance_id)
            return tuple(_null_device(f"/dev/nvidia-caps/nvidia-cap{minor}") for minor in minors)

    def mig_modes(self, uuid: GpuUuid) -> MigModes:
        with self._calling("mig_modes", uuid), self._gpu(uuid) as gpu:
            return gpu.mig_modes()

    def set_mig_mode(self, uuid: GpuUuid, *, enabled: bool) -> MigModes:
        with self._calling("set_mig_mode", uuid), self._gpu(uuid) as gpu:
            return gpu.set_mig_mode(enabled=enabled)

    def gpu_instances(self, uuid: GpuUuid) -> tuple[GpuInstance, ...]:
        with self._calling("gpu_instances", uuid), self._gpu(uuid) as gpu:
            return gpu.instances()

    def create_gpu_instance(self, uuid: GpuUuid, *, profile_id: int, placement: MigPlacement) -> int:
        with self._calling("create_gpu_instance", uuid), self._gpu(uuid) as gpu:
            return gpu.create_gpu_instance(profile_id, placement)

    def create_compute_instance(self, uuid: GpuUuid, *, gpu_instance_id: int) -> ComputeInstance:
        with self._calling("create_compute_instance", uuid), self._gpu(uuid) as gpu:
            return gpu.create_compute_instance(gpu_instance_id)

    def destroy_compute_instance(
        self, uuid: GpuUuid, *, gpu_instance_id: int, compute_instance_id: int
    ) -> None:
        with self._calling("destroy_compute_instance", uuid), self._gpu(uuid) as gpu:
            gpu.destroy_compute_instance(gpu_instance_id, compute_instance_id)

    def destroy_gpu_instance(self, uuid: GpuUuid, *, gpu_instance_id: int) -> None:
        with self._calling("destroy_gpu_instance", uuid), self._gpu(uuid) as gpu:
            gpu.destroy_gpu_instance(gpu_instance_id)

    def compute_mode(self, uuid: GpuUuid) -> ComputeMode:
        with self._calling("compute_mode", uuid), self._gpu(uuid) as gpu:
            return gpu.state.compute_mode

    def set_compute_mode(self, uuid: GpuUuid, mode: ComputeMode) -> None:
        with self._calling("set_compute_mode", uuid), self._gpu(uuid) as gpu:
            gpu.set_compute_mode(mode)

    def processes(self, uuid: GpuUuid) -> tuple[GpuProcess, ...]:
        with self._calling("processes", uuid), self._gpu(uuid) as gpu:
            return tuple(sorted(gpu.state.processes, key=lambda process: process.pid))

    def used_memory_bytes(self, uuid: GpuUuid) -> int | None:
        with self._calling("used_memory_bytes", uuid), self._gpu(uuid) as gpu:
            return gpu.used_memory_bytes()

    def health(self, uuid: GpuUuid) -> GpuConditions:
        with self._calling("health", uuid):
            with self._gpu(uuid):
                pass
            links = next((len(gpu.nvlinks) for gpu in self._machine().gpus if gpu.uuid == uuid), 0)
            with self._gpu(uuid) as gpu:
                return gpu.health(links=links)

    def watch(self, uuids: Collection[GpuUuid]) -> frozenset[GpuUuid]:
        with self._calling("watch"):
            self._seen = {}
            for uuid in frozenset(uuids) - self._unmonitored:
                with suppress(GpuLostError), self._gpu(uuid) as gpu:
                    self._seen[uuid] = gpu.state.xids_dropped + len(gpu.state.xids)
            return frozenset(uuids) - self._seen.keys()

    def next_event(self, *, timeout_s: float) -> XidEvent | None:
        with self._calling("next_event"):
            end_s = time.monotonic() + timeout_s
            with self._raised:
                while (event := self._unseen()) is None and (left_s := end_s - time.monotonic()) > 0:
                    self._raised.wait(min(left_s, _LOOK_FOR_EVENTS_S))  # another process may raise one
            return event

    def _unseen(self) -> XidEvent | None:
        for uuid, count in self._seen.items():
            with self._state(uuid) as state:
                events = state.xids[max(0, count - state.xids_dropped) :]
            if events:
                self._seen[uuid] = max(count, state.xids_dropped) + 1
                return events[0]
        return None

    # --- what happens to the hardware

    def raise_xid(
        self,
        uuid: GpuUuid,
        xid: int,
        *,
        gpu_instance_id: int | None = None,
        compute_instance_id: int | None = None,
    ) -> None:
        """The driver reports an XID error, of the GPU or of an instance on it."""
        event = XidEvent(
            uuid=uuid, xid=xid, gpu_instance_id=gpu_instance_id, compute_instance_id=compute_instance_id
        )
        with self._state(uuid) as state:
            SimulatedGpu(self._describe(uuid), state).raise_xid(event)
        with self._raised:
            self._raised.notify_all()

    def set_conditions(self, uuid: GpuUuid, conditions: GpuConditions, *, nvlinks_down: int = 0) -> None:
        """The GPU tells this of its health from now on; links that are up follow from the machine."""
        with self._state(uuid) as state:
            state.conditions, state.nvlinks_down = conditions, nvlinks_down

    def stop_monitoring(self, *uuids: GpuUuid) -> None:
        """These GPUs tell no events from the next `watch` on."""
        self._unmonitored.update(uuids)

    def lose(self, *uuids: GpuUuid) -> None:
        """From now on these GPUs do not answer."""
        self._set_lost(uuids, lost=True)

    def recover(self, *uuids: GpuUuid) -> None:
        """These GPUs answer again."""
        self._set_lost(uuids, lost=False)

    def reset(self, uuid: GpuUuid) -> None:
        """Resets the GPU: a pending MIG mode is carried out. GpuBusyError while a process is on it."""
        with self._state(uuid) as state:
            SimulatedGpu(self._describe(uuid), state).reset()

    def set_processes(self, uuid: GpuUuid, processes: Iterable[GpuProcess]) -> None:
        """These processes, and no others, compute on the GPU from now on."""
        with self._state(uuid) as state:
            state.processes = list(processes)

    def set_used_memory(self, uuid: GpuUuid, used_bytes: int) -> None:
        """So much of the GPU's memory is in use from now on."""
        with self._state(uuid) as state:
            state.used_memory_bytes = used_bytes

    def renumber(self, uuid: GpuUuid, minor: int) -> None:
        """The GPU's device node has this number from now on, as may happen at a switch of its MIG mode."""
        with self._state(uuid) as state:
            state.minor = minor

    def withhold(self, uuid: GpuUuid, fields: Sequence[str]) -> None:
        """These fields of the GPU (names of `Gpu`) are NOT_SUPPORTED from now on."""
        with self._lock:
            self._withheld[uuid] = {name: _WITHHELD[name] for name in fields}

    def make_unavailable(self, cause: str) -> None:
        """The driver is gone from now on, with this cause; an empty one brings it back."""
        with self._lock:
            self._unavailable = cause

    def hang(self, call: Call, uuid: GpuUuid | None = None) -> Hang:
        """Calls of this kind (of this GPU) do not return until the Hang is released."""
        return self.faults.hang(call, uuid)

    def fail(self, fault: Fault) -> None:
        """Adds a fault to the plan, counting calls from now on. InvalidObjectError: it can never strike."""
        self.faults.add(convert(to_builtins(fault), Fault, object_name="fault"))

    # --- how it is done

    @contextmanager
    def _calling(self, call: Call, uuid: GpuUuid | None = None) -> Iterator[None]:
        described = self._described.get(uuid) if uuid else None
        later = self.faults.before(call, uuid, described.pci_bus_id if described else None)
        if latency_s := self._latencies_s.get(call, 0.0):
            self._pause(latency_s)
        if self._unavailable and call not in _WITHOUT_DRIVER:
            raise DriverUnavailableError(self._unavailable, next_step="wait for the driver, or load it")
        yield
        if (error := later()) is not None:
            raise error

    def _kill(self, fault: Fault) -> None:
        """Ends this process as SIGKILL does, which process 1 of a container could not send itself: nothing
        is tidied up or written any more."""
        if self._store.first(repr(fault)):
            os._exit(_KILLED)

    @contextmanager
    def _gpu(self, uuid: GpuUuid) -> Iterator[SimulatedGpu]:
        """The GPU, if it answers."""
        with self._state(uuid) as state:
            if state.lost:
                raise GpuLostError(f"{uuid}: {_LOST}", uuid=uuid, next_step="wait until it is recovered")
            yield SimulatedGpu(self._describe(uuid), state, seed=self._store.boot_id)

    @contextmanager
    def _state(self, uuid: GpuUuid) -> Iterator[GpuState]:
        """What the GPU remembers, whether it answers or not."""
        gpu = self._describe(uuid)
        with self._store.change(gpu) as state:
            SimulatedGpu(gpu, state).describe(gpu.mig_mode)
            yield state

    def _set_lost(self, uuids: Iterable[GpuUuid], *, lost: bool) -> None:
        for uuid in uuids:
            with self._state(uuid) as state:
                state.lost = lost

    def _describe(self, uuid: GpuUuid) -> Gpu:
        """The GPU as the description has it; GpuLostError if it is there no more, or does not answer."""
        with self._lock:
            gpu, failure = self._described.get(uuid), self._failures.get(uuid, "")
        if failure:
            raise GpuLostError(f"{uuid}: {failure}", uuid=uuid, next_step="mend the machine description")
        if gpu is None:
            raise GpuLostError(f"{uuid}: no such GPU on this node any more", uuid=uuid)
        return gpu

    def _machine(self) -> Machine:
        """The machine as described, in the state that its GPUs are in now."""
        with self._lock:
            description, described = self._description, self._described
        states: dict[GpuUuid, GpuState] = {}
        for uuid in described:
            with self._state(uuid) as state:
                states[uuid] = state
        lost = frozenset(uuid for uuid, state in states.items() if state.lost)
        machine = describe_machine(description, node_name=self._node_name, lost=lost)
        return replace(machine, gpus=tuple(_in_state(gpu, states[gpu.uuid]) for gpu in machine.gpus))

    def _adopt(self, description: MachineDescription) -> None:
        machine = describe_machine(description, node_name=self._node_name)
        with self._lock:
            self._description = description
            self._described = {gpu.uuid: gpu for gpu in machine.gpus}
            self._failures = machine.failures
        self.faults.plan(description.faults)

    def _reload(self) -> None:
        if not self._source:
            return
        try:
            text = read_machine(self._source)
            if text == self._text:
                return
            description = parse_machine(text, source=self._source)
        except InvalidObjectError as error:
            raise DriverUnavailableError(error.cause, next_step=error.next_step) from error
        self._text = text
        self._adopt(description)


def _in_state(gpu: Gpu, state: GpuState) -> Gpu:
    mode: MigMode = gpu.mig_mode
    if mode != "unsupported":
        mode = "enabled" if state.mig else "disabled"
    return replace(gpu, mig_mode=mode, minor=gpu.minor if state.minor is None else state.minor)
