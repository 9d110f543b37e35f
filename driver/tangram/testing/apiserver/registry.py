"""What a write does: metadata, subresources, preconditions, validation, managed fields."""

import copy
import secrets
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tangram.base.clock import Clock, rfc3339
from tangram.kube.decoding import ObjectKey
from tangram.kube.resources import LEASES, PODS, Resource
from tangram.testing.apiserver import rules
from tangram.testing.apiserver.answers import (
    already_exists,
    conflict,
    forbidden,
    internal,
    invalid,
    invalid_kind,
    no_such_path,
    not_found,
)
from tangram.testing.apiserver.catalog import (
    NAMESPACES,
    STATUS_WITH_METADATA,
    WITH_GENERATION,
    WITH_STATUS,
    Version,
)
from tangram.testing.apiserver.claims import ADMIN_LABEL
from tangram.testing.apiserver.deletion import Deletions
from tangram.testing.apiserver.managedfields import Managers
from tangram.testing.apiserver.objects import check_place, decode, decode_patched, other_namespace, patching
from tangram.testing.apiserver.options import DeleteOptions, WriteOptions
from tangram.testing.apiserver.problems import Problem
from tangram.testing.apiserver.store import Object, Store, key_of

Mutation = Callable[[Object], Any]

_PLAIN = WriteOptions()
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_MAX_GENERATED_BYTES = 253 - 5
# Set by the server alone, whatever a client sends.
_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink")
# A PUT may create these, and must name the version it replaces.
_PUT_CREATES = frozenset({LEASES})
_PRIORITY_CLASSES = frozenset({"", "system-node-critical", "system-cluster-critical"})


