"""The types of the API as a real server's OpenAPI documents tell them, without their words: what the fake
server reads as `schema.json` (its form is described in `tangram.testing.apiserver.schema`)."""

import json
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.conformance.realserver import RealServer

import tangram.testing.apiserver
from tangram.testing.apiserver import RESOURCES

PATH = Path(tangram.testing.apiserver.__file__).parent / "schema.json"
# Names that stand for a form of JSON rather than for a struct.
_FORMS = {
    "Quantity": "quantity",
    "Time": "time",
    "MicroTime": "microtime",
    "RawExtension": "any",
    "FieldsV1": "any",
    "IntOrString": "intorstring",
}
_EXTRA = ("Binding", "Scale", "DeleteOptions")


def read(server: RealServer) -> str:
    """What `schema.json` holds."""
    documents: dict[str, Any] = {}
    for version in sorted({resource.api_version for resource in RESOURCES} | {"autoscaling/v1"}):
        prefix = f"apis/{version}" if "/" in version else f"api/{version}"
        request = urllib.request.Request(
            f"{server.url}/openapi/v3/{prefix}", headers={"authorization": f"Bearer {server.token}"}
        )
        with urllib.request.urlopen(request, context=server.tls, timeout=60) as response:
            documents |= json.load(response)["components"]["schemas"]
    return _dump(types(documents))


def _dump(found: Mapping[str, Any]) -> str:
    """One type a line."""
    body = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(fields, sort_keys=True)}" for name, fields in sorted(found.items())
    )
    return f"{{\n{body}\n}}\n"


def types(schemas: Mapping[str, Any]) -> dict[str, Any]:
    """The types that the served kinds are made of, by their short names."""
    names = _names(schemas)
    by_name = {names[name]: schema for name, schema in schemas.items() if name in names}
    waiting = [*(resource.kind for resource in RESOURCES), *_EXTRA]
    found: dict[str, Any] = {}
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = {
                field: _field(schema, names, required=field in by_name[name].get("required", ()))
                for field, schema in by_name[name].get("properties", {}).items()
            }
            waiting += [used for used in _used(found[name]) if used in by_name]
    return found


def _names(schemas: Mapping[str, Any]) -> dict[str, str]:
    """Short names by full ones. Where core/v1 has the name of another group, its own becomes `CoreX`."""
    full_names: dict[str, list[str]] = {}
    for name in schemas:
        full_names.setdefault(name.rsplit(".", 1)[-1], []).append(name)
    names = {}
    for short, all_of_them in full_names.items():
        for name in all_of_them:
            of_core = ".api.core.v1." in name and len(all_of_them) > 1
            names[name] = f"Core{short}" if of_core else short
    return names


def _used(fields: Mapping[str, Any]) -> Iterator[str]:
    for field in fields.values():
        yield field["type"].strip("[]{}")


def _field(schema: Mapping[str, Any], names: Mapping[str, str], *, required: bool) -> dict[str, Any]:
    field: dict[str, Any] = {"type": _type(schema, names)}
    if required:
        field["required"] = True
    if "default" in schema:
        field["default"] = schema["default"]
    if keys := schema.get("x-kubernetes-list-map-keys"):
        field["keys"] = keys
    if schema.get("x-kubernetes-list-type") == "set":
        field["set"] = True
    if schema.get("x-kubernetes-map-type") == "atomic":
        field["atomic"] = True
    if "merge" in schema.get("x-kubernetes-patch-strategy", ""):
        field["merge"] = schema.get("x-kubernetes-patch-merge-key", "")
    if "enum" in schema:
        field["enum"] = schema["enum"]
    return field


def _type(schema: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """`string`, `int`, a form, the name of a struct; `[x]` a list, `{x}` a map of it."""
    for reference in (schema, *schema.get("allOf", ())):
        if "$ref" in reference:
            name = names[reference["$ref"].rpartition("/")[2]]
            return _FORMS.get(name, name)
    kind = schema.get("type")
    if kind == "array":
        return f"[{_type(schema['items'], names)}]"
    if kind == "object":
        return (
            f"{{{_type(schema['additionalProperties'], names)}}}"
            if "additionalProperties" in schema
            else "any"
        )
    if kind == "string":
        return "bytes" if schema.get("format") == "byte" else "string"
    return {"integer": "int", "boolean": "bool", "number": "number"}.get(str(kind), "any")
