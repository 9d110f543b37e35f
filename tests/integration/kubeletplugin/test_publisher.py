"""The slice publisher against an API server that behaves as a real one, faults included."""

import asyncio
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs
from tests.integration.kubeletplugin.publishing import DRIVER, NODE, POOL, device, name_of, pool, world

from tangram.base.errors import ForbiddenError, InvalidObjectError, SliceLimitError, UnreachableError
from tangram.kube.resources import NODES, RESOURCE_SLICES
from tangram.kubeletplugin.publisher import COALESCE_S, HEAL_S
from tangram.kubeletplugin.slices import Pool, Slice

TAINT = {"key": "example.com/broken", "effect": "NoSchedule"}


async def test_publishes_owned_slices_in_order() -> None:
    async with world() as it:
        await it.start({POOL: pool(7, 8)})
        await it.settled()
        uid = it.server.get(NODES, name=NODE)["metadata"]["uid"]
        first, second = it.slices()
        assert first["metadata"]["name"] == name_of(0)
        assert first["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid, "controller": True}
        ]
        assert first["spec"] == {
            "driver": DRIVER,
            "nodeName": NODE,
            "pool": {"name": POOL, "generation": 1, "resourceSliceCount": 2},
            "devices": [{"name": "widget-0", "attributes": {"value": {"int": 7}}}],
        }
        assert second["spec"]["devices"][0]["name"] == "widget-1"


async def test_nothing_is_written_where_nothing_changed() -> None:
    async with world() as it:
        await it.start({POOL: pool(1, 2, taints=[TAINT])})
        await it.settled()
        before = it.writes()
        it.publisher.publish({POOL: pool(1, 2, taints=[TAINT])})
        assert it.publisher.published, "readiness does not flap"
        await it.start({POOL: pool(1, 2, taints=[TAINT])})
        await it.settled()
        await it.clock.advance(300)
        assert it.writes() == before


async def test_before_the_first_publish_nothing_is_touched() -> None:
    async with world() as it:
        await it.start({POOL: pool(1)})
        await it.settled()
        before = it.writes()
        await it.start()
        await it.until(lambda: it.server.watches)
        await it.clock.advance(120)
        assert it.writes() == before
        assert not it.publisher.published


async def test_generations_and_minimal_writes() -> None:
    async with world() as it:
        await it.start({POOL: pool(1, 2, 3)})
        await it.settled()
        seen = len(it.writes())
        it.publisher.publish({POOL: pool(1, 9, 3)})
        await it.settled()
        assert it.writes()[seen:] == [("patch", name_of(1))]
        assert it.generations() == [1, 1, 1]
        it.publisher.publish({POOL: pool(1, 9)})
        await it.settled()
        assert it.generations() == [2, 2]
        assert it.values() == [1, 9]
        assert it.writes()[-1] == ("delete", name_of(2)), "obsolete slices go last"
        it.publisher.publish({POOL: Pool()})
        await it.settled()
        assert [each["spec"].get("devices") for each in it.slices()] == [None], "empty is not absent"
        it.publisher.publish({})
        await it.clock.advance(COALESCE_S)
        await it.until(lambda: not it.slices())


async def test_bursts_are_coalesced() -> None:
    async with world() as it:
        await it.start({POOL: pool(0)})
        await it.settled()
        seen = len(it.writes())
        for value in range(1, 100):
            it.publisher.publish({POOL: pool(value)})
            await asyncio.sleep(0)
        await it.settled()
        assert it.values() == [99]
        assert len(it.writes()) == seen + 1


async def test_a_change_during_a_write_is_not_lost() -> None:
    async with world() as it:
        await it.start({POOL: pool(0)})
        await it.settled()
        stalled = it.server.faults.stall(verb="patch", resource=RESOURCE_SLICES)
        it.publisher.publish({POOL: pool(1)})
        await it.clock.advance(COALESCE_S)
        await it.until(lambda: stalled.hits)
        it.publisher.publish({POOL: pool(2)})
        await it.clock.advance(COALESCE_S)
        it.server.faults.clear()
        await it.until(lambda: it.values() == [2] and it.publisher.published)


