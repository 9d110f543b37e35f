"""How a scenario is played: in order, waiting, skipped by name, and cleaned up whatever happens."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tangram import DRIVER_NAME
from tangram.base.errors import InvalidObjectError
from tangram.hardware.machines import load_machine, parse_machine
from tangram.playground.objects import Object
from tangram.playground.scenarios.reading import scenario
from tangram.playground.scenarios.runner import Outcome, Runner
from tangram.playground.scenarios.schema import Action, Component, Delete, ObjectKind
from tangram.playground.scenarios.world import Container, State
from tangram.testing.clock import FakeClock


class FakeWorld:
    """Pods run at the second look after they were applied; machines are published at once."""

    name = "the test"
    nodes = ("node-1",)

    def __init__(self, clock: FakeClock) -> None:
        self.calls: list[str] = []
        self.pods: dict[str, Object] = {}
        self.held: frozenset[str] = frozenset()
        self.gpus: list[tuple[str, str]] = []
        self._clock = clock

    def cannot(self, action: Action) -> str:
        forced = isinstance(action, Delete) and any(each.force for each in action.objects)
        return "nobody here uses force" if forced else ""

    async def simulate(self, node: str, description: str) -> None:
        machine = parse_machine(description.encode(), source="test")
        self.gpus = [(machine.model(gpu.model).product_name, gpu.state) for gpu in machine.gpus]
        self.calls.append(f"simulate {node}: {','.join(state for _, state in self.gpus)}")

    async def apply(self, objects: Sequence[Object]) -> None:
        for each in objects:
            if each["kind"] != "Pod":
                raise InvalidObjectError("is refused", object_name=each["kind"])
            name = each["metadata"]["name"]
            self.calls.append(f"apply {name}")
            self.pods[name] = {
                "metadata": {"name": name, "uid": name},
                "spec": {"containers": []},
                "status": {"phase": "Pending"},
            }

    async def delete(self, kind: ObjectKind, name: str, *, force: bool) -> None:
        self.calls.append(f"delete {name}")
        self.pods.pop(name, None)

    async def disturb(self, component: Component, node: str, *, kill: bool) -> None:
        self.calls.append(f"{'kill' if kill else 'restart'} {component} {node}")

    async def state(self, *, logs: Collection[Container], held: bool) -> State:
        devices = [
            {
                "name": f"gpu-{index}",
                "attributes": {
                    "uuid": {"string": f"GPU-{index}"},
                    "productName": {"string": product},
                    "healthy": {"bool": state == "present"},
                    "index": {"int": index},
                },
            }
            for index, (product, state) in enumerate(self.gpus)
        ]
        item = {
            "spec": {"driver": DRIVER_NAME, "nodeName": "node-1", "pool": {"name": "p"}, "devices": devices}
        }
        return State(
            objects={
                "Pod": list(self.pods.values()),
                "ResourceClaim": [],
                "Job": [],
                "Deployment": [],
                "ResourceSlice": [item],
            },
            events=[],
            held=self.held,
        )

    async def change(self) -> None:
        await self._clock.advance(5)
        for pod in self.pods.values():
            if pod["metadata"]["name"] != "never":
                pod["status"]["phase"] = "Running"

    async def clean_up(self) -> None:
        self.calls.append("clean up")
        self.pods.clear()

    async def picture(self) -> str:
        return "and a picture"


async def play(
    world: FakeWorld, clock: FakeClock, steps: str, *, keep: bool = False
) -> tuple[Outcome, list[str]]:
    told: list[str] = []
    content: dict[str, Any] = {
        "apiVersion": "tangram/v1alpha1",
        "kind": "Scenario",
        "about": "A test",
        "machines": ["t4x4"],
        "steps": yaml.safe_load(steps),
    }
    runner = Runner(world, clock=clock, tell=told.append)
    return await runner.play(scenario(Path("s.yaml"), [content]), keep=keep), told


def apply(name: str, kind: str = "Pod") -> str:
    return f"apply: [{{apiVersion: v1, kind: {kind}, metadata: {{name: {name}}}}}]"


PRESENT = "present,present,present,present"


async def test_steps_are_done_in_order_and_told() -> None:
    clock = FakeClock()
    world = FakeWorld(clock)
    steps = f"""
    - {apply("a")}
    - kill: {{component: plugin, node: node-1}}
    - expect: [{{pods: [a], phase: Running}}]
    - remember: [a]
    - delete: [{{kind: Pod, name: a}}]
    """
    outcome, told = await play(world, clock, steps)
    assert outcome == Outcome(result="passed")
    assert world.calls == [
        f"simulate node-1: {PRESENT}", "apply a", "kill plugin node-1", "delete a", "clean up",
    ]  # fmt: skip
    assert told == [
        "apply Pod a (0.0 s)", "kill the plugin of node-1 (0.0 s)", "expect running a (5.0 s)",
        "remember a (0.0 s)", "delete Pod a (0.0 s)",
    ]  # fmt: skip


async def test_what_does_not_come_in_time_fails_with_a_picture_and_is_cleaned_up() -> None:
    clock = FakeClock()
    world = FakeWorld(clock)
    steps = f"""
    - {apply("never")}
    - expect: [{{pods: [never], phase: Running}}]
      withinS: 20
    - {apply("later")}
    """
    outcome, _ = await play(world, clock, steps)
    assert outcome.result == "failed"
    assert outcome.message.splitlines() == [
        "s.yaml, steps[1]: expect running never: not within 20 s: pod never is Pending, not Running",
        "pods:", "  never: Pending, no node", "claims:", "events:", "and a picture",
    ]  # fmt: skip
    assert world.calls[1:] == ["apply never", "clean up"]


async def test_what_a_world_cannot_do_is_named_and_nothing_is_done() -> None:
    clock = FakeClock()
    world = FakeWorld(clock)
    steps = f"""
    - {apply("a")}
    - delete: [{{kind: Pod, name: a, force: true}}]
    """
    outcome, _ = await play(world, clock, steps)
    assert outcome.result == "skipped"
    assert outcome.message == (
        "skipped in the test: s.yaml, steps[1]: delete Pod a by force: nobody here uses force"
    )
    assert not world.calls


async def test_other_numbers_of_nodes_are_skipped() -> None:
    clock = FakeClock()
    world = FakeWorld(clock)
    world.nodes = ("node-1", "node-2")  # type: ignore[assignment]
    outcome, _ = await play(world, clock, "[remember: [a]]")
    assert outcome.message == "skipped in the test: it takes 1 nodes, here are 2"


async def test_what_is_still_held_at_the_end_fails() -> None:
    clock = FakeClock()
    world = FakeWorld(clock)
    world.held = frozenset({"claim-uid"})
    outcome, _ = await play(world, clock, f"[{apply('a')}]")
    assert outcome.result == "failed"
    assert "cleaning up: not within 180 s: a node holds the state of claim-uid" in outcome.message


async def test_kept_objects_stay() -> None:
    clock = FakeClock()
    world = FakeWorld(clock)
    outcome, _ = await play(world, clock, f"[{apply('a')}]", keep=True)
    assert outcome.result == "passed"
    assert "clean up" not in world.calls


async def test_a_refused_object_names_its_step_and_leaves_nothing() -> None:
    clock = FakeClock()
    world = FakeWorld(clock)
    with pytest.raises(InvalidObjectError, match=r"s\.yaml, steps\[0\]: Job: is refused"):
        await play(world, clock, f"[{apply('j', 'Job')}]")
    assert world.calls[-1] == "clean up"


async def test_gpus_are_lost_and_come_back() -> None:
    clock = FakeClock()
    world = FakeWorld(clock)
    steps = """
    - gpus: {state: lost, node: node-1, index: 1}
    - gpus: {state: lost, node: node-1, free: true}
    - gpus: {state: present, node: node-1}
    - gpus: {state: lost, pod: none}
    """
    outcome, _ = await play(world, clock, steps)
    assert world.calls == [
        f"simulate node-1: {PRESENT}",
        "simulate node-1: present,lost,present,present",
        "simulate node-1: lost,lost,present,present",
        f"simulate node-1: {PRESENT}",
        "clean up",
    ]
    assert outcome.message == "s.yaml, steps[3]: the GPUs of pod none: lost: pod none has no GPU"


def test_a_description_survives_being_written_as_json() -> None:
    """How worlds are told of machines."""
    for name in ("gb10", "dgx-1v", "h100-nvl-94gb-x8"):
        description = load_machine(name)
        assert parse_machine(msgspec.json.encode(description), source="test") == description
