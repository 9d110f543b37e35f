"""A machine's GPUs as discovered: what NVML (or a machine description) says, normalised.

What the hardware refuses or lacks is None (or the field's stated default): it costs that attribute, never the
node.
"""

from dataclasses import dataclass, field
from typing import Literal, NewType

from tangram.model.links import LinkMatrix, LinkRow
from tangram.model.mig import MigProfile, compute_slices, memory_slices

GpuUuid = NewType("GpuUuid", str)
"""`GPU-<8>-<4>-<4>-<4>-<12>` hex digits, as NVML prints it."""

MigMode = Literal["enabled", "disabled", "unsupported"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLink:
    """One active NVLink of a GPU; exactly one remote end.

    `peer_bus_id`: PCI bus id of the GPU at the other end; None behind a switch.
    """

    peer_bus_id: str | None = None
    to_switch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU.

    `memory_bytes` is NVML's total; None where the board has no memory of its own to report (unified memory).
    `index` and `minor` change between boots and are never part of a name. `pci_bus_id` is lower case
    `dddd:bb:dd.f`. `fabric_clique` is `<cluster uuid>.<clique id>` of a multi-node NVLink fabric.
    `virtual`: passed to this virtual machine, or a vGPU in it. `mig_profiles` is what MIG offers here, in
    whatever mode the GPU is; empty where the driver does not tell.
    """

    uuid: GpuUuid
    index: int
    minor: int
    product_name: str
    brand: str = "unknown"
    architecture: str = "unknown"
    compute_capability: tuple[int, int] = (0, 0)
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    pci_bus_id: str | None = None
    pcie_root: str | None = None
    numa_node: int | None = None
    mig_mode: MigMode = "unsupported"
    nvlinks: tuple[NvLink, ...] = ()
    fabric_clique: str | None = None
    mig_profiles: tuple[MigProfile, ...] = ()
    virtual: bool = False

    @property
    def memory_slices(self) -> int:
        """How many memory slices MIG placements lie on; 0 where MIG offers nothing."""
        return memory_slices(self.mig_profiles)

    @property
    def compute_slices(self) -> int:
        """How many compute slices all MIG instances together may have; 0 where MIG offers nothing."""
        return compute_slices(self.mig_profiles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """All GPUs of a node that answered, ordered by UUID, and its driver's versions as the vendor writes them.

    `failures` maps what did not answer (a UUID or `index <n>`) to the cause: such a GPU is not in `gpus`.
    """

    gpus: tuple[Gpu, ...]
    driver_version: str = ""
    cuda_driver_version: str = ""
    failures: dict[str, str] = field(default_factory=dict)

    def links(self) -> LinkMatrix:
        """The NVLink matrix, keyed by ordinal (position in `gpus`)."""
        ordinal_of = {gpu.pci_bus_id: ordinal for ordinal, gpu in enumerate(self.gpus) if gpu.pci_bus_id}
        rows: dict[int, LinkRow] = {}
        for ordinal, gpu in enumerate(self.gpus):
            switch_links = sum(link.to_switch for link in gpu.nvlinks)
            counts: dict[int, int] = {}
            for link in gpu.nvlinks:
                peer = ordinal_of.get(link.peer_bus_id) if link.peer_bus_id else None
                if peer is not None and peer != ordinal:
                    counts[peer] = counts.get(peer, 0) + 1
            rows[ordinal] = LinkRow(
                switch_links=switch_links, direct=() if switch_links else tuple(sorted(counts.items()))
            )
        return LinkMatrix(rows)
