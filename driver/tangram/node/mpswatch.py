"""What happens to MPS daemons, told to the claims that use them: their CUDA processes failed with them."""

import asyncio
from collections.abc import Callable

from tangram.base.clock import Clock
from tangram.base.errors import TangramError
from tangram.base.logs import get_logger
from tangram.hardware.mps.directory import MpsDirectory
from tangram.hardware.mps.values import MpsIncident
from tangram.node.held import HeldClaim

LOOK_S = 2.0
"""How often the statuses are read."""

_log = get_logger("node")


class MpsWatch:
    """Reads what `tangram mps run` says; calls `tell` for each claim on a GPU whose daemon failed anew."""

    def __init__(
        self,
        *,
        directory: MpsDirectory,
        held: Callable[[], tuple[HeldClaim, ...]],
        tell: Callable[[HeldClaim, MpsIncident], None],
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._held = held
        self._tell = tell
        self._clock = clock
        self._known: dict[str, int] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                for held, incident in await asyncio.to_thread(self.look):
                    self._tell(held, incident)
            except TangramError as error:
                _log.warning("mps_statuses_unreadable", error=str(error))
            await self._clock.sleep(LOOK_S)

    def look(self) -> list[tuple[HeldClaim, MpsIncident]]:
        """What has happened since the last look; nothing at the first look at a GPU. Raises StateError."""
        failed: dict[str, MpsIncident] = {}
        for gpu, status in self._directory.statuses().items():
            if status.incident is not None and status.incidents > self._known.get(gpu, status.incidents):
                failed[gpu] = status.incident
            self._known[gpu] = status.incidents
        return [
            (held, failed[device.uuid])
            for held in (self._held() if failed else ())
            for device in held.devices
            if device.kind == "mps" and not device.admin_access and device.uuid in failed
        ]
