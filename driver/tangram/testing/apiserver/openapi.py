"""/openapi/v3: so that kubectl leaves the checking of fields to the server, and for `kubectl explain`."""

import functools
from typing import Any

from tangram.testing.apiserver.catalog import RESOURCES
from tangram.testing.apiserver.schema import Field, structs

_ROOT = "/openapi/v3"
_SCHEMAS = "#/components/schemas/"
_FORMS: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "int": {"type": "integer", "format": "int64"},
    "number": {"type": "number"},
    "bool": {"type": "boolean"},
    "bytes": {"type": "string", "format": "byte"},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "quantity": {"type": "string"},
    "intorstring": {"type": "string", "format": "int-or-string"},
    "any": {"type": "object"},
}


def document(path: str) -> dict[str, Any] | None:
    """The index, or the document of one group and version; None for any other path."""
    versions = sorted({resource.api_version for resource in RESOURCES})
    if path.rstrip("/") == _ROOT:
        index = {_prefix(each): {"serverRelativeURL": f"{_ROOT}/{_prefix(each)}"} for each in versions}
        return {"paths": index}
    for version in versions:
        if path == f"{_ROOT}/{_prefix(version)}":
            return _document(version)
    return None


def _prefix(api_version: str) -> str:
    return f"apis/{api_version}" if "/" in api_version else f"api/{api_version}"


@functools.cache
def _document(api_version: str) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for resource in RESOURCES:
        if resource.api_version != api_version:
            continue
        kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        operation = {
            "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-group-version-kind": kind,
        }
        namespace = "{namespace}" if resource.namespaced else ""
        one, all_of_them = (resource.path(namespace=namespace, name=name) for name in ("{name}", ""))
        paths[one] = {"patch": operation, "get": operation}
        paths[all_of_them] = {"post": operation}
        schemas |= _schemas(resource.kind)
        schemas[resource.kind] = {
            **schemas[resource.kind],
            "x-kubernetes-group-version-kind": [kind],
        }
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _schemas(kind: str) -> dict[str, Any]:
    """A struct and all that it is made of."""
    found: dict[str, Any] = {}
    waiting = [kind]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        fields = structs()[name]
        found[name] = {
            "type": "object",
            "properties": {field: _property(about) for field, about in fields.items()},
            "required": [field for field, about in fields.items() if about.required],
        }
        waiting += [used for about in fields.values() if (used := about.type.strip("[]{}")) in structs()]
    return found


def _property(field: Field) -> dict[str, Any]:
    about: dict[str, Any] = _of_type(field.type)
    if field.enum:
        about["enum"] = list(field.enum)
    if field.is_list:
        about["x-kubernetes-list-type"] = "map" if field.keys else "set" if field.set else "atomic"
    if field.keys:
        about["x-kubernetes-list-map-keys"] = list(field.keys)
    if field.merge is not None:
        about["x-kubernetes-patch-strategy"] = "merge"
    if field.merge:
        about["x-kubernetes-patch-merge-key"] = field.merge
    return about


def _of_type(kind: str) -> dict[str, Any]:
    if kind.startswith("["):
        return {"type": "array", "items": _of_type(kind[1:-1])}
    if kind.startswith("{"):
        return {"type": "object", "additionalProperties": _of_type(kind[1:-1])}
    if kind in _FORMS:
        return dict(_FORMS[kind])
    return {"allOf": [{"$ref": f"{_SCHEMAS}{kind}"}]}
