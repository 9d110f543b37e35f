"""A libnvidia-ml in Python: takes the ctypes arguments of pynvml's wrappers and answers from a Machine.

Put it in `pynvml.nvmlLib`; pynvml's own wrappers, structs and error mapping then run as they are.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pynvml

from tangram.hardware.nvmldiscovery import _ARCHITECTURES, _BRANDS
from tangram.model.gpu import Gpu, Machine

ERROR_CODES = sorted(
    value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_") and isinstance(value, int)
)
SWITCH_BUS_ID = b"00000000:C5:00.0"
_CORES = {(7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128} | {
    (10, 0): 128,
    (12, 1): 128,
}


class Failure(Exception):
    """Raised inside an answer: the call returns this NVML error code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Function:
    """What ctypes would give for a symbol: callable, and with attributes that can be set (`restype`)."""

    restype: Any = None

    def __init__(self, library: "FakeNvml", name: str, answer: Callable[..., Any]) -> None:
        self._library, self._name, self._answer = library, name, answer

    def __call__(self, *arguments: Any) -> Any:
        return self._library.call(self._name, self._answer, arguments)


class FakeNvml:
    """`machine.gpus` in any order; NVML index = `Gpu.index`, which must be 0..n-1."""

    def __init__(self, machine: Machine) -> None:
        self.gpus = sorted(machine.gpus, key=lambda gpu: gpu.index)
        assert [gpu.index for gpu in self.gpus] == list(range(len(self.gpus)))
        self.machine = machine
        self.initialized = 0
        self.calls: list[str] = []
        self.fail_nth: dict[int, int] = {}
        """Number of a call, counted over all functions from 0 → the code it returns."""
        self.fail_function: dict[str, int] = {}
        """Name of a function → the code it returns."""
        self.fail_gpu: dict[int, int] = {}
        """Index of a GPU → the code every call with its handle returns."""
        self.missing: set[str] = set()
        """Symbols an older driver does not have."""
        self.remote_types_known = True

    def __getattr__(self, name: str) -> _Function:
        answer = getattr(type(self), f"_{name}", None)
        if answer is None or name in self.__dict__.get("missing", ()):
            raise AttributeError(name)
        return _Function(self, name, answer)

    def call(self, name: str, answer: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if name == "nvmlErrorString":
            return b"text of the library"
        number = len(self.calls)
        self.calls.append(name)
        try:
            if name != "nvmlInitWithFlags" and not self.initialized:
                raise Failure(pynvml.NVML_ERROR_UNINITIALIZED)
            for code in (self.fail_nth.get(number), self.fail_function.get(name)):
                if code is not None:
                    raise Failure(code)
            answer(self, *arguments)
        except Failure as failure:
            return failure.code
        return pynvml.NVML_SUCCESS

    def _gpu(self, handle: Any) -> Gpu:
        index = (ctypes.cast(handle, ctypes.c_void_p).value or 0) - 1
        if index in self.fail_gpu:
            raise Failure(self.fail_gpu[index])
        return self.gpus[index]

    def _set_handle(self, reference: Any, index: int) -> None:
        ctypes.c_void_p.from_buffer(reference._obj).value = index + 1

    # --- the library and the system

    def _nvmlErrorString(self, code: Any) -> None: ...

    def _nvmlInitWithFlags(self, flags: int) -> None:
        self.initialized += 1

    def _nvmlShutdown(self) -> None:
        self.initialized -= 1

    def _nvmlSystemGetDriverVersion(self, buffer: Any, length: Any) -> None:
        buffer.value = self.machine.driver_version.encode()

    def _nvmlSystemGetCudaDriverVersion_v2(self, reference: Any) -> None:
        major, minor = self.machine.cuda_driver_version.split(".")
        reference._obj.value = int(major) * 1000 + int(minor) * 10

    def _nvmlDeviceGetCount_v2(self, reference: Any) -> None:
        reference._obj.value = len(self.gpus)

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, reference: Any) -> None:
        if index.value >= len(self.gpus):
            raise Failure(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        self._set_handle(reference, index.value)

    def _nvmlDeviceGetHandleByUUID(self, uuid: Any, reference: Any) -> None:
        for gpu in self.gpus:
            if gpu.uuid.encode() == uuid.value:
                self._set_handle(reference, gpu.index)
                return
        raise Failure(pynvml.NVML_ERROR_NOT_FOUND)

    # --- one GPU

    def _nvmlDeviceGetUUID(self, handle: Any, buffer: Any, length: Any) -> None:
        buffer.value = self._gpu(handle).uuid.encode()

    def _nvmlDeviceGetName(self, handle: Any, buffer: Any, length: Any) -> None:
        buffer.value = self._gpu(handle).product_name.encode()

    def _nvmlDeviceGetBrand(self, handle: Any, reference: Any) -> None:
        numbers = {text: number for number, text in _BRANDS.items()}
        reference._obj.value = numbers.get(self._gpu(handle).brand, pynvml.NVML_BRAND_UNKNOWN)

    def _nvmlDeviceGetArchitecture(self, handle: Any, reference: Any) -> None:
        numbers = {text: number for number, text in _ARCHITECTURES.items()}
        reference._obj.value = numbers.get(self._gpu(handle).architecture, pynvml.NVML_DEVICE_ARCH_UNKNOWN)

    def _nvmlDeviceGetMinorNumber(self, handle: Any, reference: Any) -> None:
        reference._obj.value = self._gpu(handle).minor

    def _nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> None:
        major._obj.value, minor._obj.value = self._gpu(handle).compute_capability

    def _nvmlDeviceGetNumGpuCores(self, handle: Any, reference: Any) -> None:
        gpu = self._gpu(handle)
        if gpu.multiprocessors is None:
            raise Failure(pynvml.NVML_ERROR_NOT_SUPPORTED)
        reference._obj.value = gpu.multiprocessors * _CORES[gpu.compute_capability]

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, reference: Any) -> None:
        gpu = self._gpu(handle)
        if gpu.memory_bytes is None:
            raise Failure(pynvml.NVML_ERROR_NOT_SUPPORTED)
        reference._obj.total = gpu.memory_bytes
        reference._obj.used = 600 * 2**20
        reference._obj.free = gpu.memory_bytes - reference._obj.used

    def _nvmlDeviceGetPciInfo_v3(self, handle: Any, reference: Any) -> None:
        gpu = self._gpu(handle)
        if gpu.pci_bus_id is None:
            raise Failure(pynvml.NVML_ERROR_NOT_SUPPORTED)
        reference._obj.busId = _long_bus_id(gpu.pci_bus_id)

    def _nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> None:
        mode = self._gpu(handle).mig_mode
        if mode == "unsupported":
            raise Failure(pynvml.NVML_ERROR_NOT_SUPPORTED)
        current._obj.value = pending._obj.value = int(mode == "enabled")

    def _nvmlDeviceGetGpuInstanceProfileInfoV(self, handle: Any, number: int, reference: Any) -> None:
        profile = next((p for p in self._gpu(handle).mig_profiles if p.number == number), None)
        if profile is None:
            raise Failure(pynvml.NVML_ERROR_NOT_SUPPORTED)
        info = reference._obj
        info.name = f"MIG {profile.name}".encode()
        info.id, info.sliceCount = profile.profile_id, profile.compute_slices
        info.instanceCount, info.multiprocessorCount = profile.max_instances, profile.multiprocessors or 0
        info.copyEngineCount, info.decoderCount = profile.copy_engines, profile.decoders
        info.encoderCount, info.jpegCount = profile.encoders, profile.jpeg_engines
        info.ofaCount, info.memorySizeMB = profile.ofa_engines, (profile.memory_bytes or 0) // 2**20

    def _nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        self, handle: Any, profile_id: int, room: Any, count: Any
    ) -> None:
        (profile,) = (p for p in self._gpu(handle).mig_profiles if p.profile_id == profile_id)
        for place, placement in zip(room, profile.placements, strict=False):
            place.start, place.size = placement.start, placement.size
        count._obj.value = len(profile.placements)

    def _nvmlDeviceGetVirtualizationMode(self, handle: Any, reference: Any) -> None:
        reference._obj.value = int(self._gpu(handle).virtual)

    def _nvmlDeviceGetNvLinkState(self, handle: Any, link: int, reference: Any) -> None:
        links = self._gpu(handle).nvlinks
        if not links:
            raise Failure(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if link >= 18:
            raise Failure(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        reference._obj.value = int(link < len(links))

    def _nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, link: int, reference: Any) -> None:
        end = self._gpu(handle).nvlinks[link]
        if not self.remote_types_known:
            reference._obj.value = pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN
        elif end.to_switch:
            reference._obj.value = pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        else:
            reference._obj.value = pynvml.NVML_NVLINK_DEVICE_TYPE_GPU

    def _nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle: Any, link: int, reference: Any) -> None:
        end = self._gpu(handle).nvlinks[link]
        reference._obj.busId = _long_bus_id(end.peer_bus_id) if end.peer_bus_id else SWITCH_BUS_ID

    def _nvmlDeviceGetGpuFabricInfoV(self, handle: Any, reference: Any) -> None:
        clique = self._gpu(handle).fabric_clique
        if clique is None:
            raise Failure(pynvml.NVML_ERROR_NOT_SUPPORTED)
        cluster, _, clique_id = clique.rpartition(".")
        reference._obj.clusterUuid = (ctypes.c_uint8 * 16)(*UUID(cluster).bytes)
        reference._obj.cliqueId = int(clique_id)
        reference._obj.state = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
        reference._obj.status = pynvml.NVML_SUCCESS


def _long_bus_id(bus_id: str) -> bytes:
    """As NVML writes it: eight digits of domain, upper case."""
    domain, rest = bus_id.split(":", 1)
    return f"{int(domain, 16):08X}:{rest.upper()}".encode()


@contextmanager
def installed(fake: FakeNvml) -> Iterator[FakeNvml]:
    """pynvml talks to this fake inside the block."""
    before = pynvml.nvmlLib
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = fake
    try:
        yield fake
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()


def make_sysfs(root: Path, machine: Machine) -> Path:
    """A /sys in which each GPU of the machine has its PCIe root and NUMA node."""
    devices = root / "bus/pci/devices"
    devices.mkdir(parents=True)
    for gpu in machine.gpus:
        if gpu.pci_bus_id is None:
            continue
        place = root / "devices" / (gpu.pcie_root or "platform") / "0000:00:01.0" / gpu.pci_bus_id
        place.mkdir(parents=True)
        node = -1 if gpu.numa_node is None else gpu.numa_node
        (place / "numa_node").write_text(f"{node}\n")
        (devices / gpu.pci_bus_id).symlink_to(place)
    return root