async def test_waits_until_the_watch_shows_its_own_writes() -> None:
    """Else the next look at the copy of before would lead to the same writes again."""
    async with world() as it:
        late = it.server.faults.stall(verb="watch", resource=RESOURCE_SLICES)
        await it.start({POOL: pool(1, 2)})
        await it.clock.advance(COALESCE_S)
        await it.until(lambda: late.hits and it.values() == [1, 2])
        it.publisher.publish({POOL: pool(1, 3)})
        await it.clock.advance(5)
        await asyncio.sleep(0.02)  # what is under way would arrive
        assert len(it.writes()) == 2
        it.server.faults.clear()
        await it.until(lambda: it.publisher.published)
        assert it.writes()[2:] == [("patch", name_of(1))]


async def test_published_means_the_latest_wish() -> None:
    async with world() as it:
        await it.start({POOL: pool(1)})
        await it.settled()
        slow = it.server.faults.stall(verb="get", resource=NODES)
        await it.start({POOL: pool(1)})
        await it.until(lambda: slow.hits)
        it.publisher.publish({POOL: pool(2)})
        it.server.faults.clear()
        await it.until(lambda: it.publisher.published)
        assert it.values() == [2]


@pytest.mark.parametrize("damage", ["delete", "wipe", "edit", "extra", "owner", "generation"])
async def test_heals_what_others_did(damage: str) -> None:
    async with world() as it:
        await it.start({POOL: pool(1, 2)})
        await it.settled()
        server = it.server
        if damage in {"delete", "wipe"}:
            for index in range(2 if damage == "wipe" else 1):
                server.delete(RESOURCE_SLICES, name=name_of(index))
        elif damage == "edit":
            server.patch(RESOURCE_SLICES, {"spec": {"devices": []}}, name=name_of(1))
        elif damage == "extra":
            spec = server.get(RESOURCE_SLICES, name=name_of(0))["spec"]
            server.create(RESOURCE_SLICES, {"metadata": {"name": "foreign"}, "spec": spec})
        elif damage == "owner":
            server.patch(RESOURCE_SLICES, {"metadata": {"ownerReferences": None}}, name=name_of(1))
        else:
            server.patch(RESOURCE_SLICES, {"spec": {"pool": {"generation": 9}}}, name=name_of(1))
        await it.until(lambda: not it.publisher.published)
        await it.clock.advance(2 * HEAL_S)
        await it.until(lambda: it.publisher.published)
        assert it.values() == [1, 2]
        assert len(set(it.generations())) == 1
        assert it.generations()[0] == (9 if damage == "generation" else 1)
        assert all(each["metadata"]["ownerReferences"] for each in it.slices())


async def test_whoever_keeps_deleting_gets_slower_answers() -> None:
    async with world() as it:
        await it.start({POOL: pool(1)})
        await it.settled()
        delays = []
        for _ in range(8):
            it.server.delete(RESOURCE_SLICES, name=name_of(0))
            await it.until(lambda: not it.publisher.published)
            delays.append(await it.progress(lambda: it.publisher.published))
        assert delays[0] < 1
        assert delays[-1] > 20
        await it.clock.advance(120)
        it.server.delete(RESOURCE_SLICES, name=name_of(0))
        await it.until(lambda: not it.publisher.published)
        assert await it.progress(lambda: it.publisher.published) < 1, "quiet again: quick again"


async def test_a_node_made_anew_gets_slices_of_its_own() -> None:
    async with world() as it:
        await it.start({POOL: pool(1, 2)})
        await it.settled()
        it.server.delete(NODES, name=NODE)
        assert it.slices() == [], "the garbage collector took them"
        with capture_logs() as logs:
            await it.progress(lambda: it.publisher.errors)
            assert "nodes/node-1" in str(it.publisher.errors[POOL])
            created = it.server.create(NODES, {"metadata": {"name": NODE}})
            await it.progress(lambda: it.publisher.published)
        assert it.values() == [1, 2]
        owners = {each["metadata"]["ownerReferences"][0]["uid"] for each in it.slices()}
        assert owners == {created["metadata"]["uid"]}
        assert "node_made_anew" in {log["event"] for log in logs}


