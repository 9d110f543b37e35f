"""Merging an applied configuration into an object, and taking out what is no longer applied (KEP-555)."""

import copy
import json
from collections.abc import Mapping
from typing import Any

from tangram.testing.apiserver.fieldsets import FieldSet, Path, fields_of, has_keys, key_of, parents, value_at
from tangram.testing.apiserver.schema import Field, Struct, structs
from tangram.testing.apiserver.store import Object


def merge(kind: str, live: Object, applied: Object) -> Object:
    """A copy of `live` with everything that `applied` says; lists merge by their keys."""
    return _struct(structs()[kind], copy.deepcopy(live), applied)


def prune(kind: str, obj: Object, abandoned: FieldSet) -> Object:
    """Without the fields that nobody applies any more, in place; what still holds others stays."""
    holders = parents(fields_of(kind, obj, applied=False) - abandoned)
    elements = [path for path in abandoned if path[-1].startswith("k:")]
    others = [path for path in abandoned if not path[-1].startswith("k:")]
    # Elements first: without its key field one could not be found any more.
    for path in [*elements, *sorted(others, key=len, reverse=True)]:
        if path not in holders:
            _remove(value_at(obj, path[:-1]), path)
    return obj


def _struct(struct: Struct, live: dict[str, Any], applied: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in applied.items():
        if name in struct and value is not None:
            live[name] = _field(struct[name], live.get(name), value)
    return live


def _field(field: Field, live: Any, applied: Any) -> Any:
    if live is None:
        return copy.deepcopy(applied)
    if field.is_list and field.keys:
        merged = {key_of(item, field): item for item in live}
        for item in applied:
            key = key_of(item, field)
            merged[key] = _struct(structs()[field.item], merged.get(key, {}), item)
        return list(merged.values())
    if field.is_list and field.set:
        return [*live, *(item for item in applied if item not in live)]
    if field.is_map and not field.atomic:
        entry = Field(type=field.item)
        return {**live, **{key: _field(entry, live.get(key), item) for key, item in applied.items()}}
    if field.type in structs() and not field.atomic:
        return _struct(structs()[field.type], live, applied)
    return copy.deepcopy(applied)


def _remove(holder: Any, path: Path) -> None:
    kind, _, rest = path[-1].partition(":")
    if kind == "f" and isinstance(holder, dict):
        holder.pop(rest, None)
    elif kind == "k" and isinstance(holder, list):
        holder[:] = [item for item in holder if not has_keys(item, rest)]
    elif kind == "v" and isinstance(holder, list):
        holder[:] = [item for item in holder if item != json.loads(rest)]
