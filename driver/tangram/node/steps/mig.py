"""MIG instances: made when a claim needs one, destroyed when it ends; those of others are never touched."""

import asyncio
from collections.abc import Iterable

import msgspec

from tangram.base.backoff import Backoff
from tangram.base.clock import Clock
from tangram.base.errors import (
    ClaimNotPreparableError,
    DriverUnavailableError,
    GpuBusyError,
    GpuLostError,
    HardwareError,
    NoRoomError,
    NotSupportedError,
)
from tangram.base.logs import get_logger
from tangram.hardware.workers import Workers
from tangram.model.gpu import GpuUuid
from tangram.model.mig import GpuInstance, MigPlacement
from tangram.node.gpunotes import GpuNotes
from tangram.node.held import HeldClaim, HeldDevice, MigStep
from tangram.node.steps.connected import connected
from tangram.node.steps.hung import refuse_while_hung
from tangram.node.steps.journal import Journal

_log = get_logger("node")

BUSY_FOR_S = 6.0
"""How long a destroy is repeated while the driver says IN_USE: it does for a second or two after the last
process has ended, and while a monitor looks."""


class MigInstances:
    """The instances of this node's GPUs. `boot_id`: instances do not outlive a reboot."""

    def __init__(self, workers: Workers, notes: GpuNotes, *, clock: Clock, boot_id: str) -> None:
        self._workers = workers
        self._notes = notes
        self._clock = clock
        self._boot_id = boot_id

    async def make(self, device: HeldDevice, journal: Journal) -> None:
        """Makes the instance of a device, and notes its ids and UUID. Raises HardwareError, StateError."""
        assert device.mig is not None  # of every MIG device
        uuid, placement = GpuUuid(device.uuid), device.mig.placement
        there = await self._workers.gpu_instances(uuid)
        if taken := [each for each in there if each.placement.mask & placement.mask]:
            raise NoRoomError(
                f"{device.device}: its memory slices on GPU {uuid} are taken by {_described(taken)}",
                next_step="whoever made these instances must remove them; the node publishes what is left",
            )
        step = MigStep(
            device=device.device,
            uuid=uuid,
            profile_id=device.mig.profile_id,
            start=placement.start,
            size=placement.size,
            before=tuple((each.gpu_instance_id, each.placement.start) for each in there),
        )
        await journal.add(step)
        gpu_instance_id = await self._workers.create_gpu_instance(
            uuid, profile_id=step.profile_id, placement=placement
        )
        made = await self._workers.create_compute_instance(uuid, gpu_instance_id=gpu_instance_id)
        await journal.amend(
            step,
            by=msgspec.structs.replace(
                step,
                gpu_instance_id=gpu_instance_id,
                compute_instance_id=made.compute_instance_id,
                mig_uuid=made.uuid,
            ),
        )

    async def undo(self, held: HeldClaim, step: MigStep) -> None:
        """Destroys the instance, if it is there. Raises HardwareError, GpuBusyError while it is in use."""
        if held.boot_id != self._boot_id:
            return
        try:
            await self._destroy_own(step)
        except (DriverUnavailableError, GpuLostError) as error:
            # No instance outlives its driver, nor a reset of its GPU; but a GPU may come back without one.
            _log.warning("mig_instance_gone_with_gpu", claim=held.label, gpu=step.uuid, error=error.cause)
            if step.mig_uuid:  # else nothing proves then that what lies in this place is ours
                await asyncio.to_thread(self._notes.owe_instance, step)

    async def settle(self, gpu: GpuUuid) -> None:
        """Destroys what is owed of instances whose claims have ended. Raises HardwareError, StateError."""
        for step in (await asyncio.to_thread(self._notes.read, gpu)).instances:
            await self._destroy_own(step)
            await asyncio.to_thread(self._notes.pay_instance, step)

    async def _destroy_own(self, step: MigStep) -> None:
        uuid = GpuUuid(step.uuid)
        refuse_while_hung(self._workers, uuid)
        try:
            there = await connected(self._workers, lambda: self._workers.gpu_instances(uuid))
        except NotSupportedError:
            return  # no instance outlives MIG mode
        if (instance := own_instance(step, there)) is not None:
            await self._destroy(uuid, instance)
            _log.info("mig_instance_destroyed", gpu=uuid, device=step.device)

    async def find(self, device: HeldDevice, held: HeldClaim) -> tuple[str, int, int]:
        """UUID, GPU instance id and compute instance id of a device's instance, as it is now.

        ClaimNotPreparableError if it is not there (any more).
        """
        step = next(
            (each for each in held.undo if isinstance(each, MigStep) and each.device == device.device), None
        )
        if step is not None and step.gpu_instance_id is not None and step.compute_instance_id is not None:
            return step.mig_uuid, step.gpu_instance_id, step.compute_instance_id
        assert device.mig is not None  # of every MIG device
        for instance in await self._workers.gpu_instances(GpuUuid(device.uuid)):
            for compute in instance.compute_instances:
                if compute.uuid == device.mig.foreign or (
                    device.admin_access
                    and instance.placement == device.mig.placement
                    and instance.profile_id == device.mig.profile_id
                ):
                    return compute.uuid, instance.gpu_instance_id, compute.compute_instance_id
        raise ClaimNotPreparableError(
            f"{held.label}: the MIG instance of {device.device} is not there (any more)",
            next_step="delete the pod, so that it is placed again",
        )

    async def missing(self, held: HeldClaim) -> list[HeldDevice]:
        """Devices of a prepared claim whose instances somebody has destroyed. Raises HardwareError."""
        if held.boot_id != self._boot_id:
            return []
        missing = []
        for device in held.devices:
            if device.mig is None or device.admin_access:
                continue
            try:
                uuid, *_ = await self.find(device, held)
            except ClaimNotPreparableError:
                missing.append(device)
                continue
            there = await self._workers.gpu_instances(GpuUuid(device.uuid))
            if not any(each.uuid == uuid for instance in there for each in instance.compute_instances):
                missing.append(device)
        return missing

    async def adopt(self, held: HeldClaim, mig_uuids: Iterable[str]) -> HeldClaim:
        """The claim with the steps of instances that exist, by their UUIDs: its held file was lost.

        One that counts as foreign by now stays so: nothing proves that it is ours. ClaimNotPreparableError if
        one is not there.
        """
        known = set(mig_uuids)
        steps: list[MigStep] = []
        for device in held.devices:
            if device.mig is None or device.mig.foreign or device.admin_access:
                continue
            instance = next(
                (
                    each
                    for each in await self._workers.gpu_instances(GpuUuid(device.uuid))
                    if each.placement == device.mig.placement
                    and any(compute.uuid in known for compute in each.compute_instances)
                ),
                None,
            )
            if instance is None:
                raise ClaimNotPreparableError(
                    f"{held.label}: the MIG instance of {device.device} is not there (any more)",
                    next_step="delete the pod, so that it is placed again",
                )
            compute = instance.compute_instances[0]
            steps.append(
                MigStep(
                    device=device.device,
                    uuid=device.uuid,
                    profile_id=instance.profile_id,
                    start=instance.placement.start,
                    size=instance.placement.size,
                    gpu_instance_id=instance.gpu_instance_id,
                    compute_instance_id=compute.compute_instance_id,
                    mig_uuid=compute.uuid,
                )
            )
        return msgspec.structs.replace(held, undo=(*steps, *held.undo))

    async def _destroy(self, uuid: GpuUuid, instance: GpuInstance) -> None:
        deadline_s = self._clock.monotonic_s() + BUSY_FOR_S
        backoff = Backoff(initial_s=0.25, maximum_s=1.0)
        while True:
            try:
                # The compute instance may be gone already, and its GPU instance busy for a while yet.
                for compute in instance.compute_instances:
                    await self._workers.destroy_compute_instance(
                        uuid,
                        gpu_instance_id=instance.gpu_instance_id,
                        compute_instance_id=compute.compute_instance_id,
                    )
                await self._workers.destroy_gpu_instance(uuid, gpu_instance_id=instance.gpu_instance_id)
            except GpuBusyError as error:
                if self._clock.monotonic_s() >= deadline_s:
                    raise await self._busy(uuid, instance, error) from error
            else:
                return
            await self._clock.sleep(backoff.next_s())

    async def _busy(self, uuid: GpuUuid, instance: GpuInstance, error: GpuBusyError) -> GpuBusyError:
        try:
            processes = await self._workers.processes(uuid)
        except HardwareError:
            processes = ()
        pids = [
            str(process.pid)
            for process in processes
            if process.gpu_instance_id in (None, instance.gpu_instance_id)
        ]
        held_by = f"held by pid {', '.join(pids)}" if pids else "no process is seen on it"
        return GpuBusyError(
            f"{_described([instance])} of GPU {uuid} is in use for more than {BUSY_FOR_S:g} s after its claim"
            f" ended ({held_by}): {error.cause}",
            next_step="end these processes (monitoring, a leftover container); the node plugin tries again",
        )


