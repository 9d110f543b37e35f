"""The reflector against a server that misbehaves in every way a real one does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from tangram.kube.client import Client, decode
from tangram.kube.decoding import ObjectKey
from tangram.kube.objects import Pod
from tangram.kube.reflector import Change, Reflector
from tangram.kube.resources import PODS
from tangram.testing.apiserver import FakeApiServer, Fault
from tangram.testing.clock import FakeClock


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [], **spec}}


def decode_pod(raw: msgspec.Raw) -> Pod:
    return decode(raw, Pod)


class Rig:
    """A running reflector of pods, its clock, and the changes it told."""

    def __init__(self, server: FakeApiServer, client: Client, **options: Any) -> None:
        self.server = server
        self.clock = FakeClock()
        self.changes: list[Change[Pod]] = []
        self.changed = asyncio.Event()
        self.handler: Callable[[Change[Pod]], None] = self.changes.append
        self.reflector = Reflector(
            client, PODS, decode_pod, clock=self.clock, on_change=self._on_change, **options
        )

    def _on_change(self, change: Change[Pod]) -> None:
        self.changed.set()
        self.handler(change)

    @property
    def names(self) -> set[str]:
        return {key.name for key in self.reflector.store}

    def told(self) -> list[tuple[str, str]]:
        def kind(change: Change[Pod]) -> str:
            return "added" if change.old is None else "deleted" if change.new is None else "changed"

        return [(kind(change), change.key.name) for change in self.changes]

    async def until(self, predicate: Callable[[], Any]) -> None:
        """Waits for changes (not for time) until `predicate` holds."""
        async with asyncio.timeout(10):
            while not predicate():
                self.changed.clear()
                await self.changed.wait()

    def requests(self, verb: str) -> list[Any]:
        return [request for request in self.server.requests if request.verb == verb]

    async def watching(self) -> None:
        """Waits until the reflector has an open watch."""
        await self.reflector.synced.wait()
        await self.server.until(lambda: self.server.watches.running(PODS))

    async def not_watching(self) -> None:
        await self.server.until(lambda: not self.server.watches.running(PODS))


@pytest.fixture
async def rig(server: FakeApiServer, client: Client) -> AsyncIterator[Rig]:
    async with running(Rig(server, client)) as started:
        yield started


@contextlib.asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Rig]:
    task = asyncio.create_task(rig.reflector.run())
    try:
        yield rig
    finally:
        assert not task.done() or task.exception() is None
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_lists_then_follows(server: FakeApiServer, client: Client) -> None:
    server.create(PODS, pod("a"))
    async with running(Rig(server, client)) as rig:
        await rig.watching()
        assert rig.names == {"a"}
        server.create(PODS, pod("b"))
        server.patch(PODS, {"metadata": {"labels": {"x": "y"}}}, name="a", namespace="default")
        server.delete(PODS, name="b", namespace="default")
        await rig.until(lambda: len(rig.changes) == 4)
        assert rig.told() == [("added", "a"), ("added", "b"), ("changed", "a"), ("deleted", "b")]
        assert rig.reflector.store[ObjectKey("default", "a")].metadata.labels == {"x": "y"}
        assert rig.requests("list")[0].query.get("resourceVersion") is None  # a quorum read
