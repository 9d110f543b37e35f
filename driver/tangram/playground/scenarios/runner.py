"""Plays a scenario on a world."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

import msgspec

from tangram.base.clock import Clock
from tangram.base.errors import InvalidObjectError
from tangram.hardware.machines import MachineDescription, load_machine
from tangram.playground.objects import allocated, attribute, results
from tangram.playground.scenarios.checks import Memory, held_problems, remembered, unmet, wanted_logs
from tangram.playground.scenarios.describing import action_text, state_text
from tangram.playground.scenarios.schema import (
    Apply,
    Delete,
    Disturb,
    Expect,
    GpuChange,
    HeldExpectation,
    Remember,
    Scenario,
    Step,
)
from tangram.playground.scenarios.world import Container, State, World

_MACHINES_WITHIN_S = 120.0
_CLEAN_WITHIN_S = 180.0

Problems = Callable[[State], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`message` says why it failed or was skipped."""

    result: Literal["passed", "failed", "skipped"]
    message: str = ""


class Runner:
    """`tell` is told each step as it ends."""

    def __init__(self, world: World, *, clock: Clock, tell: Callable[[str], None] = lambda _: None) -> None:
        self._world = world
        self._clock = clock
        self._tell = tell
        self._machines: dict[str, MachineDescription] = {}
        self._memory: dict[str, object] = {}

    async def play(self, scenario: Scenario, *, keep: bool = False) -> Outcome:
        """Plays it to its end and then, unless `keep`, deletes what it applied and sees that nothing is held.

        InvalidObjectError for an object that the server refuses.
        """
        if why := self._skipped(scenario):
            return Outcome(result="skipped", message=why)
        self._memory.clear()
        failure = ""
        try:
            failure = await self._simulate(dict(zip(self._world.nodes, scenario.machines, strict=True)))
            for step in scenario.steps:
                failure = failure or await self._step(step)
        finally:
            if not keep:
                await self._world.clean_up()
        if not keep:
            failure = failure or await self._until_clean(scenario)
        return Outcome(result="failed" if failure else "passed", message=failure)

    def _skipped(self, scenario: Scenario) -> str:
        nodes = len(self._world.nodes)
        if len(scenario.machines) != nodes:
            return f"skipped in {self._world.name}: it takes {len(scenario.machines)} nodes, here are {nodes}"
        for step in scenario.steps:
            if why := self._world.cannot(step.action):
                return f"skipped in {self._world.name}: {step.label}: {action_text(step.action)}: {why}"
        return ""

    async def _step(self, step: Step) -> str:
        """Why it failed; empty if it did not."""
        started_s = self._clock.monotonic_s()
        failure = ""
        match step.action:
            case Apply(objects=objects):
                try:
                    await self._world.apply(objects)
                except InvalidObjectError as error:
                    raise InvalidObjectError(
                        f"{error.object_name}: {error.field}: {error.problem}"
                        if error.field
                        else f"{error.object_name}: {error.problem}",
                        object_name=step.label,
                        next_step=error.next_step,
                    ) from None
            case Delete(objects=objects):
                for each in objects:
                    await self._world.delete(each.kind, each.name, force=each.force)
            case Disturb(what=what, kill=kill):
                await self._world.disturb(what.component, what.node, kill=kill)
            case GpuChange() as change:
                failure = await self._change(change)
            case Remember(pods=pods):
                state = await self._world.state(logs=(), held=False)
                found = {name: state.find("Pod", name) for name in pods}
                failure = ", ".join(f"there is no pod {name}" for name, pod in found.items() if pod is None)
                self._memory |= {name: remembered(pod, state) for name, pod in found.items() if pod}
            case Expect() as expect:
                failure = await self._expect(expect)
            case _:
                assert_never(step.action)
        if failure:
            return f"{step.label}: {action_text(step.action)}: {failure}"
        self._tell(f"{action_text(step.action)} ({self._clock.monotonic_s() - started_s:.1f} s)")
        return ""

    async def _expect(self, expect: Expect) -> str:
        memory: Memory = self._memory

        def problems(state: State) -> list[str]:
            return [problem for each in expect.expectations for problem in unmet(each, state, memory)]

        def logs(state: State) -> set[Container]:
            return {log for each in expect.expectations for log in wanted_logs(each, state)}

        held = any(isinstance(each, HeldExpectation) for each in expect.expectations)
        return await self._until(problems, within_s=expect.within_s, logs=logs, held=held)

    async def _until(
        self,
        problems: Problems,
        *,
        within_s: float,
        logs: Callable[[State], set[Container]] = lambda _: set(),
        held: bool = False,
    ) -> str:
        """Empty once there are no problems; after the time, these and a picture of everything."""
        deadline_s = self._clock.monotonic_s() + within_s
        wanted: set[Container] = set()
        while True:
            state = await self._world.state(logs=wanted, held=held)
            if not (now_wanted := logs(state)) <= wanted:
                wanted = now_wanted
                state = await self._world.state(logs=wanted, held=held)
            found = problems(state)
            if not found:
                return ""
            if self._clock.monotonic_s() > deadline_s:
                more = await self._world.picture()
                parts = (f"not within {within_s:.0f} s: {'; '.join(found)}", state_text(state), more)
                return "\n".join(part for part in parts if part)
            await self._world.change()

    async def _until_clean(self, scenario: Scenario) -> str:
        def problems(state: State) -> list[str]:
            there = [f"pod {pod['metadata']['name']} is still there" for pod in state.objects["Pod"]]
            return [*there, *held_problems(state, 0)]

        failure = await self._until(problems, within_s=_CLEAN_WITHIN_S, held=True)
        return f"{scenario.name}: cleaning up: {failure}" if failure else ""

    # --- machines -------------------------------------------------------------------------------------------

    async def _simulate(self, machines: Mapping[str, str]) -> str:
        """Gives each node its machine, and waits until it is published."""
        wanted = {node: load_machine(source) for node, source in machines.items()}
        if wanted == self._machines:
            return ""
        for node, description in wanted.items():
            await self._write(node, description)

        def problems(state: State) -> list[str]:
            return [
                f"{node} does not publish its {len(description.gpus)} GPUs yet"
                for node, description in wanted.items()
                if _products(description) != _published(state, node)
            ]

        failure = await self._until(problems, within_s=_MACHINES_WITHIN_S)
        return f"machines: {failure}" if failure else ""

    async def _change(self, change: GpuChange) -> str:
        state = await self._world.state(logs=(), held=False)
        targets, problem = _targets(change, state)
        for node, indices in targets.items():
            description = self._machines[node]
            gpus = tuple(
                msgspec.structs.replace(gpu, state=change.state)
                if indices is None or index in indices
                else gpu
                for gpu, index in zip(description.gpus, description.indices(), strict=True)
            )
            await self._write(node, msgspec.structs.replace(description, gpus=gpus))
        return problem

    async def _write(self, node: str, description: MachineDescription) -> None:
        await self._world.simulate(node, msgspec.json.encode(description).decode())
        self._machines[node] = description


