"""Real GPUs, through NVML (`libnvidia-ml.so.1`, NVML API reference) by way of pynvml, and sysfs."""

import stat
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pynvml

from tangram.base.errors import DriverUnavailableError, GpuLostError, HardwareError
from tangram.base.logs import get_logger
from tangram.hardware import capabilities, nvmlhealth, nvmlmig, nvmluse
from tangram.hardware.backend import ComputeMode, DeviceNode, GpuProcess, MigModes
from tangram.hardware.health import GpuConditions, XidEvent
from tangram.hardware.nvmlcalls import GpuHandle, ask_driver, gpu_error, load_library
from tangram.hardware.nvmldiscovery import discover_machine
from tangram.hardware.pci import PciTree
from tangram.model.gpu import Gpu, GpuUuid, Machine
from tangram.model.mig import ComputeInstance, GpuInstance, MigPlacement

_log = get_logger("hardware")


class NvmlBackend:
    """A `tangram.hardware.backend.Backend` over the driver below `driver_root`.

    What it finds: `tangram.hardware.nvmldiscovery`.
    """

    name = "nvml"

    def __init__(
        self,
        *,
        driver_root: Path,
        sysfs_root: Path = Path("/sys"),
        device_root: Path = Path("/dev"),
        proc_root: Path = Path("/proc"),
    ) -> None:
        self._driver_root = driver_root
        self._device_root = device_root
        self._pci = PciTree(sysfs_root)
        self._proc_root = proc_root
        self._lock = threading.Lock()
        self._opened = False
        self._handles: dict[GpuUuid, GpuHandle] = {}
        self._waiting = threading.Lock()
        self._events: nvmlhealth.XidSource | None = None

    def open(self) -> None:
        with self._lock:
            if self._opened:
                return
            load_library(self._driver_root)
            ask_driver(pynvml.nvmlInit)
            self._opened = True

    def close(self) -> None:
        self._handles = {}
        # Not under a wait for events, which the library would not survive; that ends by itself.
        with self._waiting, self._lock:
            self._events = None
            if self._opened:
                self._opened = False
                _shut_down()

    def discover(self) -> Machine:
        self._handles = {}
        try:
            return discover_machine(self._pci)
        except DriverUnavailableError:
            # NVML counts its users and connects anew only after the last one has left.
            self.close()
            raise

    def probe(self, uuid: GpuUuid) -> None:
        handle = _handle_of(uuid)
        # A handle is cached in the library; this call goes to the GPU. A refusal is an answer too.
        handle.ask_or_refused(pynvml.nvmlDeviceGetMemoryInfo, None)

    def device_nodes(self, gpu: Gpu) -> tuple[DeviceNode, ...]:
        name = f"nvidia{gpu.minor}"
        self._require(name, f"nvidia-modprobe -c {gpu.minor}")
        return (DeviceNode(path=f"/dev/{name}"),)

    def control_nodes(self) -> tuple[DeviceNode, ...]:
        self._require("nvidiactl", "nvidia-modprobe")
        self._require("nvidia-uvm", "nvidia-modprobe -u -c 0")
        names = ["nvidiactl", "nvidia-uvm"]
        names += [name for name in ("nvidia-uvm-tools", "nvidia-modeset") if self._is_device(name)]
        return tuple(DeviceNode(path=f"/dev/{name}") for name in names)

    def mig_nodes(
        self, gpu: Gpu, *, gpu_instance_id: int, compute_instance_id: int
    ) -> tuple[DeviceNode, ...]:
        return capabilities.mig_nodes(
            self._proc_root,
            gpu_minor=gpu.minor,
            gpu_instance_id=gpu_instance_id,
            compute_instance_id=compute_instance_id,
        )

    def mig_modes(self, uuid: GpuUuid) -> MigModes:
        with self._handle(uuid) as handle:
            return nvmlmig.modes(handle)

    def set_mig_mode(self, uuid: GpuUuid, *, enabled: bool) -> MigModes:
        try:
            with self._handle(uuid) as handle, nvmluse.naming_holders(handle):
                nvmlmig.set_mode(handle, enabled=enabled)
        finally:
            self._handles.pop(uuid, None)  # the switch may have reset the GPU
        return self.mig_modes(uuid)

    def gpu_instances(self, uuid: GpuUuid) -> tuple[GpuInstance, ...]:
        with self._handle(uuid) as handle:
            return nvmlmig.instances(handle)

    def create_gpu_instance(self, uuid: GpuUuid, *, profile_id: int, placement: MigPlacement) -> int:
        with self._handle(uuid) as handle:
            return nvmlmig.create_gpu_instance(handle, profile_id=profile_id, placement=placement)

    def create_compute_instance(self, uuid: GpuUuid, *, gpu_instance_id: int) -> ComputeInstance:
        with self._handle(uuid) as handle:
            return nvmlmig.create_compute_instance(handle, gpu_instance_id=gpu_instance_id)

    def destroy_compute_instance(
        self, uuid: GpuUuid, *, gpu_instance_id: int, compute_instance_id: int
    ) -> None:
        with self._handle(uuid) as handle, nvmluse.naming_holders(handle):
            nvmlmig.destroy_compute_instance(
                handle, gpu_instance_id=gpu_instance_id, compute_instance_id=compute_instance_id
            )

    def destroy_gpu_instance(self, uuid: GpuUuid, *, gpu_instance_id: int) -> None:
        with self._handle(uuid) as handle, nvmluse.naming_holders(handle):
            nvmlmig.destroy_gpu_instance(handle, gpu_instance_id=gpu_instance_id)

    def compute_mode(self, uuid: GpuUuid) -> ComputeMode:
        with self._handle(uuid) as handle:
            return nvmluse.compute_mode(handle)

    def set_compute_mode(self, uuid: GpuUuid, mode: ComputeMode) -> None:
        with self._handle(uuid) as handle:
            nvmluse.set_compute_mode(handle, mode)

    def processes(self, uuid: GpuUuid) -> tuple[GpuProcess, ...]:
        with self._handle(uuid) as handle:
            return nvmluse.processes(handle)

    def used_memory_bytes(self, uuid: GpuUuid) -> int | None:
        with self._handle(uuid) as handle:
            return nvmluse.used_memory_bytes(handle)

    def health(self, uuid: GpuUuid) -> GpuConditions:
        with self._handle(uuid) as handle:
            return nvmlhealth.conditions(handle)

    def watch(self, uuids: Collection[GpuUuid]) -> frozenset[GpuUuid]:
        if self._events is not None:
            self._events.close()
            self._events = None
        handles: list[GpuHandle] = []
        for uuid in sorted(uuids):
            with suppress(GpuLostError):
                handles.append(_handle_of(uuid))
        self._events = nvmlhealth.XidSource(handles)
        monitored = {handle.label for handle in handles} - self._events.unmonitored
        return frozenset(uuids) - monitored

    def next_event(self, *, timeout_s: float) -> XidEvent | None:
        with self._waiting:
            if self._events is None:
                raise HardwareError("nobody listens for events")
            return self._events.next(timeout_s=timeout_s)

    @contextmanager
    def _handle(self, uuid: GpuUuid) -> Iterator[GpuHandle]:
        """The GPU's handle, looked up once: under load that takes seconds. Forgotten when the GPU is lost."""
        try:
            if (handle := self._handles.get(uuid)) is None:
                handle = self._handles[uuid] = _handle_of(uuid)
            yield handle
        except (GpuLostError, DriverUnavailableError):
            self._handles.pop(uuid, None)
            raise

    def _require(self, name: str, remedy: str) -> None:
        """Refuses to hand out less than a container needs: CUDA would fail there without a reason."""
        if not self._is_device(name):
            raise DriverUnavailableError(
                f"no character device {self._device_root / name}",
                next_step=f"run `{remedy}` on the node, and check that this process sees the host's /dev",
            )

    def _is_device(self, name: str) -> bool:
        try:
            return stat.S_ISCHR((self._device_root / name).stat().st_mode)
        except OSError:
            return False


def _handle_of(uuid: GpuUuid) -> GpuHandle:
    try:
        return GpuHandle(pynvml.nvmlDeviceGetHandleByUUID(uuid), uuid)
    except pynvml.NVMLError as error:
        raise gpu_error(error, label=uuid) from error


def _shut_down() -> None:
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        _log.debug("nvml_shutdown_failed", code=error.value)
