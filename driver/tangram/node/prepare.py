"""Preparing and unpreparing claims, each under its locks: what is checked before its steps are carried out.

A claim's files are touched only under the lock of that claim; new holds are taken, and hardware is changed,
only under the locks of their GPUs. Work that has begun is finished even if its caller is cancelled, so that
no lock is freed under a running step.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from tangram.base.errors import DriverUnavailableError, GpuLostError, StateError
from tangram.base.logs import get_logger
from tangram.kube.objects import DeviceAllocationResult, ResourceClaim
from tangram.model.gpu import GpuUuid
from tangram.node.cdifile import CdiFiles
from tangram.node.guard import GpuTotals, refuse_lost_hold, refuse_overlap
from tangram.node.held import ComputeModeStep, Damage, HeldClaim
from tangram.node.heldstore import HeldStore
from tangram.node.inventory import Inventory, Policy
from tangram.node.locks import Locks
from tangram.node.parameters import check_demands, demands_of
from tangram.node.request import claim_label, holds, intent, own_results
from tangram.node.transaction import Hardware, Transaction, Warn

_log = get_logger("node")

T = TypeVar("T")


class Preparer:
    """Holds devices for claims. Calls for different claims run at the same time.

    `hardware.inventory` gives the GPUs as known now, None before the first discovery. `set_aside` is told of
    each held file that could not be used: damage and new path; `warn` of what users should hear.
    """

    def __init__(
        self,
        *,
        pool: str,
        store: HeldStore,
        cdi: CdiFiles,
        locks: Locks,
        hardware: Hardware,
        policy: Policy,
        set_aside: Callable[[Damage, str], None],
        warn: Warn,
    ) -> None:
        self._pool = pool
        self._boot_id = hardware.boot_id
        self._store = store
        self._cdi = cdi
        self._locks = locks
        self._inventory = hardware.inventory
        self._mps = hardware.mps
        self._notes = hardware.notes
        self._set_aside = set_aside
        self._transaction = Transaction(store=store, cdi=cdi, hardware=hardware, policy=policy, warn=warn)
        self._running: set[asyncio.Task[Any]] = set()

    async def prepare(self, claim: ResourceClaim) -> tuple[HeldClaim, bool]:
        """Makes the claim's devices usable; returns what is held and whether that is new.

        Repeating it gives the same. Raises TangramError for what the claim, another holder, the GPU or the
        disk does not allow; then nothing is held that was not held before.
        """
        results = own_results(claim, pool=self._pool)
        return await self._to_the_end(self._prepare(claim, results))

    async def unprepare(self, uid: str) -> HeldClaim | None:
        """Lets go of the claim's devices; returns what was held, None for an unknown claim (no error)."""
        return await self._to_the_end(self._unprepare(uid))

    async def rebuild(self, claim: ResourceClaim) -> bool:
        """Holds again what a claim has whose held file was lost, as its CDI file tells; whether it did.

        Containers may run with it: a GPU that fell ill is held too, and nothing is undone on failure.
        """
        results = own_results(claim, pool=self._pool)
        return await self._to_the_end(self._rebuild(claim, results))

    async def settle(self, uid: str) -> None:
        """Undoes what was begun for a claim and not finished: its writer is dead, else it had the lock."""
        await self._to_the_end(self._settle(uid))

    async def restore(self, uid: str) -> None:
        """Writes the CDI file of a prepared claim again if it is missing or different."""
        await self._to_the_end(self._restore(uid))

    async def expel_strays(self) -> list[str]:
        """Removes members of MPS daemons that no held file knows; returns their claims. Raises StateError."""
        contents = await asyncio.to_thread(self._store.load)
        known = {*contents.claims, *contents.damaged, *await asyncio.to_thread(self._cdi.uids)}
        strays = await asyncio.to_thread(self._mps.stray, known)
        return [uid for gpu, uid in strays if await self._to_the_end(self._expel(gpu, uid))]

    async def indebted(self) -> list[GpuUuid]:
        """GPUs to which something is owed (`tangram.node.gpunotes`). Raises StateError."""
        return await asyncio.to_thread(self._notes.gpus)

    async def settle_gpu(self, gpu: GpuUuid) -> None:
        """Does what is owed to a GPU and nobody needs any more; nothing while it is lost. Raises
        HardwareError, StateError."""
        await self._to_the_end(self._settle_gpu(gpu))

    async def vanished(self, held: HeldClaim) -> list[str]:
        """Devices of a prepared claim whose MIG instances somebody has destroyed. Raises HardwareError."""
        return [device.device for device in await self._transaction.mig.missing(held)]

    async def examine(self, uid: str, *, newer: bool) -> None:
        """Sets a damaged held file aside; one of a newer version only with `newer`."""
        await self._to_the_end(self._examine(uid, newer=newer))

    async def drop_cdi(self, uid: str) -> bool:
        """Removes the CDI file of a claim that is not held; returns whether it did."""
        return await self._to_the_end(self._drop_cdi(uid))

    async def _prepare(
        self, claim: ResourceClaim, results: Sequence[DeviceAllocationResult]
    ) -> tuple[HeldClaim, bool]:
        uid = claim.metadata.uid
        async with self._locks.claim(uid):
            held = await self._current(uid)
            if held is not None and self._stands(held, results) and await self._is_there(held):
                await self._restore_cdi(held)
                return held, False
            inventory = self._known_gpus(claim)
            wanted = self._wanted(claim, results, inventory)
            async with self._locks.gpus(wanted.gpus | (held.gpus if held else frozenset())):
                if (now := self._known_gpus(claim)) is not inventory:
                    # Others may have had the GPU for long: it may be drained by now, or ill.
                    inventory, wanted = now, self._wanted(claim, results, now)
                return await self._take(wanted, held, inventory), True

    def _wanted(
        self, claim: ResourceClaim, results: Sequence[DeviceAllocationResult], inventory: Inventory
    ) -> HeldClaim:
        """What the claim is to hold. Raises for what it must not have, of these GPUs."""
        demands = demands_of(claim, results)
        shares = {request: demand.share for request, demand in demands.items()}
        wanted = intent(claim, results, inventory, boot_id=self._boot_id, shares=shares)
        check_demands(claim, demands, results, inventory)
        return wanted

    async def _rebuild(self, claim: ResourceClaim, results: Sequence[DeviceAllocationResult]) -> bool:
        uid = claim.metadata.uid
        async with self._locks.claim(uid):
            if await asyncio.to_thread(self._store.read, uid) is not None:
                return False
            inventory = self._known_gpus(claim)
            shares = {request: demand.share for request, demand in demands_of(claim, results).items()}
            wanted = intent(claim, results, inventory, boot_id=self._boot_id, shares=shares, in_use=True)
            async with self._locks.gpus(wanted.gpus):
                await asyncio.to_thread(self._refuse_overlap, wanted, inventory)
                # Without an intent: it would have the next process undo what containers use.
                await self._transaction.adopt(wanted, inventory)
            return True

    def _known_gpus(self, claim: ResourceClaim) -> Inventory:
        inventory = self._inventory()
        if inventory is None:
            raise DriverUnavailableError(
                f"{claim_label(claim)}: the GPUs of this node are not known yet",
                next_step="see the node plugin's log for the GPU driver; the kubelet tries again",
            )
        return inventory

    async def _is_there(self, held: HeldClaim) -> bool:
        """Whether the hardware still has what was made for a claim."""
        return held.is_whole_gpus or not await self._transaction.mig.missing(held)

    def _stands(self, held: HeldClaim, results: Sequence[DeviceAllocationResult]) -> bool:
        """Whether a claim is prepared as asked, in this life of the kernel."""
        return (
            held.phase == "prepared"
            and held.result is not None
            and held.boot_id == self._boot_id
            and holds(held, results)
        )

    async def _take(self, wanted: HeldClaim, before: HeldClaim | None, inventory: Inventory) -> HeldClaim:
        if before is not None:
            # Half done, of another boot, or of an allocation that was taken back: the kubelet would not ask
            # again if containers still ran with it.
            _log.info("claim_prepared_anew", claim=before.label, phase=before.phase)
            await self._transaction.undo(before)
        if self._transaction.is_files_alone(wanted):
            return await asyncio.to_thread(self._take_files, wanted, inventory)
        await asyncio.to_thread(self._refuse_overlap, wanted, inventory)
        return await self._transaction.make(wanted, inventory)

    def _take_files(self, wanted: HeldClaim, inventory: Inventory) -> HeldClaim:
        self._refuse_overlap(wanted, inventory)
        return self._transaction.make_files(wanted, inventory)

    def _refuse_overlap(self, wanted: HeldClaim, inventory: Inventory) -> None:
        contents = self._store.load()
        refuse_overlap(wanted, contents.claims.values(), _totals(wanted, inventory))
        # A claim whose held file was lost or damaged still has its CDI file, until a reconcile pass has
        # rebuilt the one or removed the other.
        for uid in self._cdi.uids() - contents.claims.keys() - {wanted.uid}:
            gpus = self._cdi.gpus(uid, inventory)
            refuse_lost_hold(wanted, uid=uid, gpus=gpus, owner=self._cdi.owner(uid))

    async def _unprepare(self, uid: str) -> HeldClaim | None:
        async with self._locks.claim(uid):
            held = await self._current(uid)
            if held is None:
                await asyncio.to_thread(self._cdi.remove, uid)
                return None
            async with self._locks.gpus(held.gpus):
                await self._transaction.release(held)
            return held

    async def _settle(self, uid: str) -> None:
        async with self._locks.claim(uid):
            held = await asyncio.to_thread(self._store.read, uid)
            if isinstance(held, HeldClaim) and held.phase != "prepared":
                async with self._locks.gpus(held.gpus):
                    await self._transaction.undo(held)
                _log.info("half_done_claim_undone", claim=held.label, phase=held.phase)

    async def _settle_gpu(self, gpu: GpuUuid) -> None:
        async with self._locks.gpus([gpu]):
            needed = await asyncio.to_thread(self._needs_mode, gpu)
            with contextlib.suppress(GpuLostError, DriverUnavailableError):  # owed still, and told elsewhere
                await self._transaction.settle(gpu, mode_needed=needed)

    def _needs_mode(self, gpu: GpuUuid) -> bool:
        """Whether a claim needs the compute mode of the GPU, or one may whose held file was lost or cannot be
        read."""
        contents = self._store.load()
        orphans = self._cdi.uids() - contents.claims.keys()
        steps = [step for held in contents.claims.values() for step in held.undo]
        return bool(
            contents.damaged
            or any(isinstance(step, ComputeModeStep) and step.uuid == gpu for step in steps)
            or any(gpu in self._cdi.gpus(uid, self._inventory()) for uid in orphans)
        )

    async def _restore(self, uid: str) -> None:
        async with self._locks.claim(uid):
            held = await asyncio.to_thread(self._store.read, uid)
            if isinstance(held, HeldClaim) and held.phase == "prepared":
                await self._restore_cdi(held)

    async def _restore_cdi(self, held: HeldClaim) -> None:
        """Of another boot only whole GPUs are told: the rest is gone until the kubelet prepares again."""
        inventory = self._inventory()
        if held.is_whole_gpus:
            await asyncio.to_thread(self._cdi.restore, held, inventory)
        elif held.boot_id == self._boot_id:
            extras = await self._transaction.extras(held, inventory)
            await asyncio.to_thread(self._cdi.restore, held, inventory, extras)

    async def _examine(self, uid: str, *, newer: bool) -> None:
        async with self._locks.claim(uid):
            damage = await asyncio.to_thread(self._store.read, uid)
            if isinstance(damage, Damage) and (newer or not damage.newer):
                await self._put_aside(damage)

    async def _drop_cdi(self, uid: str) -> bool:
        async with self._locks.claim(uid):
            if await asyncio.to_thread(self._store.read, uid) is not None:
                return False
            await asyncio.to_thread(self._cdi.remove, uid)
            return True

    async def _expel(self, gpu: GpuUuid, uid: str) -> bool:
        async with self._locks.claim(uid), self._locks.gpus([gpu]):
            if await asyncio.to_thread(self._store.read, uid) is not None:
                return False
            await asyncio.to_thread(self._mps.expel, gpu, uid)
            return True

    async def _current(self, uid: str) -> HeldClaim | None:
        """The claim's held state; a damaged file is set aside and counts as none."""
        # Without a thread: a small file, of a directory whose lock files are opened here as well.
        held = self._store.read(uid)
        if not isinstance(held, Damage):
            return held
        if held.newer:
            raise StateError(
                f"the held state of claim uid {uid} was written by a newer Tangram: {held.cause}",
                next_step="let the newer node plugin handle it, or restart this one to set the file aside",
            )
        await self._put_aside(held)
        return None

    async def _put_aside(self, damage: Damage) -> None:
        path = await asyncio.to_thread(self._store.set_aside, damage.uid)
        self._set_aside(damage, str(path))

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.debug("claim_work_failed", error=str(error))  # also where its caller is gone


def _totals(wanted: HeldClaim, inventory: Inventory) -> dict[str, GpuTotals]:
    return {
        gpu.uuid: GpuTotals(memory_bytes=gpu.memory_bytes, replicas=inventory.policy.replicas)
        for device in wanted.devices
        if device.share is not None and (gpu := inventory.gpu(device.uuid)) is not None
    }
