"""What NVML and sysfs tell of the GPUs of this machine.

What NVML refuses, lacks or answers with an unknown value costs that attribute; a GPU that is lost, or has no
UUID, minor number or readable MIG mode, costs that GPU (`Machine.failures`).
"""

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pynvml

from tangram.base.errors import GpuLostError
from tangram.hardware import nvmlmig
from tangram.hardware.nvmlcalls import GpuHandle, ask_driver, ask_system, gpu_error
from tangram.hardware.pci import PciTree, normalize_bus_id
from tangram.model.gpu import Gpu, GpuUuid, Machine, MigMode, NvLink

_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DISPLAY_ONLY = frozenset({"DGX Display", "NVIDIA DGX Display"})
"""Boards that NVML lists but that compute nothing."""
_ARCHITECTURES = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
    13: "Rubin",  # NVML_DEVICE_ARCH_RUBIN of newer bindings
}
_BRANDS = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVS: "NVS",
    pynvml.NVML_BRAND_GRID: "Grid",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "NvidiaVApps",
    pynvml.NVML_BRAND_NVIDIA_VPC: "NvidiaVPC",
    pynvml.NVML_BRAND_NVIDIA_VCS: "NvidiaVCS",
    pynvml.NVML_BRAND_NVIDIA_VWS: "NvidiaVWS",
    pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
    pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
    pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
}
"""Names as NVIDIA's own DRA driver publishes them, so that selectors carry over."""
_IN_A_VIRTUAL_MACHINE = frozenset(
    {pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH, pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU}
)
_CORES_PER_MULTIPROCESSOR = {3: 192, 5: 128, 6: 128, 7: 64, 8: 128, 9: 128, 10: 128, 11: 128, 12: 128}
_CORES_PER_MULTIPROCESSOR_EXCEPTIONS = {(6, 0): 64, (8, 0): 64}
"""By compute capability (CUDA programming guide): NVML counts cores, not multiprocessors."""


def discover_machine(pci: PciTree) -> Machine:
    """All GPUs that answer, ordered by UUID. Raises DriverUnavailableError."""
    failures: dict[str, str] = {}
    found: list[tuple[int, GpuHandle, str | None]] = []
    for index in range(ask_driver(pynvml.nvmlDeviceGetCount)):
        with _costing_the_gpu(failures):
            handle = _open_handle(index)
            if handle.ask(pynvml.nvmlDeviceGetName, "") not in _DISPLAY_ONLY:
                found.append((index, handle, handle.ask(_bus_id, None)))
    bus_ids = frozenset(bus_id for _, _, bus_id in found if bus_id is not None)
    gpus: dict[GpuUuid, Gpu] = {}
    for index, handle, bus_id in found:
        with _costing_the_gpu(failures):
            gpu = _gpu(pci, handle, index=index, bus_id=bus_id, bus_ids=bus_ids)
            if gpu.uuid in gpus:
                failures[f"index {index}"] = f"has the UUID of index {gpus[gpu.uuid].index}: {gpu.uuid}"
            else:
                gpus[gpu.uuid] = gpu
    return Machine(
        gpus=tuple(gpus[gpu_uuid] for gpu_uuid in sorted(gpus)),
        driver_version=ask_system(pynvml.nvmlSystemGetDriverVersion, ""),
        cuda_driver_version=_cuda_version(ask_system(pynvml.nvmlSystemGetCudaDriverVersion_v2, 0)),
        failures=failures,
    )


def _gpu(pci: PciTree, handle: GpuHandle, *, index: int, bus_id: str | None, bus_ids: frozenset[str]) -> Gpu:
    capability = handle.ask(pynvml.nvmlDeviceGetCudaComputeCapability, (0, 0))
    memory_bytes = handle.ask(_memory_bytes, None)
    mig_mode = _mig_mode(handle)
    able = mig_mode != "unsupported"
    return Gpu(
        uuid=GpuUuid(handle.label),
        index=index,
        minor=handle.demand(pynvml.nvmlDeviceGetMinorNumber),
        product_name=handle.ask(pynvml.nvmlDeviceGetName, "") or "unknown",
        brand=_BRANDS.get(handle.ask(pynvml.nvmlDeviceGetBrand, -1), "unknown"),
        architecture=_ARCHITECTURES.get(handle.ask(pynvml.nvmlDeviceGetArchitecture, -1), "unknown"),
        compute_capability=capability,
        memory_bytes=memory_bytes,
        multiprocessors=_multiprocessors(handle.ask(pynvml.nvmlDeviceGetNumGpuCores, 0), capability),
        pci_bus_id=bus_id,
        pcie_root=pci.pcie_root(bus_id) if bus_id else None,
        numa_node=pci.numa_node(bus_id) if bus_id else None,
        mig_mode=mig_mode,
        virtual=handle.ask(pynvml.nvmlDeviceGetVirtualizationMode, 0) in _IN_A_VIRTUAL_MACHINE,
        mig_profiles=nvmlmig.profiles(handle, memory_bytes=memory_bytes) if able else (),
        nvlinks=_nvlinks(handle, bus_ids),
        fabric_clique=handle.ask(_fabric_clique, None),
    )


