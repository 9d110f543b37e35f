"""Paths of the API, and what a client may discover about them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tangram.kube.decoding import ObjectKey
from tangram.kube.resources import Resource
from tangram.testing.apiserver.catalog import RESOURCES, SHORT_NAMES, WITH_STATUS, Version

_BY_PATH: Mapping[tuple[str, str, str], Resource] = {
    (resource.group, resource.version, resource.plural): resource for resource in RESOURCES
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a path addresses: a collection (`name` empty), an object, or a subresource."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> ObjectKey:
        """Of the object addressed."""
        return ObjectKey(self.namespace, self.name)


def parse(path: str) -> Route | None:
    """The route of `/api/v1/…` or `/apis/<group>/<version>/…`; None if nothing is served there."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"]:
        group, rest = "", parts[1:]
    elif parts[:1] == ["apis"] and len(parts) > 1:
        group, rest = parts[1], parts[2:]
    else:
        return None
    if len(rest) < 2:
        return None
    version, tail = rest[0], rest[1:]
    namespace = ""
    # /namespaces/x is a Namespace, /namespaces/x/status its status, /namespaces/x/pods something inside it.
    if tail[0] == "namespaces" and len(tail) > 2 and (group, version, tail[2]) in _BY_PATH:
        namespace, tail = tail[1], tail[2:]
    resource = _BY_PATH.get((group, version, tail[0]))
    if resource is None or len(tail) > 3 or (namespace and not resource.namespaced):
        return None
    if resource.namespaced and len(tail) > 1 and not namespace:
        return None
    name, subresource = (*tail[1:], "", "")[:2]
    return Route(resource=resource, namespace=namespace, name=name, subresource=subresource)


def discover(path: str, version: Version) -> dict[str, Any] | None:
    """The answer to a discovery request; None if `path` is none."""
    path = path.rstrip("/")
    if path == "/version":
        return {
            "major": "1",
            "minor": str(version.minor),
            "gitVersion": f"v{version.text}.0",
            "platform": "linux/amd64",
        }
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    groups = sorted({(resource.group, resource.version) for resource in RESOURCES if resource.group})
    if path == "/apis":
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [_group(group, version_name) for group, version_name in groups],
        }
    for group, version_name in (("", "v1"), *groups):
        if path == (f"/apis/{group}/{version_name}" if group else "/api/v1"):
            return _resources(group, version_name)
    return None


def _group(group: str, version: str) -> dict[str, Any]:
    entry = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [entry], "preferredVersion": entry}


def _resources(group: str, version: str) -> dict[str, Any]:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    entries = []
    for resource in RESOURCES:
        if (resource.group, resource.version) != (group, version):
            continue
        entry: dict[str, Any] = {
            "name": resource.plural,
            "singularName": resource.kind.lower(),
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": verbs,
        }
        if resource.plural in SHORT_NAMES:
            entry["shortNames"] = SHORT_NAMES[resource.plural]
        entries.append(entry)
        if resource in WITH_STATUS:
            status = {"name": f"{resource.plural}/status", "verbs": ["get", "patch", "update"]}
            entries.append({**entry, **status, "singularName": "", "shortNames": []})
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": entries,
    }
