"""A problem made as small as possible while it still shows what it shows."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

from conformance.problems import Problem

# What may be taken out without making an object that an API server would refuse.
_LISTS = {
    *("items", "devices", "requests", "selectors", "constraints", "config", "taints", "tolerations"),
    *("results", "consumesCounters", "firstAvailable", "validValues"),
}
_MAPS = {"attributes", "capacity", "counters", "consumedCapacity", "labels"}
_OPTIONAL = {
    *("selectors", "constraints", "config", "tolerations", "taints", "adminAccess", "bindsToNode"),
    *("allowMultipleAllocations", "capacity", "consumesCounters", "attributes", "count", "allocationMode"),
    *("consumedCapacity", "matchFields", "labels", "max", "step"),
}
_NEVER_EMPTY = {"firstAvailable", "requests", "results", "counters", "validValues", "consumesCounters"}

Path = tuple[str | int, ...]
_Body = dict[str, Any]


def reduced(problem: Problem, shows: Callable[[Problem], bool], *, most: int = 3000) -> Problem:
    """The smallest variant that `shows` still holds for, after at most so many tries."""
    tries = 0
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(problem):
            tries += 1
            if tries > most:
                return problem
            if shows(smaller):
                problem, progress = smaller, True
                break
    return problem


def _smaller(problem: Problem) -> Iterator[Problem]:
    """One step smaller, big steps first."""
    for index, item in enumerate(problem.items):
        rest = (*problem.items[:index], *problem.items[index + 1 :])
        if item["kind"] == "ResourceSlice":
            yield replace(problem, items=_without_slice(rest, item))
        yield replace(problem, items=rest)
    for path in sorted(_removable({"items": list(problem.items)}, ()), key=len):
        body: _Body = deepcopy({"items": list(problem.items)})
        _remove(body, path)
        yield replace(problem, items=tuple(body["items"]))
    for name in problem.features:
        yield replace(problem, features=tuple(other for other in problem.features if other != name))


def _without_slice(items: tuple[_Body, ...], gone: _Body) -> tuple[_Body, ...]:
    """The other slices of the pool say that there is one less."""

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

    return tuple(map(fewer, items))


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


def _remove(body: Any, path: Path) -> None:
    for step in path[:-1]:
        body = body[step]
    del body[path[-1]]
