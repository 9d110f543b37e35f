"""Every call of the client, through real HTTP."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tangram.base.errors import (
    AlreadyExistsError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    InvalidObjectError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    UnauthorizedError,
    UnreachableError,
)
from tangram.kube.client import Client
from tangram.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tangram.testing.apiserver import FakeApiServer

POD = {
    "metadata": {"name": "p", "namespace": "default"},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}


async def test_create_get_patch_delete(server: FakeApiServer, client: Client) -> None:
    created = json.loads(await client.create(PODS, POD))
    assert (created["apiVersion"], created["kind"]) == ("v1", "Pod")
    labels = {"metadata": {"labels": {"a": "b"}}}
    patched = json.loads(await client.patch(PODS, labels, name="p", namespace="default"))
    assert patched == json.loads(await client.get(PODS, name="p", namespace="default"))
    assert patched["metadata"]["labels"] == {"a": "b"}
    removal = [{"op": "remove", "path": "/metadata/labels/a"}]
    await client.patch(PODS, removal, name="p", namespace="default", kind="json")
    assert "labels" not in server.get(PODS, name="p", namespace="default")["metadata"]
    await client.delete(PODS, name="p", namespace="default")
    with pytest.raises(NotFoundError, match='pods "p" not found'):
        await client.get(PODS, name="p", namespace="default")


async def test_requests_say_who_writes(server: FakeApiServer, client: Client) -> None:
    await client.create(NODES, {"metadata": {"name": "n"}})
    request = server.requests[-1]
    assert request.headers["user-agent"] == "tangram-test/1.0"
    assert request.query["fieldManager"] == "tangram-test"
    assert request.headers["authorization"] == "Bearer fake-token"
    assert request.headers["accept-encoding"] == "identity"


async def test_status_is_patched_apart(server: FakeApiServer, client: Client) -> None:
    server.create(PODS, POD)
    await client.patch(
        PODS,
        {"status": {"phase": "Running"}, "spec": {"nodeName": "n"}},
        name="p",
        namespace="default",
        subresource="status",
    )
    stored = server.get(PODS, name="p", namespace="default")
    assert stored["status"]["phase"] == "Running"
    assert "nodeName" not in stored["spec"]


async def test_stale_version_in_a_merge_patch_is_a_conflict(server: FakeApiServer, client: Client) -> None:
    old = server.create(PODS, POD)["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": old, "labels": {"a": "b"}}}
    await client.patch(PODS, patch, name="p", namespace="default")
    with pytest.raises(ConflictError, match="the object has been modified"):
        await client.patch(PODS, patch, name="p", namespace="default")


async def test_preconditions_of_a_delete(server: FakeApiServer, client: Client) -> None:
    created = server.create(PODS, POD)
    with pytest.raises(ConflictError):
        await client.delete(PODS, name="p", namespace="default", uid="another")
    with pytest.raises(ConflictError):
        await client.delete(PODS, name="p", namespace="default", resource_version="1")
    await client.delete(
        PODS,
        name="p",
        namespace="default",
        uid=created["metadata"]["uid"],
        resource_version=created["metadata"]["resourceVersion"],
    )
    assert not server.objects(PODS)


async def test_list_pages_and_selectors(server: FakeApiServer, client: Client) -> None:
    for index in range(5):
        labels = {"parity": "even" if index % 2 == 0 else "odd"}
        server.create(PODS, {"metadata": {"name": f"p{index}", "namespace": "default", "labels": labels}})
    first = json.loads(await client.list_page(PODS, limit=2, label_selector="parity in (even)"))
    token = first["metadata"]["continue"]
    second = json.loads(
        await client.list_page(PODS, limit=2, label_selector="parity in (even)", continue_token=token)
    )
    names = [item["metadata"]["name"] for page in (first, second) for item in page["items"]]
    assert names == ["p0", "p2", "p4"]
    assert "continue" not in second["metadata"]
    server.compact()
    with pytest.raises(ExpiredError):
        await client.list_page(PODS, limit=2, continue_token=token)


async def test_already_exists(server: FakeApiServer, client: Client) -> None:
    server.create(PODS, POD)
    with pytest.raises(AlreadyExistsError):
        await client.create(PODS, POD)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, UnauthorizedError),
        (403, ForbiddenError),
        (422, InvalidError),
        (429, TooManyRequestsError),
        (503, ServerError),
    ],
)
async def test_refusals(
    server: FakeApiServer, client: Client, status: int, kind: type[UnauthorizedError]
) -> None:
    server.faults.answer(status, message="the message", retry_after_s=7)
    with pytest.raises(kind, match="the message") as caught:
        await client.get(NODES, name="n")
    assert caught.value.status == status
    assert caught.value.retry_after_s == 7


async def test_lost_answer_is_unreachable_though_the_write_happened(
    server: FakeApiServer, client: Client
) -> None:
    server.faults.drop(verb="create", executed=True)
    with pytest.raises(UnreachableError):
        await client.create(PODS, POD)
    assert server.objects(PODS)


async def test_server_away(server: FakeApiServer, client: Client) -> None:
    await server.pause()
    with pytest.raises(UnreachableError, match="check that the API server runs"):
        await client.get(NODES, name="n")
    await server.resume()
    with pytest.raises(NotFoundError):
        await client.get(NODES, name="n")


async def test_watch_beyond_the_line_limit_of_aiohttp(server: FakeApiServer, client: Client) -> None:
    async with contextlib.aclosing(client.watch(NODES, resource_version="1")) as events:
        server.put_as_is(NODES, {"metadata": {"name": "big", "annotations": {"x": "y" * 2_000_000}}})
        event = json.loads(await anext(events))
        assert event["type"] == "ADDED"
        assert len(event["object"]["metadata"]["annotations"]["x"]) == 2_000_000


async def test_watch_that_the_server_ends_ends_quietly(server: FakeApiServer, client: Client) -> None:
    watching = asyncio.ensure_future(collect(client.watch(NODES, resource_version="1")))
    await server.until(lambda: server.watches.running(NODES))
    server.end_watches()
    assert await watching == []


async def test_watch_that_is_cut_breaks_loudly(server: FakeApiServer, client: Client) -> None:
    watching = asyncio.ensure_future(collect(client.watch(NODES, resource_version="1")))
    await server.until(lambda: server.watches.running(NODES))
    server.cut_watches()
    with pytest.raises(UnreachableError, match="watch of /api/v1/nodes"):
        await watching


async def collect(events: AsyncIterator[bytes]) -> list[bytes]:
    return [event async for event in events]


async def test_watch_from_too_far_back(server: FakeApiServer, client: Client) -> None:
    server.faults.answer(410, verb="watch")  # some servers say it so, others inside the stream
    with pytest.raises(ExpiredError):
        await anext(client.watch(NODES, resource_version="1"))
    server.compact()
    event = json.loads(await anext(client.watch(NODES, resource_version="1")))
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


async def test_closed_watch_leaves_the_server(server: FakeApiServer, client: Client) -> None:
    async with contextlib.aclosing(client.watch(NODES, resource_version="1")) as events:
        server.create(NODES, {"metadata": {"name": "n"}})
        await anext(events)
        assert server.watches.running(NODES)
    await server.until(lambda: not server.watches.running(NODES))


@pytest.mark.parametrize("name", ["", "..", "a/b", "a%2fb"])
async def test_name_that_would_address_something_else_is_refused(
    server: FakeApiServer, client: Client, name: str
) -> None:
    with pytest.raises(InvalidObjectError):
        await client.delete(PODS, name=name, namespace="default")
    with pytest.raises(InvalidObjectError):
        await client.get(RESOURCE_CLAIMS, name="x", namespace=name)
    assert not server.requests


async def test_strange_but_legal_path_characters_arrive(server: FakeApiServer, client: Client) -> None:
    with pytest.raises(NotFoundError):
        await client.get(NODES, name="a b?c#d&é")
    assert server.requests[-1].name == "a b?c#d&é"


async def test_field_selector_arrives_unharmed(server: FakeApiServer, client: Client) -> None:
    await client.list_page(RESOURCE_SLICES, field_selector="spec.nodeName=a,spec.driver=gpu.resource.admin")
    assert server.requests[-1].query["fieldSelector"] == "spec.nodeName=a,spec.driver=gpu.resource.admin"


async def test_custom_certificates_in_the_environment_do_no_harm(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1/nowhere")
    client = await Client.connect(kubeconfig=server.kubeconfig(tmp_path / "k"), user_agent="t")
    try:
        await client.list_page(NODES)
    finally:
        await client.close()
