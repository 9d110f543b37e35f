"""A controller state fed by hand, object by object, as the reflectors would."""

import json
from collections.abc import Callable
from typing import Any

from tests.fleet import device_class, kube_node, slices

from tangram.allocation import Settings, Statistics
from tangram.controller.claims import decode_class
from tangram.controller.decide import Action, decide
from tangram.controller.exclusions import Exclusions
from tangram.controller.inventory import decode_slice
from tangram.controller.nodefit import decode_node
from tangram.controller.pods import decode_pod
from tangram.controller.state import State
from tangram.kube.client import decode
from tangram.kube.decoding import ObjectKey
from tangram.kube.objects import ResourceClaim
from tangram.kube.reflector import Change
from tangram.model.gpu import Machine
from tangram.testing.clock import FakeClock

_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "ResourceSlice": decode_slice,
    "DeviceClass": decode_class,
    "Node": decode_node,
    "Pod": decode_pod,
    "ResourceClaim": lambda raw: decode(raw, ResourceClaim),
}


class World:
    """Objects as dicts; `put` and `delete` feed the state; `queued` collects what was requeued."""

    def __init__(self, **nodes: Machine) -> None:
        self.clock = FakeClock()
        self.queued: list[ObjectKey] = []
        self.reports: list[tuple[str, str]] = []
        self.state = State(
            clock=self.clock,
            exclusions=Exclusions(),
            requeue=self.queued.append,
            report=lambda claim, note: self.reports.append((claim.metadata.name, note)),
        )
        self._objects: dict[tuple[str, ObjectKey], Any] = {}
        self._written: dict[tuple[str, str], dict[str, Any]] = {}
        self._version = 0
        self.put(device_class())
        for name, machine in nodes.items():
            self.put(kube_node(name))
            for item in slices(name, machine):
                self.put(item)

    def put(self, item: dict[str, Any]) -> dict[str, Any]:
        """Creates or replaces an object; returns it with uid and resourceVersion."""
        self._version += 1
        meta = item["metadata"]
        meta.setdefault("uid", f"uid-{item['kind']}-{meta['name']}")
        meta["resourceVersion"] = str(self._version)
        self._feed(item, json.dumps(item).encode())
        self._written[item["kind"], meta["name"]] = item
        return item

    def objects(self, *kinds: str) -> list[dict[str, Any]]:
        """All that was put of these kinds, in its last form."""
        return [item for (kind, _), item in self._written.items() if kind in kinds]

    def delete(self, item: dict[str, Any]) -> None:
        self._feed(item, None)

    def _feed(self, item: dict[str, Any], raw: bytes | None) -> None:
        kind, meta = item["kind"], item["metadata"]
        key = ObjectKey(meta.get("namespace", ""), meta["name"])
        old = self._objects.pop((kind, key), None)
        new = _DECODERS[kind](raw) if raw is not None else None
        if new is not None:
            self._objects[kind, key] = new
        handlers: dict[str, Callable[[Change[Any]], None]] = {
            "ResourceSlice": self.state.on_slice,
            "DeviceClass": self.state.on_class,
            "Node": self.state.on_node,
            "Pod": self.state.on_pod,
            "ResourceClaim": self.state.on_claim,
        }
        handlers[kind](Change(key, old, new))

    def decide(self, pod: str, namespace: str = "default") -> Action:
        return decide(
            self.state,
            ObjectKey(namespace, pod),
            now_s=self.clock.monotonic_s(),
            settings=Settings(),
            statistics=Statistics(),
        )
