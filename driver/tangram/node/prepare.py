"""Preparing and unpreparing claims: durable steps under locks, each of which can be the last.

    check → intent (held file) → CDI file → commit (held file)

A claim's files are touched only under the lock of that claim; new holds are taken only under the locks of
their GPUs. Nothing here talks to hardware: the inventory says all that an exclusive GPU needs. Work that has
begun is finished even if its caller is cancelled, so that no lock is freed under a running step.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from tangram.base.errors import DriverUnavailableError, StateError, TangramError
from tangram.base.logs import get_logger
from tangram.hardware.cdi import cdi_device_id
from tangram.kube.objects import DeviceAllocationResult, ResourceClaim
from tangram.node.cdifile import CdiFiles
from tangram.node.held import Damage, HeldClaim, HeldResult, HeldStore
from tangram.node.inventory import Inventory
from tangram.node.locks import Locks
from tangram.node.parameters import check_parameters
from tangram.node.request import claim_label, holds, intent, own_results, refuse_lost_hold, refuse_overlap

_log = get_logger("node")

T = TypeVar("T")


class Preparer:
    """Holds devices for claims. Calls for different claims run at the same time.

    `inventory` gives the GPUs as known now, None before the first discovery. `set_aside` is told of each held
    file that could not be used: damage and new path.
    """

    def __init__(
        self,
        *,
        pool: str,
        boot_id: str,
        store: HeldStore,
        cdi: CdiFiles,
        locks: Locks,
        inventory: Callable[[], Inventory | None],
        set_aside: Callable[[Damage, str], None],
    ) -> None:
        self._pool = pool
        self._boot_id = boot_id
        self._store = store
        self._cdi = cdi
        self._locks = locks
        self._inventory = inventory
        self._set_aside = set_aside
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
            if held is not None and self._stands(held, results):
                await asyncio.to_thread(self._cdi.restore, held, self._inventory())
                return held, False
            inventory = self._known_gpus(claim)
            wanted = intent(claim, results, inventory, boot_id=self._boot_id)
            check_parameters(claim, results, inventory)
            async with self._locks.gpus(wanted.gpus | (held.gpus if held else frozenset())):
                return await asyncio.to_thread(self._take, wanted, held, inventory), True

    async def _rebuild(self, claim: ResourceClaim, results: Sequence[DeviceAllocationResult]) -> bool:
        uid = claim.metadata.uid
        async with self._locks.claim(uid):
            if await asyncio.to_thread(self._store.read, uid) is not None:
                return False
            inventory = self._known_gpus(claim)
            wanted = intent(claim, results, inventory, boot_id=self._boot_id, in_use=True)
            async with self._locks.gpus(wanted.gpus):
                # Without an intent: it would have the next process undo what containers use.
                await asyncio.to_thread(self._refuse_overlap, wanted)
                await asyncio.to_thread(self._complete, wanted, inventory)
            return True

    def _known_gpus(self, claim: ResourceClaim) -> Inventory:
        inventory = self._inventory()
        if inventory is None:
            raise DriverUnavailableError(
                f"{claim_label(claim)}: the GPUs of this node are not known yet",
                next_step="see the node plugin's log for the GPU driver; the kubelet tries again",
            )
        return inventory

    def _stands(self, held: HeldClaim, results: Sequence[DeviceAllocationResult]) -> bool:
        """Whether a claim is prepared as asked, in this life of the kernel."""
        return (
            held.phase == "prepared"
            and held.result is not None
            and held.boot_id == self._boot_id
            and holds(held, results)
        )

    def _take(self, wanted: HeldClaim, before: HeldClaim | None, inventory: Inventory) -> HeldClaim:
        if before is not None:
            # Half done, of another boot, or of an allocation that was taken back: the kubelet would not ask
            # again if containers still ran with it.
            _log.info("claim_prepared_anew", claim=before.label, phase=before.phase)
            self._undo(before)
        self._refuse_overlap(wanted)
        try:
            self._store.write(wanted)
            return self._complete(wanted, inventory)
        except TangramError:
            # What cannot be undone now is undone by the next reconcile pass: the intent is on disk.
            with contextlib.suppress(TangramError):
                self._undo(wanted)
            raise

    def _refuse_overlap(self, wanted: HeldClaim) -> None:
        contents = self._store.load()
        refuse_overlap(wanted, contents.claims.values())
        # A claim whose held file was lost or damaged still has its CDI file, until a reconcile pass has
        # rebuilt the one or removed the other.
        for uid in self._cdi.uids() - contents.claims.keys() - {wanted.uid}:
            refuse_lost_hold(wanted, uid=uid, gpus=self._cdi.gpus(uid), owner=self._cdi.owner(uid))

    def _complete(self, wanted: HeldClaim, inventory: Inventory) -> HeldClaim:
        """The steps after the intent."""
        self._cdi.write(wanted, inventory)
        done = msgspec.structs.replace(wanted, phase="prepared", result=_results(wanted))
        self._store.write(done)
        return done

    async def _unprepare(self, uid: str) -> HeldClaim | None:
        async with self._locks.claim(uid):
            held = await self._current(uid)
            if held is None:
                await asyncio.to_thread(self._cdi.remove, uid)
                return None
            async with self._locks.gpus(held.gpus):
                await asyncio.to_thread(self._release, held)
            return held

    def _release(self, held: HeldClaim) -> None:
        if held.phase != "unpreparing":
            try:
                self._store.write(msgspec.structs.replace(held, phase="unpreparing"))
            except StateError as error:
                # A full disk must not keep a pod from ending: every step can be repeated without this note.
                _log.warning("unprepare_not_noted", claim=held.label, error=str(error))
        self._undo(held)

    def _undo(self, held: HeldClaim) -> None:
        """The steps backwards, the held file last."""
        for _step in reversed(held.undo):
            self._cdi.remove(held.uid)
        self._store.remove(held.uid)

    async def _settle(self, uid: str) -> None:
        async with self._locks.claim(uid):
            held = await asyncio.to_thread(self._store.read, uid)
            if isinstance(held, HeldClaim) and held.phase != "prepared":
                async with self._locks.gpus(held.gpus):
                    await asyncio.to_thread(self._undo, held)
                _log.info("half_done_claim_undone", claim=held.label, phase=held.phase)

    async def _restore(self, uid: str) -> None:
        async with self._locks.claim(uid):
            held = await asyncio.to_thread(self._store.read, uid)
            if isinstance(held, HeldClaim) and held.phase == "prepared":
                await asyncio.to_thread(self._cdi.restore, held, self._inventory())

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


def _results(held: HeldClaim) -> tuple[HeldResult, ...]:
    return tuple(
        HeldResult(
            pool=device.pool,
            device=device.device,
            request_names=device.request_names,
            cdi_device_ids=(cdi_device_id(claim_uid=held.uid, device=device.device),),
            share_id=device.share_id,
        )
        for device in held.devices
    )
