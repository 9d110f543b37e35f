"""What happens to MPS daemons, told to the claims that use them: their CUDA processes failed with them."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from tangram.base.clock import Clock
from tangram.base.errors import TangramError
from tangram.base.logs import get_logger
from tangram.hardware.mps.directory import MpsDirectory
from tangram.hardware.mps.values import MpsIncident, MpsStatus
from tangram.model.gpu import GpuUuid
from tangram.node.held import HeldClaim

LOOK_S = 2.0
"""How often the statuses are read."""
RECENT = timedelta(minutes=5)
"""What happened so long before this process's first look is told: better twice than never."""

_log = get_logger("node")


def failing_daemons(statuses: Mapping[GpuUuid, MpsStatus]) -> dict[GpuUuid, str]:
    """Whose MPS daemon serves nobody, in words."""
    return {gpu: status.cause for gpu, status in statuses.items() if status.state == "failing"}


class MpsWatch:
    """Reads what `tangram mps run` says; calls `tell` for each claim on a GPU whose daemon failed anew, and
    `changed` when other daemons serve nobody than before: `failing`, in words by GPU.
    """

    def __init__(
        self,
        *,
        directory: MpsDirectory,
        held: Callable[[], tuple[HeldClaim, ...]],
        tell: Callable[[HeldClaim, MpsIncident], None],
        changed: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._held = held
        self._tell = tell
        self._changed = changed
        self._clock = clock
        self._known: dict[str, int] = {}
        self.failing: Mapping[GpuUuid, str] = {}

    async def run(self) -> None:
        """Until cancelled. The first look is the caller's: before anything is published."""
        while True:
            await self._clock.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Once. What cannot be read is as it was."""
        before = self.failing
        try:
            happened = await asyncio.to_thread(self._look)
        except TangramError as error:
            _log.warning("mps_statuses_unreadable", error=str(error))
            return
        for held, incident in happened:
            self._tell(held, incident)
        if self.failing != before:
            self._changed()

    def _look(self) -> list[tuple[HeldClaim, MpsIncident]]:
        """What has happened since the last look, or shortly before the first one. Raises StateError."""
        failed: dict[str, MpsIncident] = {}
        statuses = self._directory.statuses()
        # Tried again is not well again.
        again = {
            gpu: self.failing[gpu]
            for gpu, status in statuses.items()
            if status.state == "starting" and gpu in self.failing
        }
        self.failing = {**failing_daemons(statuses), **again}
        for gpu, status in statuses.items():
            known, self._known[gpu] = self._known.get(gpu), status.incidents
            if status.incident is None:
                continue
            if self._recent(status.incident) if known is None else status.incidents > known:
                failed[gpu] = status.incident
        return [
            (held, failed[device.uuid])
            for held in (self._held() if failed else ())
            for device in held.devices
            if device.kind == "mps" and not device.admin_access and device.uuid in failed
        ]

    def _recent(self, incident: MpsIncident) -> bool:
        try:
            return self._clock.now() - datetime.fromisoformat(incident.time) < RECENT
        except (ValueError, TypeError):  # no time, or one without a zone
            return False