def _targets(change: GpuChange, state: State) -> tuple[dict[str, set[int] | None], str]:
    """Indices of GPUs by node (None: all of the node), and a problem, if there is one."""
    if change.index is not None:
        return {change.node: {change.index}}, ""
    if change.pod:
        pod = state.find("Pod", change.pod)
        claims = [] if pod is None else state.claims_of(pod)
        indices = {attribute(each, "index") for claim in claims for each in state.devices(claim)}
        if pod is None or not indices:
            return {}, f"pod {change.pod} has no GPU"
        return {pod["spec"].get("nodeName", ""): indices}, ""
    if not change.free:
        return {change.node: None}, ""
    held = {
        result["device"]
        for claim in state.objects["ResourceClaim"]
        if allocated(claim)
        for result in results(claim)
    }
    free = sorted(
        attribute(devices[0], "index")
        for (node, _), devices in state.gpus().items()
        if node == change.node and held.isdisjoint(each["name"] for each in devices)
    )
    return ({change.node: {free[0]}}, "") if free else ({}, f"{change.node} has no free GPU")


def _products(description: MachineDescription) -> list[str]:
    return sorted(description.model(gpu.model).product_name for gpu in description.gpus)


def _published(state: State, node: str) -> list[str]:
    """The product names of the node's healthy GPUs."""
    return sorted(
        str(attribute(devices[0], "productName"))
        for (where, _), devices in state.gpus().items()
        if where == node and all(attribute(each, "healthy") for each in devices)
    )
