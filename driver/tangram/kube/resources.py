"""The API resources Tangram talks to: group, version, plural, kind, scope."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A resource of the API; `group` is empty for core/v1."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """As in an object's `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of a collection, an object or a subresource."""
        parts = ["apis", self.group] if self.group else ["api"]
        parts.append(self.version)
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/" + "/".join(parts)


def _dra(plural: str, kind: str, *, namespaced: bool) -> Resource:
    return Resource(group="resource.k8s.io", version="v1", plural=plural, kind=kind, namespaced=namespaced)


def _core(plural: str, kind: str, *, namespaced: bool = True) -> Resource:
    return Resource(group="", version="v1", plural=plural, kind=kind, namespaced=namespaced)


RESOURCE_SLICES = _dra("resourceslices", "ResourceSlice", namespaced=False)
RESOURCE_CLAIMS = _dra("resourceclaims", "ResourceClaim", namespaced=True)
RESOURCE_CLAIM_TEMPLATES = _dra("resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True)
DEVICE_CLASSES = _dra("deviceclasses", "DeviceClass", namespaced=False)
PODS = _core("pods", "Pod")
NODES = _core("nodes", "Node", namespaced=False)
EVENTS = Resource(group="events.k8s.io", version="v1", plural="events", kind="Event", namespaced=True)
LEASES = Resource(group="coordination.k8s.io", version="v1", plural="leases", kind="Lease", namespaced=True)
