"""Draining a GPU for an operator who waits: which GPU is meant, and whether the plugin has published it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from tangram.base.clock import Clock, rfc3339
from tangram.base.errors import ConfigurationError, HardwareError, KubeError, UsageError
from tangram.hardware.workers import Workers
from tangram.model.gpu import GpuUuid
from tangram.node import sight
from tangram.node.drains import Drain
from tangram.node.settings import NodeSettings
from tangram.node.status import known_gpus

WAIT_S = 20.0
"""The plugin looks each second and publishes in less; a server that throttles it takes longer."""
LONGEST_REASON = 256
_LOOK_AGAIN_S = 0.5

Outcome = Literal["published", "not running", "not in time", "unknown"]
"""`unknown`: the API server cannot be asked."""


class Draining:
    """What `tangram node drain-gpu` does on one node. `tell` hears what is waited for."""

    def __init__(self, settings: NodeSettings, *, clock: Clock, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._clock = clock
        self._tell = tell
        self._store = sight.drain_store(settings)
        self._was: sight.Published | None = None
        self.problem = ""
        """Why an outcome is what it is, where something failed."""

    async def find(self, text: str, workers: Callable[[], Workers]) -> GpuUuid:
        """The GPU of that UUID. UsageError where there is none on this node; HardwareError where nothing can
        tell; StateError where there is no plugin's state.

        A GPU that is held, drained or published is known without the hardware: it may be lost, or hang.
        """
        seen = await self.look()
        if seen.files.problems:
            raise seen.files.problems[0]
        found = _named(text, seen)
        if found is None:
            own = workers()
            try:
                gpus = await sight.look_at_gpus(self._settings, seen.files, workers=own, clock=self._clock)
            finally:
                await own.close()
            seen = replace(seen, gpus=gpus)
            found = _named(text, seen)
        if found is None:
            raise _unknown(text, seen)
        self._was = (seen.api.published or {}).get(found)
        return found

    async def look(self) -> sight.Sight:
        """All but the hardware."""
        files = sight.look_at_files(self._settings)
        claims = files.held.claims.values()
        return sight.Sight(
            files=files,
            plugin=await sight.look_at_plugin(self._settings, clock=self._clock),
            api=await sight.look_at_api(self._settings, claims, clock=self._clock),
        )

    def drain(self, uuid: GpuUuid, reason: str) -> None:
        """Writes the drain. One that is there stays; a new reason replaces the old one. Raises StateError."""
        known = self._store.load().get(uuid)
        if known is None or (reason and reason != known.reason):
            since = known.since if known and known.since else rfc3339(self._clock.now())
            self._store.add(uuid, Drain(since=since, reason=reason))

    def give_back(self, uuid: GpuUuid) -> bool:
        """Removes the drain; returns whether there was one. Raises StateError."""
        return self._store.remove(uuid)

    async def published(self, uuid: GpuUuid, *, drained: bool) -> Outcome:
        """Waits until the node's slices say so."""
        deadline_s = self._clock.monotonic_s() + WAIT_S
        told = False
        while True:
            plugin = await sight.look_at_plugin(self._settings, clock=self._clock)
            if not plugin.runs:
                return "not running"
            outcome: Outcome = "not in time"
            try:
                if self._stands(await self._state(uuid), drained=drained):
                    return "published"
            except ConfigurationError as error:
                self.problem = error.cause
                return "unknown"
            except KubeError as error:
                self.problem, outcome = error.cause, "unknown"
            if self._clock.monotonic_s() >= deadline_s:
                return outcome
            if not told:
                self._tell(f"waiting for the node plugin to publish it (up to {WAIT_S:g} s)")
                told = True
            await self._clock.sleep(_LOOK_AGAIN_S)

    async def _state(self, uuid: GpuUuid) -> sight.Published | None:
        found = await sight.with_client(
            self._settings,
            lambda client: sight.published_devices(client, self._settings.node_name),
            clock=self._clock,
        )
        return found.get(uuid)

    def _stands(self, state: sight.Published | None, *, drained: bool) -> bool:
        if drained:
            return state != "healthy"
        # Without the taint it is given back and unwell; a server before 1.36 shows no taint at all.
        return state in {None, "healthy"} or (state == "unhealthy" and self._was == "drained")


def check_reason(text: str) -> str:
    """The reason as it may be written. UsageError for what is no line of text."""
    if len(text) > LONGEST_REASON or not text.isprintable():
        raise UsageError(
            f"--reason is not a line of at most {LONGEST_REASON} characters", next_step="shorten it"
        )
    return text.strip()


def _named(text: str, seen: sight.Sight) -> GpuUuid | None:
    return next((uuid for uuid in known_gpus(seen) if uuid.lower() == text.lower()), None)


def _unknown(text: str, seen: sight.Sight) -> UsageError | HardwareError:
    known = known_gpus(seen)
    if seen.gpus.inventory is None and not known:
        return HardwareError(
            f"which GPUs this node has cannot be told: {seen.gpus.problem}",
            next_step="tangram node doctor looks for the reason",
        )
    what = f"no GPU of this node has the UUID {text[:100]!r}"
    if text.isascii() and text.isdigit():
        what = f"{text[:100]} is an index, which may be another GPU's after a boot"
    elif text.upper().startswith("MIG-"):
        what = f"{text[:100]!r} is a MIG device; a GPU is drained as a whole"
    lines = [
        f"  {uuid}" + (f"  index {gpu.index}, {gpu.product_name}" if gpu else "")
        for uuid, gpu in sorted(known.items(), key=lambda pair: pair[1].index if pair[1] else -1)
    ]
    return UsageError(what, next_step="\n".join(["give the UUID of one of", *lines]))
