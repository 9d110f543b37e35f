"""What a write does: metadata, subresources, preconditions, validation, finalizers, garbage collection."""

import contextlib
import copy
import re
import secrets
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from tangram.base.clock import Clock, rfc3339
from tangram.kube.decoding import ObjectKey
from tangram.kube.objects import Metadata
from tangram.kube.resources import PODS, RESOURCE_CLAIMS, Resource
from tangram.testing.apiserver.answers import (
    already_exists,
    bad_request,
    conflict,
    invalid,
    no_such_path,
    not_found,
)
from tangram.testing.apiserver.catalog import (
    NAMESPACES,
    RESOURCES,
    WITH_GENERATION,
    WITH_STATUS,
    Version,
)
from tangram.testing.apiserver.rules import apply_defaults, drop_disabled_fields, omit_empty, validate
from tangram.testing.apiserver.store import Object, Store, key_of

Mutation = Callable[[Object], Any]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
# Set by the server alone, whatever a client sends.
_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
_DEFAULT_POD_GRACE_S = 30


class Registry:
    """The writes of all resources, on one store. Raises the ApiErrors a real server would answer."""

    def __init__(self, store: Store, *, clock: Clock, version: Version, features: Collection[str]) -> None:
        self._store = store
        self._clock = clock
        self._version = version
        self._features = frozenset(features)

    def get(self, resource: Resource, key: ObjectKey) -> Object:
        """The stored object (not to be changed); NotFoundError."""
        found = self._store.get(resource, key)
        if found is None:
            raise not_found(resource, key.name)
        return found

    def create(self, resource: Resource, body: Mapping[str, Any], *, namespace: str) -> Object:
        """POST to the collection."""
        obj = omit_empty(copy.deepcopy(dict(body)))
        metadata = obj.setdefault("metadata", {})
        if not isinstance(metadata, dict):
            raise bad_request("metadata is not an object")
        self._check_kind(resource, obj)
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        self._place(resource, metadata, namespace)
        key = key_of(obj)
        if self._store.get(resource, key) is not None:
            raise already_exists(resource, key.name)
        for name in _OWNED:
            metadata.pop(name, None)
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = rfc3339(self._clock.now())
        if resource in WITH_GENERATION:
            metadata["generation"] = 1
        _reset_status(resource, obj)
        self._finish(resource, obj, None)
        stored = self._store.put(resource, obj)
        self._collect_if_orphan(resource, stored)
        return stored

    def update(
        self, resource: Resource, key: ObjectKey, mutation: Mutation, *, subresource: str = ""
    ) -> Object:
        """PUT or PATCH, of the object or its `status`; `mutation` gets a copy and returns the new object."""
        if subresource not in {"", "status"} or (subresource and resource not in WITH_STATUS):
            raise no_such_path()
        old = self.get(resource, key)
        with _decoding(resource, key.name, patching=True):
            new = omit_empty(mutation(copy.deepcopy(old)))
        if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
            raise bad_request("the patched object is not an object with metadata")
        self._check_kind(resource, new)
        self._check_preconditions(resource, old, new["metadata"])
        if subresource:
            new = {**copy.deepcopy(old), "status": new.get("status") or {}}
        else:
            self._restore(resource, old, new)
        self._finish(resource, new, old)
        if new == old:
            return old  # as a real server: nothing written, no event
        if resource in WITH_GENERATION and new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        stored = self._store.put(resource, new)
        return self._remove_if_released(resource, key) or stored

    def delete(
        self,
        resource: Resource,
        key: ObjectKey,
        *,
        uid: str = "",
        resource_version: str = "",
        grace_s: int | None = None,
        collect: bool = True,
    ) -> Object:
        """DELETE: removes the object, or marks it where finalizers or (for a bound pod) a kubelet must act.

        A namespace goes at once, with its contents.
        """
        old = self.get(resource, key)
        metadata = old["metadata"]
        if uid and uid != metadata["uid"]:
            raise conflict(
                resource, key.name, f"Precondition failed: UID in precondition: {uid}, not in object meta"
            )
        if resource_version and resource_version != metadata["resourceVersion"]:
            raise conflict(resource, key.name, "the ResourceVersion in the precondition does not match")
        grace_s = _grace_s(resource, old, grace_s)
        marked = copy.deepcopy(old)
        if "deletionTimestamp" not in metadata or grace_s < metadata.get("deletionGracePeriodSeconds", 0):
            marked["metadata"]["deletionTimestamp"] = rfc3339(self._clock.now() + timedelta(seconds=grace_s))
            marked["metadata"]["deletionGracePeriodSeconds"] = grace_s
        if resource == NAMESPACES:
            self._empty_namespace(key.name)
        if metadata.get("finalizers") or grace_s:
            return self._store.put(resource, marked) if marked != old else old
        return self._remove(resource, key, collect=collect)

    def _place(self, resource: Resource, metadata: dict[str, Any], namespace: str) -> None:
        if not resource.namespaced:
            metadata.pop("namespace", None)
        elif metadata.setdefault("namespace", namespace) != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent")
        elif self._store.get(NAMESPACES, ObjectKey("", namespace)) is None:
            raise not_found(NAMESPACES, namespace)
        prefix = metadata.get("generateName")
        if not metadata.get("name") and prefix:
            suffix = "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(5))
            metadata["name"] = f"{str(prefix)[:248]}{suffix}"
        name = metadata.get("name")
        if not name:
            raise invalid(resource, "", ["metadata.name: Required value: name or generateName is required"])
        if not isinstance(name, str) or len(name) > 253 or not _NAME.fullmatch(name):
            raise invalid(
                resource, str(name), [f"metadata.name: Invalid value: {name!r}: RFC 1123 subdomain"]
            )

    def _check_kind(self, resource: Resource, obj: Object) -> None:
        obj.setdefault("apiVersion", resource.api_version)
        obj.setdefault("kind", resource.kind)
        if obj["apiVersion"] != resource.api_version or obj["kind"] != resource.kind:
            raise bad_request(
                f"{obj['apiVersion']}, Kind={obj['kind']} in the body is not {resource.api_version}, "
                f"Kind={resource.kind} of the URL"
            )

    def _check_preconditions(self, resource: Resource, old: Object, metadata: Mapping[str, Any]) -> None:
        name = old["metadata"]["name"]
        version = metadata.get("resourceVersion")
        if version and version != old["metadata"]["resourceVersion"]:
            raise conflict(resource, name)
        if (uid := metadata.get("uid", old["metadata"]["uid"])) != old["metadata"]["uid"]:
            raise invalid(resource, name, [f'metadata.uid: Invalid value: "{uid}": field is immutable'])

    def _restore(self, resource: Resource, old: Object, new: Object) -> None:
        metadata, before = new["metadata"], old["metadata"]
        for field in ("name", "namespace"):
            if metadata.get(field) != before.get(field):
                raise bad_request(f"metadata.{field} of the object does not match the URL")
        for field in (*_OWNED, "resourceVersion"):
            metadata.pop(field, None)
            if field in before:
                metadata[field] = before[field]
        if resource in WITH_STATUS:
            new.pop("status", None)
            if "status" in old:
                new["status"] = copy.deepcopy(old["status"])

    def _finish(self, resource: Resource, new: Object, old: Object | None) -> None:
        with _decoding(resource, new["metadata"]["name"], patching=old is not None):
            msgspec.convert(new["metadata"], Metadata)
            apply_defaults(resource, new, now=rfc3339(self._clock.now()))
            drop_disabled_fields(resource, new, old, features=self._features)
            problems = validate(resource, new, old, version=self._version)
        if problems:
            raise invalid(resource, new["metadata"]["name"], problems)

    def _remove_if_released(self, resource: Resource, key: ObjectKey) -> Object | None:
        metadata = self.get(resource, key)["metadata"]
        waiting = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
        if "deletionTimestamp" not in metadata or waiting:
            return None
        return self._remove(resource, key, collect=True)

    def _remove(self, resource: Resource, key: ObjectKey, *, collect: bool) -> Object:
        last = self._store.remove(resource, key)
        if collect:
            for other in self._store.resources():
                for obj in self._store.objects(other):
                    self._collect_if_orphan(other, obj)
        return last

    def _collect_if_orphan(self, resource: Resource, obj: Object) -> None:
        """The garbage collector: nothing outlives the last of its owners, and none is born without one."""
        references = obj["metadata"].get("ownerReferences") or []
        served = {(known.api_version, known.kind) for known in RESOURCES}
        if not references or any((ref["apiVersion"], ref["kind"]) not in served for ref in references):
            return  # an owner we do not serve is assumed to be there
        alive = set(self._store.owners())
        gone = not any(reference["uid"] in alive for reference in references)
        if gone and "deletionTimestamp" not in obj["metadata"] and self._store.get(resource, key_of(obj)):
            self.delete(resource, key_of(obj))

    def _empty_namespace(self, namespace: str) -> None:
        for resource in self._store.resources():
            for obj in self._store.objects(resource):
                if obj["metadata"].get("namespace") == namespace and self._store.get(resource, key_of(obj)):
                    self.delete(resource, key_of(obj), grace_s=0)


@contextlib.contextmanager
def _decoding(resource: Resource, name: str, *, patching: bool) -> Iterator[None]:
    """Types are not checked one by one: a list where a map belongs fails to decode, as in a real server."""
    try:
        yield
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        if patching:
            raise invalid(resource, name, [f"patch: Invalid value: cannot be decoded: {error!r}"]) from error
        raise bad_request(f"the object cannot be decoded: {error!r}") from error


def _reset_status(resource: Resource, obj: Object) -> None:
    if resource == PODS:
        obj["status"] = {"phase": "Pending"}
    elif resource == NAMESPACES:
        obj["status"] = {"phase": "Active"}
    elif resource == RESOURCE_CLAIMS:
        obj["status"] = {}


def _grace_s(resource: Resource, obj: Object, asked_s: int | None) -> int:
    """Only a kubelet may end a pod at once, unless it was never bound or is over."""
    if resource != PODS:
        return 0
    phase = (obj.get("status") or {}).get("phase")
    if not (obj.get("spec") or {}).get("nodeName") or phase in {"Succeeded", "Failed"}:
        return 0
    if asked_s is not None:
        return asked_s
    return int((obj.get("spec") or {}).get("terminationGracePeriodSeconds", _DEFAULT_POD_GRACE_S))
