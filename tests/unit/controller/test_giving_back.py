"""Pods that have devices and cannot be bound: others get them, and nobody is bound where its claim is not."""

import asyncio

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.unit.controller.simulated_api import Json, allocation_of, devices_of, node_of
from tests.unit.controller.simulation import FAULTS, Simulation, seldom_swept
from tests.unit.controller.test_interleavings import Step, check_end

from tangram.controller.returned import BINDING_S

NO_VOLUME = '0/2 nodes are available: persistentvolumeclaim "data" not found. not found preemption: 0/2 …'
NO_DEVICES = "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable"


async def crowd(*, nodes: int = 1) -> Simulation:
    """Nodes of three GPUs, and one more pod than nodes, each of which wants all GPUs of one."""
    simulation = Simulation(nodes=nodes, gives_back=True)
    await simulation.settle()
    for number in range(nodes + 1):
        simulation.create_claim(f"c{number}", 3)
        simulation.create_pod(f"p{number}", f"c{number}")
    await told(simulation)
    return simulation


async def told(simulation: Simulation) -> None:
    for kind in ("ResourceClaim", "Pod", "ResourceClaim"):
        simulation.deliver(kind, 100)
        await simulation.settle()


async def later(simulation: Simulation, seconds: int, *, step_s: int = 5) -> None:
    """Time passes, and watches tell."""
    for _ in range(seconds // step_s):
        await simulation.wait(step_s)
        await told(simulation)


def find(simulation: Simulation, kind: str, name: str) -> Json:
    item = simulation.api.find(kind, name)
    assert item is not None
    return item


def holders(simulation: Simulation) -> set[str]:
    return {item["metadata"]["name"] for item in simulation.api.all("ResourceClaim") if devices_of(item)}


async def judge(simulation: Simulation, pod: str, message: str) -> None:
    simulation.judge(find(simulation, "Pod", pod), message)
    await told(simulation)


async def test_a_pod_without_its_volume_leaves_its_devices_to_others_and_gets_some_when_it_has_it() -> None:
    simulation = await crowd()
    assert holders(simulation) == {"c0"}
    await judge(simulation, "p0", NO_VOLUME)
    await later(simulation, 30)
    assert holders(simulation) == {"c1"}
    simulation.bind(find(simulation, "Pod", "p1"))
    await judge(simulation, "p0", NO_DEVICES)  # the volume is there
    await later(simulation, 5)
    assert holders(simulation) == {"c1"}
    simulation.delete_pod(find(simulation, "Pod", "p1"))
    await told(simulation)
    assert holders(simulation) == {"c0"}
    simulation.bind(find(simulation, "Pod", "p0"))
    await later(simulation, 2000, step_s=100)
    assert holders(simulation) == {"c0"}
    await simulation.stop()


async def test_nobody_loses_devices_that_nobody_waits_for() -> None:
    simulation = await crowd()
    simulation.delete_pod(find(simulation, "Pod", "p1"))
    await judge(simulation, "p0", NO_VOLUME)
    await later(simulation, 1000, step_s=100)
    assert holders(simulation) == {"c0"}
    await simulation.stop()


async def test_a_slow_binding_keeps_its_devices() -> None:
    """On its way for ten minutes, with the words of the attempt before its claim was allocated."""
    simulation = await crowd()
    await judge(simulation, "p0", NO_DEVICES)
    simulation.set_out(find(simulation, "Pod", "p0"))
    await later(simulation, 595, step_s=35)
    assert holders(simulation) == {"c0"}
    simulation.arrive(find(simulation, "Pod", "p0"))
    assert find(simulation, "Pod", "p0")["spec"]["nodeName"]
    await later(simulation, 2000, step_s=100)
    assert holders(simulation) == {"c0"}
    await simulation.stop()


async def test_two_pods_that_nobody_schedules_take_turns_at_growing_intervals() -> None:
    simulation = await crowd()
    turns: list[tuple[float, set[str]]] = []
    for _ in range(300):
        await later(simulation, 30, step_s=30)
        if not turns or holders(simulation) != turns[-1][1]:
            turns.append((simulation.clock.monotonic_s(), holders(simulation)))
    names = [held for _, held in turns]
    assert names[:3] == [{"c0"}, {"c1"}, {"c0"}]
    assert 4 < len(turns) < 9000 / BINDING_S
    await simulation.stop()


async def test_whoever_cannot_be_bound_stands_behind() -> None:
    """Three pods, one set of GPUs: the two whose volumes are missing do not pass it to each other."""
    simulation = await crowd()
    simulation.create_claim("c2", 3)
    simulation.create_pod("p2", "c2")
    await told(simulation)
    for name in ("p0", "p1"):
        await judge(simulation, name, NO_VOLUME)
    await later(simulation, 30)
    assert holders(simulation) == {"c2"}
    await simulation.stop()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
async def test_whatever_becomes_of_the_write(fault: str, restart: bool) -> None:
    simulation = await crowd()
    await judge(simulation, "p0", NO_VOLUME)
    simulation.api.faults.append(fault)
    await later(simulation, 30)
    if restart:
        await simulation.act("restart", 0)
    while simulation.api.slow:
        simulation.finish_slow()
    await later(simulation, 15)
    while simulation.api.late:
        simulation.apply_late()
    await later(simulation, 90)
    assert holders(simulation) == {"c1"}
    simulation.bind(find(simulation, "Pod", "p1"))
    await simulation.quiesce()
    assert holders(simulation) == {"c1"}
    check_end(simulation)
    await simulation.stop()


@pytest.mark.parametrize("others", [0, 1])
async def test_a_binding_that_comes_before_the_write(others: int) -> None:
    """The cause vanishes in the very moment: the reservation makes the write fail."""
    simulation = await crowd()
    await judge(simulation, "p0", NO_VOLUME)
    await later(simulation, 15)
    simulation.api.faults.extend(["slow"] * (1 + others))
    await later(simulation, 15)
    assert simulation.api.slow  # the write is on its way
    simulation.bind(find(simulation, "Pod", "p0"))
    await simulation.quiesce()
    assert holders(simulation) == {"c0"}
    assert find(simulation, "Pod", "p0")["spec"]["nodeName"] == node_of(
        find(simulation, "ResourceClaim", "c0")
    )
    check_end(simulation)
    await simulation.stop()


async def test_a_reservation_counts_before_its_pod_is_seen_to_be_bound() -> None:
    simulation = await crowd()
    await judge(simulation, "p0", NO_VOLUME)
    await later(simulation, 15)
    simulation.bind(find(simulation, "Pod", "p0"))
    for _ in range(20):
        simulation.deliver("ResourceClaim", 10)  # and no pod
        await simulation.wait(5)
    assert holders(simulation) == {"c0"}
    await simulation.stop()


ACTIONS = (
    *("set-out", "arrive", "object", "agree", "long-time", "watch", "deliver"),
    *("delete-pod", "bind", "fault", "time"),
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 11)), max_size=25))
@example(
    [
        *(
            ("object", 0),
            ("watch", 0),
            ("set-out", 0),
            ("long-time", 0),
            ("watch", 0),
            ("bind", 1),
            ("watch", 0),
        ),
        *(("delete-pod", 1), ("watch", 0), ("watch", 0), ("arrive", 0)),
    ]
)
def test_nobody_is_bound_to_where_its_claim_is_not(actions: list[Step]) -> None:
    """`Simulation.arrive` fails the test at once; and no claim of a pod that is bound is ever freed."""

    async def play() -> None:
        simulation = await crowd(nodes=2)
        for what, number in actions:
            await simulation.act(what, number)
            check_bound(simulation)
        await simulation.quiesce()
        check_bound(simulation)
        check_end(simulation)
        await simulation.stop()

    with seldom_swept():
        asyncio.run(play())


def check_bound(simulation: Simulation) -> None:
    for item in simulation.api.all("Pod"):
        if item["spec"].get("nodeName"):
            for claim in simulation.claims_of(item):
                assert claim is not None
                assert allocation_of(claim), item
