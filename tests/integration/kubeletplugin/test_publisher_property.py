"""After any sequence of wishes, tampering and faults the server holds what was wished for last, and rests."""

import asyncio
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.integration.kubeletplugin.publishing import POOL, WRITES, World, pool, world

from tangram.kube.resources import RESOURCE_SLICES
from tangram.kubeletplugin.slices import Pool

SECOND = "second"
VERSIONS = st.sampled_from(["1.34", "1.36"])
pools = st.builds(
    lambda values, tainted: pool(
        *values, **({"taints": [{"key": "k", "effect": "None"}]} if tainted else {})
    ),
    st.lists(st.integers(0, 2), max_size=4),
    st.booleans(),
)
wishes = st.dictionaries(st.sampled_from([POOL, SECOND]), pools, max_size=2)
STEPS = st.one_of(
    st.tuples(st.just("publish"), wishes),
    st.tuples(
        st.sampled_from(["delete", "wipe", "edit", "count", "generation", "owner"]), st.integers(0, 100)
    ),
    st.tuples(
        st.sampled_from(
            ["refuse", "conflict", "drop", "lose", "pause", "resume", "cut", "compact", "restart"]
        ),
        st.integers(1, 3),
    ),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.2, 1.0, 30.0])),
)


async def tamper(it: World, what: str, choice: int) -> None:
    slices = it.server.objects(RESOURCE_SLICES)
    if not slices:
        return
    victim = slices[choice % len(slices)]
    name, generation = victim["metadata"]["name"], victim["spec"]["pool"]["generation"]
    if what == "delete":
        it.server.delete(RESOURCE_SLICES, name=name)
    elif what == "wipe":
        for each in slices:
            it.server.delete(RESOURCE_SLICES, name=each["metadata"]["name"])
    elif what == "owner":
        it.server.patch(RESOURCE_SLICES, {"metadata": {"ownerReferences": None}}, name=name)
    else:
        specs: dict[str, dict[str, Any]] = {
            "edit": {"devices": []},
            "count": {"pool": {"resourceSliceCount": 7}},
            "generation": {"pool": {"generation": generation + choice % 3}},
        }
        it.server.patch(RESOURCE_SLICES, {"spec": specs[what]}, name=name)


async def disturb(it: World, what: str, times: int, wish: dict[str, Pool] | None) -> None:
    match what:
        case "refuse":
            it.server.faults.answer(503, times=times)
        case "conflict":
            it.server.faults.answer(409, verb="patch", resource=RESOURCE_SLICES, times=times)
        case "drop" | "lose":
            it.server.faults.drop(resource=RESOURCE_SLICES, times=times, executed=what == "lose")
        case "pause":
            await it.server.pause()
        case "resume":
            await it.server.resume()
        case "cut":
            it.server.cut_watches()
        case "compact":
            it.server.compact()
        case "restart":
            await it.start(wish)


async def check(steps: list[tuple[str, Any]], last: dict[str, Pool], version: str) -> None:
    async with world(version=version) as it:
        wish: dict[str, Pool] | None = None
        await it.start()
        for what, argument in steps:
            if what == "publish":
                wish = argument
                it.publisher.publish(argument)
            elif what == "wait":
                await asyncio.sleep(0.003)
                await it.clock.advance(argument)
                await asyncio.sleep(0.003)
            elif isinstance(argument, int) and what in {
                "delete",
                "wipe",
                "edit",
                "count",
                "generation",
                "owner",
            }:
                await tamper(it, what, argument)
            else:
                await disturb(it, what, argument, wish)
        it.server.faults.clear()
        await it.server.resume()
        it.publisher.publish(last)
        await it.progress(lambda: it.publisher.published and holds(it, last))
        assert_generations_never_fell(it)
        await assert_rest(it, last)


def holds(it: World, wish: dict[str, Pool]) -> bool:
    """Exactly the pools wished for, each complete in one generation, with the devices in order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in it.server.objects(RESOURCE_SLICES):
        found.setdefault(each["spec"]["pool"]["name"], []).append(each)
    if found.keys() != wish.keys():
        return False
    for pool_name, slices in found.items():
        wanted = [list(each.devices) for each in wish[pool_name].slices] or [[]]
        if [[named(d) for d in each["spec"].get("devices", [])] for each in slices] != [
            [named(d) for d in each] for each in wanted
        ]:
            return False
        if {each["spec"]["pool"]["resourceSliceCount"] for each in slices} != {len(slices)}:
            return False
        if len({each["spec"]["pool"]["generation"] for each in slices}) != 1:
            return False
        if not all(each["metadata"].get("ownerReferences") for each in slices):
            return False
    return True


def named(device: Any) -> tuple[str, int]:
    return device["name"], device["attributes"]["value"]["int"]


def assert_generations_never_fell(it: World) -> None:
    """As one process writes them; a new one knows only what is still there."""
    newest: dict[str, int] = {}
    for request in it.server.requests:
        if request.resource == RESOURCE_SLICES and request.verb == "list":
            newest.clear()  # a new process, or one that lists again
        if request.resource == RESOURCE_SLICES and request.verb in {"create", "patch"}:
            written = request.body["spec"]["pool"]
            assert written["generation"] >= newest.get(written["name"], 0)
            newest[written["name"]] = written["generation"]


async def assert_rest(it: World, wish: dict[str, Pool]) -> None:
    """Neither time nor a restart leads to another write (but one probe where the server drops fields)."""

    def writes() -> int:
        return len([r for r in it.server.requests if r.resource == RESOURCE_SLICES and r.verb in WRITES])

    generations = {name: it.generations(name) for name in wish}
    await asyncio.sleep(0.02)  # what is under way arrives
    before = writes()
    start_s = it.clock.monotonic_s()
    await it.clock.advance(1)
    await it.progress(lambda: not it.clock.sleeping or it.clock.monotonic_s() - start_s > 300)
    assert writes() == before
    await it.start(wish)
    await it.progress(lambda: it.publisher.published)
    probes = len(wish) if it.publisher.dropped_fields else 0
    assert writes() <= before + probes
    assert {name: it.generations(name) for name in wish} == generations


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, max_size=16), wishes, VERSIONS)
def test_it_converges_and_rests(steps: list[tuple[str, Any]], last: dict[str, Pool], version: str) -> None:
    asyncio.run(check(steps, last, version))
