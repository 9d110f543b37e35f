"""What a simulated GPU remembers, and how NVML changes it: a state machine without I/O.

Rules as in the NVML API reference and the MIG user guide: where instances may be created, what is in use,
when a switch of the MIG mode happens.
"""

import uuid
from collections.abc import Iterable

import msgspec

from tangram.hardware.backend import ComputeMode, GpuProcess, MigModes
from tangram.hardware.health import GpuConditions, XidEvent
from tangram.hardware.refusals import NvmlCode, action_error, no_room
from tangram.model.gpu import Gpu, MigMode
from tangram.model.mig import (
    ComputeInstance,
    GpuInstance,
    MigPlacement,
    MigProfile,
)

_UUID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "mig.gpu.resource.admin")
_ENGINES = ("copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")
_SWITCHES_WITHOUT_RESET = (9, 0)
"""Compute capability of Hopper: older boards change their MIG mode at a reset, and keep it over reboots."""


_MAXIMUM_XIDS = 64


class Compute(msgspec.Struct):
    """A compute instance."""

    id: int
    uuid: str


class Instance(msgspec.Struct):
    """A GPU instance."""

    id: int
    profile_id: int
    start: int
    size: int
    compute: list[Compute] = []


class GpuState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What stays on the card, or in its driver, when the process that talks to it ends.

    `described_mig_mode` is what the machine description said when this began: a change there is a switch by
    somebody else. `created` counts compute instances: every one has a UUID of its own. `minor`: in place of
    the description's. `xids` are the last that came, `xids_dropped` counts those before.
    """

    described_mig_mode: MigMode
    mig: bool = False
    mig_pending: bool = False
    instances: list[Instance] = []
    created: int = 0
    compute_mode: ComputeMode = "default"
    processes: list[GpuProcess] = []
    used_memory_bytes: int = 0
    lost: bool = False
    minor: int | None = None
    conditions: GpuConditions = GpuConditions()
    nvlinks_down: int = 0
    xids: list[XidEvent] = []
    xids_dropped: int = 0


def new_state(mig_mode: MigMode) -> GpuState:
    """A GPU nobody has touched yet."""
    enabled = mig_mode == "enabled"
    return GpuState(described_mig_mode=mig_mode, mig=enabled, mig_pending=enabled)


def rebooted(before: GpuState, gpu: Gpu) -> GpuState:
    """The GPU after a reboot: all is gone but the MIG mode of boards that keep it (the pending one)."""
    after = new_state(gpu.mig_mode)
    if _needs_reset(gpu) and before.described_mig_mode == gpu.mig_mode:
        after.mig = after.mig_pending = before.mig_pending
    return after


def _needs_reset(gpu: Gpu) -> bool:
    return gpu.compute_capability < _SWITCHES_WITHOUT_RESET or gpu.virtual


class SimulatedGpu:
    """One GPU in its state; methods change the state as NVML would, or raise HardwareError."""

    def __init__(self, gpu: Gpu, state: GpuState, *, seed: str = "") -> None:
        self._gpu = gpu
        self.state = state
        self._seed = seed

    def describe(self, mig_mode: MigMode) -> None:
        """Follows a machine description that says another MIG mode than before: instances are gone."""
        if mig_mode != self.state.described_mig_mode:
            self.state.described_mig_mode = mig_mode
            self._switch(enabled=mig_mode == "enabled")

    def reset(self) -> None:
        """A reset of the GPU, which nobody may use: a pending MIG mode is the current one after it.

        Memory is mended as far as it can be, and nothing is asked for any more.
        """
        self._require_idle("reset")
        self.state.conditions = GpuConditions(row_remap_failed=self.state.conditions.row_remap_failed)
        self._switch(enabled=self.state.mig_pending)

    def mig_modes(self) -> MigModes:
        self._require_mig("read the MIG mode")
        return MigModes(current=self.state.mig, pending=self.state.mig_pending)

    def set_mig_mode(self, *, enabled: bool) -> MigModes:
        """Accepts any switch; carries it out at once only on an idle board that needs no reset."""
        self._require_mig("switch the MIG mode")
        state = self.state
        state.mig_pending = enabled
        busy = bool(state.processes or state.instances)
        if enabled != state.mig and not busy and not _needs_reset(self._gpu):
            self._switch(enabled=enabled)
        return self.mig_modes()

    def instances(self) -> tuple[GpuInstance, ...]:
        return tuple(
            GpuInstance(
                gpu_instance_id=instance.id,
                profile_id=instance.profile_id,
                placement=MigPlacement(instance.start, instance.size),
                compute_instances=tuple(
                    ComputeInstance(compute_instance_id=compute.id, uuid=compute.uuid)
                    for compute in instance.compute
                ),
            )
            for instance in sorted(self.state.instances, key=lambda instance: instance.id)
        )

    def create_gpu_instance(self, profile_id: int, placement: MigPlacement) -> int:
        action = "create a GPU instance"
        if not self.state.mig:
            raise self._error(NvmlCode.NOT_SUPPORTED, action)
        profile = self._profile(profile_id)
        if profile is None or placement not in profile.placements:
            raise self._error(NvmlCode.INVALID_ARGUMENT, action)
        if not self._fits(profile, placement):
            raise no_room(
                self._gpu.uuid, profile=profile.name, placement=placement, instances=self.instances()
            )
        instance_id = self._free_id(placement)
        self.state.instances.append(
            Instance(
                id=instance_id, profile_id=profile_id, start=placement.start, size=placement.size, compute=[]
            )
        )
        return instance_id

    def create_compute_instance(self, gpu_instance_id: int) -> ComputeInstance:
        action = f"create a compute instance in GPU instance {gpu_instance_id}"
        instance = self._instance(gpu_instance_id)
        if instance is None:
            raise self._error(NvmlCode.NOT_FOUND if self.state.mig else NvmlCode.NOT_SUPPORTED, action)
        if instance.compute:
            raise self._error(NvmlCode.INSUFFICIENT_RESOURCES, action)
        self.state.created += 1
        name = f"{self._gpu.uuid}/{self._seed}/{self.state.created}"
        compute = Compute(id=0, uuid=f"MIG-{uuid.uuid5(_UUID_NAMESPACE, name)}")
        instance.compute.append(compute)
        return ComputeInstance(compute_instance_id=compute.id, uuid=compute.uuid)

    def destroy_compute_instance(self, gpu_instance_id: int, compute_instance_id: int) -> None:
        instance = self._instance(gpu_instance_id)
        if instance is None or all(compute.id != compute_instance_id for compute in instance.compute):
            return
        self._require_idle(
            f"destroy compute instance {compute_instance_id} of GPU instance {gpu_instance_id}",
            gpu_instance_id=gpu_instance_id,
            compute_instance_id=compute_instance_id,
        )
        instance.compute = [compute for compute in instance.compute if compute.id != compute_instance_id]

    def destroy_gpu_instance(self, gpu_instance_id: int) -> None:
        instance = self._instance(gpu_instance_id)
        if instance is None:
            return
        action = f"destroy GPU instance {gpu_instance_id}"
        if instance.compute:
            raise self._error(NvmlCode.IN_USE, action, "it holds a compute instance")
        self._require_idle(action, gpu_instance_id=gpu_instance_id)
        self.state.instances.remove(instance)

    def set_compute_mode(self, mode: ComputeMode) -> None:
        if self.state.mig or mode == "exclusive_thread":
            raise self._error(NvmlCode.NOT_SUPPORTED, f"set the compute mode {mode}")
        self.state.compute_mode = mode

    def used_memory_bytes(self) -> int | None:
        return None if self._gpu.memory_bytes is None else self.state.used_memory_bytes

    def health(self, *, links: int) -> GpuConditions:
        """What it tells; `links`: as many NVLinks have both their ends up."""
        told = self.state.conditions
        return GpuConditions(
            uncorrectable_ecc_errors=told.uncorrectable_ecc_errors or 0,
            row_remap_pending=bool(told.row_remap_pending),
            row_remap_failed=bool(told.row_remap_failed),
            retired_pages_pending=bool(told.retired_pages_pending),
            recovery_action=told.recovery_action or "none",
            active_nvlinks=max(0, links - self.state.nvlinks_down) if self._gpu.nvlinks else None,
            slowdowns=told.slowdowns,
        )

    def raise_xid(self, event: XidEvent) -> None:
        """The driver reports an error."""
        self.state.xids.append(event)
        surplus = len(self.state.xids) - _MAXIMUM_XIDS
        if surplus > 0:
            del self.state.xids[:surplus]
            self.state.xids_dropped += surplus

    def _fits(self, profile: MigProfile, placement: MigPlacement) -> bool:
        """NVML's rule: memory slices free, and compute slices, instances and engines enough."""
        there = [(self._profile(instance.profile_id), instance) for instance in self.state.instances]
        profiles = [found for found, _ in there if found is not None]
        taken = sum(MigPlacement(instance.start, instance.size).mask for _, instance in there)
        own = sum(found.profile_id == profile.profile_id for found in profiles)
        slices = sum(found.compute_slices for found in profiles) + profile.compute_slices
        return (
            not taken & placement.mask
            and own < profile.max_instances
            and slices <= self._gpu.compute_slices
            and all(self._engines_suffice(kind, [*profiles, profile]) for kind in _ENGINES)
        )

    def _engines_suffice(self, kind: str, profiles: Iterable[MigProfile]) -> bool:
        """The board has as many as its largest instance; 0 there: not told, not limited."""
        largest = max(self._gpu.mig_profiles, key=lambda profile: profile.placements[0].size)
        available: int = getattr(largest, kind)
        return not available or sum(getattr(profile, kind) for profile in profiles) <= available

    def _free_id(self, placement: MigPlacement) -> int:
        """As drivers number instances: by halves, quarters and so on of the GPU, then by place."""
        slices = self._gpu.memory_slices
        taken = {instance.id for instance in self.state.instances}
        number = slices // placement.size - 1 + placement.start // placement.size
        while number in taken:
            number += 1
        return number

    def _profile(self, profile_id: int) -> MigProfile | None:
        return next((profile for profile in self._gpu.mig_profiles if profile.profile_id == profile_id), None)

    def _instance(self, gpu_instance_id: int) -> Instance | None:
        return next((instance for instance in self.state.instances if instance.id == gpu_instance_id), None)

    def _switch(self, *, enabled: bool) -> None:
        """The new mode is in force. Instances never outlive that."""
        state = self.state
        state.mig = state.mig_pending = enabled
        state.instances = []
        state.processes = []

    def _require_mig(self, action: str) -> None:
        if self._gpu.mig_mode == "unsupported":
            raise self._error(NvmlCode.NOT_SUPPORTED, action)

    def _require_idle(
        self, action: str, *, gpu_instance_id: int | None = None, compute_instance_id: int | None = None
    ) -> None:
        """No process computes there: on the whole GPU where no instance is named."""
        pids = [
            str(process.pid)
            for process in self.state.processes
            if gpu_instance_id in (None, process.gpu_instance_id)
            and compute_instance_id in (None, process.compute_instance_id)
        ]
        if pids:
            raise self._error(NvmlCode.IN_USE, action, f"in use by pid {', '.join(pids)}")

    def _error(self, code: NvmlCode, action: str, text: str = "") -> Exception:
        return action_error(code, label=self._gpu.uuid, action=action, text=text)
