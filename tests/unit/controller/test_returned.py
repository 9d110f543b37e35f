"""When a claim that was given back may be allocated again, and what kube-scheduler's words mean for that."""

import json
from typing import Any

import pytest
from tests.fleet import claim, machine, pod
from tests.unit.controller.test_decide import NAMES, allocated, node_of
from tests.unit.controller.world import World

from tangram.allocation import ClaimKey, claim_key
from tangram.controller.decide import Action, Hold
from tangram.controller.podclaims import may_be_in_flight
from tangram.controller.pods import PodRecord, decode_pod
from tangram.controller.returned import BINDING_S, Returned
from tangram.controller.unused import UnusedClaims
from tangram.kube.decoding import ObjectKey

A100 = machine(switch_links=12)
CLAIM = ClaimKey("default", "c", "uid-c")
NO_VOLUME = 'persistentvolumeclaim "data" not found'
NO_DEVICES = "0/2 nodes are available: 2 cannot allocate all claims."


def judged(
    item: dict[str, Any], message: str, *, reason: str = "Unschedulable", **more: Any
) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {**item, "status": {"phase": "Pending", "conditions": [condition], **more}}


def record(message: str = "", *, name: str = "p", **more: Any) -> PodRecord:
    item = pod(name, "c")
    item["metadata"]["uid"] = f"uid-{name}"
    return decode_pod(json.dumps(judged(item, message, **more) if message else item).encode())


@pytest.mark.parametrize(
    ("message", "objection"),
    [
        ("", ""),
        (NO_DEVICES, ""),
        ("0/3 nodes are available: 1 Insufficient cpu, 2 cannot allocate all claims.", ""),
        ("0/2 nodes are available: 1 resourceclaim not available on the node", ""),
        ("request gpu: device class gpu.resource.admin does not exist", ""),
        ("1 Insufficient cpu. preemption: 0/1 nodes are available: …", "1 Insufficient cpu"),
        (f"0/2 nodes: {NO_VOLUME}. not found", f"0/2 nodes: {NO_VOLUME}. not found"),
        ("x" * 30_000, "x" * 500),
    ],
)  # fmt: skip
def test_what_the_scheduler_has_against_a_pod_besides_its_devices(message: str, objection: str) -> None:
    assert record(message).objection == objection


def test_no_objection() -> None:
    """An error of the scheduler is no verdict on the pod; a nominated pod waits for its victims to end."""
    assert record(NO_VOLUME).objection
    assert not record(NO_VOLUME, reason="SchedulerError").objection
    assert not record(NO_VOLUME, nominatedNodeName="n1").objection
    assert not record(NO_VOLUME, conditions=[]).objection
    assert not record(NO_VOLUME, conditions=None).objection
    assert record(
        NO_VOLUME, conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    ).objection


class TestRest:
    def rests_s(self, then: PodRecord, now: PodRecord, *others: PodRecord, at_s: float = 5.0) -> float | None:
        returned = Returned()
        returned.add(CLAIM, [then, *others], now_s=0.0)
        return returned.rests_s(CLAIM, now, others, now_s=at_s)

    def test_until_the_objection_is_gone(self) -> None:
        assert self.rests_s(record(NO_VOLUME), record(NO_VOLUME)) == BINDING_S - 5
        assert self.rests_s(record(NO_VOLUME), record("something else")) == BINDING_S - 5
        assert self.rests_s(record(NO_VOLUME), record(NO_DEVICES)) is None
        assert self.rests_s(record(NO_VOLUME), record(NO_VOLUME), at_s=BINDING_S) is None

    def test_a_nomination_alone_may_be_of_a_pod_on_its_way(self) -> None:
        assert self.rests_s(record(NO_VOLUME), record(NO_VOLUME, nominatedNodeName="n1")) is not None

    def test_without_an_objection_only_time_helps(self) -> None:
        """The cause is unknown, so nothing can show that it is gone."""
        assert self.rests_s(record(), record(NO_DEVICES)) is not None
        assert self.rests_s(record("failed", reason="SchedulerError"), record(NO_DEVICES)) is not None

    def test_while_another_pod_may_be_on_its_way(self) -> None:
        assert self.rests_s(record(NO_VOLUME), record(NO_DEVICES), record(name="q")) is not None
        returned = Returned()
        returned.add(CLAIM, [record(name="q")], now_s=0.0)
        assert returned.rests_s(CLAIM, record(), [record(name="q")], now_s=1.0) == BINDING_S - 1
        assert returned.rests_s(CLAIM, record(), [record(NO_DEVICES, name="q")], now_s=1.0) is None
        assert returned.rests_s(CLAIM, record(), [], now_s=1.0) is None

    def test_each_time_twice_as_long_up_to_an_hour_until_the_claim_is_used(self) -> None:
        returned = Returned()
        rests = [returned.add(CLAIM, [record()], now_s=0.0) for _ in range(5)]
        assert rests == [BINDING_S, 2 * BINDING_S, 4 * BINDING_S, 3600, 3600]
        returned.forget(CLAIM)
        assert returned.add(CLAIM, [record()], now_s=0.0) == BINDING_S


