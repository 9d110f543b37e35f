"""As much of /openapi/v3 as kubectl needs to leave the checking of fields to the server."""

from typing import Any

from tangram.testing.apiserver.catalog import RESOURCES

_ROOT = "/openapi/v3"


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


def _document(api_version: str) -> dict[str, Any]:
    paths = {}
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
        path = resource.path(namespace=namespace, name="{name}")
        paths[path] = {"patch": operation}
    return {"openapi": "3.0.0", "info": {"title": "fake", "version": "v1"}, "paths": paths}
