"""A node with a slice publisher, in front of a fake API server and a clock that tests move."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from tangram.kube.client import Client
from tangram.kube.resources import NODES, RESOURCE_SLICES
from tangram.kubeletplugin.publisher import COALESCE_S, SlicePublisher
from tangram.kubeletplugin.slices import Pool, Slice, slice_name
from tangram.testing.apiserver import FakeApiServer
from tangram.testing.clock import FakeClock

DRIVER = "widgets.example.com"
NODE = "node-1"
POOL = f"{DRIVER}/{NODE}"
WRITES = frozenset({"create", "patch", "update", "delete"})


def device(name: str = "widget-0", **fields: Any) -> dict[str, Any]:
    return {"name": name, **fields}


def pool(*values: int, **fields: Any) -> Pool:
    """One slice per value, with one device that has it as an attribute."""
    return Pool(
        slices=tuple(
            Slice(devices=(device(f"widget-{index}", attributes={"value": {"int": value}}, **fields),))
            for index, value in enumerate(values)
        )
    )


def name_of(index: int, pool_name: str = POOL) -> str:
    return slice_name(index=index, driver_name=DRIVER, node_name=NODE, pool_name=pool_name)


class World:
    """`start` starts a publisher as a new process would; `settled` moves the clock until it is done."""

    def __init__(self, server: FakeApiServer, client: Client) -> None:
        self.server = server
        self.client = client
        self.clock = FakeClock()
        self.publisher: SlicePublisher = self.made()
        self.running: asyncio.Task[None] | None = None

    def made(self) -> SlicePublisher:
        return SlicePublisher(client=self.client, driver_name=DRIVER, node_name=NODE, clock=self.clock)

    async def start(self, pools: Mapping[str, Pool] | None = None) -> None:
        await self.stop()
        self.publisher = self.made()
        if pools is not None:
            self.publisher.publish(pools)
        self.running = asyncio.create_task(self.publisher.run())

    async def stop(self) -> None:
        if self.running is not None:
            self.running.cancel()
            await asyncio.wait({self.running})
            assert self.running.cancelled(), "it ends when asked, and only then"
            self.running = None

    async def until(self, predicate: Callable[[], Any], *, timeout_s: float = 20) -> None:
        """In real time, with the clock standing still."""
        async with asyncio.timeout(timeout_s):
            while not predicate():
                assert self.running is None or not self.running.done()
                await asyncio.sleep(0.002)

    async def settled(self) -> None:
        """After a `publish`: until all of it is on the server."""
        await self.clock.advance(COALESCE_S)
        await self.until(lambda: self.publisher.published)

    async def progress(self, predicate: Callable[[], Any], *, timeout_s: float = 20) -> float:
        """Moves the clock from sleeper to sleeper until `predicate` holds; returns the seconds moved."""
        start_s = self.clock.monotonic_s()
        async with asyncio.timeout(timeout_s):
            while not predicate():
                # What goes over a socket first, then what waits for time.
                for _ in range(5):
                    await asyncio.sleep(0.002)
                if not predicate() and self.clock.sleeping:
                    await self.clock.advance_to_next()
        return self.clock.monotonic_s() - start_s

    def slices(self, pool_name: str = POOL) -> list[dict[str, Any]]:
        found = self.server.objects(RESOURCE_SLICES)
        return [each for each in found if each["spec"]["pool"]["name"] == pool_name]

    def values(self, pool_name: str = POOL) -> list[int]:
        return [
            found["attributes"]["value"]["int"]
            for each in self.slices(pool_name)
            for found in each["spec"].get("devices") or []
        ]

    def generations(self, pool_name: str = POOL) -> list[int]:
        return [each["spec"]["pool"]["generation"] for each in self.slices(pool_name)]

    def writes(self) -> list[tuple[str, str]]:
        """Verb and name of all writes of slices so far."""
        return [
            (request.verb, request.name or request.body["metadata"]["name"])
            for request in self.server.requests
            if request.resource == RESOURCE_SLICES and request.verb in WRITES
        ]


@contextlib.asynccontextmanager
async def world(**server_options: Any) -> AsyncIterator[World]:
    """A server with one Node, and no publisher running yet."""
    with tempfile.TemporaryDirectory() as directory:
        async with FakeApiServer(**server_options) as server:
            server.create(NODES, {"metadata": {"name": NODE}})
            client = await Client.connect(
                kubeconfig=server.kubeconfig(Path(directory) / "kubeconfig"), user_agent="test/1"
            )
            made = World(server, client)
            try:
                yield made
            finally:
                await made.stop()
                await client.close()
