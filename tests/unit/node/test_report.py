"""Reports to the API server: status and events, retried, never in the way."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.unit.node.support import NODE, Node, claim_object

from tangram import DRIVER_NAME
from tangram.base.errors import StateError
from tangram.kube.client import Client
from tangram.kube.decoding import decode
from tangram.kube.events import EventRecorder
from tangram.kube.objects import ResourceClaim
from tangram.kube.resources import EVENTS, RESOURCE_CLAIMS
from tangram.kubeletplugin.driver import ClaimReference
from tangram.node.report import Reporter
from tangram.testing.apiserver import FakeApiServer
from tangram.testing.apiserver.catalog import NAMESPACES


class Setup:
    def __init__(self, server: FakeApiServer, client: Client, node: Node) -> None:
        self.server, self.client, self.node = server, client, node
        self.events = EventRecorder(client, controller="c", instance="i", clock=node.clock)
        self.reporter = Reporter(client=client, events=self.events, clock=node.clock, node_name=NODE)

    async def claim(self, **kwargs: Any) -> ResourceClaim:
        stored = claim_object([self.node.devices[0]], **kwargs)
        del stored["metadata"]["uid"]
        created = self.server.create(RESOURCE_CLAIMS, stored)
        data = await self.client.get(
            RESOURCE_CLAIMS, name=created["metadata"]["name"], namespace=created["metadata"]["namespace"]
        )
        return decode(data, ResourceClaim)

    async def prepared(self, claim: ResourceClaim, *, new: bool = True) -> None:
        held, _ = await self.node.preparer.prepare(claim)
        self.reporter.prepared(claim, held, self.node.inventory, new=new)

    def devices(self, name: str = "claim-1") -> list[dict[str, Any]]:
        status = self.server.get(RESOURCE_CLAIMS, name=name, namespace="ns").get("status") or {}
        devices: list[dict[str, Any]] = status.get("devices") or []
        return devices

    def patches(self) -> int:
        return sum(request.verb == "patch" for request in self.server.requests)


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    async with FakeApiServer() as server:
        client = await Client.connect(
            kubeconfig=server.kubeconfig(tmp_path / "kubeconfig"), user_agent="tangram-test/1"
        )
        made = Setup(server, client, Node(tmp_path / "node"))
        tasks = [asyncio.create_task(made.reporter.run()), asyncio.create_task(made.events.run())]
        yield made
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await client.close()


async def test_status_and_events_of_success(setup: Setup) -> None:
    claim = await setup.claim(consumers=["pod-a", "pod-b"])
    await setup.prepared(claim)
    await setup.server.until(lambda: setup.devices() and len(setup.server.objects(EVENTS)) == 3)
    (entry,) = setup.devices()
    assert entry["driver"] == DRIVER_NAME
    assert entry["conditions"][0]["status"] == "True"
    assert entry["conditions"][0]["lastTransitionTime"]
    assert entry["data"]["uuid"] == setup.node.gpu(setup.node.devices[0])
    events = {
        event["regarding"]["kind"] + event["regarding"]["name"]: event
        for event in setup.server.objects(EVENTS)
    }
    assert set(events) == {"ResourceClaimclaim-1", "Podpod-a", "Podpod-b"}
    for event in events.values():
        assert (event["type"], event["reason"]) == ("Normal", "Prepared")
        assert setup.node.gpu(setup.node.devices[0]) in event["note"]
    assert events["Podpod-a"]["related"]["uid"] == claim.metadata.uid


async def test_repeating_writes_nothing(setup: Setup) -> None:
    claim = await setup.claim(consumers=["pod"])
    await setup.prepared(claim)
    await setup.server.until(lambda: setup.devices() and len(setup.server.objects(EVENTS)) == 2)
    patches = setup.patches()
    for _ in range(3):
        again = decode(await setup.client.get(RESOURCE_CLAIMS, name="claim-1", namespace="ns"), ResourceClaim)
        await setup.prepared(again, new=False)
    other = await setup.claim(number=2, consumers=[])
    setup.reporter.failed(other, StateError("disk full"))
    await setup.server.until(lambda: setup.devices("claim-2"))
    assert setup.patches() == patches + 1
    assert len(setup.server.objects(EVENTS)) <= 3


async def test_failure_with_cause_and_next_step(setup: Setup) -> None:
    claim = await setup.claim(consumers=["pod"])
    setup.reporter.failed(claim, StateError("disk full", next_step="free space"))
    await setup.server.until(lambda: setup.devices() and len(setup.server.objects(EVENTS)) == 2)
    (entry,) = setup.devices()
    condition = entry["conditions"][0]
    assert (condition["status"], condition["reason"]) == ("False", "PrepareFailed")
    assert condition["message"] == "disk full; free space"
    for event in setup.server.objects(EVENTS):
        assert (event["type"], event["reason"], event["note"]) == (
            "Warning", "PrepareFailed", "disk full; free space",
        )  # fmt: skip
    await setup.prepared(claim)
    await setup.server.until(lambda: setup.devices()[0]["conditions"][0]["status"] == "True")


async def test_entries_of_other_drivers_survive_a_conflict(setup: Setup) -> None:
    stored = claim_object([setup.node.devices[0]])
    del stored["metadata"]["uid"]
    nic = {"request": "gpu", "driver": "nic.example.com", "pool": "nics", "device": "nic-0"}
    stored["status"]["allocation"]["devices"]["results"].append(nic)
    setup.server.create(RESOURCE_CLAIMS, stored)
    read = await setup.client.get(RESOURCE_CLAIMS, name="claim-1", namespace="ns")
    # The other driver writes after we have read: our first attempt has an old resourceVersion.
    entry = {"driver": "nic.example.com", "pool": "nics", "device": "nic-0", "data": {"any": [1]}}
    setup.server.patch(
        RESOURCE_CLAIMS,
        {"status": {"devices": [entry]}},
        name="claim-1",
        namespace="ns",
        subresource="status",
    )
    await setup.prepared(decode(read, ResourceClaim))
    await setup.server.until(lambda: len(setup.devices()) == 2)
    assert {**entry, "conditions": None} in setup.devices()  # as an API server writes it
    assert setup.patches() == 2


async def test_an_unreachable_server_is_retried(setup: Setup) -> None:
    claim = await setup.claim()
    setup.server.faults.drop(verb="patch", resource=RESOURCE_CLAIMS, times=2)
    setup.server.faults.answer(500, verb="patch", resource=RESOURCE_CLAIMS)
    await setup.prepared(claim)
    await setup.server.until(setup.devices)


async def test_a_lost_answer_is_not_written_twice(setup: Setup) -> None:
    claim = await setup.claim()
    setup.server.faults.drop(verb="patch", resource=RESOURCE_CLAIMS, executed=True)
    await setup.prepared(claim)
    await setup.server.until(setup.devices)
    await setup.server.until(
        lambda: (
            sum(
                request.verb == "get" and request.resource == RESOURCE_CLAIMS
                for request in setup.server.requests
            )
            == 2
        )
    )
    assert setup.patches() == 1


async def test_a_refusal_is_logged_once_and_ends_it(setup: Setup) -> None:
    setup.server.faults.answer(403, verb="patch", resource=RESOURCE_CLAIMS, times=2)
    with capture_logs() as logs:
        for number in (1, 2):
            claim = await setup.claim(number=number)
            await setup.prepared(claim, new=False)
            await setup.node.preparer.unprepare(claim.metadata.uid)
        await setup.server.until(lambda: setup.patches() == 2)
        third = await setup.claim(number=3)
        await setup.prepared(third, new=False)
        await setup.server.until(lambda: setup.devices("claim-3"))
    (entry,) = [entry for entry in logs if entry["event"] == "claim_status_forbidden"]
    assert "associated-node:patch" in entry["next_step"]


async def test_a_claim_that_is_gone_or_deallocated_is_dropped(setup: Setup) -> None:
    gone = await setup.claim(number=1)
    setup.server.delete(RESOURCE_CLAIMS, name="claim-1", namespace="ns")
    await setup.prepared(gone, new=False)
    await setup.node.preparer.unprepare(gone.metadata.uid)
    deallocated = await setup.claim(number=2)
    setup.server.patch(
        RESOURCE_CLAIMS,
        {"status": {"allocation": None}},
        name="claim-2",
        namespace="ns",
        subresource="status",
    )
    await setup.prepared(deallocated, new=False)
    await setup.node.preparer.unprepare(deallocated.metadata.uid)
    await setup.prepared(await setup.claim(number=3), new=False)
    await setup.server.until(lambda: setup.devices("claim-3"))
    assert setup.devices("claim-2") == []


async def test_a_gpu_that_does_not_answer_is_told_on_the_node_once(setup: Setup) -> None:
    with capture_logs() as logs:
        setup.reporter.gpus_not_answering({"index 3": "index 3: GPU is lost (code 15)"})
        setup.reporter.gpus_not_answering({"index 3": "index 3: GPU is lost (code 15)", "index 4": "gone"})
    await setup.server.until(lambda: len(setup.server.objects(EVENTS)) == 2)
    lost = next(event for event in setup.server.objects(EVENTS) if "code 15" in event["note"])
    assert (lost["reason"], lost["type"]) == ("GpuNotAnswering", "Warning")
    assert lost["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": NODE}
    assert "is not published: index 3" in lost["note"]
    assert "kernel log" in lost["note"]
    assert [entry["gpu"] for entry in logs if entry["event"] == "gpu_not_answering"] == ["index 3", "index 4"]
    setup.reporter.gpus_not_answering({})
    with capture_logs() as again:
        setup.reporter.gpus_not_answering({"index 4": "gone"})
    assert [entry["gpu"] for entry in again] == ["index 4"]


async def test_a_file_set_aside_is_told(setup: Setup) -> None:
    owner = ClaimReference(namespace="ns", name="claim-1", uid="u-2")
    setup.server.create(NAMESPACES, {"metadata": {"name": "ns"}})
    setup.reporter.state_set_aside(uid="u-1", cause="truncated", path="/x/u-1.json.set-aside-1", owner=None)
    setup.reporter.state_set_aside(uid="u-2", cause="truncated", path="/x", owner=owner)
    await setup.server.until(lambda: len(setup.server.objects(EVENTS)) == 2)
    kinds = {event["regarding"]["kind"]: event for event in setup.server.objects(EVENTS)}
    assert set(kinds) == {"Node", "ResourceClaim"}
    assert "u-1" in kinds["Node"]["note"]
    assert "/x/u-1.json.set-aside-1" in kinds["Node"]["note"]
    assert kinds["Node"]["reason"] == "HeldStateSetAside"
