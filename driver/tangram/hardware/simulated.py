"""GPUs that exist only in a machine description, with faults on demand."""

import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tangram.base.errors import DriverUnavailableError, GpuLostError, InvalidObjectError
from tangram.hardware.backend import DeviceNode
from tangram.hardware.machines import (
    MachineDescription,
    load_machine,
    machine_file,
    parse_machine,
    read_machine,
)
from tangram.hardware.machines.description import SWITCH, GpuPlace
from tangram.model.gpu import Gpu, GpuUuid, Machine, NvLink

_UUID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "gpu.resource.admin")
_CONTROL_PATHS = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
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
}
"""What stands in a Gpu for a field that the hardware does not support."""

Call = Literal["open", "discover", "probe", "device_nodes", "control_nodes"]


def describe_machine(
    description: MachineDescription, *, node_name: str, lost: frozenset[GpuUuid] = frozenset()
) -> Machine:
    """The machine that a description stands for on the node of that name.

    GPUs without a literal UUID get one derived from the node's name and their bus id: the same after every
    restart, another one on every node. Links to a GPU that is lost or absent are down.
    """
    uuids = [_uuid_of(gpu, position, node_name) for position, gpu in enumerate(description.gpus)]
    gone = {
        gpu.pci_bus_id
        for gpu, gpu_uuid in zip(description.gpus, uuids, strict=True)
        if gpu.state != "present" or gpu_uuid in lost
    }
    gpus: list[Gpu] = []
    failures: dict[str, str] = {}
    places = zip(description.gpus, uuids, description.indices(), strict=True)
    for position, (place, gpu_uuid, index) in enumerate(places):
        if index is None:
            continue
        if place.state == "lost" or gpu_uuid in lost:
            failures[gpu_uuid] = "GPU is lost"
        else:
            gpus.append(_gpu(description, place, gpu_uuid, index=index, position=position, gone=gone))
    return Machine(
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.uuid)),
        driver_version=description.driver_version,
        cuda_driver_version=description.cuda_driver_version,
        failures=failures,
    )


def _uuid_of(gpu: GpuPlace, position: int, node_name: str) -> GpuUuid:
    if gpu.uuid is not None:
        return GpuUuid(gpu.uuid)
    place = gpu.pci_bus_id or f"position {position}"
    return GpuUuid(f"GPU-{uuid.uuid5(_UUID_NAMESPACE, f'{node_name}/{place}')}")


def _gpu(
    description: MachineDescription,
    place: GpuPlace,
    gpu_uuid: GpuUuid,
    *,
    index: int,
    position: int,
    gone: set[str | None],
) -> Gpu:
    model = description.model(place.model)
    major, minor = model.compute_capability.split(".")
    return Gpu(
        uuid=gpu_uuid,
        index=index,
        minor=position if place.minor is None else place.minor,
        product_name=model.product_name,
        brand=model.brand,
        architecture=model.architecture,
        compute_capability=(int(major), int(minor)),
        memory_bytes=None if model.memory_mib is None else model.memory_mib * 2**20,
        multiprocessors=model.multiprocessors,
        pci_bus_id=place.pci_bus_id,
        pcie_root=place.pcie_root,
        numa_node=place.numa_node,
        mig_mode=place.mig_mode or model.mig_mode,
        nvlinks=tuple(
            NvLink(to_switch=True) if peer == SWITCH else NvLink(peer_bus_id=peer)
            for peer, links in place.nvlinks.items()
            if peer not in gone
            for _ in range(links)
        ),
        fabric_clique=place.fabric_clique,
    )


def _null_device(path: str) -> DeviceNode:
    """A container can open it like /dev/null, and the host needs no such node."""
    return DeviceNode(path=path, major=1, minor=3)


@dataclass(frozen=True, slots=True)
class Hang:
    """Calls of one kind that do not return until `release`. `entered` is set once a call is stuck."""

    entered: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        """Lets the stuck calls, and all later ones, return."""
        self._released.set()

    def wait(self) -> None:
        """Called by the stuck call."""
        self.entered.set()
        self._released.wait()


class SimulatedBackend:
    """A `tangram.hardware.backend.Backend` over a machine description.

    With `source` the description is read again at every `discover`, so that an edited file is hot plug.
    A file that has become invalid makes `discover` raise DriverUnavailableError until it is mended.
    """

    name = "simulated"

    def __init__(self, description: MachineDescription, *, node_name: str, source: str = "") -> None:
        self._description = description
        self._node_name = node_name
        self._source = source
        self._text: bytes | None = None
        self._lock = threading.Lock()
        self._lost: set[GpuUuid] = set()
        self._withheld: dict[GpuUuid, dict[str, Any]] = {}
        self._hangs: dict[tuple[Call, GpuUuid | None], Hang] = {}
        self._unavailable = ""

    @classmethod
    def load(cls, source: str, *, node_name: str) -> "SimulatedBackend":
        """The back end for a shipped machine's name or a file; InvalidObjectError if it is not valid."""
        watched = source if machine_file(source) is not None else ""
        return cls(load_machine(source), node_name=node_name, source=watched)

    def open(self) -> None:
        self._enter("open")

    def close(self) -> None:
        """Nothing to let go of."""

    def discover(self) -> Machine:
        self._enter("discover")
        self._reload()
        with self._lock:
            machine = self._machine()
            gpus = tuple(replace(gpu, **self._withheld.get(gpu.uuid, {})) for gpu in machine.gpus)
        return replace(machine, gpus=gpus)

    def probe(self, uuid: GpuUuid) -> None:
        self._enter("probe", uuid)
        with self._lock:
            machine = self._machine()
        if uuid in machine.failures:
            raise GpuLostError(
                f"{uuid}: {machine.failures[uuid]}", uuid=uuid, next_step="mend the machine description"
            )
        if all(gpu.uuid != uuid for gpu in machine.gpus):
            raise GpuLostError(f"{uuid}: no such GPU on this node any more", uuid=uuid)

    def device_nodes(self, gpu: Gpu) -> tuple[DeviceNode, ...]:
        self._enter("device_nodes", gpu.uuid)
        return (_null_device(f"/dev/nvidia{gpu.minor}"),)

    def control_nodes(self) -> tuple[DeviceNode, ...]:
        self._enter("control_nodes")
        return tuple(_null_device(path) for path in _CONTROL_PATHS)

    def lose(self, *uuids: GpuUuid) -> None:
        """From now on these GPUs do not answer."""
        with self._lock:
            self._lost.update(uuids)

    def recover(self, *uuids: GpuUuid) -> None:
        """These GPUs answer again."""
        with self._lock:
            self._lost.difference_update(uuids)

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
        hang = Hang()
        with self._lock:
            self._hangs[call, uuid] = hang
        return hang

    def _machine(self) -> Machine:
        return describe_machine(self._description, node_name=self._node_name, lost=frozenset(self._lost))

    def _enter(self, call: Call, uuid: GpuUuid | None = None) -> None:
        with self._lock:
            hang = self._hangs.get((call, uuid)) or self._hangs.get((call, None))
        if hang is not None:
            hang.wait()
        # Nodes come from names alone: a driver that is away does not keep them from being told.
        if call in ("open", "discover", "probe"):
            with self._lock:
                unavailable = self._unavailable
            if unavailable:
                raise DriverUnavailableError(unavailable, next_step="wait for the driver, or load it")

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
        with self._lock:
            self._text, self._description = text, description
