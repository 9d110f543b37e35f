"""The loop that listens for XID errors of GPUs."""

from collections.abc import Callable, Collection
from typing import Protocol

from tangram.base.backoff import Backoff
from tangram.base.clock import Clock
from tangram.base.errors import HardwareError
from tangram.base.logs import get_logger
from tangram.hardware.health import XidEvent
from tangram.model.gpu import GpuUuid

WAIT_S = 5.0
"""One wait in the driver, and how long a GPU that came or went goes unnoticed here."""

_log = get_logger("hardware")


class EventSource(Protocol):
    """Where events come from: `tangram.hardware.workers.Workers`."""

    async def watch(self, uuids: Collection[GpuUuid]) -> frozenset[GpuUuid]:
        """As `Backend.watch`."""
        ...

    async def next_event(self, *, timeout_s: float) -> XidEvent | None:
        """As `Backend.next_event`."""
        ...


class EventWatch:
    """Calls `on_event` for every XID error of the GPUs that `gpus` names, while `run` runs.

    A driver whose wait fails, or returns at once with nothing, is asked again after a pause, so that it costs
    no processor; until then its GPUs are unmonitored: their health is known by looking alone.
    """

    def __init__(
        self,
        source: EventSource,
        *,
        gpus: Callable[[], Collection[GpuUuid]],
        on_event: Callable[[XidEvent], None],
        clock: Clock,
        wait_s: float = WAIT_S,
    ) -> None:
        self._source = source
        self._gpus = gpus
        self._on_event = on_event
        self._clock = clock
        self._wait_s = wait_s
        self.unmonitored: frozenset[GpuUuid] = frozenset()

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff()
        while True:
            uuids = frozenset(self._gpus())
            try:
                await self._listen(uuids, backoff)
            except HardwareError as error:
                _log.warning("gpu_events_unavailable", cause=error.cause)
                self.unmonitored = uuids
                await self._clock.sleep(backoff.next_s())

    async def _listen(self, uuids: frozenset[GpuUuid], backoff: Backoff) -> None:
        """Until the GPUs are others."""
        if not uuids:
            self.unmonitored = uuids
            await self._clock.sleep(self._wait_s)
            return
        self.unmonitored = await self._source.watch(uuids)
        while uuids == frozenset(self._gpus()):
            begin_s = self._clock.monotonic_s()
            event = await self._source.next_event(timeout_s=self._wait_s)
            backoff.reset()
            if event is not None:
                self._on_event(event)
            elif self._clock.monotonic_s() - begin_s < self._wait_s / 2:
                await self._clock.sleep(self._wait_s)