async def test_fields_behind_closed_gates() -> None:
    """1.34 drops taints: reported once, adopted, no second write, and one probe after a restart."""
    async with world(version="1.34") as it:
        desired = {POOL: pool(1, 2, 3, taints=[TAINT])}
        with capture_logs() as logs:
            await it.start(desired)
            await it.settled()
            assert it.publisher.dropped_fields == {"devices[].taints"}
            assert not it.publisher.errors
            assert REGISTRY.get_sample_value("tangram_resourceslice_fields_dropped") == 1
            await it.clock.advance(300)
            it.publisher.publish({POOL: pool(1, 2, 4, taints=[TAINT])})
            await it.settled()
        (report,) = [log for log in logs if log["event"] == "slice_fields_dropped"]
        assert report["fields"] == ["devices[].taints"]
        assert len(it.writes()) == 4
        await it.start({POOL: pool(1, 2, 4, taints=[TAINT])})
        await it.settled()
        assert it.writes()[4:] == [("patch", name_of(0))]
        assert it.generations() == [1, 1, 1]
        assert it.publisher.dropped_fields == {"devices[].taints"}


async def test_counter_slices_on_a_server_without_counters() -> None:
    async with world(version="1.34") as it:
        counters = {"memory": {"value": "40960Mi"}}
        desired = Pool(
            slices=(
                Slice(shared_counters=({"name": "gpu-0", "counters": counters},)),
                Slice(devices=(device(consumesCounters=[{"counterSet": "gpu-0", "counters": counters}]),)),
            )
        )
        await it.start({POOL: desired})
        await it.settled()
        assert it.publisher.dropped_fields == {"sharedCounters", "devices[].consumesCounters"}
        await it.clock.advance(300)
        assert len(it.writes()) == 2


async def test_a_pool_that_breaks_a_limit_costs_only_itself() -> None:
    async with world() as it:
        other = "other.example.com/pool"
        await it.start({POOL: pool(1)})
        await it.settled()
        with capture_logs() as logs:
            it.publisher.publish(
                {
                    POOL: Pool(slices=(Slice(devices=(device(), device("widget-0"))),)),
                    other: pool(5),
                    "never-there": Pool(slices=(Slice(devices=(device("Bad_Name"),)),)),
                }
            )
        await it.clock.advance(COALESCE_S)
        await it.until(lambda: it.values(other) == [5])
        error = it.publisher.errors[POOL]
        assert isinstance(error, SliceLimitError)
        assert error.device == "widget-0"
        assert {log["device"] for log in logs if log["event"] == "pool_breaks_a_limit"} == {
            "widget-0",
            "Bad_Name",
        }
        assert not it.publisher.published
        assert it.values() == [1], "what was there stays"
        it.server.delete(RESOURCE_SLICES, name=name_of(0))
        await it.progress(lambda: it.values() == [1])
        # Nor does a new process, which knows nothing of before, take it away.
        await it.start({POOL: Pool(slices=(Slice(devices=(device("Bad_Name"),)),))})
        await it.progress(lambda: it.values(other) == [])
        await it.clock.advance(60)
        assert it.values() == [1]
        it.publisher.publish({POOL: pool(2)})
        await it.settled()
        assert it.values() == [2]
        assert not it.publisher.errors
        assert REGISTRY.get_sample_value("tangram_resourceslice_pools_failed") == 0


