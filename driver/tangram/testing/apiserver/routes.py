"""Paths of the API, and what a client may discover about them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tangram.kube.decoding import ObjectKey
from tangram.kube.resources import PODS, Resource
from tangram.testing.apiserver.catalog import (
    DEPLOYMENTS,
    NAMESPACES,
    RESOURCES,
    SHORT_NAMES,
    WITH_STATUS,
    Version,
)

_BY_PATH: Mapping[tuple[str, str, str], Resource] = {
    (resource.group, resource.version, resource.plural): resource for resource in RESOURCES
}

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_KINDS = {"binding": "Binding", "scale": "Scale"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a path addresses: a collection (`name` empty), an object, or a subresource. `watch`: by the old
    prefix /watch/ of a path."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    watch: bool = False

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
    watch = tail[0] == "watch" and len(tail) > 1
    if watch:
        tail = tail[1:]
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
    return Route(resource=resource, namespace=namespace, name=name, subresource=subresource, watch=watch)


def is_served(path: str) -> bool:
    """Whether a path belongs to a group and version that is served."""
    return any(path.startswith(resource.path().rpartition("/")[0] + "/") for resource in RESOURCES)


def serves(route: Route) -> bool:
    """Whether the subresource of a route is there."""
    return not route.subresource or route.subresource in _subresources(route.resource)


def deletes_collections(route: Route) -> bool:
    """Whether DELETE may be asked of the whole collection."""
    return route.resource != NAMESPACES


def _subresources(resource: Resource) -> dict[str, list[str]]:
    """With their verbs."""
    found = {"status": ["get", "patch", "update"]} if resource in WITH_STATUS else {}
    if resource == PODS:
        found |= {"binding": ["create"], "log": ["get"]}
    if resource == DEPLOYMENTS:
        found["scale"] = ["get", "patch", "update"]
    return found


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
    entries = []
    for resource in RESOURCES:
        if (resource.group, resource.version) != (group, version):
            continue
        entry: dict[str, Any] = {
            "name": resource.plural,
            "singularName": resource.kind.lower(),
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": _VERBS
            if resource != NAMESPACES
            else [verb for verb in _VERBS if verb != "deletecollection"],
        }
        if resource.plural in SHORT_NAMES:
            entry["shortNames"] = SHORT_NAMES[resource.plural]
        entries.append(entry)
        for subresource, its_verbs in _subresources(resource).items():
            about: dict[str, Any] = {
                "name": f"{resource.plural}/{subresource}",
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": _KINDS.get(subresource, resource.kind),
                "verbs": its_verbs,
            }
            if subresource == "scale":
                about |= {"group": "autoscaling", "version": "v1"}
            entries.append(about)
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": entries,
    }
