"""Generated problems: a cluster with claims, the features it is decided with, and what it is about."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from conformance import demand, supply
from conformance.draw import DERIVED, Draw, Json, topics_of
from conformance.versions import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`items` are the objects of a v1 List: what `tangram allocate` and the oracle read.

    `features` are upstream's names; `topics` say what the problem is about, for counting.
    """

    items: tuple[Json, ...]
    features: tuple[str, ...]
    topics: tuple[str, ...] = ()

    def list(self) -> dict[str, Any]:
        """The v1 List."""
        return {"apiVersion": "v1", "kind": "List", "items": list(self.items)}

    def question(self, version: Version, **options: object) -> Mapping[str, Any]:
        """For the oracle; `options` are further fields of its type `problem`."""
        return {"items": self.items, "features": version.upstream(self.features), **options}


def problem(random: Random, version: Version) -> Problem:
    """The problem that this state of `random` stands for."""
    topics = tuple(sorted(random.sample(topics_of(version), random.choice((1, 1, 2, 2, 3)))))
    features = _features(random, version, topics)
    draw = Draw(random, version, frozenset(topics), frozenset(features))
    nodes = supply.nodes(draw)
    classes = supply.classes(draw)
    slices = supply.slices(draw, [node["metadata"]["name"] for node in nodes])
    claims = demand.holding(draw, slices) + demand.waiting(draw)
    return Problem(items=(*nodes, *classes, *slices, *claims), features=features, topics=topics)


def problems(seed: int, version: Version) -> Iterator[Problem]:
    """Endlessly many, each from a generator of its own, so that one can be made again from its number."""
    number = 0
    while True:
        yield numbered(seed, number, version)
        number += 1


def numbered(seed: int, number: int, version: Version) -> Problem:
    """Problem `number` of `problems(seed, version)`."""
    return problem(Random(f"{version.kubernetes}/{seed}/{number}"), version)


def _features(random: Random, version: Version, topics: tuple[str, ...]) -> tuple[str, ...]:
    """Mostly what a scheduler with default gates sets, or everything; seldom some of them.

    Lists and derived attributes need features that no version has by default.
    """
    dice = random.random()
    if dice < 0.07:
        count = random.randint(0, len(version.features))
        return tuple(name for name in version.features if name in random.sample(version.features, count))
    if dice < 0.55 and "lists" not in topics:
        derived = "derived" in topics and dice < 0.5
        return (*version.default_features, DERIVED) if derived else version.default_features
    return version.features
