"""Running watches: the history of a resource as a stream, and what tests do to such streams."""

import asyncio
import collections
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from aiohttp import web

from tangram.base.clock import Clock
from tangram.base.errors import ApiError
from tangram.kube.resources import Resource
from tangram.testing.apiserver.answers import status_object
from tangram.testing.apiserver.selectors import Predicate
from tangram.testing.apiserver.store import Event, Object, Store

# As the real one: a client whose stream is quiet still learns how far it is.
_BOOKMARK_INTERVAL_S = 60.0
_INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}

Step = bytes | Literal["bookmark", "end", "cut"]


@dataclass(slots=True, kw_only=True, eq=False)
class Watch:
    """One stream. `script` is what it does next, before it sends further changes.

    `shown` is the form in which it sends an object.
    """

    resource: Resource
    namespace: str
    selects: Predicate
    version: int
    bookmarks: bool
    initial_events: bool = False
    shown: Callable[[Object], Object] = lambda obj: obj
    script: collections.deque[Step] = field(default_factory=collections.deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def covers(self, obj: Object) -> bool:
        """Whether this stream is about `obj`."""
        return (not self.namespace or obj["metadata"].get("namespace") == self.namespace) and self.selects(
            obj
        )

    def translate(self, event: Event) -> tuple[str, Object] | None:
        """What the stream says about a change: an object may enter or leave its selection."""
        before = event.previous is not None and self.covers(event.previous)
        after = event.type != "DELETED" and self.covers(event.object)
        if before and not after and event.previous is not None:
            # What leaves is shown as it was last seen, at the version at which it left.
            version = {"resourceVersion": str(event.version)}
            return "DELETED", {**event.previous, "metadata": {**event.previous["metadata"], **version}}
        if after:
            return ("MODIFIED" if before else "ADDED"), event.object
        return None


class Watches:
    """All running streams of a server."""

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._running: set[Watch] = set()

    def running(self, resource: Resource | None = None) -> list[Watch]:
        """The streams of a resource, or all."""
        return [watch for watch in self._running if resource in {None, watch.resource}]

    def direct(self, step: Step, resource: Resource | None = None) -> int:
        """Makes every stream (of `resource`) do `step` next; how many there are."""
        watches = self.running(resource)
        for watch in watches:
            watch.script.append(step)
            watch.wake.set()
        return len(watches)

    async def serve(
        self, request: web.Request, watch: Watch, *, initial: list[Object] | None, timeout_s: float
    ) -> web.StreamResponse:
        """Answers a watch request until its time is over, a test ends it, or the client leaves.

        `initial`: objects to send first (a watch from no particular version); where the client asked for
        them, a bookmark says that they are all.
        """
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        send = response.write
        with contextlib.suppress(ConnectionResetError):  # a client that was killed
            for obj in initial or []:
                await send(_line("ADDED", watch.shown(obj)))
            if watch.initial_events and watch.bookmarks:
                watch.script.append("bookmark")
            with self._registered(watch, timeout_s=timeout_s):
                try:
                    while await self._step(watch, send, request):
                        await watch.wake.wait()
                except ApiError as error:
                    await send(_line("ERROR", status_object(error)))
        return response

    @contextlib.contextmanager
    def _registered(self, watch: Watch, *, timeout_s: float) -> Iterator[None]:
        timer = asyncio.create_task(self._tick(watch, timeout_s))
        self._running.add(watch)
        self._store.listen(watch.wake)
        self._store.wake()  # tests wait for watches to appear
        try:
            yield
        finally:
            timer.cancel()
            self._running.discard(watch)
            self._store.unlisten(watch.wake)
            self._store.wake()

    async def _tick(self, watch: Watch, timeout_s: float) -> None:
        while timeout_s > 0:
            await self._clock.sleep(min(timeout_s, _BOOKMARK_INTERVAL_S))
            timeout_s -= _BOOKMARK_INTERVAL_S
            watch.script.append("bookmark")
            watch.wake.set()
        watch.script.append("end")
        watch.wake.set()

    async def _step(self, watch: Watch, send: Callable[[bytes], Any], request: web.Request) -> bool:
        """Sends all there is to send; whether the stream goes on."""
        watch.wake.clear()
        while watch.script:
            step = watch.script.popleft()
            if step == "end":
                await self._send_changes(watch, send)
                return False
            if step == "cut":
                if request.transport is not None:
                    request.transport.abort()
                return False
            if step == "bookmark":
                await self._send_changes(watch, send)
                if watch.bookmarks:
                    await send(_bookmark(watch))
            else:
                await send(step)
        await self._send_changes(watch, send)
        return True

    async def _send_changes(self, watch: Watch, send: Callable[[bytes], Any]) -> None:
        # What is written meanwhile wakes the stream again: it is not part of `reached`.
        reached, events = self._store.version, self._store.since(watch.resource, watch.version)
        for event in events:
            if said := watch.translate(event):
                await send(_line(said[0], watch.shown(said[1])))
        watch.version = reached


def _bookmark(watch: Watch) -> bytes:
    metadata: dict[str, Any] = {"resourceVersion": str(watch.version)}
    if watch.initial_events:
        metadata["annotations"] = _INITIAL_EVENTS_END
    kind = {"kind": watch.resource.kind, "apiVersion": watch.resource.api_version}
    return _line("BOOKMARK", {**kind, "metadata": metadata})


def _line(kind: str, obj: Object) -> bytes:
    return msgspec.json.encode({"type": kind, "object": obj}) + b"\n"
