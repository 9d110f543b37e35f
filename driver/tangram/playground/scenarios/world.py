"""A cluster on which a scenario is played, and what can be seen of it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tangram import DRIVER_NAME
from tangram.playground.objects import Object, claim_names, gpu_of, results
from tangram.playground.scenarios.schema import Action, Component, ObjectKind

Container = tuple[str, str]
"""(pod, container)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """About an object of the scenario's namespace."""

    kind: str
    name: str
    uid: str
    reason: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything at one moment. `logs`, `held` and `cdi` only if they were asked for."""

    objects: Mapping[str, Sequence[Object]]
    """by kind; those of the scenario's namespace, and ResourceSlice"""
    events: Sequence[Event]
    """oldest first"""
    logs: Mapping[Container, str] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    """uids of claims of which a node holds state"""
    cdi: frozenset[str] = frozenset()
    """uids of claims of which a node has a CDI file"""

    def find(self, kind: str, name: str) -> Object | None:
        """An object; None if there is none."""
        return next((each for each in self.objects[kind] if each["metadata"]["name"] == name), None)

    def claims_of(self, pod: Object) -> list[Object]:
        """The claims of a pod that are there, in its order."""
        found = (self.find("ResourceClaim", name) for _, name in claim_names(pod) if name)
        return [claim for claim in found if claim is not None]

    def devices(self, claim: Object) -> list[Object]:
        """The published devices that a claim is allocated; a device that is not published has only a name."""
        return [
            self._published().get((result["pool"], result["device"]), {"name": result["device"]})
            for result in results(claim)
            if result["driver"] == DRIVER_NAME
        ]

    def published(self) -> Iterator[tuple[str, Object]]:
        """(node, device)"""
        for item in self.objects["ResourceSlice"]:
            if item["spec"]["driver"] == DRIVER_NAME:
                for device in item["spec"].get("devices") or ():
                    yield item["spec"].get("nodeName", ""), device

    def gpus(self) -> dict[tuple[str, str], list[Object]]:
        """(node, UUID of the GPU) → what is published of it"""
        found: dict[tuple[str, str], list[Object]] = {}
        for node, device in self.published():
            found.setdefault((node, gpu_of(device)), []).append(device)
        return found

    def _published(self) -> dict[tuple[str, str], Object]:
        return {
            (item["spec"]["pool"]["name"], device["name"]): device
            for item in self.objects["ResourceSlice"]
            for device in item["spec"].get("devices") or ()
        }


class World(Protocol):
    """What a scenario takes. Each method acts on the scenario's namespace; none waits for an effect."""

    @property
    def name(self) -> str:
        """As in `skipped in playground`."""

    @property
    def nodes(self) -> Sequence[str]:
        """Their names, in the order of a scenario's machines."""

    def cannot(self, action: Action) -> str:
        """Why this cannot be done here; empty if it can."""

    async def simulate(self, node: str, description: str) -> None:
        """The node's GPUs are from now on those of a machine description (its text)."""

    async def apply(self, objects: Sequence[Object]) -> None:
        """As `kubectl apply`. InvalidObjectError for what the server refuses."""

    async def delete(self, kind: ObjectKind, name: str, *, force: bool) -> None:
        """As `kubectl delete --wait=false --ignore-not-found`."""

    async def disturb(self, component: Component, node: str, *, kill: bool) -> None:
        """Stops a component on a node (`node` empty: everywhere) and sees that it starts again."""

    async def state(self, *, logs: Collection[Container], held: bool) -> State:
        """What is so now."""

    async def change(self) -> None:
        """Returns when something may have changed."""

    async def clean_up(self) -> None:
        """Asks for the deletion of all that was applied."""

    async def picture(self) -> str:
        """More for a person who looks for the cause of a failure; may be empty."""
