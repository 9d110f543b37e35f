"""Device names, and the attributes and capacities under which a GPU is published.

Names come from the UUID, never from index or minor: both change between boots. The attribute list follows the
limit of 32 attributes and capacities per device (`resource/v1/types.go`).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tangram import DRIVER_NAME
from tangram.model.gpu import Gpu, GpuUuid, Machine
from tangram.model.links import LinkMatrix, disjoint_groups
from tangram.model.product import gpu_type
from tangram.model.semver import normalize_version

Allocator = Literal["controller", "scheduler"]
"""Who allocates the devices of a node: Tangram's controller or kube-scheduler itself."""

Kind = Literal["gpu", "mps", "timeslice", "mig"]
"""What a device is (attribute `type`): a whole GPU, one shared by MPS or time-slicing, a MIG placement."""

AttributeValue = bool | int | str
DRAINED_TAINT = f"{DRIVER_NAME}/drained"
"""Key of the taint on devices of a GPU that an operator has drained."""
STANDARD_DOMAIN = "resource.kubernetes.io"
GROUP_SIZES = (2, 4, 8)
_SHORT_ID_DIGITS = 12
_DEVICE_NAME = re.compile(r"gpu-([0-9a-f]{12}|[0-9a-f]{32})(?:-[a-z0-9-]+)?")


@dataclass(frozen=True, slots=True)
class Version:
    """An attribute value of type `version` (strict SemVer text)."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPolicy:
    """What a claim may ask of a shared device's capacity (KEP-5075): `default` where it says nothing, else
    from `minimum` in steps of `step` up to `maximum`. Default and maximum are whole steps above the minimum.
    """

    default: int
    minimum: int
    step: int
    maximum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDevice:
    """A device as it goes into a ResourceSlice.

    `attributes` are bare names of our own domain or `resource.kubernetes.io/…`; `capacity` in plain integers
    (bytes for memory), `policies` for capacities of a device that is `shared` by many claims. `consumes` are
    counters of the set `counter_set` (KEP-4815), none where the controller allocates.
    """

    name: str
    attributes: dict[str, AttributeValue | Version]
    capacity: dict[str, int]
    policies: dict[str, RequestPolicy] = field(default_factory=dict)
    shared: bool = False
    counter_set: str = ""
    consumes: dict[str, int] = field(default_factory=dict)


def short_ids(uuids: Iterable[GpuUuid]) -> dict[GpuUuid, str]:
    """The `<id>` of each GPU in device names: the first 12 hex digits of its UUID.

    GPUs whose short ids collide on this node get all 32 digits, so that a name never means two devices.
    """
    digits = {uuid: uuid.removeprefix("GPU-").replace("-", "").lower() for uuid in uuids}
    short = {uuid: text[:_SHORT_ID_DIGITS] for uuid, text in digits.items()}
    taken = list(short.values())
    return {uuid: short[uuid] if taken.count(short[uuid]) == 1 else digits[uuid] for uuid in digits}


def gpu_device_name(short_id: str) -> str:
    """The device of a whole GPU."""
    return f"gpu-{short_id}"


def short_id_of(device_name: str) -> str:
    """The short id in the name of any device of a GPU; empty for a name that is none of ours."""
    found = _DEVICE_NAME.fullmatch(device_name)
    return found[1] if found else ""


def pool_name(driver_name: str, node_name: str) -> str:
    """The pool of a node: unique to driver and node, so that no two drivers share a pool name."""
    return f"{driver_name}/{node_name}"


def gpu_devices(
    machine: Machine, *, allocator: Allocator, unhealthy: frozenset[GpuUuid] = frozenset()
) -> tuple[PublishedDevice, ...]:
    """The whole-GPU device of each GPU of the machine, in the machine's order (that of UUIDs)."""
    matrix = machine.links()
    ids = short_ids(gpu.uuid for gpu in machine.gpus)
    domains = _nvlink_domains(matrix)
    groups = {size: _group_of(matrix, size) for size in GROUP_SIZES}
    devices = []
    for ordinal, gpu in enumerate(machine.gpus):
        attributes = _gpu_attributes(gpu, machine)
        attributes |= {
            "ordinal": ordinal,
            "allocator": allocator,
            "healthy": gpu.uuid not in unhealthy,
            "nvlinkPeers": len(matrix.peers(ordinal)),
            "nvlinkLinks": matrix.rows[ordinal].encode(),
            "nvlinkDomain": ids[machine.gpus[domains[ordinal]].uuid] if matrix.peers(ordinal) else "none",
        }
        for size, group_of in groups.items():
            if ordinal in group_of:
                attributes[f"nvlinkGroup{size}"] = ids[machine.gpus[group_of[ordinal]].uuid]
        devices.append(
            PublishedDevice(
                name=gpu_device_name(ids[gpu.uuid]), attributes=attributes, capacity=_gpu_capacity(gpu)
            )
        )
    return tuple(devices)


def _gpu_attributes(gpu: Gpu, machine: Machine) -> dict[str, AttributeValue | Version]:
    """What is true of the GPU alone. Every key is always there, except the standard ones."""
    major, minor = gpu.compute_capability
    attributes: dict[str, AttributeValue | Version] = {
        "type": "gpu",
        "uuid": gpu.uuid,
        "productName": _short(gpu.product_name),
        "gpuType": _short(gpu_type(gpu.product_name)),
        "brand": _short(gpu.brand),
        "architecture": _short(gpu.architecture),
        "driverVersion": Version(normalize_version(machine.driver_version)),
        "cudaDriverVersion": Version(normalize_version(machine.cuda_driver_version)),
        "cudaComputeCapability": Version(f"{major}.{minor}.0"),
        "index": gpu.index,
        "migMode": gpu.mig_mode,
        "migCapable": gpu.mig_mode != "unsupported",
        "isolation": "hardware",
        "fabricClique": _short(gpu.fabric_clique or "none"),
    }
    if gpu.pcie_root is not None:
        attributes[f"{STANDARD_DOMAIN}/pcieRoot"] = gpu.pcie_root
    if gpu.pci_bus_id is not None:
        attributes[f"{STANDARD_DOMAIN}/pciBusID"] = gpu.pci_bus_id
    if gpu.numa_node is not None:
        attributes[f"{STANDARD_DOMAIN}/numaNode"] = gpu.numa_node
    return attributes


def _gpu_capacity(gpu: Gpu) -> dict[str, int]:
    capacity: dict[str, int] = {}
    if gpu.memory_bytes is not None:
        capacity["memory"] = gpu.memory_bytes
    if gpu.multiprocessors is not None:
        capacity["multiprocessors"] = gpu.multiprocessors
    return capacity | {"memorySlices": gpu.memory_slices, "computeSlices": gpu.compute_slices}


def _nvlink_domains(matrix: LinkMatrix) -> dict[int, int]:
    """The lowest ordinal of each GPU's connected component of the link graph."""
    domain: dict[int, int] = {}
    for start in sorted(matrix.rows):
        if start in domain:
            continue
        queue = [start]
        while queue:
            ordinal = queue.pop()
            if ordinal not in domain:
                domain[ordinal] = start
                queue.extend(matrix.peers(ordinal))
    return domain


def _group_of(matrix: LinkMatrix, size: int) -> dict[int, int]:
    """GPU ordinal → lowest ordinal of its `nvlinkGroup<size>`; GPUs in no group are absent."""
    return {member: group[0] for group in disjoint_groups(matrix, size) for member in group}


def _short(text: str) -> str:
    """A string attribute holds 64 bytes at most."""
    return text.encode()[:64].decode(errors="ignore")
