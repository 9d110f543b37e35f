"""A node with stand-ins for the API server and the kubelet, and the real plugin between them."""

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from tangram import DRIVER_NAME
from tangram.hardware.machines import load_machine
from tangram.hardware.simulated import SimulatedBackend
from tangram.kube.client import Client
from tangram.kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tangram.kubeletplugin.driver import ClaimReference, PreparedDevice
from tangram.node.app import NodePlugin
from tangram.node.settings import NodeSettings
from tangram.testing.apiserver import FakeApiServer
from tangram.testing.kubelet import FakeKubelet, PreparedClaim

NODE = "node-1"
POOL = f"{DRIVER_NAME}/{NODE}"


class RunningPlugin:
    """A plugin that runs in this process, as long as the context is entered."""

    def __init__(self, world: "World", settings: NodeSettings) -> None:
        self.plugin = NodePlugin(
            settings, client=world.client, backend=world.hardware, registry=CollectorRegistry()
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "RunningPlugin":
        self._task = asyncio.create_task(self.plugin.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """As by SIGTERM; once is enough."""
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def get(self, path: str) -> tuple[int, str]:
        """An answer of its HTTP server."""
        url = f"http://127.0.0.1:{self.plugin.server.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, await response.text()

    async def until_ready(self, *, timeout_s: float = 20.0) -> None:
        await until(lambda: not self.plugin.waiting_for(), timeout_s=timeout_s)


async def until(predicate: Any, *, timeout_s: float = 20.0) -> None:
    """Waits for something that sends no event; TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not predicate():  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # files and other processes send no event


class World:
    """What surrounds the plugin."""

    def __init__(self, root: Path, server: FakeApiServer, client: Client) -> None:
        self.root, self.server, self.client = root, server, client
        self.kubeconfig = server.kubeconfig(root / "kubeconfig")
        self.kubelet = FakeKubelet(root, client=client, node_name=NODE)
        self.hardware = SimulatedBackend(load_machine("a100-sxm4-80gb-x8"), node_name=NODE)
        server.create(NODES, {"metadata": {"name": NODE}})

    def settings(self, **changes: Any) -> NodeSettings:
        return msgspec.structs.replace(
            NodeSettings(
                node_name=NODE,
                kubelet_dir=str(self.root),
                cdi_root=str(self.root / "cdi"),
                kinds="gpu",
                metrics_address="127.0.0.1:0",
                shutdown_grace_s=1.0,
                rescan_interval_s=1.0,
            ),
            **changes,
        )

    def run(self, **changes: Any) -> RunningPlugin:
        return RunningPlugin(self, self.settings(**changes))

    def slices(self) -> list[dict[str, Any]]:
        return self.server.objects(RESOURCE_SLICES)

    def devices(self) -> dict[str, dict[str, Any]]:
        """Published devices by name, in the order of their slices."""
        return {
            device["name"]: device
            for each in sorted(self.slices(), key=lambda one: str(one["metadata"]["name"]))
            for device in each["spec"].get("devices") or []
        }

    async def until_published(self, count: int = 8) -> list[str]:
        await self.server.until(lambda: len(self.devices()) == count, timeout_s=20)
        return list(self.devices())

    def claim(
        self,
        name: str,
        devices: Sequence[str],
        *,
        config: Sequence[Mapping[str, Any]] = (),
        pool: str = POOL,
        class_name: str = DRIVER_NAME,
        **result: Any,
    ) -> ClaimReference:
        """An allocated claim with a pod that uses it."""
        results = [
            {"request": "gpu", "driver": DRIVER_NAME, "pool": pool, "device": device, **result}
            for device in devices
        ]
        created = self.server.create(
            RESOURCE_CLAIMS,
            {
                "metadata": {"name": name, "namespace": "ns"},
                "spec": {
                    "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": class_name}}]}
                },
                "status": {
                    "allocation": {"devices": {"results": results, "config": list(config)}},
                    "reservedFor": [{"resource": "pods", "name": "pod", "uid": f"pod-of-{name}"}],
                },
            },
        )
        return ClaimReference(namespace="ns", name=name, uid=created["metadata"]["uid"])

    def free(self, claim: ClaimReference) -> None:
        """Deletes the claim, as after the end of its pod."""
        self.server.delete(RESOURCE_CLAIMS, name=claim.name, namespace=claim.namespace)

    async def prepare(self, *claims: ClaimReference) -> dict[str, PreparedClaim]:
        return await self.kubelet.prepare(DRIVER_NAME, claims)

    async def prepared(self, claim: ClaimReference) -> tuple[PreparedDevice, ...]:
        """The devices of a claim that can be prepared."""
        answer = (await self.prepare(claim))[claim.uid]
        assert answer.error == ""
        return answer.devices

    async def refused(self, claim: ClaimReference) -> str:
        """The error of a claim that cannot be prepared."""
        answer = (await self.prepare(claim))[claim.uid]
        assert answer.error
        assert answer.devices == ()
        return answer.error

    async def unprepare(self, *claims: ClaimReference) -> None:
        answers = await self.kubelet.unprepare(DRIVER_NAME, claims)
        assert set(answers.values()) == {""}

    def status(self, claim: ClaimReference) -> list[dict[str, Any]]:
        stored = self.server.get(RESOURCE_CLAIMS, name=claim.name, namespace=claim.namespace)
        devices: list[dict[str, Any]] = (stored.get("status") or {}).get("devices") or []
        return devices

    def cdi(self, claim: ClaimReference) -> dict[str, Any]:
        """The CDI file of a claim."""
        path = self.root / "cdi" / f"{DRIVER_NAME}_{claim.uid}.json"
        spec: dict[str, Any] = json.loads(path.read_bytes())
        return spec

    def state(self) -> set[str]:
        """Files of claims on disk: held state and CDI."""
        held = self.root / "plugins" / DRIVER_NAME / "claims"
        return {path.name for directory in (held, self.root / "cdi") for path in directory.glob("*")}


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """Socket paths hold 107 bytes: pytest's own directories are too long."""
    path = Path(tempfile.mkdtemp(prefix="tg", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def version() -> str:
    """Of the API server; parametrize to change it."""
    return "1.36"


@pytest.fixture
async def world(short_directory: Path, version: str) -> AsyncIterator[World]:
    async with FakeApiServer(version=version) as server:
        client = await Client.connect(
            kubeconfig=server.kubeconfig(short_directory / "kubeconfig"), user_agent="tangram-test/1"
        )
        made = World(short_directory, server, client)
        async with made.kubelet:
            yield made
        await client.close()
