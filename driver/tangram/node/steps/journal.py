"""The held file of a claim while it is being prepared: every change of it is written before what follows.

Written for the next process, not for the next boot: MIG instances, members of MPS daemons and compute modes
end with this one. Waiting for the disk each time would double what a Prepare takes.
"""

import asyncio

import msgspec

from tangram.node.held import CdiStep, HeldClaim, Step
from tangram.node.heldstore import HeldStore


class Journal:
    """`held` stands on disk once it has a step. The caller has the locks of the claim and its GPUs."""

    def __init__(self, store: HeldStore, held: HeldClaim) -> None:
        self._store = store
        self.held = held

    async def add(self, *next_steps: Step) -> None:
        """Notes steps that come next; the CDI file, written last, stays last. Raises StateError."""
        steps = [each for each in self.held.undo if not isinstance(each, CdiStep)]
        rest = [each for each in self.held.undo if isinstance(each, CdiStep)]
        await self._write(msgspec.structs.replace(self.held, undo=(*steps, *next_steps, *rest)))

    async def amend(self, step: Step, *, by: Step) -> None:
        """Notes what has come of a step. Raises StateError."""
        undo = tuple(by if each == step else each for each in self.held.undo)
        await self._write(msgspec.structs.replace(self.held, undo=undo))

    async def _write(self, held: HeldClaim) -> None:
        await asyncio.to_thread(self._store.write, held, durably=False)
        self.held = held