class TestHold:
    def test_no_devices_for_a_pod_that_kube_scheduler_refuses_for_another_cause(self) -> None:
        world = World(n1=A100)
        world.put(claim("a"))
        world.put(judged(pod("p", "a"), NO_VOLUME))
        action = world.decide("p")
        assert isinstance(action, Hold)
        assert NO_VOLUME in action.why
        assert [c.metadata.name for c in action.fresh] == ["a"]
        assert action.retry_s == BINDING_S
        world.queued.clear()
        world.put(judged(pod("p", "a"), NO_DEVICES))
        assert world.queued == [ObjectKey("default", "p")]
        assert node_of(world.decide("p")) == "n1"

    async def test_but_its_turn_comes(self) -> None:
        """The words may be those of a scheduler that only looks like kube-scheduler."""
        world = World(n1=A100)
        world.put(claim("a"))
        world.put(judged(pod("p", "a"), NO_VOLUME))
        self.begin(world, world.decide("p"))
        action = world.decide("p")
        assert isinstance(action, Hold)
        assert not action.fresh
        await world.clock.advance(BINDING_S)
        assert node_of(world.decide("p")) == "n1"

    def begin(self, world: World, action: Action) -> None:
        assert isinstance(action, Hold)
        for each in action.fresh:
            records = (world.state.pods[ObjectKey("default", "p")],)
            world.state.returned.add(claim_key(each), records, now_s=world.clock.monotonic_s())

    def test_other_schedulers_may_mean_the_devices(self) -> None:
        world = World(n1=A100)
        world.put(claim("a"))
        world.put(judged(pod("p", "a", schedulerName="volcano"), "pod group is not ready"))
        assert node_of(world.decide("p")) == "n1"

    def test_a_pod_with_a_node_is_not_for_the_scheduler_to_refuse(self) -> None:
        world = World(n1=A100)
        world.put(claim("a"))
        world.put(judged(pod("p", "a", nodeName="n1"), NO_VOLUME))
        assert node_of(world.decide("p")) == "n1"

    def test_an_objection_puts_a_pod_behind_its_equals(self) -> None:
        world = World(n1=A100)
        for name, stamp, message, priority in (
            ("oldest", "2026-01-01T00:00:00Z", NO_VOLUME, 0),
            ("older", "2026-01-02T00:00:00Z", NO_DEVICES, 0),
            ("young", "2026-01-03T00:00:00Z", "", 0),
            ("important", "2026-01-04T00:00:00Z", NO_VOLUME, 7),
        ):
            item = pod(name, "c", priority=priority)
            item["metadata"]["creationTimestamp"] = stamp
            world.put(judged(item, message) if message else item)
        ordered = sorted(world.state.pods, key=world.state.order)
        assert [key.name for key in ordered] == ["important", "older", "young", "oldest"]


