"""The steps of a claim, carried out in order and undone backwards.

    intent → MIG mode → MIG instances / compute mode / MPS → CDI file → commit

A claim for whole GPUs, by default, is files alone: no call of the driver, and one thread does it all.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from tangram.base.clock import Clock
from tangram.base.errors import (
    DriverUnavailableError,
    HardwareError,
    PrepareError,
    StateError,
    TangramError,
)
from tangram.base.logs import get_logger
from tangram.hardware.cdi import cdi_device_id
from tangram.hardware.workers import Workers
from tangram.model.gpu import Gpu, GpuUuid
from tangram.node.cdifile import CdiFiles, Extra
from tangram.node.gpunotes import GpuNotes
from tangram.node.held import (
    CdiStep,
    ComputeModeStep,
    HeldClaim,
    HeldDevice,
    HeldResult,
    MigStep,
    MpsStep,
    Step,
)
from tangram.node.heldstore import HeldStore
from tangram.node.inventory import Inventory, Policy
from tangram.node.steps.computemode import ComputeModes
from tangram.node.steps.journal import Journal
from tangram.node.steps.leftovers import leftovers
from tangram.node.steps.mig import MigInstances
from tangram.node.steps.migmode import ensure_mig_mode
from tangram.node.steps.mps import MpsClients

_log = get_logger("node")

Reason = Literal["GpuNotEmpty", "MpsStarting"]
Warn = Callable[[HeldClaim, Reason, str], None]
"""Told of what a user should hear of a claim that is prepared all the same, or is about to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What steps act through. `rescan` looks at the GPUs anew, after a switch of the MIG mode; `veto` is told
    of a GPU whose mode could not be switched.
    """

    workers: Workers
    mps: MpsClients
    clock: Clock
    boot_id: str
    notes: GpuNotes
    rescan: Callable[[], Awaitable[None]]
    veto: Callable[[GpuUuid], None]
    inventory: Callable[[], Inventory | None]


class Transaction:
    """Carries out and undoes claims. The caller has the locks of the claim and of its GPUs."""

    def __init__(
        self, *, store: HeldStore, cdi: CdiFiles, hardware: Hardware, policy: Policy, warn: Warn
    ) -> None:
        self._store = store
        self._cdi = cdi
        self._hardware = hardware
        self._workers = hardware.workers
        self._policy = policy
        self._warn = warn
        boot_id, notes = hardware.boot_id, hardware.notes
        self.mig = MigInstances(hardware.workers, notes, clock=hardware.clock, boot_id=boot_id)
        self._compute = ComputeModes(hardware.workers, store, notes, boot_id=boot_id)

    def is_files_alone(self, held: HeldClaim) -> bool:
        """Whether making the claim takes no call of the driver, nor of a daemon."""
        quiet = not (
            self._policy.dynamic or self._policy.exclusive_compute_mode or self._policy.leftovers != "ignore"
        )
        return all(
            (device.admin_access and device.mig is None) or (quiet and device.kind in ("gpu", "timeslice"))
            for device in held.devices
        )

    def make_files(self, wanted: HeldClaim, inventory: Inventory) -> HeldClaim:
        """The whole of a claim that `is_files_alone`, in one durable write. Blocking. On an error all is
        undone that can be."""
        try:
            return self.commit(wanted, inventory, {})
        except TangramError:
            with contextlib.suppress(TangramError):
                self._undo_files(wanted)
            raise

    def commit(self, held: HeldClaim, inventory: Inventory, extras: dict[str, Extra]) -> HeldClaim:
        """CDI file and result of a claim whose hardware is as it should be. Blocking."""
        done = _done(held)
        if _has_only_files(held):
            # Nothing is on disk yet, and as it is written it stays: a CDI file can always be made from it.
            self._store.write(done)
            self._cdi.write(done, inventory, extras)
        else:
            self._cdi.write(held, inventory, extras)
            self._store.write(done)
        return done

    async def make(self, wanted: HeldClaim, inventory: Inventory) -> HeldClaim:
        """Carries out all steps. On an error all is undone that can be; the rest is on disk for later."""
        journal = Journal(self._store, wanted)
        try:
            for device in wanted.devices:
                if not device.admin_access:
                    await self._change(device, journal, inventory)
            held = journal.held
            inventory = self._hardware.inventory() or inventory
            return await asyncio.to_thread(self.commit, held, inventory, await self.extras(held, inventory))
        except TangramError:
            with contextlib.suppress(TangramError):
                await self.undo(journal.held)
            raise

    async def _change(self, device: HeldDevice, journal: Journal, inventory: Inventory) -> None:
        gpu = inventory.gpu(device.uuid)
        if gpu is None:
            raise DriverUnavailableError(f"GPU {device.uuid} is not there any more")
        if self._policy.dynamic or device.kind == "mig":
            await self._ensure_mig_mode(gpu, enabled=device.kind == "mig")
        if device.kind == "gpu":
            await self._hand_over(device, journal)
        elif device.kind == "mps":
            # One write for both steps: to leave a daemon that was never joined is no error.
            await self._compute.set(gpu.uuid, "exclusive_process", journal, MpsStep(uuid=gpu.uuid))
            await self._hardware.mps.join(
                device,
                claim_uid=journal.held.uid,
                slow=lambda text: self._warn(journal.held, "MpsStarting", text),
            )
        elif device.mig is not None and not device.mig.foreign:
            await self.mig.make(device, journal)

    async def _ensure_mig_mode(self, gpu: Gpu, *, enabled: bool) -> None:
        try:
            switched = await ensure_mig_mode(
                self._workers, gpu, enabled=enabled, dynamic=self._policy.dynamic
            )
        except HardwareError:
            self._hardware.veto(gpu.uuid)
            await self._hardware.rescan()
            raise
        if switched:
            await self._hardware.rescan()

    async def _hand_over(self, device: HeldDevice, journal: Journal) -> None:
        """A whole GPU: is it empty, and may one process alone use it."""
        gpu = GpuUuid(device.uuid)
        if self._policy.leftovers != "ignore" and (found := await leftovers(self._workers, gpu)):
            if self._policy.leftovers == "refuse":
                raise PrepareError(
                    found,
                    next_step="end these processes, or reset the GPU; see `leftovers` in the node's settings",
                )
            self._warn(journal.held, "GpuNotEmpty", f"handed over although {found}")
        if self._policy.exclusive_compute_mode:
            await self._compute.set(gpu, "exclusive_process", journal)

    async def extras(self, held: HeldClaim, inventory: Inventory | None) -> dict[str, Extra]:
        """What the CDI file says of devices beyond their GPUs. Raises HardwareError, ClaimNotPreparableError
        for an instance that is gone."""
        extras: dict[str, Extra] = {}
        for device in held.devices:
            if device.kind == "mps" and not device.admin_access:
                extras[device.device] = Extra(edits=self._hardware.mps.edits(device))
            elif device.mig is not None:
                gpu = inventory.gpu(device.uuid) if inventory else None
                if gpu is None:
                    raise DriverUnavailableError(
                        f"GPU {device.uuid} is not known (any more)",
                        next_step="see the node plugin's log for the GPU driver",
                    )
                mig_uuid, gpu_instance_id, compute_instance_id = await self.mig.find(device, held)
                nodes = await self._workers.mig_nodes(
                    gpu, gpu_instance_id=gpu_instance_id, compute_instance_id=compute_instance_id
                )
                extras[device.device] = Extra(mig_uuid=mig_uuid, device_nodes=nodes)
        return extras

    async def adopt(self, wanted: HeldClaim, inventory: Inventory) -> HeldClaim:
        """Holds what containers use already, from its CDI file: the held file was lost. Nothing is undone on
        failure. Raises HardwareError, StateError, ClaimNotPreparableError."""
        migs = await asyncio.to_thread(self._cdi.migs, wanted.uid)
        held = await self.mig.adopt(wanted, migs)
        steps: list[Step] = []
        for device in wanted.devices:
            mps = device.kind == "mps"
            if not device.admin_access and (
                mps or (device.kind == "gpu" and self._policy.exclusive_compute_mode)
            ):
                steps.append(await self._compute.adopt(GpuUuid(device.uuid), "exclusive_process", wanted))
                steps += [MpsStep(uuid=device.uuid)] if mps else []
        held = msgspec.structs.replace(held, undo=(*steps, *held.undo))
        return await asyncio.to_thread(self.commit, held, inventory, await self.extras(held, inventory))

    async def settle(self, gpu: GpuUuid, *, mode_needed: bool) -> None:
        """Does what is still owed to a GPU; its compute mode stays while a claim needs it. Raises
        HardwareError, StateError."""
        await self.mig.settle(gpu)
        if not mode_needed:
            await self._hardware.mps.ended(gpu)
            await self._compute.settle(gpu)

    async def release(self, held: HeldClaim) -> None:
        """Undoes a claim that ended. Raises HardwareError, StateError; then a later call goes on with it."""
        # Files alone need no note: until the held file is gone the claim is held, and can be whole again.
        if held.phase != "unpreparing" and not _has_only_files(held):
            held = msgspec.structs.replace(held, phase="unpreparing")
            await asyncio.to_thread(self._note_release, held)
        await self.undo(held)

    def _note_release(self, held: HeldClaim) -> None:
        try:
            self._store.write(held, durably=False)
        except StateError as error:
            # A full disk must not keep a pod from ending: every step can be repeated without this note.
            _log.warning("unprepare_not_noted", claim=held.label, error=str(error))

    async def undo(self, held: HeldClaim) -> None:
        """The steps backwards, the held file last. May be repeated. Raises HardwareError, StateError."""
        if _has_only_files(held):
            await asyncio.to_thread(self._undo_files, held)
            return
        for step in reversed(held.undo):
            match step:
                case CdiStep():
                    await asyncio.to_thread(self._cdi.remove, held.uid)
                case MigStep():
                    await self.mig.undo(held, step)
                case ComputeModeStep():
                    await self._compute.undo(held, step)
                case MpsStep():
                    await self._hardware.mps.undo(held, step)
        await asyncio.to_thread(self._store.remove, held.uid)

    def _undo_files(self, held: HeldClaim) -> None:
        if held.undo:
            self._cdi.remove(held.uid)
        self._store.remove(held.uid)


def _has_only_files(held: HeldClaim) -> bool:
    return all(isinstance(step, CdiStep) for step in held.undo)


def _done(held: HeldClaim) -> HeldClaim:
    """As it is held once all steps are carried out."""
    results = tuple(
        HeldResult(
            pool=device.pool,
            device=device.device,
            request_names=device.request_names,
            cdi_device_ids=(cdi_device_id(claim_uid=held.uid, device=device.device),),
            share_id=device.share_id,
        )
        for device in held.devices
    )
    return msgspec.structs.replace(held, phase="prepared", result=results)
