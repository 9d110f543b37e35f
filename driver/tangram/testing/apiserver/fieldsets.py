"""Sets of fields of an object, as server-side apply counts them (structured-merge-diff, KEP-555).

A path is a tuple of `f:<field>`, `k:<keys of a list's element>` and `v:<value of a set>`. Lists with keys,
sets and maps count entry by entry, and by being there themselves; everything else counts as a whole.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from tangram.testing.apiserver.schema import Field, Struct, structs

Path = tuple[str, ...]
FieldSet = frozenset[Path]

_SELF = "."
_METADATA = (
    *("name", "namespace", "uid", "resourceVersion", "generation", "selfLink", "managedFields"),
    *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
)
# Nobody manages these: the server sets them, or they are the object's name.
_UNMANAGED: Collection[Path] = frozenset(
    {("f:apiVersion",), ("f:kind",), *(("f:metadata", f"f:{name}") for name in _METADATA)}
)


def fields_of(kind: str, obj: Mapping[str, Any], *, applied: bool) -> FieldSet:
    """The fields of an object of a kind. In an `applied` one, lists and maps do not count themselves."""
    found = _struct(structs()[kind], obj, (), applied=applied)
    return frozenset(path for path in found if path[:1] not in _UNMANAGED and path[:2] not in _UNMANAGED)


def parents(fields: Iterable[Path]) -> FieldSet:
    """What has fields below it."""
    return frozenset(path[:length] for path in fields for length in range(1, len(path)))


def to_json(fields: FieldSet) -> dict[str, Any]:
    """As `fieldsV1`."""
    tree: dict[str, Any] = {}
    above = parents(fields)
    for path in sorted(fields):
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        if path in above:
            node[_SELF] = {}
    return tree


def from_json(tree: Mapping[str, Any]) -> FieldSet:
    """Of `fieldsV1`."""

    def walk(node: Mapping[str, Any], path: Path) -> Iterator[Path]:
        if path and (not node or _SELF in node):
            yield path
        for part, below in node.items():
            if part != _SELF:
                yield from walk(below, (*path, part))

    return frozenset(walk(tree, ()))


def text(path: Path) -> str:
    """For people: `.spec.containers[name="c"].image`."""
    shown = ""
    for part in path:
        kind, _, rest = part.partition(":")
        if kind == "f":
            shown += f".{rest}"
        elif kind == "k":
            keys = ",".join(f"{key}={json.dumps(value)}" for key, value in json.loads(rest).items())
            shown += f"[{keys}]"
        else:
            shown += f"[={rest}]"
    return shown


def value_at(obj: Any, path: Path) -> Any:
    """The value at a path; None where there is none."""
    for part in path:
        kind, _, rest = part.partition(":")
        if kind == "f":
            obj = obj.get(rest) if isinstance(obj, Mapping) else None
        elif not isinstance(obj, list):
            return None
        elif kind == "k":
            obj = next((item for item in obj if has_keys(item, rest)), None)
        else:
            obj = json.loads(rest) if json.loads(rest) in obj else None
    return obj


def key_of(item: Mapping[str, Any], field: Field) -> str:
    """The part of a path that names an element of a list with keys."""
    keys = {key: item[key] for key in field.keys if key in item}
    return f"k:{json.dumps(keys, separators=(',', ':'), sort_keys=True)}"


def has_keys(item: Mapping[str, Any], keys: str) -> bool:
    """Whether `keys` (of a part `k:<keys>`) name this element."""
    return all(item.get(key) == value for key, value in json.loads(keys).items())


def _struct(struct: Struct, value: Mapping[str, Any], path: Path, *, applied: bool) -> Iterator[Path]:
    for name, item in value.items():
        if name in struct and item is not None:
            yield from _field(struct[name], item, (*path, f"f:{name}"), applied=applied)


def _field(field: Field, value: Any, path: Path, *, applied: bool) -> Iterator[Path]:
    nested = structs().get(field.type if field.type in structs() else field.item)
    by_entry = (field.is_list and (field.keys or field.set)) or (field.is_map and not field.atomic)
    if field.type in structs() and nested is not None and not field.atomic and value:
        yield from _struct(nested, value, path, applied=applied)
        return
    if not by_entry or not applied or not value:
        yield path
    if by_entry and field.is_map:
        for key, item in value.items():
            yield (*path, f"f:{key}")
            if nested is not None:
                yield from _struct(nested, item, (*path, f"f:{key}"), applied=applied)
    elif by_entry and field.keys and nested is not None:
        for item in value:
            yield (*path, key_of(item, field))
            yield from _struct(nested, item, (*path, key_of(item, field)), applied=applied)
    elif by_entry:
        for item in value:
            yield (*path, f"v:{json.dumps(item)}")
