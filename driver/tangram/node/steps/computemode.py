"""The compute mode of a GPU: set for a claim, and set back to what it was before the first claim."""

import asyncio
from collections.abc import Sequence

from tangram.base.errors import DriverUnavailableError, GpuLostError, NotSupportedError
from tangram.base.logs import get_logger
from tangram.hardware.backend import ComputeMode
from tangram.hardware.workers import Workers
from tangram.model.gpu import GpuUuid
from tangram.node.gpunotes import GpuNotes
from tangram.node.held import ComputeModeStep, HeldClaim, Step
from tangram.node.heldstore import HeldStore
from tangram.node.steps.connected import connected
from tangram.node.steps.hung import refuse_while_hung
from tangram.node.steps.journal import Journal

_log = get_logger("node")


class ComputeModes:
    """The compute modes of this node's GPUs. Several claims may share a GPU, and need the same mode: the
    first saves what it found, the last puts it back. A reboot does that by itself.
    """

    def __init__(self, workers: Workers, store: HeldStore, notes: GpuNotes, *, boot_id: str) -> None:
        self._workers = workers
        self._store = store
        self._notes = notes
        self._boot_id = boot_id

    async def set(self, gpu: GpuUuid, wanted: ComputeMode, journal: Journal, *then: Step) -> None:
        """Sets the mode and notes the one before, with the steps that come `then`. Raises HardwareError,
        StateError."""
        others, owed = await asyncio.to_thread(self._known, gpu, journal.held)
        now = await self._workers.compute_mode(gpu)
        step = ComputeModeStep(uuid=gpu, before=_before(others, owed, now), wanted=wanted)
        await journal.add(step, *then)
        if owed != step:
            await asyncio.to_thread(self._notes.owe_mode, gpu, step)
        if now != wanted:
            await self._workers.set_compute_mode(gpu, wanted)

    async def adopt(self, gpu: GpuUuid, wanted: ComputeMode, held: HeldClaim) -> ComputeModeStep:
        """The step of a claim whose held file was lost. Where neither another claim nor a note of the GPU
        tells what the mode was before, it counts as the default: a GPU that stays exclusive could not be
        shared any more. StateError.
        """
        others, owed = await asyncio.to_thread(self._known, gpu, held)
        before = _before(others, owed, wanted)
        return ComputeModeStep(uuid=gpu, before="default" if before == wanted else before, wanted=wanted)

    async def undo(self, held: HeldClaim, step: ComputeModeStep) -> None:
        """Puts the mode back, unless other claims need it still, or somebody else has changed it since.

        Raises HardwareError, StateError.
        """
        gpu = GpuUuid(step.uuid)
        if held.boot_id != self._boot_id or (await asyncio.to_thread(self._known, gpu, held))[0]:
            return
        try:
            await self._put_back(gpu, step)
        except (DriverUnavailableError, GpuLostError) as error:
            # The mode does not outlive the driver, nor a reset of the GPU; but a GPU may come back without.
            _log.warning("compute_mode_gone_with_gpu", gpu=gpu, error=error.cause)
            await asyncio.to_thread(self._notes.owe_mode, gpu, step)

    async def settle(self, gpu: GpuUuid) -> None:
        """Puts back the mode of a GPU that no claim uses, where that is still owed. Raises HardwareError,
        StateError."""
        step = (await asyncio.to_thread(self._notes.read, gpu)).compute_mode
        if step is not None:
            await self._put_back(gpu, step)

    async def _put_back(self, gpu: GpuUuid, step: ComputeModeStep) -> None:
        refuse_while_hung(self._workers, gpu)
        try:
            now = await connected(self._workers, lambda: self._workers.compute_mode(gpu))
            if now == step.wanted != step.before:
                await self._workers.set_compute_mode(gpu, step.before)
            elif now not in (step.wanted, step.before):
                _log.warning("compute_mode_changed_by_others", gpu=gpu, mode=now, ours=step.wanted)
        except NotSupportedError as error:
            _log.warning("compute_mode_gone_with_gpu", gpu=gpu, error=error.cause)  # as in MIG mode
        await asyncio.to_thread(self._notes.owe_mode, gpu, None)

    def _known(self, gpu: GpuUuid, held: HeldClaim) -> tuple[list[ComputeModeStep], ComputeModeStep | None]:
        """The steps of other claims on this GPU, and what is noted as owed to it. Blocking."""
        others = [
            step
            for other in self._store.load().claims.values()
            if other.uid != held.uid and other.boot_id == self._boot_id
            for step in other.undo
            if isinstance(step, ComputeModeStep) and step.uuid == gpu
        ]
        return others, self._notes.read(gpu).compute_mode


def _before(others: Sequence[ComputeModeStep], owed: ComputeModeStep | None, now: ComputeMode) -> ComputeMode:
    """What the mode was before any claim of ours, where it is `now`."""
    if others:
        return others[0].before
    return owed.before if owed is not None and owed.wanted == now else now
