"""A problem made as small as possible while it still shows what it shows."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

from conformance.problems import Problem

# What may be taken out without making an object that an API server would refuse.
_LISTS = {
    *("items", "devices", "requests", "selectors", "constraints", "config", "taints", "tolerations"),
    *("results", "consumesCounters", "firstAvailable", "validValues", "derivedAttributes"),
}
_MAPS = {"attributes", "capacity", "counters", "consumedCapacity", "labels"}
_OPTIONAL = {
    *("selectors", "constraints", "config", "tolerations", "taints", "adminAccess", "bindsToNode"),
    *("allowMultipleAllocations", "capacity", "consumesCounters", "attributes", "count", "allocationMode"),
    *("consumedCapacity", "matchFields", "labels", "max", "step", "derivedAttributes"),
}
_NEVER_EMPTY = {"firstAvailable", "requests", "results", "counters", "validValues", "consumesCounters"}

Path = tuple[str | int, ...]
_Body = dict[str, Any]


def reduced(problem: Problem, shows: Callable[[Problem], bool], *, most: int = 1000) -> Problem:
    """The smallest variant that `shows` still holds for, after at most so many tries."""
    tries, place, failures = 0, 0, 0
    # After a success it goes on at the same place, where the next part now stands, and round and round.
    steps = _steps(problem)
    while tries < most and failures < len(steps):
        place %= len(steps)
        tries += 1
        smaller = steps[place]()
        if shows(smaller):
            problem, failures = smaller, 0
            steps = _steps(problem)
        else:
            place, failures = place + 1, failures + 1
    return problem


def _steps(problem: Problem) -> list[Callable[[], Problem]]:
    """What makes it smaller by one part, big parts first."""
    steps: list[Callable[[], Problem]] = []
    for index, item in enumerate(problem.items):
        if item["kind"] == "ResourceSlice":
            steps.append(partial(_without_slice, problem, index))
        steps.append(partial(_without_item, problem, index))
    paths = sorted(_removable({"items": list(problem.items)}, ()), key=len)
    steps += [partial(_without_path, problem, path) for path in paths]
    steps += [partial(_without_feature, problem, name) for name in problem.features]
    return steps


def _without_item(problem: Problem, index: int) -> Problem:
    return replace(problem, items=(*problem.items[:index], *problem.items[index + 1 :]))


def _without_feature(problem: Problem, name: str) -> Problem:
    return replace(problem, features=tuple(other for other in problem.features if other != name))


def _without_path(problem: Problem, path: Path) -> Problem:
    body: _Body = deepcopy({"items": list(problem.items)})
    part: Any = body
    for step in path[:-1]:
        part = part[step]
    del part[path[-1]]
    return replace(problem, items=tuple(body["items"]))


def _without_slice(problem: Problem, index: int) -> Problem:
    """The other slices of the pool say that there is one less."""
    gone = problem.items[index]

    def fewer(item: _Body) -> _Body:
        same = item["kind"] == "ResourceSlice" and (item["spec"]["driver"], item["spec"]["pool"]["name"]) == (
            gone["spec"]["driver"],
            gone["spec"]["pool"]["name"],
        )
        if not same or item["spec"]["pool"]["resourceSliceCount"] < 2:
            return item
        item = deepcopy(item)
        item["spec"]["pool"]["resourceSliceCount"] -= 1
        return item

    rest = _without_item(problem, index)
    return replace(rest, items=tuple(map(fewer, rest.items)))


def _removable(value: Any, path: Path) -> Iterator[Path]:
    if isinstance(value, list):
        key = path[-1] if path else ""
        removable = key in _LISTS and len(path) > 1 and len(value) > (key in _NEVER_EMPTY)
        for index, entry in enumerate(value):
            if removable:
                yield (*path, index)
            yield from _removable(entry, (*path, index))
    elif isinstance(value, dict):
        parent = path[-1] if path else ""
        in_requests = parent == "requests" and len(path) > 1 and path[-2] == "capacity"
        for key, entry in value.items():
            if key in _OPTIONAL or in_requests or (parent in _MAPS and len(value) > (parent in _NEVER_EMPTY)):
                yield (*path, key)
            yield from _removable(entry, (*path, key))
