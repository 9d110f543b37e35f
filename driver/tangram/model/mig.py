"""MIG: what a board offers, and what has been cut. Terms as in the MIG user guide and the NVML API reference.

A GPU instance (GI) lies at a placement on the GPU's memory slices; a compute instance (CI) inside of it is
what processes run on, and what has a `MIG-…` UUID.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class MigPlacement:
    """`size` memory slices from slice `start` on."""

    start: int
    size: int

    @property
    def mask(self) -> int:
        """Its memory slices as bits: two placements overlap where their masks do."""
        return ((1 << self.size) - 1) << self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A profile of GPU instances, as the driver offers it on one GPU.

    `profile_id` is the board's own number, which creating an instance takes and an instance tells.
    `memory_bytes` is what an instance will have, None where the driver does not tell. `max_instances`: of
    this profile on one GPU. `compute_slices` and the engines are what one instance takes. `number` is the
    profile's in the API of NVML (argument of nvmlDeviceGetGpuInstanceProfileInfo; -1 where nobody told), the
    same on all boards.
    """

    name: str
    profile_id: int
    compute_slices: int
    memory_bytes: int | None
    multiprocessors: int | None
    max_instances: int
    placements: tuple[MigPlacement, ...]
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0
    number: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstance:
    """A compute instance. `uuid` is its own (`MIG-…`), not the GPU's. Ids are used again after a destroy."""

    compute_instance_id: int
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstance:
    """A GPU instance that exists, with the compute instances in it. Ids are used again after a destroy."""

    gpu_instance_id: int
    profile_id: int
    placement: MigPlacement
    compute_instances: tuple[ComputeInstance, ...] = field(default=())


def memory_slices(profiles: Sequence[MigProfile]) -> int:
    """Memory slices that the instances of a GPU share: NVML tells no number, but where the last one lies."""
    return max((place.start + place.size for profile in profiles for place in profile.placements), default=0)


def compute_slices(profiles: Sequence[MigProfile]) -> int:
    """Compute slices that the instances of a GPU share: as many as the instances of one profile can take."""
    return max((profile.compute_slices * profile.max_instances for profile in profiles), default=0)
