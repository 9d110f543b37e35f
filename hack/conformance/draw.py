"""Drawing from a seeded generator, and the words that problems are made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from conformance.versions import Version

T = TypeVar("T")
Json = dict[str, Any]

DRIVERS = ("gpu.example.com", "nic.example.com", "a.example.com")
NODES = ("n1", "n2", "n3")
OTHER_DOMAIN = "shared.example.com"

ATTRIBUTES: dict[str, tuple[Json, ...]] = {
    "model": ({"string": "a100"}, {"string": "h100"}, {"string": "t4"}),
    "index": tuple({"int": i} for i in range(4)),
    "numa": ({"int": 0}, {"int": 1}, {"int": 1}, {"string": "1"}),
    "healthy": ({"bool": True}, {"bool": True}, {"bool": False}),
    "firmware": (
        {"version": "1.0.0"},
        {"version": "1.2.3"},
        {"version": "1.0.0-rc.1"},
        {"version": "1.0.0+b1"},
    ),
    f"{OTHER_DOMAIN}/root": ({"string": "pci0"}, {"string": "pci1"}, {"string": ""}),
}
LISTS: dict[str, tuple[Json, ...]] = {
    "links": ({"ints": [1, 2]}, {"ints": [2, 3]}, {"ints": [3]}, {"int": 2}, {"strings": ["1", "2"]}),
    f"{OTHER_DOMAIN}/zones": ({"strings": ["a", "b"]}, {"strings": ["b", "c"]}, {"string": "b"}),
}
CAPACITIES: dict[str, tuple[str, ...]] = {
    "memory": ("8Gi", "40Gi", "80Gi", "81920Mi", "1.5Gi", "85899345920"),
    "cores": ("1", "100", "7", "1e2", "2500m"),
    f"{OTHER_DOMAIN}/bandwidth": ("10G", "400M", "25k"),
}
COUNTERS = ("slices", "memory", "engines")
TAINTS = tuple(
    {"key": key, "effect": effect, **({"value": value} if value else {})}
    for key in ("example.com/sick", "maintenance")
    for effect in ("NoSchedule", "NoExecute", "None")
    for value in ("", "yes")
)
TOPICS = (
    *("admin", "all", "binding", "configs", "constraints", "counters", "generations", "held", "limits"),
    *("lists", "nodes", "prioritized", "selectors", "shares", "taints"),
)


DERIVED = "DerivedAttributes"


def topics_of(version: Version) -> tuple[str, ...]:
    """What problems of a version can be about."""
    return (*TOPICS, "derived") if DERIVED in version.features else TOPICS


@dataclass(frozen=True, slots=True)
class Draw:
    """A seeded generator with what the problem is about: `topics` are drawn often, the others seldom."""

    random: Random
    version: Version
    topics: frozenset[str]
    features: frozenset[str]

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def about(self, topic: str, *, often: float = 0.7, seldom: float = 0.04) -> bool:
        """Whether to use a feature now."""
        return self.chance(often if topic in self.topics else seldom)

    def one(self, choices: Sequence[T]) -> T:
        return self.random.choice(choices)

    def some(self, choices: Sequence[T], *, least: int = 0, most: int | None = None) -> list[T]:
        """Distinct ones, in the order of `choices`; fewer than `least` if there are not so many."""
        highest = min(len(choices), most if most is not None else len(choices))
        count = self.random.randint(min(least, highest), highest)
        chosen = set(self.random.sample(range(len(choices)), count))
        return [choice for i, choice in enumerate(choices) if i in chosen]

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)
