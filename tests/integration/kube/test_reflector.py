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
from tangram.kube.resources import NODES, PODS
from tangram.testing.apiserver import FakeApiServer
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
        async with asyncio.timeout(10):
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


async def test_lists_in_pages(server: FakeApiServer, client: Client) -> None:
    for index in range(1001):
        server.create(PODS, pod(f"p{index:04}"))
    async with running(Rig(server, client)) as rig:
        await rig.watching()
        assert len(rig.names) == 1001
        assert [request.query["limit"] for request in rig.requests("list")] == ["500"] * 3


async def test_selector_limits_what_is_listed_and_watched(server: FakeApiServer, client: Client) -> None:
    server.create(PODS, pod("here", nodeName="n1"))
    server.create(PODS, pod("elsewhere", nodeName="n2"))
    async with running(Rig(server, client, field_selector="spec.nodeName=n1")) as rig:
        await rig.watching()
        server.create(PODS, pod("unbound"))
        server.create(PODS, pod("also-here", nodeName="n1"))
        await rig.until(lambda: len(rig.changes) == 2)
        assert rig.names == {"here", "also-here"}


async def test_object_that_leaves_the_selection_is_deleted(server: FakeApiServer, client: Client) -> None:
    server.create(PODS, {"metadata": {"name": "a", "namespace": "default", "labels": {"x": "1"}}})
    async with running(Rig(server, client, label_selector="x=1")) as rig:
        await rig.watching()
        server.patch(PODS, {"metadata": {"labels": {"x": "2"}}}, name="a", namespace="default")
        await rig.until(lambda: len(rig.changes) == 2)
        assert rig.told()[-1] == ("deleted", "a")


@pytest.mark.parametrize("how", ["end", "cut"])
async def test_resumes_without_a_list(rig: Rig, how: str) -> None:
    await rig.watching()
    rig.server.create(PODS, pod("a"))
    await rig.until(lambda: rig.names == {"a"})
    last = rig.server.resource_version
    rig.server.watches.direct("end" if how == "end" else "cut", PODS)
    await rig.not_watching()
    rig.server.create(PODS, pod("b"))
    await rig.clock.advance_to_next()
    await rig.until(lambda: rig.names == {"a", "b"})
    assert len(rig.requests("list")) == 1
    assert rig.requests("watch")[-1].query["resourceVersion"] == str(last)
    assert rig.told() == [("added", "a"), ("added", "b")]


async def test_bookmark_moves_the_point_of_resumption(rig: Rig) -> None:
    await rig.watching()
    for index in range(5):
        rig.server.create(NODES, {"metadata": {"name": f"n{index}"}})
    rig.server.bookmark_watches(PODS)
    rig.server.end_watches(PODS)
    await rig.clock.advance_to_next()
    await rig.server.until(lambda: len(rig.requests("watch")) == 2)
    assert rig.requests("watch")[-1].query["resourceVersion"] == str(rig.server.resource_version)


async def test_watch_that_ran_its_time_is_renewed_at_once(rig: Rig) -> None:
    await rig.watching()
    await rig.clock.advance(300)
    rig.server.end_watches(PODS)
    await rig.server.until(lambda: len(rig.requests("watch")) == 2)  # no time has passed
    assert rig.clock.sleeping == 0


async def test_410_as_status_relists_and_reports_the_missed_delete(rig: Rig) -> None:
    await rig.watching()
    for name in ("a", "b"):
        rig.server.create(PODS, pod(name))
    await rig.until(lambda: rig.names == {"a", "b"})
    rig.server.cut_watches(PODS)
    await rig.not_watching()
    rig.server.delete(PODS, name="a", namespace="default")
    rig.server.create(PODS, pod("c"))
    rig.server.faults.answer(410, verb="watch")
    await rig.clock.advance_to_next()  # the watch is answered 410
    await rig.clock.advance_to_next()  # the list
    await rig.until(lambda: rig.names == {"b", "c"})
    assert len(rig.requests("list")) == 2
    assert rig.told()[2:] == [("added", "c"), ("deleted", "a")]  # b is unchanged: nothing is told


async def test_410_inside_the_stream_relists(rig: Rig) -> None:
    await rig.watching()
    rig.server.create(PODS, pod("a"))
    rig.server.compact()  # before the stream got there
    await rig.clock.advance_to_next()
    await rig.until(lambda: rig.names == {"a"})
    assert len(rig.requests("list")) == 2


async def test_object_made_anew_in_a_gap_is_a_delete_and_an_add(rig: Rig) -> None:
    await rig.watching()
    rig.server.create(PODS, pod("a"))
    await rig.until(lambda: rig.names == {"a"})
    rig.server.cut_watches(PODS)
    await rig.not_watching()
    rig.server.delete(PODS, name="a", namespace="default")
    rig.server.create(PODS, pod("a"))
    rig.server.compact()
    await rig.clock.advance_to_next()
    await rig.clock.advance_to_next()
    await rig.until(lambda: len(rig.changes) == 3)
    assert rig.told() == [("added", "a"), ("deleted", "a"), ("added", "a")]


async def test_server_that_closes_watches_at_once_is_not_hammered(rig: Rig) -> None:
    await rig.watching()
    delays_s = []
    for round_ in range(2, 12):
        rig.server.end_watches(PODS)
        delays_s.append(await rig.clock.advance_to_next())
        await rig.server.until(lambda: len(rig.requests("watch")) == round_)  # noqa: B023
        await rig.watching()
    assert len(rig.requests("watch")) == 11
    assert delays_s[0] >= 0.8
    assert delays_s[4] > delays_s[0] * 4
    assert 30 <= delays_s[-1] <= 45