@pytest.mark.parametrize("verb", ["get", "list", "create"])
@pytest.mark.parametrize("status", [403, 409, 422, 429, 500])
async def test_refusals_are_reported_and_tried_again(verb: Any, status: int) -> None:
    async with world() as it:
        resource = NODES if verb == "get" else RESOURCE_SLICES
        it.server.faults.answer(status, verb=verb, resource=resource, times=3)
        await it.start({POOL: pool(1, 2)})
        if verb != "list":
            await it.progress(lambda: it.publisher.errors)
            assert str(status) in str(it.publisher.errors[POOL])
            if status == 403:
                assert isinstance(it.publisher.errors[POOL], ForbiddenError)
        await it.progress(lambda: it.publisher.published)
        assert it.values() == [1, 2]


async def test_an_api_server_away_for_hours() -> None:
    async with world() as it:
        await it.start({POOL: pool(1)})
        await it.settled()
        await it.server.pause()
        it.publisher.publish({POOL: pool(2, 3)})
        start_s = it.clock.monotonic_s()
        await it.progress(lambda: it.clock.monotonic_s() - start_s > 3600)
        assert not it.publisher.published
        assert isinstance(it.publisher.errors[POOL], UnreachableError)
        await it.server.resume()
        await it.progress(lambda: it.publisher.published)
        assert it.values() == [2, 3]


async def test_a_lost_answer_makes_no_second_slice() -> None:
    async with world() as it:
        it.server.faults.drop(verb="create", resource=RESOURCE_SLICES, times=2, executed=True)
        await it.start({POOL: pool(1, 2)})
        await it.progress(lambda: it.publisher.published)
        assert [each["metadata"]["name"] for each in it.slices()] == [name_of(0), name_of(1)]
        assert it.generations() == [1, 1]


async def test_two_processes_during_a_rolling_update() -> None:
    async with world() as it:
        await it.start({POOL: pool(1, 2)})
        other = it.made()
        other.publish({POOL: pool(1, 2)})
        second = asyncio.create_task(other.run())
        await it.progress(lambda: it.publisher.published and other.published)
        assert [each["metadata"]["name"] for each in it.slices()] == [name_of(0), name_of(1)]
        second.cancel()
        await asyncio.wait({second})


async def test_an_admission_webhook_that_changes_slices() -> None:
    """An error that names the field, at the pace of the back-off: no hot loop."""
    async with world() as it:
        original = it.client.create

        async def create(resource: Any, body: Any, **options: Any) -> bytes:
            changed = {**body, "spec": {**body["spec"], "devices": [device("injected")]}}
            return await original(resource, changed if resource == RESOURCE_SLICES else body, **options)

        it.client.create = create  # type: ignore[method-assign]
        it.server.faults.answer(409, verb="patch", resource=RESOURCE_SLICES, times=1000)
        await it.start({POOL: pool(1)})
        await it.progress(lambda: isinstance(it.publisher.errors.get(POOL), InvalidObjectError))
        assert "spec.devices[].name" in str(it.publisher.errors[POOL])
        assert "look for an admission webhook" in str(it.publisher.errors[POOL])
        start_s, seen = it.clock.monotonic_s(), len(it.writes())
        await it.progress(lambda: it.clock.monotonic_s() - start_s > 600)
        assert len(it.writes()) - seen < 40


async def test_slices_with_finalizers_do_not_spin() -> None:
    async with world() as it:
        await it.start({POOL: pool(1), "second": pool(2)})
        await it.settled()
        for name in (name_of(0), name_of(0, "second")):
            it.server.patch(RESOURCE_SLICES, {"metadata": {"finalizers": ["example.com/f"]}}, name=name)
        it.publisher.publish({POOL: pool(1)})
        it.server.delete(RESOURCE_SLICES, name=name_of(0))
        start_s, seen = it.clock.monotonic_s(), len(it.writes())
        await it.progress(lambda: it.clock.monotonic_s() - start_s > 300)
        assert len(it.writes()) - seen < 30
        for name in (name_of(0), name_of(0, "second")):
            it.server.patch(RESOURCE_SLICES, {"metadata": {"finalizers": None}}, name=name)
        await it.progress(lambda: it.publisher.published and not it.slices("second"))
        assert it.values() == [1]
