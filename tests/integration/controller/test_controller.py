"""The whole controller against an API server over HTTP, with the faults that real ones have."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from tests.fleet import claim, device_class, kube_node, machine, pod, slices

from tangram import DRIVER_NAME
from tangram.base.clock import Clock, SystemClock
from tangram.controller.app import Controller
from tangram.controller.settings import ControllerSettings
from tangram.controller.writer import FINALIZER
from tangram.kube.client import Client
from tangram.kube.resources import (
    DEVICE_CLASSES,
    EVENTS,
    LEASES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from tangram.model.gpu import Machine
from tangram.testing.apiserver import FakeApiServer
from tangram.testing.clock import FakeClock

A100 = machine(switch_links=12)
SETTINGS = ControllerSettings(identity="test", metrics_address="")


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        running.create(DEVICE_CLASSES, device_class())
        for name in ("n1", "n2"):
            add_node(running, name, A100)
        yield running


def add_node(server: FakeApiServer, name: str, of: Machine) -> None:
    server.create(NODES, kube_node(name))
    for item in slices(name, of):
        server.create(RESOURCE_SLICES, item)


@asynccontextmanager
async def running(
    server: FakeApiServer,
    tmp_path: Path,
    settings: ControllerSettings = SETTINGS,
    *,
    clock: Clock | None = None,
) -> AsyncIterator[Controller]:
    client = await Client.connect(
        kubeconfig=server.kubeconfig(tmp_path / "kubeconfig"), user_agent="tangram-controller/test"
    )
    controller = Controller(client, settings, clock or SystemClock())
    task = asyncio.create_task(controller.run())
    try:
        yield controller
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.wait({task})
        await client.close()


def allocation(server: FakeApiServer, name: str) -> Mapping[str, Any]:
    """`status.allocation` of a claim, empty if there is none."""
    found = server.get(RESOURCE_CLAIMS, name=name, namespace="default").get("status") or {}
    return found.get("allocation") or {}


def devices(server: FakeApiServer, name: str) -> list[tuple[str, str]]:
    results = allocation(server, name)["devices"]["results"]
    return [(result["pool"], result["device"]) for result in results]


def reasons(server: FakeApiServer, name: str) -> set[str]:
    return {e["reason"] for e in server.objects(EVENTS) if e["regarding"]["name"] == name}


def notes(server: FakeApiServer, name: str) -> list[str]:
    return [e["note"] for e in server.objects(EVENTS) if e["regarding"]["name"] == name]


async def test_a_pods_claims_are_allocated_by_the_protocol(server: FakeApiServer, tmp_path: Path) -> None:
    async with running(server, tmp_path):
        server.create(RESOURCE_CLAIMS, claim("a", count=2))
        server.create(RESOURCE_CLAIMS, claim("b"))
        server.create(PODS, pod("p", "a", "b"))
        await server.until(lambda: allocation(server, "a") and allocation(server, "b"))
    got = devices(server, "a") + devices(server, "b")
    assert len(set(got)) == 3
    assert {pool for pool, _ in got} == {f"{DRIVER_NAME}/n1"}
    stored = server.get(RESOURCE_CLAIMS, name="a", namespace="default")
    assert stored["metadata"]["finalizers"] == [FINALIZER]
    assert "reservedFor" not in stored["status"]
    assert allocation(server, "a")["allocationTimestamp"]
    assert [r.method for r in server.requests if "/resourceclaims/a" in r.path] == ["PATCH", "PATCH"]
    assert any("allocated gpu-" in note for note in notes(server, "a"))


async def test_claims_without_a_pod_wait(server: FakeApiServer, tmp_path: Path) -> None:
    async with running(server, tmp_path):
        server.create(RESOURCE_CLAIMS, claim("idle"))
        server.create(RESOURCE_CLAIMS, claim("wanted"))
        server.create(PODS, pod("p", "wanted"))
        await server.until(lambda: allocation(server, "wanted"))
        assert not allocation(server, "idle")


async def test_a_waiting_pod_is_told_and_starts_when_room_appears(
    server: FakeApiServer, tmp_path: Path
) -> None:
    async with running(server, tmp_path):
        for name in ("a", "b"):
            server.create(RESOURCE_CLAIMS, claim(name, count=8))
            server.create(PODS, pod(name, name))
        await server.until(lambda: allocation(server, "a") and allocation(server, "b"))
        server.create(RESOURCE_CLAIMS, claim("late"))
        server.create(PODS, pod("late", "late"))
        await server.until(lambda: notes(server, "late"))
        assert notes(server, "late")[0] == "16 GPUs on 2 nodes: 16 in use by other claims"
        add_node(server, "n3", A100)
        await server.until(lambda: allocation(server, "late"))


async def test_the_other_node_after_a_veto(server: FakeApiServer, tmp_path: Path) -> None:
    async with running(server, tmp_path):
        server.create(RESOURCE_CLAIMS, claim("a"))
        server.create(PODS, pod("p", "a"))
        await server.until(lambda: allocation(server, "a"))
        assert devices(server, "a")[0][0].endswith("/n1")
        veto = {"status": {"allocation": None, "reservedFor": None, "devices": None}}
        server.patch(RESOURCE_CLAIMS, veto, name="a", namespace="default", subresource="status")
        await server.until(lambda: allocation(server, "a"))
        assert devices(server, "a")[0][0].endswith("/n2")


async def test_a_conflicting_change_is_decided_again(server: FakeApiServer, tmp_path: Path) -> None:
    async with running(server, tmp_path):
        fault = server.faults.answer(409, verb="patch", resource=RESOURCE_CLAIMS, times=2)
        server.create(RESOURCE_CLAIMS, claim("a"))
        server.create(PODS, pod("p", "a"))
        await server.until(lambda: allocation(server, "a"))
        assert fault.hits == 2


@pytest.mark.parametrize("executed", [True, False])
async def test_an_answer_that_was_lost(server: FakeApiServer, tmp_path: Path, executed: bool) -> None:
    """Whether the write happened is unknown: nobody else gets the devices meanwhile."""
    async with running(server, tmp_path):
        server.faults.drop(verb="patch", resource=RESOURCE_CLAIMS, times=2, executed=executed)
        for name in ("a", "b", "c"):
            server.create(RESOURCE_CLAIMS, claim(name, count=4))
            server.create(PODS, pod(name, name))
        await server.until(lambda: all(allocation(server, name) for name in ("a", "b", "c")), timeout_s=30)
    got = [device for name in ("a", "b", "c") for device in devices(server, name)]
    assert len(set(got)) == 12


async def test_a_refusal_names_the_missing_permission(server: FakeApiServer, tmp_path: Path) -> None:
    async with running(server, tmp_path):
        server.faults.answer(403, verb="patch", resource=RESOURCE_CLAIMS, times=1)
        server.create(RESOURCE_CLAIMS, claim("a"))
        server.create(PODS, pod("p", "a"))
        await server.until(lambda: any("resourceclaims/binding" in note for note in notes(server, "a")))
        await server.until(lambda: allocation(server, "a"))


async def test_an_api_server_that_goes_away_and_comes_back(server: FakeApiServer, tmp_path: Path) -> None:
    async with running(server, tmp_path):
        server.create(RESOURCE_CLAIMS, claim("a"))
        server.create(PODS, pod("a", "a"))
        await server.until(lambda: allocation(server, "a"))
        await server.pause()
        server.create(RESOURCE_CLAIMS, claim("b"))
        server.create(PODS, pod("b", "b"))
        await server.resume()
        await server.until(lambda: allocation(server, "b"), timeout_s=30)
    assert devices(server, "a") != devices(server, "b")


async def test_a_restarted_controller_rebuilds_the_ledger_from_claims(
    server: FakeApiServer, tmp_path: Path
) -> None:
    names = [f"c{i}" for i in range(16)]
    for start in range(0, 16, 4):
        async with running(server, tmp_path):
            for name in names[start : start + 4]:
                server.create(RESOURCE_CLAIMS, claim(name))
                server.create(PODS, pod(name, name))
            await server.until(partial(all_allocated, server, names[start : start + 4]))
        # Slices vanish while nobody looks: what claims hold stays held.
        if start == 4:
            for item in slices("n1", A100):
                server.delete(RESOURCE_SLICES, name=item["metadata"]["name"])
            for item in slices("n1", A100, generation=2):
                server.create(RESOURCE_SLICES, item)
    got = [device for name in names for device in devices(server, name)]
    assert len(set(got)) == 16


async def test_a_second_replica_waits_for_the_lease(server: FakeApiServer, tmp_path: Path) -> None:
    async with running(server, tmp_path):
        await server.until(lambda: server.objects(LEASES) and holder(server) == "test")
        second = ControllerSettings(identity="second", metrics_address="")
        async with running(server, tmp_path, second) as standby:
            server.create(RESOURCE_CLAIMS, claim("a"))
            server.create(PODS, pod("p", "a"))
            await server.until(lambda: allocation(server, "a"))
            assert holder(server) == "test"
            await server.until(lambda: standby.waiting_for() == [])


async def test_after_the_loss_of_its_lease_a_replica_decides_nothing_until_it_leads_again(
    server: FakeApiServer, tmp_path: Path
) -> None:
    clock = FakeClock()
    async with running(server, tmp_path, clock=clock):
        await server.until(lambda: server.objects(LEASES) and holder(server) == "test")
        server.create(RESOURCE_CLAIMS, claim("a"))
        server.create(PODS, pod("a", "a"))
        await server.until(lambda: allocation(server, "a"))
        server.faults.stall(resource=LEASES)
        await clock.advance(10)
        await server.until(lambda: not leading())
        server.faults.clear()
        server.create(RESOURCE_CLAIMS, claim("b"))
        server.create(PODS, pod("b", "b"))
        await clock.advance(4.9)
        assert not leading()
        assert not allocation(server, "b")
        await clock.advance(0.1)
        await server.until(lambda: allocation(server, "b"))
    assert devices(server, "a") != devices(server, "b")


def leading() -> bool:
    return bool(REGISTRY.get_sample_value("tangram_leader"))


def all_allocated(server: FakeApiServer, names: list[str]) -> bool:
    return all(allocation(server, name) for name in names)


def holder(server: FakeApiServer) -> str:
    (lease,) = server.objects(LEASES)
    identity: str = lease["spec"]["holderIdentity"]
    return identity


async def test_an_idle_named_claim_is_freed(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tangram.controller.freeing._PERIOD_S", 0.01)
    async with running(server, tmp_path, ControllerSettings(identity="test", idle_claim_ttl_s=0)):
        server.create(RESOURCE_CLAIMS, claim("a"))
        server.create(PODS, pod("p", "a"))
        await server.until(lambda: allocation(server, "a"))
        server.delete(PODS, name="p", namespace="default")
        await server.until(lambda: not allocation(server, "a"))
        await server.until(lambda: any("no pod has used this claim" in note for note in notes(server, "a")))


async def test_a_pod_that_cannot_be_bound_leaves_its_devices_to_the_next(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tangram.controller.freeing._PERIOD_S", 0.01)

    def judge(name: str, message: str) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        status = {"status": {"conditions": [condition]}}
        server.patch(PODS, status, name=name, namespace="default", subresource="status")

    async with running(server, tmp_path, ControllerSettings(identity="test", unbound_timeout_s=0.1)):
        for name in ("a", "b", "c"):
            server.create(RESOURCE_CLAIMS, claim(name, count=8))
        for name in ("a", "b"):
            server.create(PODS, pod(name, name))
            await server.until(partial(allocation, server, name))
        judge("a", 'persistentvolumeclaim "data" not found')
        server.create(PODS, pod("c", "c"))
        await server.until(lambda: allocation(server, "c"))
        assert not allocation(server, "a")
        await server.until(lambda: any("WaitingForScheduler" in reason for reason in reasons(server, "a")))
        (given_back,) = [note for note in notes(server, "a") if "given back" in note and "pod a" in note][:1]
        assert 'kube-scheduler says: persistentvolumeclaim "data" not found' in given_back
        judge("a", "0/2 nodes are available: 2 cannot allocate all claims.")
        server.delete(PODS, name="b", namespace="default")
        server.delete(RESOURCE_CLAIMS, name="b", namespace="default")
        patch = {"metadata": {"finalizers": None}}
        server.patch(RESOURCE_CLAIMS, patch, name="b", namespace="default")  # as Kubernetes does
        await server.until(lambda: allocation(server, "a"))


async def test_malformed_objects_cost_only_themselves(server: FakeApiServer, tmp_path: Path) -> None:
    bad_pod = server.create(PODS, pod("bad"))
    bad_pod["spec"]["resourceClaims"] = None
    bad_pod["spec"]["containers"] = [{"name": "c", "resources": {"requests": {"cpu": "many"}}}]
    server.put_as_is(PODS, bad_pod)
    async with running(server, tmp_path):
        broken = server.create(RESOURCE_CLAIMS, claim("broken"))
        spec = claim("broken", selectors=["device.driver =="])["spec"]
        server.put_as_is(RESOURCE_CLAIMS, {**broken, "spec": spec})
        server.create(PODS, pod("broken", "broken"))
        server.create(RESOURCE_CLAIMS, claim("a"))
        server.create(PODS, pod("p", "a"))
        await server.until(lambda: allocation(server, "a"))
        await server.until(
            lambda: any("request gpu: selector #0" in note for note in notes(server, "broken"))
        )
