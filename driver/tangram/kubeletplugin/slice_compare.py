"""What a stored slice lacks or has otherwise, compared with the desired one.

The API server writes what it was given in another form (`81920Mi` becomes `80Gi`, empty lists vanish), adds
the time of a taint, and silently drops fields whose feature gate is off. None of that is a change.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tangram.model.quantity import parse_quantity

_QUANTITIES = re.compile(
    r"(devices\[\]\.(capacity|consumesCounters\[\]\.counters)|sharedCounters\[\]\.counters)\."
)
_SET_BY_THE_SERVER = frozenset({"devices[].taints[].timeAdded"})
# Who orders the writes decides the generation; see `slice_plan`.
_IGNORED = frozenset({"pool.generation"})


@dataclass(frozen=True, slots=True)
class Difference:
    """Paths such as `devices[].taints`: `missing` are not stored, `other` is the first that differs."""

    missing: frozenset[str] = frozenset()
    other: str = ""


def difference(desired: Mapping[str, Any], stored: Mapping[str, Any]) -> Difference:
    """How the spec of a slice differs from the desired one."""
    missing: set[str] = set()
    other = ""
    for path, is_missing in _differences(desired, stored, ""):
        if is_missing:
            missing.add(path)
        else:
            other = other or path
    return Difference(frozenset(missing), other)


def paths(spec: Mapping[str, Any]) -> frozenset[str]:
    """Every path in a spec that has a value."""
    return frozenset(_paths(spec, ""))


def _differences(desired: Any, stored: Any, path: str) -> Iterator[tuple[str, bool]]:
    """Pairs of path and whether it is missing (True) or otherwise different (False)."""
    if path in _IGNORED:
        return
    if _is_absent(stored):
        if not _is_absent(desired):
            yield path, True
    elif _is_absent(desired):
        if path not in _SET_BY_THE_SERVER:
            yield path, False
    elif isinstance(desired, Mapping) and isinstance(stored, Mapping):
        for key in desired.keys() | stored.keys():
            yield from _differences(desired.get(key), stored.get(key), f"{path}.{key}" if path else key)
    elif isinstance(desired, list | tuple) and isinstance(stored, list | tuple):
        if len(desired) != len(stored):
            yield path, False
            return
        for ours, theirs in zip(desired, stored, strict=True):
            yield from _differences(ours, theirs, f"{path}[]")
    elif not _equal(desired, stored, path):
        yield path, False


def _paths(value: Any, path: str) -> Iterator[str]:
    if _is_absent(value):
        return
    if path:
        yield path
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _paths(entry, f"{path}.{key}" if path else key)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _paths(entry, f"{path}[]")


def _is_absent(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping | list | tuple) and not value)


def _equal(desired: Any, stored: Any, path: str) -> bool:
    # `True == 1` in Python, not in JSON.
    if desired == stored and isinstance(desired, bool) == isinstance(stored, bool):
        return True
    if not _QUANTITIES.match(path):
        return False
    try:
        return parse_quantity(str(desired)) == parse_quantity(str(stored))
    except ValueError:
        return False