def own_instance(step: MigStep, there: Iterable[GpuInstance]) -> GpuInstance | None:
    """The instance that a step has made; None if there is none, or another's has taken its place.

    At the noted intent nothing lay in this place: what lies there now is ours, unless it was there before.
    """
    place = MigPlacement(step.start, step.size)
    for instance in there:
        if instance.placement != place or instance.profile_id != step.profile_id:
            continue
        if step.gpu_instance_id is None:
            return None if (instance.gpu_instance_id, step.start) in step.before else instance
        if instance.gpu_instance_id != step.gpu_instance_id:
            return None
        uuids = [compute.uuid for compute in instance.compute_instances]
        return instance if not uuids or uuids == [step.mig_uuid] else None
    return None


def foreign_instances(
    there: Iterable[GpuInstance],
    *,
    uuid: str,
    claims: Iterable[HeldClaim],
    owed: Iterable[MigStep] = (),
) -> tuple[GpuInstance, ...]:
    """The instances on a GPU that no claim has made; `owed`: those that ended claims have left."""
    steps = [*owed, *(step for held in claims for step in held.undo if isinstance(step, MigStep))]
    instances = tuple(there)
    ours = {
        found.gpu_instance_id
        for step in steps
        if step.uuid == uuid and (found := own_instance(step, instances))
    }
    return tuple(each for each in instances if each.gpu_instance_id not in ours)


def _described(instances: Iterable[GpuInstance]) -> str:
    return ", ".join(
        f"GPU instance {each.gpu_instance_id} (slices {each.placement.start} to"
        f" {each.placement.start + each.placement.size - 1})"
        for each in instances
    )
