"""The whole controller and the whole node plugin among objects that no API server should have stored.

Whatever stands there before they start, or appears while they watch: both go on serving others.
"""

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path as FilePath
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from tests.fleet import claim, device_class, kube_node, pod, slices
from tests.unit.bad_input.hostile import FEW, changed, deep, wire_paths
from tests.unit.bad_input.test_controller import A100, BASES, IDENTITY

from tangram import DRIVER_NAME
from tangram.base.clock import SystemClock
from tangram.base.errors import ApiError
from tangram.controller.app import Controller
from tangram.controller.settings import ControllerSettings
from tangram.hardware.machines import load_machine
from tangram.hardware.simulated import SimulatedBackend
from tangram.kube.client import Client
from tangram.kube.resources import (
    DEVICE_CLASSES,
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from tangram.kubeletplugin.driver import ClaimReference
from tangram.node.app import NodePlugin
from tangram.node.settings import NodeSettings
from tangram.testing.apiserver import FakeApiServer
from tangram.testing.apiserver.faults import Fault
from tangram.testing.kubelet import FakeKubelet

RESOURCES: dict[str, Resource] = {
    "claim": RESOURCE_CLAIMS,
    "allocated claim": RESOURCE_CLAIMS,
    "pod": PODS,
    "class": DEVICE_CLASSES,
    "node": NODES,
    "slice": RESOURCE_SLICES,
}
TRIED = (*FEW, deep(60))


def bad_objects(kind: str) -> Iterator[dict[str, Any]]:
    """One object for each place of the kind, with one of the values in turn."""
    struct, base = BASES[kind]
    places = [path for path in wire_paths(struct) if path not in IDENTITY]
    for number, path in enumerate(places):
        item = changed(json.loads(json.dumps(base)), path, TRIED[number % len(TRIED)])
        if isinstance(item.get("metadata"), dict):
            name = f"bad-{kind.replace(' ', '-')}-{number}"
            uid = item["metadata"].setdefault("uid", f"uid-{name}")
            item["metadata"] |= {"name": name, "uid": uid}
            yield item


def put_bad_ones(server: FakeApiServer, *, part: int) -> None:
    """A half of them; each claim has a pod that waits for it."""
    for kind, resource in RESOURCES.items():
        for number, item in enumerate(bad_objects(kind)):
            if number % 2 == part:
                server.put_as_is(resource, item)
                if resource == RESOURCE_CLAIMS:
                    name = item["metadata"]["name"]
                    server.create(PODS, pod(f"for-{name}", name))


async def allocated(server: FakeApiServer, name: str) -> None:
    server.create(RESOURCE_CLAIMS, claim(name))
    server.create(PODS, pod(name, name, tolerations=[{"key": "good", "operator": "Exists"}]))
    await server.until(
        lambda: (server.get(RESOURCE_CLAIMS, name=name, namespace="default").get("status") or {}).get(
            "allocation"
        ),
        timeout_s=60,
    )


async def test_the_controller_serves_others(tmp_path: FilePath) -> None:
    async with FakeApiServer() as server:
        server.create(DEVICE_CLASSES, device_class())
        # What is bad but valid takes the open node's GPUs.
        server.create(NODES, kube_node("good", taints=[{"key": "good", "effect": "NoSchedule"}]))
        server.create(NODES, kube_node("open"))
        for node in ("good", "open"):
            for item in slices(node, A100):
                server.create(RESOURCE_SLICES, item)
        put_bad_ones(server, part=0)
        client = await Client.connect(
            kubeconfig=server.kubeconfig(tmp_path / "kubeconfig"), user_agent="tangram-controller/test"
        )
        settings = ControllerSettings(identity="test", metrics_address="")
        controller = Controller(client, settings, SystemClock())
        with capture_logs() as logged:
            running = asyncio.create_task(controller.run())
            try:
                await allocated(server, "first")
                put_bad_ones(server, part=1)
                await allocated(server, "second")
                assert not running.done()
            finally:
                running.cancel()
                await asyncio.wait({running})
                await client.close()
        assert [entry for entry in logged if "exc_info" in entry or "internal" in entry["event"]] == []
        notes = [event["note"] for event in server.objects(EVENTS)]
        assert any("bad-claim" in event["regarding"]["name"] for event in server.objects(EVENTS))
        assert not [note for note in notes if "Traceback" in note or "Error(" in note]


async def test_claims_whose_writes_are_refused_do_not_wake_each_other_for_ever(tmp_path: FilePath) -> None:
    """An admission webhook says no, say. All want the same four GPUs; the last one would get them."""
    refused = [f"refused-{number}" for number in range(6)]
    async with FakeApiServer() as server:
        server.create(DEVICE_CLASSES, device_class())
        server.create(NODES, kube_node("n"))
        for item in slices("n", A100):
            server.create(RESOURCE_SLICES, item)
        for name in refused:
            refusal = ApiError("no", status=422, reason="Invalid")
            server.faults.add(Fault(verb="patch", name=name, times=10_000, error=refusal))
            server.create(RESOURCE_CLAIMS, claim(name, count=4))
            server.create(PODS, pod(name, name))
        client = await Client.connect(
            kubeconfig=server.kubeconfig(tmp_path / "kubeconfig"), user_agent="tangram-controller/test"
        )
        settings = ControllerSettings(identity="test", metrics_address="")
        running = asyncio.create_task(Controller(client, settings, SystemClock()).run())
        try:
            await server.until(lambda: all(tries(server, name) >= 3 for name in refused), timeout_s=60)
            before = sum(tries(server, name) for name in refused)
            await allocated(server, "fine")
            assert sum(tries(server, name) for name in refused) - before < 60
        finally:
            running.cancel()
            await asyncio.wait({running})
            await client.close()


def tries(server: FakeApiServer, name: str) -> int:
    return sum(request.method == "PATCH" and name in request.path for request in server.requests)


@pytest.fixture
def short_directory() -> Iterator[FilePath]:
    """Paths of sockets hold 107 bytes."""
    path = FilePath(tempfile.mkdtemp(prefix="tg", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@contextlib.asynccontextmanager
async def running_plugin(root: FilePath, server: FakeApiServer) -> AsyncIterator[FakeKubelet]:
    client = await Client.connect(kubeconfig=server.kubeconfig(root / "kubeconfig"), user_agent="test/1")
    settings = NodeSettings(
        node_name="n1", kubelet_dir=str(root), cdi_root=str(root / "cdi"), metrics_address=""
    )
    backend = SimulatedBackend(load_machine("a100-sxm4-80gb-x8"), node_name="n1")
    plugin = NodePlugin(settings, client=client, backend=backend, registry=CollectorRegistry())
    async with FakeKubelet(root, client=client, node_name="n1") as kubelet:
        task = asyncio.create_task(plugin.run())
        try:
            await server.until(lambda: len(server.objects(RESOURCE_SLICES)) >= 8, timeout_s=60)
            yield kubelet
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.wait({task})
            await client.close()


def for_the_node(server: FakeApiServer, name: str) -> ClaimReference:
    """An allocated claim as it should be."""
    device = server.objects(RESOURCE_SLICES)[-1]["spec"]["devices"][0]["name"]
    result = {"request": "gpu", "driver": DRIVER_NAME, "pool": f"{DRIVER_NAME}/n1", "device": device}
    item = claim(name)
    item["status"] = {"allocation": {"devices": {"results": [result], "config": []}}}
    created = server.create(RESOURCE_CLAIMS, item)
    return ClaimReference(namespace="default", name=name, uid=created["metadata"]["uid"])


async def test_the_node_plugin_serves_others(short_directory: FilePath) -> None:
    async with FakeApiServer() as server:
        server.create(NODES, {"metadata": {"name": "n1"}})
        async with running_plugin(short_directory, server) as kubelet:
            bad = []
            for number, item in enumerate(bad_objects("allocated claim")):
                uid = f"00000000-0000-4000-8000-{number:012d}"
                item["metadata"]["uid"] = uid
                server.put_as_is(RESOURCE_CLAIMS, item)
                bad.append(ClaimReference(namespace="default", name=item["metadata"]["name"], uid=uid))
            fine = for_the_node(server, "fine")
            with capture_logs() as logged:
                answers = await kubelet.prepare(DRIVER_NAME, [*bad, fine])
                assert answers[fine.uid].error == ""
                for reference in bad:
                    assert answers[reference.uid].error
                    assert "internal error" not in answers[reference.uid].error
                assert set((await kubelet.unprepare(DRIVER_NAME, [*bad, fine])).values()) == {""}
            assert [entry for entry in logged if "exc_info" in entry or "internal" in entry["event"]] == []
