"""The fake API server behaves as a real one where clients can notice."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tangram.base.errors import (
    AlreadyExistsError,
    ApiError,
    NotFoundError,
    ServerError,
)
from tangram.kube.client import Client
from tangram.kube.resources import DEVICE_CLASSES, NODES, PODS
from tangram.testing.apiserver import CONFIG_MAPS, NAMESPACES, FakeApiServer
from tangram.testing.clock import FakeClock


def named(name: str, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", **more.pop("metadata", {})}
    return {"metadata": metadata, **more}


def names(server: FakeApiServer, resource: Any = PODS) -> list[str]:
    return [obj["metadata"]["name"] for obj in server.objects(resource)]


# --- writes ------------------------------------------------------------------------------------------------


def test_create_fills_in_what_the_server_owns() -> None:
    server = FakeApiServer()
    made = server.create(
        PODS,
        named(
            "a",
            metadata={"uid": "mine", "creationTimestamp": "2020-01-01T00:00:00Z", "generation": 9},
            spec={},
        ),
    )
    metadata = made["metadata"]
    assert metadata["uid"] != "mine"
    assert metadata["creationTimestamp"].endswith("Z")
    assert metadata["generation"] == 1
    assert int(metadata["resourceVersion"]) == server.resource_version
    assert (made["apiVersion"], made["kind"], made["status"]["phase"]) == ("v1", "Pod", "Pending")


def test_generate_name() -> None:
    server = FakeApiServer()
    made = [server.create(PODS, {"metadata": {"generateName": "p-"}}) for _ in range(3)]
    found = {obj["metadata"]["name"] for obj in made}
    assert len(found) == 3
    assert all(name.startswith("p-") and len(name) == 7 for name in found)


def test_second_create_is_refused() -> None:
    server = FakeApiServer()
    server.create(PODS, named("a"))
    with pytest.raises(AlreadyExistsError, match='pods "a" already exists'):
        server.create(PODS, named("a"))


def test_versions_grow_over_all_resources_and_unchanged_objects_keep_theirs() -> None:
    server = FakeApiServer()
    first = server.create(PODS, named("a", spec={}))
    second = server.create(NODES, {"metadata": {"name": "n"}})
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    same = server.patch(PODS, {"spec": {}}, name="a", namespace="default")
    assert same["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_generation_counts_changes_of_the_spec_only() -> None:
    server = FakeApiServer()
    server.create(PODS, named("a", spec={}))
    server.patch(PODS, {"metadata": {"labels": {"x": "y"}}}, name="a", namespace="default")
    server.patch(PODS, {"status": {"phase": "Running"}}, name="a", namespace="default", subresource="status")
    assert server.get(PODS, name="a", namespace="default")["metadata"]["generation"] == 1
    server.patch(PODS, {"spec": {"activeDeadlineSeconds": 9}}, name="a", namespace="default")
    assert server.get(PODS, name="a", namespace="default")["metadata"]["generation"] == 2


def test_what_is_returned_is_the_callers_own() -> None:
    server = FakeApiServer()
    server.create(CONFIG_MAPS, named("a", data={"x": "1"}))["data"]["x"] = "2"
    server.get(CONFIG_MAPS, name="a", namespace="default")["data"]["x"] = "2"
    server.objects(CONFIG_MAPS)[0]["data"]["x"] = "2"
    assert server.get(CONFIG_MAPS, name="a", namespace="default")["data"] == {"x": "1"}


# --- deletion ----------------------------------------------------------------------------------------------


def test_finalizer_holds_the_object_until_it_is_removed() -> None:
    server = FakeApiServer()
    server.create(PODS, named("a", metadata={"finalizers": ["x/y"]}))
    server.delete(PODS, name="a", namespace="default")
    assert server.get(PODS, name="a", namespace="default")["metadata"]["deletionTimestamp"]
    server.patch(PODS, {"metadata": {"finalizers": None}}, name="a", namespace="default")
    assert not server.objects(PODS)


async def test_bound_pod_waits_for_its_kubelet(server: FakeApiServer, client: Client) -> None:
    server.create(PODS, named("free", spec={}))
    server.create(PODS, named("bound", spec={"nodeName": "n"}))
    server.create(PODS, named("over", spec={"nodeName": "n"}, status={"phase": "Succeeded"}))
    for name in ("free", "bound", "over"):
        await client.delete(PODS, name=name, namespace="default")
    assert names(server) == ["bound"]
    metadata = server.objects(PODS)[0]["metadata"]
    assert metadata["deletionGracePeriodSeconds"] == 30
    assert metadata["deletionTimestamp"] > metadata["creationTimestamp"]
    server.delete(PODS, name="bound", namespace="default", grace_s=0)
    assert not server.objects(PODS)


def owner(obj: dict[str, Any], kind: str, api_version: str = "v1") -> dict[str, Any]:
    metadata = obj["metadata"]
    return {"apiVersion": api_version, "kind": kind, "name": metadata["name"], "uid": metadata["uid"]}


def test_garbage_collector() -> None:
    server = FakeApiServer()
    one = server.create(NODES, {"metadata": {"name": "one"}})
    two = server.create(NODES, {"metadata": {"name": "two"}})
    server.create(CONFIG_MAPS, named("of-one", metadata={"ownerReferences": [owner(one, "Node")]}))
    both = {"ownerReferences": [owner(one, "Node"), owner(two, "Node")]}
    server.create(CONFIG_MAPS, named("of-both", metadata=both))
    child = server.get(CONFIG_MAPS, name="of-both", namespace="default")
    server.create(CONFIG_MAPS, named("grandchild", metadata={"ownerReferences": [owner(child, "ConfigMap")]}))
    unknown = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r"}
    server.create(CONFIG_MAPS, named("of-unknown", metadata={"ownerReferences": [unknown]}))
    server.delete(NODES, name="one")
    assert names(server, CONFIG_MAPS) == ["grandchild", "of-both", "of-unknown"]
    server.delete(NODES, name="two")
    assert names(server, CONFIG_MAPS) == ["of-unknown"]


def test_object_of_an_owner_that_is_not_there_does_not_live() -> None:
    server = FakeApiServer()
    ghost = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "old"}
    server.create(CONFIG_MAPS, named("a", metadata={"ownerReferences": [ghost]}))
    assert not server.objects(CONFIG_MAPS)


async def test_namespaces(server: FakeApiServer, client: Client) -> None:
    with pytest.raises(NotFoundError, match='namespaces "new" not found'):
        await client.create(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "new"}})
    await client.create(NAMESPACES, {"metadata": {"name": "new"}})
    await client.create(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "new"}})
    with pytest.raises(ApiError, match="namespace"):
        await client.create(CONFIG_MAPS, named("b"), namespace="new")
    server.delete(NAMESPACES, name="new")
    assert not server.objects(CONFIG_MAPS)


# --- lists and watches -------------------------------------------------------------------------------------


async def collect(client: Client, count: int, **options: Any) -> list[dict[str, Any]]:
    events = []
    stream = client.watch(PODS, **options)
    async for line in stream:
        events.append(json.loads(line))
        if len(events) == count:
            break
    await stream.aclose()
    return events


async def test_list_items_carry_no_kind(server: FakeApiServer, client: Client) -> None:
    server.create(PODS, named("a"))
    listed = json.loads(await client.list_page(PODS))
    assert (listed["kind"], listed["apiVersion"]) == ("PodList", "v1")
    assert listed["metadata"]["resourceVersion"] == str(server.resource_version)
    assert "kind" not in listed["items"][0]


async def test_pages_are_one_snapshot(server: FakeApiServer, client: Client) -> None:
    for name in ("a", "c"):
        server.create(PODS, named(name))
    first = json.loads(await client.list_page(PODS, limit=1))
    assert first["metadata"]["remainingItemCount"] == 1
    server.create(PODS, named("b"))
    second = json.loads(await client.list_page(PODS, limit=1, continue_token=first["metadata"]["continue"]))
    assert [item["metadata"]["name"] for item in second["items"]] == ["c"]
    assert second["metadata"] == {"resourceVersion": first["metadata"]["resourceVersion"]}
    with pytest.raises(ApiError, match="continue key"):
        await client.list_page(PODS, continue_token="nonsense")


async def test_watch_from_a_version(server: FakeApiServer, client: Client) -> None:
    server.create(PODS, named("before"))
    version = str(server.resource_version)
    server.create(PODS, named("a"))
    server.create(NODES, {"metadata": {"name": "other"}})
    server.patch(PODS, {"metadata": {"labels": {"x": "y"}}}, name="a", namespace="default")
    server.delete(PODS, name="a", namespace="default")
    events = await collect(client, 3, resource_version=version)
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(versions)
    assert versions[-1] == server.resource_version
    assert events[0]["object"]["kind"] == "Pod"


async def test_watch_from_nowhere_begins_with_all(server: FakeApiServer, client: Client) -> None:
    server.create(PODS, named("a"))
    server.create(PODS, named("b"))
    events = await collect(client, 2, resource_version="0")
    assert [event["type"] for event in events] == ["ADDED", "ADDED"]


async def test_history_is_limited_per_resource(tmp_path: Path) -> None:
    async with FakeApiServer(history_limit=5) as server:
        client = await Client.connect(kubeconfig=server.kubeconfig(tmp_path / "k"), user_agent="t")
        version = str(server.resource_version)
        for index in range(6):
            server.create(PODS, named(f"p{index}"))
        (refused,) = await collect(client, 1, resource_version=version)
        assert (refused["type"], refused["object"]["code"]) == ("ERROR", 410)
        watching = asyncio.ensure_future(anext(client.watch(NODES, resource_version=version)))
        server.create(NODES, {"metadata": {"name": "n"}})
        assert json.loads(await watching)["type"] == "ADDED"
        await client.close()


async def test_version_of_the_future_is_refused(client: Client) -> None:
    with pytest.raises(ServerError, match="Too large resource version"):
        await client.list_page(PODS, resource_version="999999")


async def test_watch_sends_bookmarks_and_ends_by_the_servers_clock(tmp_path: Path) -> None:
    clock = FakeClock()
    async with FakeApiServer(clock=clock) as server:
        client = await Client.connect(kubeconfig=server.kubeconfig(tmp_path / "k"), user_agent="t")
        version = str(server.resource_version)
        watching = asyncio.ensure_future(collect(client, 99, resource_version=version, timeout_s=90))
        await clock.until_sleeping()
        server.create(NODES, {"metadata": {"name": "n"}})
        await clock.advance(60)
        await clock.advance(30)
        events = await watching
        assert [event["type"] for event in events] == ["BOOKMARK", "BOOKMARK"]
        assert events[-1]["object"]["metadata"]["resourceVersion"] == str(server.resource_version)
        await client.close()


# --- other objects -----------------------------------------------------------------------------------------


EVENT = {
    "eventTime": "2026-01-01T00:00:00.000000Z",
    "reportingController": "c",
    "reportingInstance": "i",
    "action": "A",
    "reason": "R",
    "type": "Normal",
    "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
}


def test_class_loses_what_the_version_does_not_know() -> None:
    body = {"metadata": {"name": "c"}, "spec": {"extendedResourceName": "a/b"}}
    assert FakeApiServer().create(DEVICE_CLASSES, body)["spec"] == body["spec"]
    assert FakeApiServer(version="1.35").create(DEVICE_CLASSES, body)["spec"] == {}


# --- HTTP --------------------------------------------------------------------------------------------------


@pytest.fixture
async def http(server: FakeApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url) as session:
        yield session


async def test_refusal_is_a_status_object(http: aiohttp.ClientSession) -> None:
    async with http.get("/api/v1/namespaces/default/pods/none") as response:
        assert response.status == 404
        status = await response.json()
    assert status.pop("details") == {"name": "none", "kind": "pods"}
    assert status == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'pods "none" not found',
        "reason": "NotFound",
        "code": 404,
    }


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/v1/widgets", None, 404),
        ("GET", "/apis/resource.k8s.io/v1/pods", None, 404),
        ("GET", "/api/v1/pods/p", None, 404),
        ("GET", "/api/v1/namespaces/default/nodes", None, 404),
        ("GET", "/api/v1/pods?fieldSelector=a.b%3Dc", None, 400),
        ("GET", "/api/v1/pods?watch=true&resourceVersion=x", None, 500),
        ("POST", "/api/v1/namespaces/default/pods", "{", 400),
        ("POST", "/api/v1/namespaces/default/pods", "[]", 400),
        ("POST", "/api/v1/namespaces/default/pods", '{"kind":"Node","metadata":{"name":"a"}}', 400),
        ("POST", "/api/v1/namespaces/default/pods/p", "{}", 405),
        ("DELETE", "/api/v1/namespaces/default/pods", None, 200),
        ("OPTIONS", "/api/v1/pods", None, 405),
        ("PATCH", "/api/v1/nodes/n", "{}", 415),
        ("GET", "/readyz", None, 200),
        ("GET", "/api/v1/namespaces/default", None, 200),
    ],
)
async def test_requests(
    http: aiohttp.ClientSession, method: str, path: str, body: str | None, status: int
) -> None:
    headers = {"content-type": "application/json"} if body else {}
    async with http.request(method, path, data=body, headers=headers) as response:
        assert response.status == status


async def test_put_replaces(server: FakeApiServer, http: aiohttp.ClientSession) -> None:
    made = server.create(CONFIG_MAPS, named("c", data={"a": "1"}))
    path = "/api/v1/namespaces/default/configmaps/c"
    made["data"] = {"b": "2"}
    async with http.put(path, json=made) as response:
        assert response.status == 200
    async with http.put(path, json=made) as response:
        assert response.status == 409
    assert server.objects(CONFIG_MAPS)[0]["data"] == {"b": "2"}


async def test_stalled_request_goes_on_when_released(server: FakeApiServer, client: Client) -> None:
    fault = server.faults.stall(verb="create", resource=NODES)
    creating = asyncio.ensure_future(client.create(NODES, {"metadata": {"name": "n"}}))
    await server.until(lambda: fault.hits)
    assert not server.objects(NODES)
    fault.release()
    await creating
    assert names(server, NODES) == ["n"]


async def test_faults_hit_only_what_they_name(server: FakeApiServer, client: Client) -> None:
    server.faults.answer(500, verb="list", resource=PODS, times=2)
    await client.list_page(NODES)
    for _ in range(2):
        with pytest.raises(ServerError, match="injected fault"):
            await client.list_page(PODS)
    await client.list_page(PODS)