class Registry:
    """The writes of all resources, on one store. Raises the ApiErrors a real server would answer."""

    def __init__(self, store: Store, *, clock: Clock, version: Version) -> None:
        self._store = store
        self._clock = clock
        self._version = version
        self._managers = Managers(clock)
        self._deletions = Deletions(store, clock)

    def get(self, resource: Resource, key: ObjectKey) -> Object:
        """The stored object (not to be changed); NotFoundError."""
        found = self._store.get(resource, key)
        if found is None:
            raise not_found(resource, key.name)
        return found

    def create(
        self,
        resource: Resource,
        body: Any,
        *,
        namespace: str,
        options: WriteOptions = _PLAIN,
        duplicates: list[str] | None = None,
    ) -> Object:
        """POST to the collection; `duplicates` are the keys given twice in it."""
        obj = decode(resource, body, validation=options.validation, warn=options.warn, duplicates=duplicates)
        return self._create(resource, obj, namespace=namespace, options=options)

    def update(
        self,
        resource: Resource,
        key: ObjectKey,
        mutation: Mutation,
        *,
        subresource: str = "",
        options: WriteOptions = _PLAIN,
    ) -> Object:
        """PATCH of the object or its `status`; `mutation` gets a copy and returns the new object."""
        self._check_subresource(resource, subresource)
        old = self.get(resource, key)
        with patching():
            patched = mutation(copy.deepcopy(old))
        new = decode_patched(resource, patched, validation=options.validation, warn=options.warn)
        check_place(key, new["metadata"])
        return self._update(resource, old, new, subresource=subresource, options=options)

    def replace(
        self,
        resource: Resource,
        key: ObjectKey,
        body: Any,
        *,
        subresource: str = "",
        options: WriteOptions = _PLAIN,
        duplicates: list[str] | None = None,
    ) -> tuple[Object, bool]:
        """PUT; also whether it created the object."""
        self._check_subresource(resource, subresource)
        new = decode(resource, body, validation=options.validation, warn=options.warn, duplicates=duplicates)
        check_place(key, new["metadata"])
        old = self._store.get(resource, key)
        if old is None and resource in _PUT_CREATES and not subresource:
            return self._create(resource, new, namespace=key.namespace, options=options), True
        if old is None:
            raise not_found(resource, key.name)
        uid, known = new["metadata"].get("uid"), old["metadata"]["uid"]
        if uid is not None and uid != known:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {known}"
            raise conflict(resource, key.name, why)
        if resource in _PUT_CREATES and not new["metadata"].get("resourceVersion"):
            problem = Problem("Invalid", "metadata.resourceVersion", "0: must be specified for an update")
            raise invalid_kind(resource.plural, key.name, [problem], group=resource.group)
        new["metadata"].setdefault("uid", known)
        return self._update(resource, old, new, subresource=subresource, options=options), False

    def apply(
        self,
        resource: Resource,
        key: ObjectKey,
        applied: Any,
        *,
        subresource: str = "",
        options: WriteOptions,
    ) -> tuple[Object, bool]:
        """Server-side apply; also whether it created the object."""
        self._check_subresource(resource, subresource)
        self._managers.check(resource, key, applied)
        old = self._store.get(resource, key)
        if old is None:
            if subresource:
                raise not_found(resource, key.name)
            obj = decode(resource, applied, validation=options.validation, warn=options.warn)
            created = self._create(resource, obj, namespace=key.namespace, options=options, applied=applied)
            return created, True
        merged = self._managers.merge(resource, old, applied, subresource=subresource, options=options)
        new = decode_patched(resource, merged, validation=options.validation, warn=options.warn)
        return self._update(
            resource, old, new, subresource=subresource, options=options, applied=applied
        ), False

    def bind(self, key: ObjectKey, *, node: str) -> None:
        """POST of a Binding: what a scheduler does with a pod."""
        old = self.get(PODS, key)
        taken = old["spec"].get("nodeName")
        if taken:
            why = f'pod {key.name} is already assigned to node "{taken}"'
            raise conflict(PODS, key.name, why, subresource="binding")
        if old["spec"].get("schedulingGates"):
            why = f"pod {key.name} has non-empty .spec.schedulingGates"
            raise conflict(PODS, key.name, why, subresource="binding")
        new = copy.deepcopy(old)
        new["spec"]["nodeName"] = node
        scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
        others = [each for each in new["status"].get("conditions") or [] if each["type"] != "PodScheduled"]
        new["status"]["conditions"] = [*others, {**scheduled, "lastTransitionTime": self._now()}]
        self._store.put(PODS, new)

    def delete(self, resource: Resource, key: ObjectKey, options: DeleteOptions) -> tuple[Object, bool]:
        """DELETE; the last state, and whether the object is gone."""
        return self._deletions.delete(resource, key, options)

    def _create(
        self, resource: Resource, obj: Object, *, namespace: str, options: WriteOptions, applied: Any = None
    ) -> Object:
        metadata = obj["metadata"]
        if metadata.get("resourceVersion"):
            raise internal("resourceVersion should not be set on objects to be created")
        self._place(resource, metadata, namespace)
        for name in (*_OWNED, "managedFields"):
            metadata.pop(name, None)
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = self._now()
        if resource in WITH_GENERATION:
            metadata["generation"] = 1
        rules.apply_defaults(resource, obj, now=self._now())
        if resource == PODS:
            self._check_priority(obj)
        rules.prepare_new(resource, obj, now=self._now())
        self._finish(resource, obj, None, options)
        key = key_of(obj)
        if (known := self._store.get(resource, key)) is not None:
            raise already_exists(resource, key.name, deleting="deletionTimestamp" in known["metadata"])
        self._managers.record_new(resource, obj, applied=applied, options=options)
        if options.dry_run:
            return obj
        stored = self._store.put(resource, obj)
        self._deletions.collect_if_orphan(resource, stored)
        return stored

    def _update(
        self,
        resource: Resource,
        old: Object,
        new: Object,
        *,
        subresource: str,
        options: WriteOptions,
        applied: Any = None,
    ) -> Object:
        self._check_version(resource, old, new["metadata"])
        if (uid := new["metadata"].get("uid")) != old["metadata"]["uid"]:
            problem = Problem("Invalid", "metadata.uid", f'"{uid}": field is immutable')
            raise invalid(resource, old["metadata"]["name"], [problem])
        managed = new["metadata"].get("managedFields", [])
        self._restore(resource, old, new, subresource=subresource)
        rules.apply_defaults(resource, new, now=self._now())
        self._finish(resource, new, old, options)
        if resource in WITH_GENERATION and new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        self._managers.record(
            resource, old, new, managed=managed, applied=applied, subresource=subresource, options=options
        )
        if new == old:
            return old  # as a real server: nothing written, no event
        if options.dry_run:
            return new
        stored = self._store.put(resource, new)
        return self._deletions.remove_if_released(resource, key_of(stored)) or stored

    def _place(self, resource: Resource, metadata: dict[str, Any], namespace: str) -> None:
        if not resource.namespaced:
            metadata.pop("namespace", None)
        elif metadata.setdefault("namespace", namespace) != namespace:
            raise other_namespace()
        elif self._store.get(NAMESPACES, ObjectKey("", namespace)) is None:
            raise not_found(NAMESPACES, namespace)
        prefix = metadata.get("generateName")
        if not metadata.get("name") and prefix:
            suffix = "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(5))
            metadata["name"] = f"{prefix[:_MAX_GENERATED_BYTES]}{suffix}"

    def _check_subresource(self, resource: Resource, subresource: str) -> None:
        if subresource not in {"", "status"} or (subresource and resource not in WITH_STATUS):
            raise no_such_path()

    def _check_version(self, resource: Resource, old: Object, metadata: Mapping[str, Any]) -> None:
        version = metadata.get("resourceVersion")
        if version and not version.isdigit():
            raise internal(f'strconv.ParseUint: parsing "{version}": invalid syntax')
        if version not in {None, "", "0", old["metadata"]["resourceVersion"]}:
            raise conflict(resource, old["metadata"]["name"])

    def _check_priority(self, pod: Object) -> None:
        if (name := pod["spec"].get("priorityClassName", "")) not in _PRIORITY_CLASSES:
            why = f"no PriorityClass with name {name} was found"
            raise forbidden(PODS, pod["metadata"].get("name", ""), why)

    def _restore(self, resource: Resource, old: Object, new: Object, *, subresource: str) -> None:
        """What this request cannot change stays as it was."""
        if subresource:
            new["spec"] = copy.deepcopy(old["spec"])
            if resource not in STATUS_WITH_METADATA:
                new["metadata"] = copy.deepcopy(old["metadata"])
        metadata, before = new["metadata"], old["metadata"]
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            if field in before and metadata.get(field) is None:
                metadata[field] = before[field]
        for field in ("namespace", "creationTimestamp", "resourceVersion", "generation", "selfLink"):
            metadata.pop(field, None)
            if field in before:
                metadata[field] = before[field]
        if resource == NAMESPACES:
            new["spec"] = copy.deepcopy(old["spec"])
        if resource in WITH_STATUS and not subresource:
            new.pop("status", None)
            if "status" in old:
                new["status"] = copy.deepcopy(old["status"])

    def _finish(self, resource: Resource, new: Object, old: Object | None, options: WriteOptions) -> None:
        rules.drop_disabled_fields(resource, new, old, version=self._version)
        problems = rules.validate(resource, new, old, version=self._version)
        problems += self._admin_access(rules.admin_access_problems(resource, new, old), new)
        if problems:
            raise invalid(resource, new["metadata"].get("name", ""), problems)
        for text in rules.warnings(resource, new):
            options.warn(text)

    def _admin_access(self, problems: Iterable[Problem], obj: Object) -> list[Problem]:
        namespace = self._store.get(NAMESPACES, ObjectKey("", obj["metadata"].get("namespace", "")))
        labels = (namespace or {"metadata": {}})["metadata"].get("labels") or {}
        return [] if labels.get(ADMIN_LABEL) == "true" else list(problems)

    def _now(self) -> str:
        return rfc3339(self._clock.now())
