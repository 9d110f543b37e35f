"""The patch formats of the API: JSON merge patch (RFC 7386), JSON patch (RFC 6902), strategic merge patch."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from tangram.base.errors import InvalidError
from tangram.testing.apiserver.answers import internal
from tangram.testing.apiserver.schema import Field, Struct, structs

_UNKNOWN = Field(type="any")


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


def strategic_patch(kind: str, target: Any, patch: Any) -> Any:
    """Of an object of a kind: lists with a merge key are merged by it; `$patch: delete | replace | merge`."""
    return _merge_struct(structs()[kind], target, patch)


def _merge_struct(struct: Struct, target: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
    if directive == "delete":
        return {}
    if directive not in {None, "merge"}:
        raise internal(f"unrecognized type: {directive}")
    result = dict(target) if isinstance(target, Mapping) else {}
    order: dict[str, list[Any]] = {}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [item for item in result.get(name) or [] if item not in value]
        elif key.startswith("$setElementOrder/"):
            order[key.partition("/")[2]] = value
        elif key.startswith("$"):
            continue  # $retainKeys: of unions, which are replaced as a whole by who uses it
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = _merge_field(struct.get(key, _UNKNOWN), result.get(key), value)
    for name, wanted in order.items():
        if isinstance(result.get(name), list):
            result[name] = _ordered(result[name], wanted, key=struct.get(name, _UNKNOWN).merge or "")
    return result


def _merge_field(field: Field, target: Any, patch: Any) -> Any:
    if field.is_list and field.merge is not None and isinstance(patch, list):
        kept = target if isinstance(target, list) else []
        if not field.merge:
            return _in_order(patch, [item for item in kept if item not in patch], kept, key="")
        return _merge_list(structs().get(field.item, {}), kept, patch, key=field.merge)
    if field.is_map:
        inner = dict.fromkeys(patch, Field(type=field.item)) if isinstance(patch, Mapping) else {}
        return _merge_struct(inner, target, patch)
    return _merge_struct(structs().get(field.type, {}), target, patch)


def _merge_list(struct: Struct, target: Sequence[Any], patch: Sequence[Any], *, key: str) -> list[Any]:
    if any(item.get("$patch") == "replace" for item in patch):
        return [copy.deepcopy(item) for item in patch if item.get("$patch") != "replace"]
    merged = {item.get(key): item for item in target}
    patched = {}
    for item in patch:
        if key not in item:
            raise internal(f"map: {item} does not contain declared merge key: {key}")
        if item.get("$patch") == "delete":
            merged.pop(item[key], None)
        else:
            patched[item[key]] = _merge_struct(struct, merged.pop(item[key], None), item)
    return _in_order(list(patched.values()), list(merged.values()), target, key=key)


def _ordered(items: list[Any], wanted: Sequence[Any], *, key: str) -> list[Any]:
    """By the order asked for (`$setElementOrder`), as far as it says one."""
    places = [_name(item, key) for item in wanted]
    named = [item for item in items if _name(item, key) in places]
    named.sort(key=lambda item: places.index(_name(item, key)))
    return _in_order(named, [item for item in items if _name(item, key) not in places], items, key=key)


def _in_order(first: list[Any], others: list[Any], before: Sequence[Any], *, key: str) -> list[Any]:
    """Two lists as one, each in its own order: an element of `others` precedes one of `first` only where it
    did so `before`."""
    places = [_name(item, key) for item in before]
    result, waiting = [], list(others)
    for item in first:
        name = _name(item, key)
        while waiting and name in places and places.index(_name(waiting[0], key)) < places.index(name):
            result.append(waiting.pop(0))
        result.append(item)
    return [*result, *waiting]


def _name(item: Any, key: str) -> Any:
    return item.get(key) if key else item


def json_patch(target: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """RFC 6902; an operation that does not apply is answered 422, as the API server does."""
    document = copy.deepcopy(target)
    for operation in operations:
        try:
            document = _operate(document, operation)
        except (AttributeError, KeyError, IndexError, ValueError, TypeError) as error:
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
        container = _get(document, path[:-1])
        if path and isinstance(container, list):
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