async def test_expired_continue_token_falls_back_to_one_piece(server: FakeApiServer, client: Client) -> None:
    for index in range(501):
        server.create(PODS, pod(f"p{index}"))
    async with running(Rig(server, client)) as rig:
        await server.until(lambda: rig.requests("list"))
        server.faults.answer(410, verb="list")
        await rig.clock.advance_to_next()
        await rig.watching()
        assert len(rig.names) == 501
        assert "limit" not in rig.requests("list")[-1].query


async def test_refused_list_is_asked_again_after_the_time_the_server_names(
    server: FakeApiServer, client: Client
) -> None:
    server.faults.answer(429, verb="list", retry_after_s=17)
    async with running(Rig(server, client)) as rig:
        assert await rig.clock.advance_to_next() == 17
        await rig.watching()


@pytest.mark.parametrize("status", [401, 403, 404, 500, 503])
@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_any_refusal_is_survived(server: FakeApiServer, client: Client, verb: Any, status: int) -> None:
    server.faults.answer(status, verb=verb)
    async with running(Rig(server, client)) as rig:
        await rig.clock.advance_to_next()
        await rig.watching()
        server.create(PODS, pod("a"))
        await rig.until(lambda: rig.names == {"a"})


async def test_connection_dropped_before_the_list(server: FakeApiServer, client: Client) -> None:
    server.create(PODS, pod("a"))
    server.faults.drop(verb="list", times=3)
    async with running(Rig(server, client)) as rig:
        for _ in range(2):  # aiohttp itself asks once more after a lost keep-alive connection
            await rig.clock.advance_to_next()
            if rig.reflector.synced.is_set():
                break
            await rig.server.until(lambda: rig.clock.sleeping or rig.server.watches.running(PODS))
        await rig.watching()
        assert rig.names == {"a"}


async def test_server_away_and_back(rig: Rig) -> None:
    await rig.watching()
    rig.server.create(PODS, pod("a"))
    await rig.until(lambda: rig.names == {"a"})
    await rig.server.pause()
    await rig.clock.advance_to_next()
    await rig.clock.until_sleeping()  # refused, waits again
    rig.server.delete(PODS, name="a", namespace="default")
    await rig.server.resume()
    await rig.clock.advance_to_next()
    await rig.until(lambda: not rig.names)


async def test_half_a_line_is_a_cut(rig: Rig) -> None:
    await rig.watching()
    rig.server.send_to_watches(b'{"type":"ADDED","object":{"metadata":{"na', PODS)
    rig.server.end_watches(PODS)
    await rig.clock.advance_to_next()
    rig.server.create(PODS, pod("a"))
    await rig.until(lambda: rig.names == {"a"})
    assert len(rig.requests("list")) == 1


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b'{"type":"SOMETHING","object":{}}\n',
        b'{"type":"ERROR","object":{"code":410,"reason":"Expired"}}\n',
        b'{"type":"BOOKMARK","object":{"metadata":null}}\n',
        b'{"type":"ADDED"}\n',
        b"x" * (8 * 2**20 + 1),
    ],
    ids=["text", "type", "expired", "bookmark", "empty", "oversized"],
)
async def test_unreadable_stream_leads_to_a_list(rig: Rig, line: bytes) -> None:
    await rig.watching()
    rig.server.send_to_watches(line, PODS)
    await rig.clock.advance_to_next()
    rig.server.create(PODS, pod("a"))
    await rig.until(lambda: rig.names == {"a"})
    assert len(rig.requests("list")) == 2


async def test_nameless_object_in_the_stream_is_skipped(rig: Rig) -> None:
    await rig.watching()
    rig.server.send_to_watches(b'{"type":"ADDED","object":{"metadata":{"name":null}}}\n', PODS)
    rig.server.create(PODS, pod("a"))
    await rig.until(lambda: rig.names == {"a"})
    assert len(rig.requests("list")) == 1


async def test_undecodable_object_costs_only_itself(server: FakeApiServer, client: Client) -> None:
    bad = server.create(PODS, pod("bad"))
    server.put_as_is(PODS, {**bad, "spec": {**bad["spec"], "nodeName": 5}})
    server.create(PODS, pod("good"))
    async with running(Rig(server, client)) as rig:
        await rig.watching()
        assert rig.names == {"good"}
        server.put_as_is(PODS, {**bad, "spec": {**bad["spec"], "nodeName": "n1"}})
        await rig.until(lambda: rig.names == {"good", "bad"})
        # What was readable once stays as it was, rather than appear to be gone.
        server.put_as_is(PODS, {**bad, "spec": {**bad["spec"], "nodeName": 6}})
        server.create(PODS, pod("later"))
        await rig.until(lambda: "later" in rig.names)
        assert rig.reflector.store[ObjectKey("default", "bad")].spec.node_name == "n1"
        server.delete(PODS, name="bad", namespace="default")
        await rig.until(lambda: "bad" not in rig.names)


async def test_exception_of_the_handler_is_survived(rig: Rig) -> None:
    def fail(change: Change[Pod]) -> None:
        raise RuntimeError("handler")

    rig.handler = fail
    await rig.watching()
    rig.server.create(PODS, pod("a"))
    await rig.until(lambda: rig.names == {"a"})
    rig.handler = rig.changes.append
    rig.server.create(PODS, pod("b"))
    await rig.until(lambda: rig.names == {"a", "b"})


async def test_store_is_read_only(rig: Rig) -> None:
    with pytest.raises(TypeError):
        rig.reflector.store[ObjectKey("", "x")] = Pod(metadata=None)  # type: ignore[index,arg-type]