@contextmanager
def _costing_the_gpu(failures: dict[str, str]) -> Iterator[None]:
    try:
        yield
    except GpuLostError as error:
        failures[error.uuid] = error.cause


def _open_handle(index: int) -> GpuHandle:
    """The handle of a GPU, labelled with its UUID; GpuLostError where it has none."""
    label = f"index {index}"
    try:
        handle = GpuHandle(pynvml.nvmlDeviceGetHandleByIndex(index), label)
    except pynvml.NVMLError as error:
        raise gpu_error(error, label=label) from error
    gpu_uuid = handle.demand(pynvml.nvmlDeviceGetUUID)
    if not _UUID.fullmatch(gpu_uuid):
        raise GpuLostError(
            f"{label}: {gpu_uuid!r} is not a GPU UUID", uuid=label, next_step="compare with nvidia-smi -L"
        )
    return GpuHandle(handle.handle, gpu_uuid)


def _bus_id(handle: Any) -> str | None:
    return normalize_bus_id(pynvml.nvmlDeviceGetPciInfo(handle).busId)


def _memory_bytes(handle: Any) -> int | None:
    """NVML's total: what nvidia-smi shows and NVIDIA's own DRA driver publishes.

    It includes what driver and firmware keep for themselves (`reserved` of nvmlDeviceGetMemoryInfo_v2, some
    hundred MiB). For the whole GPU that is right: the number names the product. Whoever cuts a GPU into
    shares of memory must subtract `reserved` first, or the last share runs out of what was promised to it.
    """
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) or None


def _multiprocessors(cores: int, capability: tuple[int, int]) -> int | None:
    per_multiprocessor = _CORES_PER_MULTIPROCESSOR_EXCEPTIONS.get(
        capability, _CORES_PER_MULTIPROCESSOR.get(capability[0], 0)
    )
    if not per_multiprocessor or cores % per_multiprocessor:
        return None
    return cores // per_multiprocessor or None


def _mig_mode(handle: GpuHandle) -> MigMode:
    """The current mode. One that cannot be read costs the GPU: in MIG mode it must not be published whole."""
    modes = handle.ask_or_refused(pynvml.nvmlDeviceGetMigMode, None)
    if modes is None:
        return "unsupported"
    if modes[0] not in (pynvml.NVML_DEVICE_MIG_DISABLE, pynvml.NVML_DEVICE_MIG_ENABLE):
        raise GpuLostError(
            f"{handle.label}: unknown MIG mode {modes[0]}",
            uuid=handle.label,
            next_step="compare with nvidia-smi; update Tangram if this driver knows more modes",
        )
    return "enabled" if modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE else "disabled"


def _nvlinks(handle: GpuHandle, bus_ids: frozenset[str]) -> tuple[NvLink, ...]:
    links = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = handle.ask(pynvml.nvmlDeviceGetNvLinkState, pynvml.NVML_FEATURE_DISABLED, link)
        if state == pynvml.NVML_FEATURE_ENABLED and (end := _remote_end(handle, link, bus_ids)):
            links.append(end)
    return tuple(links)


def _remote_end(handle: GpuHandle, link: int, bus_ids: frozenset[str]) -> NvLink | None:
    """Where an active link ends; None where that is neither a GPU nor a switch.

    In a virtual machine the switches are invisible: a link whose end NVML can name no type of, at an address
    that is no GPU of this machine, then ends at a switch. NCCL reads it so too.
    """
    kind = handle.ask(
        pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN, link
    )
    if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return NvLink(to_switch=True)
    if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU:
        return None
    address = handle.ask(_remote_address, None, link)
    if address is None:
        return None
    bus_id = normalize_bus_id(address)
    if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_GPU or bus_id in bus_ids:
        return NvLink(peer_bus_id=bus_id) if bus_id else None
    return NvLink(to_switch=True)


def _remote_address(handle: Any, link: int) -> str | None:
    return str(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)


def _fabric_clique(handle: Any) -> str | None:
    """`<cluster uuid>.<clique id>` once the GPU has joined a multi-node NVLink fabric."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    cluster = bytes(info.clusterUuid)
    joined = info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status == pynvml.NVML_SUCCESS
    return f"{UUID(bytes=cluster)}.{info.cliqueId}" if joined and any(cluster) else None


def _cuda_version(number: int) -> str:
    """`13.0` of 13000; empty where unknown."""
    return f"{number // 1000}.{number % 1000 // 10}" if number > 0 else ""
