"""The one protocol behind which GPUs stand: real (NVML) or simulated."""

from dataclasses import dataclass
from typing import Protocol

from tangram.model.gpu import Gpu, GpuUuid, Machine


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


class Backend(Protocol):
    """Blocking calls; `tangram.hardware.workers` runs them with deadlines off the event loop.

    Every method may raise HardwareError: DriverUnavailableError (no driver, not loaded), GpuLostError (that
    GPU only).
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
