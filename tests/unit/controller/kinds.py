"""A node with all kinds of devices, and pods that ask for them one after the other."""

from dataclasses import replace
from typing import Any

from tests.fleet import KIND_CLASSES, claim, kind_class, kube_node, parameters, pod, slices
from tests.unit.controller.world import World

from tangram.controller.claims import allocation_body
from tangram.controller.decide import Action, Allocate, Wait
from tangram.hardware.machines import load_machine
from tangram.hardware.simulated import SimulatedBackend
from tangram.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from tangram.model.devices import Kind
from tangram.model.gpu import Machine
from tangram.model.offers import Offer, offers
from tangram.testing.apiserver import VERSIONS
from tangram.testing.apiserver.rules import drop_disabled_fields

KINDS: tuple[Kind, ...] = ("gpu", "mig", "mps", "timeslice")
BOARDS = {
    "a100": "a100-sxm4-80gb-x8",
    "h100": "h100-sxm5-80gb-x8",
    "h200": "h200-sxm5-141gb-x8",
    "b200": "b200-sxm6-180gb-x8",
}


class Node:
    """A world with one node of `count` GPUs of a board, and the four classes.

    Objects are what an API server of Kubernetes `version` keeps of what is written.
    """

    def __init__(
        self,
        board: str = "h100",
        *,
        count: int = 1,
        dynamic: bool = True,
        mig: bool = False,
        replicas: int = 4,
        kinds: tuple[Kind, ...] = KINDS,
        version: str = "1.36",
    ) -> None:
        self.backend = SimulatedBackend(load_machine(BOARDS[board]), node_name="n1")
        found = self.backend.discover()
        gpus = found.gpus[:count]
        if mig:
            for gpu in gpus:
                self.backend.set_mig_mode(gpu.uuid, enabled=True)
                self.backend.reset(gpu.uuid)
            gpus = self.backend.discover().gpus[:count]
        self.machine: Machine = replace(found, gpus=gpus)
        self._version = VERSIONS[version]
        self._replicas = replicas
        self._dynamic = dynamic
        self._kinds = kinds
        self._count = 0
        self._claims: dict[str, dict[str, Any]] = {}
        self.restart()
        self.offers: dict[str, Offer] = {
            offer.name: offer for offer in offers(self.machine, kinds=KINDS, dynamic=dynamic)
        }

    def restart(self) -> None:
        """A new controller reads what the API server has."""
        self.world = World()
        for kind in KINDS:
            self.world.put(kind_class(kind))
        self.world.put(kube_node("n1", cpu="1000"))
        self.publish()
        for item in self._claims.values():
            self.world.put(dict(item))

    def publish(self, *, replicas: int | None = None, version: str = "") -> None:
        """The node plugin writes its slices, of another setting or to another version of the API server."""
        self._replicas = replicas or self._replicas
        self._version = VERSIONS[version] if version else self._version
        for item in slices(
            "n1", self.machine, kinds=self._kinds, dynamic=self._dynamic, replicas=self._replicas
        ):
            self.world.put(self._stored(RESOURCE_SLICES, item))

    def _stored(self, resource: Resource, item: dict[str, Any]) -> dict[str, Any]:
        drop_disabled_fields(resource, item, None, version=self._version)
        return item

    def ask(self, kind: Kind, **more: Any) -> Action:
        """Decides a new pod with one request for this kind."""
        self._count += 1
        name = f"c{self._count}"
        exactly: dict[str, Any] = {"deviceClassName": KIND_CLASSES[kind]}
        if selector := more.pop("selector", ""):
            exactly["selectors"] = [{"cel": {"expression": selector}}]
        if capacity := more.pop("capacity", None):
            exactly["capacity"] = {"requests": capacity}
        item = claim(name, {"name": "gpu", "exactly": exactly}, config=[parameters(**more)] if more else [])
        self._claims[name] = self._stored(RESOURCE_CLAIMS, item)
        self.world.put(dict(item))
        self.world.put(pod(f"p{self._count}", name))
        return self.world.decide(f"p{self._count}")

    def take(self, kind: Kind, **more: Any) -> dict[str, Any]:
        """The same, and writes what was decided; the first result before the server drops what it does."""
        action = self.ask(kind, **more)
        assert isinstance(action, Allocate), action
        (given_,) = action.placement.claims
        body = allocation_body(given_, timestamp="2026-01-01T00:00:00Z")
        result: dict[str, Any] = dict(body["devices"]["results"][0])
        name = given_.claim.name
        item = {**self._claims[name], "status": {"allocation": body}}
        self._claims[name] = self._stored(RESOURCE_CLAIMS, item)
        self.world.put(dict(item))
        return result | {"claim": name}

    def stored(self, name: str) -> dict[str, Any]:
        """A claim as the API server has it."""
        return self._claims[name]

    def free(self, result: dict[str, Any]) -> None:
        """The claim is there, and not allocated."""
        item = self._claims[result["claim"]] = {
            key: value for key, value in self._claims[result["claim"]].items() if key != "status"
        }
        self.world.put(dict(item))

    def why(self, kind: Kind, **more: Any) -> str:
        action = self.ask(kind, **more)
        assert isinstance(action, Wait), action
        return action.why
