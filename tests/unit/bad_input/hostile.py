"""Values that nobody should write, and every place of a type or an object where they may stand."""

import json
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

Path = tuple[str | int, ...]

# Cyrillic A, full width, Kelvin, zero width, writing direction
CONFUSABLES = (
    "\u0410100",
    "\uff4e\uff4f\uff44\uff45",
    "\uff11\uff12",
    "\u212a",
    "gpu\u200b",
    "\u202egpu",
)
TEXTS = ("", " ", "x", "\n", "n1\n", "\x00", "'", '"', "${HOME}", "../..", "é" * 200, "-5", *CONFUSABLES)
NUMBERS = (0, -1, 2**31, 2**63, -(2**70), 10**30, 1.5, -0.0, 1e308, 1e-308)
OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [None],
    [[]],
    [{}],
    {"": None},
    {"a": {}},
    ["gpu"],
    {"a": ["b"]},
)
HUGE = ("x" * 100_000, ["x"] * 2000, {f"k{n}": n for n in range(2000)})
VALUES: tuple[Any, ...] = (*OTHERS, *NUMBERS, *TEXTS, *HUGE)

FEW: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**63,
    1e308,
    "",
    "n1\n",
    "\x00",
    CONFUSABLES[0],
    HUGE[0],
    [],
    {},
    [None],
)
"""One of each kind, for where each try is dear."""


def deep(depth: int) -> Any:
    """Lists in lists."""
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


def wire_paths(kind: type[msgspec.Struct]) -> Iterator[Path]:
    """Every field of a Struct and of the Structs inside it, by wire name; the item of a list is 0, that of a
    map `key`. A field that is added to a type is found here, and so mutated, without a change to a test."""
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        yield from _paths_of(hints[field.name], (field.encode_name,))


def _paths_of(hint: Any, path: Path) -> Iterator[Path]:
    origin = get_origin(hint)
    if origin is Annotated:
        yield from _paths_of(get_args(hint)[0], path)
    elif origin in (Union, types.UnionType):
        inner: set[Path] = {path}
        for part in get_args(hint):
            inner |= set(_paths_of(part, path))
        yield from sorted(inner, key=str)
    elif origin in (list, tuple):
        yield path
        yield from _paths_of(get_args(hint)[0], (*path, 0))
    elif origin is dict:
        yield path
        yield from _paths_of(get_args(hint)[1], (*path, "key"))
    elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield path
        for deeper in wire_paths(hint):
            yield (*path, *deeper)
    else:
        assert origin is Literal or isinstance(hint, type) or hint is Any, hint
        yield path


def changed(value: Any, path: Path, new: Any) -> Any:
    """The object with one place replaced; what is missing on the way to it is made.

    The new value is not copied: nobody may change it.
    """
    result = json.loads(json.dumps(value))
    holder: dict[str, Any] = {"": result}
    target: Any = holder
    key: str | int = ""
    for step in path:
        inner = target[key]
        if isinstance(step, int):
            if not isinstance(inner, list) or not inner:
                inner = target[key] = [None]
        elif not isinstance(inner, dict):
            inner = target[key] = {}
        if isinstance(step, str) and step not in inner:
            inner[step] = None
        target, key = inner, step
    target[key] = new
    return holder[""]


def without(value: Any, path: Path) -> Any:
    """The object with one place left out."""
    result = changed(value, path, None)
    target = result
    for step in path[:-1]:
        target = target[step]
    del target[path[-1]]
    return result
