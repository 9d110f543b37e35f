"""Shares by MPS: a claim joins its GPU's daemon, and leaves it when it ends."""

import asyncio
from collections.abc import Callable

from tangram.hardware.cdi import CdiEdits
from tangram.hardware.mps.directory import MpsDirectory
from tangram.hardware.mps.values import MpsShare
from tangram.model.gpu import GpuUuid
from tangram.node.held import HeldClaim, HeldDevice, MpsStep


class MpsClients:
    """The claims that share GPUs of this node through MPS. Daemons are kept by `tangram mps run`."""

    def __init__(self, directory: MpsDirectory) -> None:
        self._directory = directory

    async def join(self, device: HeldDevice, *, claim_uid: str, slow: Callable[[str], None]) -> None:
        """Joins, and waits until the daemon serves the claim's share; `slow` is told if that takes long.

        The journal has the step already. Raises HardwareError, StateError.
        """
        gpu = GpuUuid(device.uuid)
        await asyncio.to_thread(self._directory.join, gpu, claim_uid=claim_uid, share=_share(device))
        await self._directory.ready(gpu, slow=slow)

    async def undo(self, held: HeldClaim, step: MpsStep) -> None:
        """Leaves; waits for the end of a daemon that nobody else uses. HardwareTimeoutError, StateError."""
        gpu = GpuUuid(step.uuid)
        await asyncio.to_thread(self._directory.leave, gpu, claim_uid=held.uid)
        await self._directory.gone(gpu)

    async def ended(self, gpu: GpuUuid) -> None:
        """Waits for the end of a daemon that no claim uses. HardwareTimeoutError, StateError."""
        await self._directory.gone(gpu)

    def edits(self, device: HeldDevice) -> CdiEdits:
        """What containers of the claim need to be clients."""
        return self._directory.client_edits(GpuUuid(device.uuid), _share(device))

    def stray(self, held: set[str]) -> list[tuple[GpuUuid, str]]:
        """Members (GPU, claim uid) that no held file knows. Raises StateError."""
        return [
            (gpu, uid)
            for gpu, claims in self._directory.members().items()
            for uid in claims
            if uid not in held
        ]

    def expel(self, gpu: GpuUuid, uid: str) -> None:
        """Removes a member that no held file knows. Raises StateError."""
        self._directory.leave(gpu, claim_uid=uid)


def _share(device: HeldDevice) -> MpsShare:
    assert device.share is not None  # of every device of kind mps
    return MpsShare(memory_bytes=device.share.memory_bytes, cores_percent=device.share.cores)
