"""Whatever happens, the reflector ends with what the server has, and its changes tell how it got there."""

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tangram.base.errors import AlreadyExistsError, NotFoundError
from tangram.kube.client import Client, decode
from tangram.kube.decoding import ObjectKey
from tangram.kube.objects import Metadata, Pod
from tangram.kube.reflector import Change, Reflector
from tangram.kube.resources import PODS
from tangram.testing.apiserver import FakeApiServer
from tangram.testing.clock import FakeClock

NAMES = st.sampled_from(["a", "b", "c", "d"])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["create", "update", "delete", "recreate"]), NAMES),
    st.tuples(
        st.sampled_from(
            [
                "end",
                "cut",
                "half",
                "garbage",
                "compact",
                "bookmark",
                "refuse",
                "expire",
                "drop",
                "run",
                "wait",
            ]
        ),
        st.just(""),
    ),
)


class World:
    def __init__(self, server: FakeApiServer, client: Client) -> None:
        self.server = server
        self.clock = FakeClock()
        self.replayed: dict[ObjectKey, Metadata] = {}
        self.changed = asyncio.Event()
        self.reflector: Reflector[Metadata] = Reflector(
            client, PODS, self._decode, clock=self.clock, on_change=self._replay
        )

    @staticmethod
    def _decode(raw: msgspec.Raw) -> Metadata:
        return decode(raw, Pod).metadata

    def _replay(self, change: Change[Metadata]) -> None:
        assert self.replayed.get(change.key) == change.old
        if change.new is None:
            del self.replayed[change.key]
        else:
            self.replayed[change.key] = change.new
        self.changed.set()

    async def step(self, what: str, name: str) -> None:
        server = self.server
        match what:
            case "create" | "recreate":
                if what == "recreate":
                    self._delete(name)
                with contextlib.suppress(AlreadyExistsError):
                    server.create(PODS, {"metadata": {"name": name, "namespace": "default"}})
            case "update":
                label = str(server.resource_version)
                with contextlib.suppress(NotFoundError):
                    server.patch(PODS, {"metadata": {"labels": {"x": label}}}, name=name, namespace="default")
            case "delete":
                self._delete(name)
            case "end" | "cut":
                server.watches.direct("end" if what == "end" else "cut", PODS)
            case "half":
                server.send_to_watches(b'{"type":"ADDED","obj', PODS)
                server.cut_watches(PODS)
            case "garbage":
                server.send_to_watches(b"}\n", PODS)
            case "compact":
                server.compact()
            case "bookmark":
                server.bookmark_watches(PODS)
            case "refuse":
                server.faults.answer(500, resource=PODS)
            case "expire":
                server.faults.answer(410, resource=PODS)
            case "drop":
                server.faults.drop(resource=PODS)
            case "run":
                await self.progress()
            case "wait":
                await self.clock.advance(7)

    def _delete(self, name: str) -> None:
        with contextlib.suppress(NotFoundError):
            self.server.delete(PODS, name=name, namespace="default")

    async def progress(self) -> None:
        """Lets the reflector come as far as it can without time passing, or lets the time pass."""
        waits: set[asyncio.Future[Any]] = {
            asyncio.ensure_future(self.changed.wait()),
            asyncio.ensure_future(self.clock.until_sleeping()),
            asyncio.ensure_future(self.server.until(lambda: self.server.watches.running(PODS))),
        }
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
        self.changed.clear()
        if self.clock.sleeping:
            await self.clock.advance_to_next()

    async def converge(self) -> None:
        self.server.faults.clear()
        self.server.create(PODS, {"metadata": {"name": "marker", "namespace": "default"}})
        async with asyncio.timeout(20):
            while not self._follows_marker():
                await self.progress()
                await asyncio.sleep(0)

    def _follows_marker(self) -> bool:
        # A list reports its deletes last: only an open watch says that it is through.
        marker = ObjectKey("default", "marker")
        return marker in self.reflector.store and bool(self.server.watches.running(PODS))


async def check(steps: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with FakeApiServer() as server:
            path = server.kubeconfig(Path(directory) / "kubeconfig")
            client = await Client.connect(kubeconfig=path, user_agent="test")
            world = World(server, client)
            running = asyncio.create_task(world.reflector.run())
            try:
                for what, name in steps:
                    await world.step(what, name)
                await world.converge()
                expected = {
                    ObjectKey("default", pod["metadata"]["name"]): pod["metadata"]["resourceVersion"]
                    for pod in server.objects(PODS)
                }
                store = world.reflector.store
                assert {key: metadata.resource_version for key, metadata in store.items()} == expected
                assert store == world.replayed
            finally:
                running.cancel()
                await asyncio.wait({running})
                await client.close()
            assert running.cancelled()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, max_size=25))
def test_store_equals_server_after_anything(steps: list[tuple[str, str]]) -> None:
    asyncio.run(check(steps))
