"""The one protocol behind which GPUs stand: real (NVML) or simulated."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Protocol

from tangram.hardware.health import GpuConditions, XidEvent
from tangram.model.gpu import Gpu, GpuUuid, Machine
from tangram.model.mig import ComputeInstance, GpuInstance, MigPlacement


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device node a container gets.

    `path` is the path in the container, `host_path` the node on the host (None: the same). With `major` and
    `minor` set nothing needs to exist on the host: the runtime makes the node from the numbers.
    """

    path: str
    host_path: str | None = None
    major: int | None = None
    minor: int | None = None
    kind: str = "c"


ComputeMode = Literal["default", "exclusive_process", "prohibited", "exclusive_thread"]
"""Who may make contexts on a GPU (nvmlComputeMode_t)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigModes:
    """The mode now, and after the next reset; they differ where a switch has not happened yet."""

    current: bool
    pending: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process with a context on a GPU. Memory is None, and the ids are, where the driver does not tell."""

    pid: int
    memory_bytes: int | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


class Backend(Protocol):
    """Blocking calls; `tangram.hardware.workers` runs them with deadlines off the event loop.

    Every method may raise HardwareError: DriverUnavailableError (no driver, not loaded), GpuLostError (that
    GPU only). Those that change something may also raise GpuBusyError, NoRoomError and NotSupportedError.
    """

    @property
    def name(self) -> str:
        """`nvml` or `simulated`."""
        ...

    def open(self) -> None:
        """Connects to the driver. Idempotent: also re-connects after DriverUnavailableError."""
        ...

    def close(self) -> None:
        """Lets go of the driver. Never raises."""
        ...

    def discover(self) -> Machine:
        """All GPUs that answer, ordered by UUID; those that do not are in `Machine.failures`."""
        ...

    def probe(self, uuid: GpuUuid) -> None:
        """Returns if the handle of this GPU answers now; raises GpuLostError or DriverUnavailableError."""
        ...

    def device_nodes(self, gpu: Gpu) -> tuple[DeviceNode, ...]:
        """The nodes of this GPU alone, e.g. `/dev/nvidia3`."""
        ...

    def control_nodes(self) -> tuple[DeviceNode, ...]:
        """The nodes every container with a GPU needs, e.g. `/dev/nvidiactl`, `/dev/nvidia-uvm`."""
        ...

    def mig_nodes(
        self, gpu: Gpu, *, gpu_instance_id: int, compute_instance_id: int
    ) -> tuple[DeviceNode, ...]:
        """The capability nodes of this compute instance alone: `/dev/nvidia-caps/nvidia-cap<minor>`."""
        ...

    def mig_modes(self, uuid: GpuUuid) -> MigModes:
        """The GPU's MIG mode; NotSupportedError where it has none."""
        ...

    def set_mig_mode(self, uuid: GpuUuid, *, enabled: bool) -> MigModes:
        """Switches the mode and reads it back; takes seconds. A switch that NVML accepted but did not carry
        out shows in the result: `current` is the old mode still. GpuBusyError while the GPU is in use."""
        ...

    def gpu_instances(self, uuid: GpuUuid) -> tuple[GpuInstance, ...]:
        """All instances on the GPU now, by id; none where MIG mode is off or unsupported."""
        ...

    def create_gpu_instance(self, uuid: GpuUuid, *, profile_id: int, placement: MigPlacement) -> int:
        """Creates an instance at that very place; returns its id. NoRoomError where that is taken."""
        ...

    def create_compute_instance(self, uuid: GpuUuid, *, gpu_instance_id: int) -> ComputeInstance:
        """Creates the one compute instance that takes the whole GPU instance."""
        ...

    def destroy_compute_instance(
        self, uuid: GpuUuid, *, gpu_instance_id: int, compute_instance_id: int
    ) -> None:
        """Destroys it; one that is gone already is no error. GpuBusyError while a process runs on it."""
        ...

    def destroy_gpu_instance(self, uuid: GpuUuid, *, gpu_instance_id: int) -> None:
        """Destroys it; one that is not there any more is no error. GpuBusyError while it holds a compute
        instance, or is still in use."""
        ...

    def compute_mode(self, uuid: GpuUuid) -> ComputeMode:
        """The GPU's compute mode."""
        ...

    def set_compute_mode(self, uuid: GpuUuid, mode: ComputeMode) -> None:
        """Sets the compute mode; needs the rights of the administrator (HardwareError says so)."""
        ...

    def processes(self, uuid: GpuUuid) -> tuple[GpuProcess, ...]:
        """Who computes on the GPU or one of its instances now, by pid."""
        ...

    def health(self, uuid: GpuUuid) -> GpuConditions:
        """How well the GPU says it is."""
        ...

    def watch(self, uuids: Collection[GpuUuid]) -> frozenset[GpuUuid]:
        """Begins to listen for XID errors of these GPUs, and of no others; those that tell none.

        `watch` and `next_event` are for one caller, one after the other.
        """
        ...

    def next_event(self, *, timeout_s: float) -> XidEvent | None:
        """The next XID error since `watch`; None if none came in that time. HardwareError: listen anew."""
        ...

    def used_memory_bytes(self, uuid: GpuUuid) -> int | None:
        """Memory in use on the whole GPU, None where the board has none of its own to report."""
        ...