class TestUnused:
    """Who is given how long; a claim `w` of another pod waits all the time."""

    def world(self, *items: dict[str, Any]) -> World:
        world = World(n1=A100)
        world.put(allocated(claim("a"), "n1", NAMES[0]))
        for item in items:
            world.put(item)
        world.put(claim("w", count=8))
        world.put(pod("w", "w"))
        world.state.waiting.add(ObjectKey("default", "w"))
        return world

    async def given_back_s(self, world: World) -> float:
        """After how many seconds; 10,000 for never."""
        finder = UnusedClaims(idle_ttl_s=30, unbound_timeout_s=20)
        start_s = world.clock.monotonic_s()
        while world.clock.monotonic_s() < start_s + 1000:
            if finder.due(world.state, now_s=world.clock.monotonic_s()):
                return world.clock.monotonic_s() - start_s
            await world.clock.advance(5)
        return 10_000

    async def test_no_pod(self) -> None:
        assert await self.given_back_s(self.world()) == 30

    async def test_a_pod_that_is_refused(self) -> None:
        assert await self.given_back_s(self.world(judged(pod("p", "a"), NO_VOLUME))) == 20

    async def test_a_gated_pod(self) -> None:
        assert await self.given_back_s(self.world(pod("p", "a", schedulingGates=[{"name": "queue"}]))) == 20

    async def test_a_pod_that_nobody_says_anything_of(self) -> None:
        assert await self.given_back_s(self.world(pod("p", "a", schedulerName="nobody"))) == BINDING_S
        assert await self.given_back_s(self.world(judged(pod("p", "a"), NO_DEVICES))) == BINDING_S
        nominated = judged(pod("p", "a"), NO_VOLUME, nominatedNodeName="n1")
        assert await self.given_back_s(self.world(nominated)) == BINDING_S

    async def test_a_pod_that_waits_for_another_claim(self) -> None:
        assert await self.given_back_s(self.world(claim("b", count=8), pod("p", "a", "b"))) == 20

    async def test_one_refused_and_one_on_its_way(self) -> None:
        assert (
            await self.given_back_s(self.world(judged(pod("p", "a"), NO_VOLUME), pod("q", "a"))) == BINDING_S
        )

    async def test_never_what_is_used(self) -> None:
        reserved = allocated(
            claim("a"), "n1", NAMES[0], reservedFor=[{"resource": "pods", "name": "p", "uid": "x"}]
        )
        assert await self.given_back_s(self.world(reserved, judged(pod("p", "a"), NO_VOLUME))) == 10_000
        bound = pod("p", "a", nodeName="n1")
        assert await self.given_back_s(self.world(judged(bound, NO_VOLUME))) == 10_000
        assert await self.given_back_s(self.world(judged(pod("q", "a"), NO_VOLUME), bound)) == 10_000

    async def test_a_finished_pod_is_no_user(self) -> None:
        assert await self.given_back_s(self.world({**pod("p", "a"), "status": {"phase": "Failed"}})) == 30

    async def test_not_what_others_allocate(self) -> None:
        """kube-scheduler's devices are not in the inventory: their claims are kube-scheduler's to free."""
        foreign = allocated(claim("a"), "elsewhere", NAMES[0])
        assert await self.given_back_s(self.world(foreign, judged(pod("p", "a"), NO_VOLUME))) == 10_000

    async def test_a_new_verdict_begins_a_new_wait(self) -> None:
        world = self.world(pod("p", "a"))
        finder = UnusedClaims(idle_ttl_s=30, unbound_timeout_s=20)
        for _ in range(100):
            assert not finder.due(world.state, now_s=world.clock.monotonic_s())
            await world.clock.advance(5)
        world.put(judged(pod("p", "a"), NO_VOLUME))
        assert not finder.due(world.state, now_s=world.clock.monotonic_s())
        await world.clock.advance(15)
        assert not finder.due(world.state, now_s=world.clock.monotonic_s())
        await world.clock.advance(5)
        (item,) = finder.due(world.state, now_s=world.clock.monotonic_s())
        assert NO_VOLUME in item.why

    def test_a_pod_may_be_on_its_way_though_one_of_its_claims_was_given_back_under_it(self) -> None:
        world = World(n1=A100)
        world.put(claim("a"))
        world.put(allocated(claim("b"), "n1", NAMES[0]))
        world.put(pod("p", "a", "b"))
        state, key = world.state, ObjectKey("default", "p")
        assert not may_be_in_flight(state, state.pods[key], now_s=0.0)
        given_back = claim_key(state.claims[ObjectKey("default", "a")])
        state.returned.add(given_back, [state.pods[key]], now_s=0.0)
        assert may_be_in_flight(state, state.pods[key], now_s=1.0)
        assert not may_be_in_flight(state, state.pods[key], now_s=BINDING_S)
        world.put(judged(pod("p", "a", "b"), NO_DEVICES))
        assert not may_be_in_flight(state, state.pods[key], now_s=1.0)

    async def test_every_cause_is_said(self) -> None:
        for item, words in (
            (None, "no pod has used this claim"),
            (pod("p", "a", schedulingGates=[{"name": "queue"}]), "scheduling gates"),
            (pod("p", "a", schedulerName="nobody"), "schedulerName 'nobody'"),
            (judged(pod("p", "a"), NO_VOLUME), NO_VOLUME),
        ):
            world = self.world(*([item] if item else []))
            finder = UnusedClaims(idle_ttl_s=0, unbound_timeout_s=1)
            finder.due(world.state, now_s=0.0)
            (found,) = finder.due(world.state, now_s=BINDING_S)
            assert words in found.why
