"""Events: never in the way, coalesced, retried, flushed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tangram.base.clock import rfc3339_micro
from tangram.kube import events
from tangram.kube.client import Client
from tangram.kube.events import EventRecorder, ObjectReference
from tangram.kube.resources import EVENTS
from tangram.testing.apiserver import FakeApiServer
from tangram.testing.clock import FakeClock

POD = ObjectReference(api_version="v1", kind="Pod", name="p", namespace="default", uid="u1")
NODE = ObjectReference(api_version="v1", kind="Node", name="n", namespace="", uid="u2")


class Rig:
    def __init__(self, server: FakeApiServer, client: Client) -> None:
        self.server = server
        self.clock = FakeClock()
        self.recorder = EventRecorder(
            client, controller="gpu.resource.admin/test", instance="host", clock=self.clock
        )

    def emit(self, regarding: ObjectReference = POD, **options: Any) -> None:
        arguments = {"reason": "Waiting", "note": "no GPU", "action": "Allocate", **options}
        self.recorder.emit(regarding, **arguments)

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.server.objects(EVENTS)

    async def until(self, predicate: Callable[[], Any]) -> None:
        await self.server.until(predicate)

    def requests(self, verb: str) -> int:
        return sum(request.verb == verb for request in self.server.requests)


@pytest.fixture
async def rig(server: FakeApiServer, client: Client) -> AsyncIterator[Rig]:
    made = Rig(server, client)
    task = asyncio.create_task(made.recorder.run())
    yield made
    assert not task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_event_as_kubectl_shows_it(rig: Rig) -> None:
    rig.emit(kind="Warning", related=NODE)
    await rig.until(lambda: rig.events)
    (event,) = rig.events
    assert event["metadata"]["name"].startswith("p.")
    assert event["metadata"]["namespace"] == "default"
    assert event["regarding"] == {
        "apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "default", "uid": "u1",
    }  # fmt: skip
    assert event["related"] == {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u2"}
    assert event["eventTime"] == rfc3339_micro(rig.clock.now())
    assert (event["type"], event["reason"], event["action"]) == ("Warning", "Waiting", "Allocate")
    assert event["note"] == "no GPU"
    assert event["reportingController"] == "gpu.resource.admin/test"
    assert event["reportingInstance"] == "host"
    assert "series" not in event


async def test_event_of_a_cluster_scoped_object_lives_in_default(rig: Rig) -> None:
    rig.emit(NODE)
    await rig.until(lambda: rig.events)
    assert rig.events[0]["metadata"]["namespace"] == "default"


async def test_repeats_become_one_write_of_a_series(rig: Rig) -> None:
    rig.emit()
    await rig.until(lambda: rig.events)
    for _ in range(100):
        rig.emit()
    await rig.clock.until_sleeping()
    await rig.clock.advance(29)
    assert rig.requests("patch") == 0
    last = rfc3339_micro(rig.clock.now())
    rig.emit()
    await rig.clock.advance(1)
    await rig.until(lambda: "series" in rig.events[0])
    assert rig.events[0]["series"] == {"count": 102, "lastObservedTime": last}
    assert (len(rig.events), rig.requests("create"), rig.requests("patch")) == (1, 1, 1)


async def test_other_note_is_another_event(rig: Rig) -> None:
    rig.emit(note="3 GPUs too small")
    rig.emit(note="2 GPUs too small")
    await rig.until(lambda: len(rig.events) == 2)


async def test_repeat_after_long_silence_is_a_new_event(rig: Rig) -> None:
    rig.emit()
    await rig.until(lambda: rig.events)
    await rig.recorder.flush(timeout_s=1)  # the answer has been read as well
    await rig.clock.advance(361)
    rig.emit()
    await rig.until(lambda: len(rig.events) == 2)


async def test_series_of_an_event_that_ran_out_is_a_new_event(rig: Rig) -> None:
    rig.emit()
    await rig.until(lambda: rig.events)
    await rig.recorder.flush(timeout_s=1)
    old = rig.events[0]["metadata"]["name"]
    rig.server.delete(EVENTS, name=old, namespace="default")
    rig.emit()
    await rig.clock.advance_to_next()
    await rig.until(lambda: rig.events)
    assert rig.events[0]["metadata"]["name"] != old
    assert rig.events[0]["series"]["count"] == 2


async def test_server_trouble_is_waited_out(rig: Rig) -> None:
    rig.server.faults.answer(500, times=2)
    rig.server.faults.answer(429, retry_after_s=20)
    rig.emit()
    for expected in (1, 2, 3):
        await rig.until(lambda: rig.requests("create") == expected)  # noqa: B023
        delay_s = await rig.clock.advance_to_next()
    assert delay_s == 20
    await rig.until(lambda: rig.events)


async def test_lost_answer_does_not_double_the_event(rig: Rig) -> None:
    rig.server.faults.drop(verb="create", executed=True)
    rig.emit()
    await rig.until(lambda: rig.events)
    await rig.clock.advance_to_next()
    await rig.until(lambda: rig.requests("create") == 2)
    await rig.recorder.flush(timeout_s=1)
    assert len(rig.events) == 1


@pytest.mark.parametrize("status", [400, 403, 404, 422])
async def test_refused_event_is_dropped(rig: Rig, status: int) -> None:
    rig.server.faults.answer(status)
    rig.emit()
    rig.emit(reason="Other")
    await rig.until(lambda: rig.events)
    assert [event["reason"] for event in rig.events] == ["Other"]
    assert rig.clock.sleeping == 0


async def test_unreachable_server_costs_the_event_in_the_end(rig: Rig) -> None:
    rig.server.faults.answer(503, times=1000)
    rig.emit()
    for attempt in range(1, 10):
        await rig.until(lambda: rig.requests("create") == attempt)  # noqa: B023
        await rig.clock.advance_to_next()
    await rig.until(lambda: rig.requests("create") == 10)
    rig.server.faults.clear()
    rig.emit(reason="Other")
    await rig.until(lambda: rig.events)
    assert [event["reason"] for event in rig.events] == ["Other"]


async def test_hostile_texts_are_cut_and_written(rig: Rig) -> None:
    strange = ObjectReference(
        api_version="v1", kind="Pod", name="a" * 229 + "-.b", namespace="default", uid="u"
    )
    rig.emit(strange, note="ü" * 5000 + "\ud800", reason="R" * 500, action="A" * 500)
    await rig.until(lambda: rig.events)
    note = rig.events[0]["note"]
    assert 1020 <= len(note.encode()) <= 1024
    assert note.endswith("ü…")


async def test_object_in_an_impossible_namespace_kills_nothing(rig: Rig) -> None:
    rig.emit(ObjectReference(api_version="v1", kind="Pod", name="p", namespace="a/b", uid="u"))
    rig.emit()
    await rig.until(lambda: rig.events)


async def test_flood_is_bounded(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_MAX_RECORDS", 20)
    rig = Rig(server, client)  # nobody writes
    for index in range(50):
        rig.emit(note=f"n{index}")
    await rig.recorder.flush(timeout_s=60)
    assert len(rig.events) == 20
    rig.emit(note="later")  # written ones make room
    await rig.recorder.flush(timeout_s=60)
    assert len(rig.events) == 21


async def test_flush_writes_what_waits_for_a_series_or_a_retry(server: FakeApiServer, client: Client) -> None:
    rig = Rig(server, client)
    rig.emit()
    rig.emit()
    rig.emit(reason="Other")
    await rig.recorder.flush(timeout_s=1)
    assert {event["reason"]: event.get("series", {}).get("count") for event in rig.events} == {
        "Waiting": 2,
        "Other": None,
    }


async def test_flush_gives_up_in_time(server: FakeApiServer, client: Client) -> None:
    rig = Rig(server, client)
    server.faults.stall()
    rig.emit()
    flushing = asyncio.create_task(rig.recorder.flush(timeout_s=2))
    await server.until(lambda: server.requests)
    await rig.clock.advance(1.9)
    assert not flushing.done()
    await rig.clock.advance(0.1)
    await flushing


async def test_flush_without_a_server_raises_nothing(server: FakeApiServer, client: Client) -> None:
    rig = Rig(server, client)
    await server.pause()
    rig.emit()
    await rig.recorder.flush(timeout_s=2)
