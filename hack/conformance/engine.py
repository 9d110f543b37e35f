"""Tangram's engine, asked like the oracle."""

from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from conformance.problems import Problem
from conformance.versions import Version
from tangram.allocation.structured import (
    Allocated,
    Cluster,
    Features,
    NodeFacts,
    Options,
    Outcome,
    Policy,
    decide,
    parse_features,
)
from tangram.base.errors import InvalidObjectError
from tangram.model.kubernetes import DeviceClass, ResourceClaim, ResourceSlice

T = TypeVar("T")


class UnreadableError(Exception):
    """The problem has an object that the engine refuses before it decides anything."""


class Asked:
    """A problem prepared for the engine, decided as kube-scheduler would."""

    def __init__(self, problem: Problem, features: Features, *, policy: Policy = Policy.FIRST_FIT) -> None:
        kinds: dict[str, list[Any]] = {}
        for item in problem.items:
            kinds.setdefault(item["kind"], []).append(item)
        try:
            self.nodes = [_node(node) for node in kinds.get("Node", ())]
            self._slices = _decoded(kinds.get("ResourceSlice", []), ResourceSlice)
            self._classes = _decoded(kinds.get("DeviceClass", []), DeviceClass)
            self.prepare()
            claims = _decoded(kinds.get("ResourceClaim", []), ResourceClaim)
            self.waiting = [claim for claim in claims if claim.allocation is None]
            self.allocated = Allocated.of(claims, features)
        except (msgspec.ValidationError, InvalidObjectError) as error:
            raise UnreadableError(str(error)) from error
        self.options = Options(features=features, policy=policy, controller=False)

    def prepare(self) -> None:
        """Begins with a cluster about which nothing is remembered yet."""
        self.cluster = Cluster(slices=self._slices, classes=self._classes)

    def decide(self, node: NodeFacts) -> Outcome:
        """What the node can do for the claims."""
        return decide(self.cluster, node, self.waiting, allocated=self.allocated, options=self.options)

    def node(self, node: NodeFacts) -> dict[str, Any]:
        """One entry of `nodes`."""
        outcome = self.decide(node)
        allocations = outcome.allocations or (None,) * len(self.waiting)
        claims = [
            {"name": claim.metadata.name, "allocation": _plain(allocation), "error": outcome.error or None}
            for claim, allocation in zip(self.waiting, allocations, strict=True)
        ]
        return {
            "node": node.name,
            "claims": claims,
            "steps": outcome.steps,
            "exhausted": outcome.exhausted,
            "summary": outcome.reasons.summary,
        }


def answer(problem: Problem, version: Version) -> list[dict[str, Any]]:
    """What first-fit gives the claims together, on each node. Raises UnreadableError."""
    asked = Asked(problem, features_of(version.preset_with(problem.features)))
    return [asked.node(node) for node in asked.nodes]


@lru_cache
def features_of(text: str) -> Features:
    """As `tangram allocate --features` reads them."""
    return parse_features(text)


def _node(item: Any) -> NodeFacts:
    return NodeFacts(
        name=item["metadata"]["name"],
        labels=item["metadata"].get("labels", {}),
        declared_features=frozenset(item.get("status", {}).get("declaredFeatures", ())),
    )


def _decoded(items: list[Any], type_: type[T]) -> list[T]:
    # Configurations are kept as raw JSON, which is there only when JSON is decoded.
    return [msgspec.json.decode(msgspec.json.encode(item), type=type_) for item in items]


def _plain(allocation: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(allocation))
