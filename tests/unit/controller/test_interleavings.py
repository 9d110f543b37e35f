"""Whatever happens in whatever order, no device is given twice, and in the end nothing is lost."""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.unit.controller.simulated_api import devices_of
from tests.unit.controller.simulation import Simulation, seldom_swept, waiting_pods

from tangram.base.errors import ForbiddenError, ServerError
from tangram.controller.decide import Allocate, Free
from tangram.controller.state import State

ACTIONS = (
    *("claim", "pod", "deliver", "deliver", "watch", "relist", "bind", "veto", "delete-pod", "delete-claim"),
    *("fault", "slow", "late", "time", "time", "restart"),
    *("set-out", "set-out", "arrive", "object", "object", "agree", "long-time", "long-time"),
)
Step = tuple[str, int]
steps = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 63)), max_size=60)
SETUP: list[Step] = [("claim", i) for i in (0, 5, 10, 3)] + [("pod", 4), ("pod", 13), ("pod", 34)]


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(steps)
@example([("watch", 0), ("veto", 0), ("time", 20)])
def test_no_device_twice_and_nothing_lost(actions: list[Step]) -> None:
    """The simulated API server refuses to store a device in two claims: that fails the test at once."""

    async def play() -> None:
        simulation = Simulation(gives_back=True)
        for what, number in [*SETUP, *actions]:
            await simulation.act(what, number)
        await simulation.quiesce()
        check_end(simulation)
        await simulation.stop()

    with seldom_swept():
        asyncio.run(play())


def holders(state: State) -> dict[str, Any]:
    return {node: dict(holdings.by_claim) for node, holdings in state.ledger.held().items()}


def check_end(simulation: Simulation) -> None:
    state = simulation.state
    fresh = simulation.fresh()
    fresh.returned = state.returned
    # Nothing assumed, nothing half done is left over.
    assert not state.ledger._assumed
    assert not state.freeing
    assert state.waiting <= set(state.pods)
    assert holders(state) == holders(fresh)
    # Whoever can have devices has them.
    for item in waiting_pods(simulation):
        action = simulation.decide(fresh, item["metadata"]["name"])
        assert not isinstance(action, Allocate | Free), (item, action)


async def two_rivals(*faults: str) -> Simulation:
    """One node of three GPUs, two pods that want all of them, and the fates of the first writes."""
    simulation = Simulation(nodes=1)
    await simulation.settle()
    for name in ("a", "b"):
        simulation.create_claim(name, 3)
    simulation.create_pod("a", "a")
    simulation.api.faults.extend(faults)
    simulation.deliver("ResourceClaim", 2)
    simulation.deliver("Pod")
    await simulation.settle()
    simulation.create_pod("b", "b")
    simulation.deliver("Pod")
    await simulation.settle()
    return simulation


def allocated(simulation: Simulation) -> list[str]:
    return [item["metadata"]["name"] for item in simulation.api.all("ResourceClaim") if devices_of(item)]


@pytest.mark.parametrize("faults", [("late",), ("", "late"), ("", "lost"), ("", "dropped", "late", "lost")])
async def test_a_write_whose_answer_does_not_come(faults: tuple[str, ...]) -> None:
    simulation = await two_rivals(*faults)
    await simulation.clock.advance(60)
    while simulation.api.late:
        simulation.apply_late()
    await simulation.quiesce()
    assert allocated(simulation) == ["a"]
    check_end(simulation)
    await simulation.stop()


async def test_a_write_that_arrives_after_it_was_given_up() -> None:
    """Nobody knows whether it will: until it cannot any more, the devices stay taken, whoever waits for them,
    and even though the pod is gone.
    """
    simulation = await two_rivals("", "slow-late")
    simulation.api.delete("Pod", "a")
    simulation.deliver("Pod")
    simulation.finish_slow()
    await simulation.settle()
    await simulation.clock.advance(60)
    simulation.apply_late()
    await simulation.quiesce()
    assert allocated(simulation) == ["a"]
    check_end(simulation)
    await simulation.stop()


async def test_a_write_that_was_taken_back_before_its_answer_came() -> None:
    """The watch never showed the allocation, only that there is none: the answer is older than that."""
    simulation = await two_rivals("", "slow-answer")
    (held,) = (item for item in simulation.api.all("ResourceClaim") if devices_of(item))
    simulation.veto(held)
    simulation.relist()
    simulation.api.delete("Pod", "a")
    simulation.deliver("Pod", 10)
    await simulation.settle()
    simulation.finish_slow()
    await simulation.quiesce()
    assert allocated(simulation) == ["b"]
    check_end(simulation)
    await simulation.stop()


async def test_devices_of_a_failed_write_wake_who_waits_for_them() -> None:
    simulation = await two_rivals("slow")
    simulation.api.delete("ResourceClaim", "a")
    simulation.finish_slow()  # 404
    await simulation.settle()
    simulation.deliver("ResourceClaim", 10)
    await simulation.settle()
    assert allocated(simulation) == ["b"]
    await simulation.quiesce()
    check_end(simulation)
    await simulation.stop()


async def test_a_server_that_refuses_for_ever_does_not_keep_devices_for_ever() -> None:
    """An admission webhook that fails in one namespace must not cost the others their GPUs."""
    simulation = await two_rivals("slow")
    simulation.api.broken["a"] = ServerError("failed calling webhook", status=500)
    simulation.finish_slow()
    await simulation.clock.advance(20)
    assert allocated(simulation) == ["b"]
    await simulation.stop()


async def test_what_is_forbidden_is_not_tried_without_pause() -> None:
    simulation = Simulation(nodes=1)
    simulation.create_claim("a", 3)
    simulation.create_pod("a", "a")
    simulation.api.broken["a"] = ForbiddenError("requires extra permission", status=403)
    simulation.deliver("ResourceClaim")
    simulation.deliver("Pod")
    await simulation.settle()
    for _ in range(100):
        await simulation.clock.advance(0.1)
    assert 3 <= simulation.api.writes <= 10
    await simulation.stop()


async def test_two_pods_of_one_claim_when_its_write_fails_and_the_first_pod_goes() -> None:
    simulation = Simulation(nodes=1)
    await simulation.settle()
    simulation.create_claim("c", 1)
    simulation.create_pod("a", "c")
    simulation.api.faults.append("slow")
    simulation.deliver("ResourceClaim")
    simulation.deliver("Pod")
    await simulation.settle()
    simulation.create_pod("b", "c")
    simulation.deliver("Pod")
    await simulation.settle()
    # The claim changes under the write: 409.
    (found,) = simulation.api.all("ResourceClaim")
    simulation.api.store({**found, "metadata": {**found["metadata"], "labels": {"x": "y"}}})
    simulation.deliver("ResourceClaim")
    simulation.api.delete("Pod", "a")
    simulation.deliver("Pod")
    simulation.finish_slow()
    await simulation.quiesce()
    assert allocated(simulation) == ["c"]
    await simulation.stop()
