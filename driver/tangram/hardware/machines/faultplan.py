"""The plan of faults as data: which calls fail, how, and how often. Also a part of machine descriptions."""

from typing import Annotated, Literal, get_args

from msgspec import Meta

from tangram.hardware.machines.schema import Strict, Text

Call = Literal[
    "open",
    "discover",
    "probe",
    "device_nodes",
    "control_nodes",
    "mig_nodes",
    "mig_modes",
    "set_mig_mode",
    "gpu_instances",
    "create_gpu_instance",
    "create_compute_instance",
    "destroy_compute_instance",
    "destroy_gpu_instance",
    "compute_mode",
    "set_compute_mode",
    "processes",
    "used_memory_bytes",
    "health",
    "watch",
    "next_event",
]
"""The calls of `tangram.hardware.backend.Backend` that can be made to fail."""
CALLS: tuple[Call, ...] = get_args(Call)

FaultError = Literal[
    "HANG",
    "KILL",
    "DRIVER_NOT_LOADED",
    "GPU_IS_LOST",
    "INSUFFICIENT_RESOURCES",
    "IN_USE",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "UNKNOWN",
]
"""Return codes of NVML by name. HANG: the call does not return while the fault is in the plan. KILL: the
process that calls ends as by SIGKILL; only the first one, where the state of the GPUs outlives it."""


class Fault(Strict, frozen=True, kw_only=True):
    """Calls that fail.

    `call`: which; `*` all on a GPU. `target`: UUID or PCI bus id of a GPU; absent: any. The first `after`
    calls go well, then `times` of them fail, or `always` all. `effect`: the call does its work and fails
    after it.
    """

    call: Literal[Call, "*"]
    error: FaultError
    target: Text | None = None
    after: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    times: Annotated[int, Meta(ge=1, le=1_000_000)] | Literal["always"] = 1
    effect: bool = False
