"""The patch formats of the API: JSON merge patch (RFC 7386), JSON patch (RFC 6902), strategic merge patch."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from tangram.base.errors import InvalidError

# By the name of the field, as far as the objects served here have such lists.
_MERGE_KEYS: Mapping[str, str] = {
    "reservedFor": "uid",
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "resourceClaims": "name",
    "resourceClaimStatuses": "name",
    "schedulingGates": "name",
    "ownerReferences": "uid",
    "taints": "key",
}
# Lists of plain values that are sets.
_SETS = frozenset({"finalizers"})


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes a key, a list replaces a list."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def strategic_patch(target: Any, patch: Any) -> Any:
    """Like a merge patch, but lists with a merge key are merged by it; `$patch: delete | replace` work."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    if patch.get("$patch") == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [item for item in result.get(name) or [] if item not in value]
        elif key.startswith("$"):
            continue  # $setElementOrder/…, $retainKeys: order is not part of what we serve
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list) and key in _SETS:
            kept = result.get(key) or []
            result[key] = [*kept, *(item for item in value if item not in kept)]
        elif isinstance(value, list) and key in _MERGE_KEYS:
            result[key] = _merge_list(result.get(key) or [], value, key=_MERGE_KEYS[key])
        else:
            result[key] = strategic_patch(result.get(key), value)
    return result


def _merge_list(target: Sequence[Any], patch: Sequence[Any], *, key: str) -> list[Any]:
    if any(item.get("$patch") == "replace" for item in patch):
        return [copy.deepcopy(item) for item in patch if item.get("$patch") != "replace"]
    merged = {item.get(key): item for item in target}
    new = {}
    for item in patch:
        if item.get("$patch") == "delete":
            merged.pop(item.get(key), None)
        elif item.get(key) in merged:
            merged[item.get(key)] = strategic_patch(merged[item.get(key)], item)
        else:
            new[item.get(key)] = strategic_patch(None, item)
    return [*new.values(), *merged.values()]  # as the real one: new elements first


def json_patch(target: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """RFC 6902; an operation that does not apply is answered 422, as the API server does."""
    document = copy.deepcopy(target)
    for operation in operations:
        try:
            document = _operate(document, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise InvalidError(
                f"the server rejected our request due to an error in our request: "
                f"{operation.get('op')} {operation.get('path')}: {error!r}",
                status=422,
                reason="Invalid",
            ) from error
    return document


def _operate(document: Any, operation: Mapping[str, Any]) -> Any:
    kind, path = operation["op"], _pointer(operation["path"])
    if kind in {"move", "copy"}:
        source = _pointer(operation["from"])
        value = copy.deepcopy(_get(document, source))
        if kind == "move":
            _remove(document, source)
        return _add(document, path, value)
    if kind == "test":
        if _get(document, path) != operation["value"]:
            raise ValueError("the value differs")
        return document
    if kind == "remove":
        _remove(document, path)
        return document
    value = copy.deepcopy(operation["value"])
    if kind == "replace":
        _get(document, path)
        if path:
            _remove(document, path)
    elif kind != "add":
        raise ValueError("unknown operation")
    return _add(document, path, value)


def _pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise ValueError("a JSON pointer starts with /")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _index(container: list[Any], part: str) -> int:
    if not part.isdigit() or int(part) > len(container):
        raise IndexError(part)
    return int(part)


def _get(document: Any, path: Sequence[str]) -> Any:
    for part in path:
        document = document[_index(document, part)] if isinstance(document, list) else document[part]
    return document


def _add(document: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    container, last = _get(document, path[:-1]), path[-1]
    if isinstance(container, list):
        container.insert(len(container) if last == "-" else _index(container, last), value)
    else:
        container[last] = value
    return document


def _remove(document: Any, path: Sequence[str]) -> None:
    container, last = _get(document, path[:-1]), path[-1]
    del container[_index(container, last) if isinstance(container, list) else last]
