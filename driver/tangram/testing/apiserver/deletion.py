"""Deletion: preconditions, grace, finalizers, and the garbage collector that follows owners."""

import copy
from datetime import timedelta
from typing import Any

from tangram.base.clock import Clock, rfc3339
from tangram.kube.decoding import ObjectKey
from tangram.kube.resources import PODS, Resource
from tangram.testing.apiserver.answers import conflict, forbidden, not_found
from tangram.testing.apiserver.catalog import NAMESPACES, RESOURCES
from tangram.testing.apiserver.options import DeleteOptions
from tangram.testing.apiserver.store import Object, Store, key_of

_DEFAULT_POD_GRACE_S = 30
_FINALIZERS = {"Orphan": "orphan", "Foreground": "foregroundDeletion"}
_PERMANENT_NAMESPACES = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})


class Deletions:
    """The removals of all resources."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def delete(self, resource: Resource, key: ObjectKey, options: DeleteOptions) -> tuple[Object, bool]:
        """Removes the object, or marks it where finalizers or (for a bound pod) a kubelet must act: its last
        state, and whether it is gone.

        A namespace goes at once, with its contents, and dependents do: there is no controller to wait for.
        """
        old = self._store.get(resource, key)
        if resource == NAMESPACES and key.name in _PERMANENT_NAMESPACES:
            raise forbidden(resource, key.name, "this namespace may not be deleted")
        if old is None:
            raise not_found(resource, key.name)
        self._check_preconditions(resource, old, options)
        marked = self._marked(resource, old, options)
        waits = bool(marked["metadata"].get("finalizers") or marked["metadata"]["deletionGracePeriodSeconds"])
        if options.dry_run:
            return marked, not waits
        if resource == NAMESPACES:
            self._empty_namespace(key.name)
        if waits:
            return (self._store.put(resource, marked) if marked != old else old), False
        self._remove(resource, key, collect=options.propagation != "Orphan")
        if options.propagation == "Background":
            return (marked if resource == PODS else old), True
        # The garbage collector of a real server has yet to act, and holds the object by this meanwhile.
        marked["metadata"]["finalizers"] = [_FINALIZERS[options.propagation]]
        return marked, False

    def remove_if_released(self, resource: Resource, key: ObjectKey) -> Object | None:
        """Removes an object that is being deleted and waits for nothing any more; its last state."""
        obj = self._store.get(resource, key)
        metadata = obj["metadata"] if obj else {}
        waiting = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
        if "deletionTimestamp" not in metadata or waiting:
            return None
        return self._remove(resource, key, collect=True)

    def collect_if_orphan(self, resource: Resource, obj: Object) -> None:
        """The garbage collector: nothing outlives the last of its owners, and none is born without one."""
        references = obj["metadata"].get("ownerReferences") or []
        served = {(known.api_version, known.kind) for known in RESOURCES}
        if not references or any((ref["apiVersion"], ref["kind"]) not in served for ref in references):
            return  # an owner we do not serve is assumed to be there
        alive = set(self._store.owners())
        gone = not any(reference["uid"] in alive for reference in references)
        if gone and "deletionTimestamp" not in obj["metadata"] and self._store.get(resource, key_of(obj)):
            self.delete(resource, key_of(obj), DeleteOptions())

    def _check_preconditions(self, resource: Resource, old: Object, options: DeleteOptions) -> None:
        metadata = old["metadata"]
        if options.uid not in {"", metadata["uid"]}:
            why = (
                f"Precondition failed: UID in precondition: {options.uid}, "
                f"UID in object meta: {metadata['uid']}"
            )
            raise conflict(resource, metadata["name"], why, kind=resource.kind)
        if options.resource_version not in {"", metadata["resourceVersion"]}:
            why = (
                f"Precondition failed: ResourceVersion in precondition: {options.resource_version}, "
                f"ResourceVersion in object meta: {metadata['resourceVersion']}"
            )
            raise conflict(resource, metadata["name"], why, kind=resource.kind)

    def _marked(self, resource: Resource, old: Object, options: DeleteOptions) -> Object:
        """The object as one that is being deleted; an earlier mark stays unless this one is sooner."""
        grace_s = _grace_s(resource, old, options.grace_s)
        marked: Object = copy.deepcopy(old)
        metadata: dict[str, Any] = marked["metadata"]
        first = "deletionTimestamp" not in metadata
        if first or grace_s < metadata.get("deletionGracePeriodSeconds", 0):
            time = self._clock.now() + timedelta(seconds=grace_s)
            metadata["deletionTimestamp"] = rfc3339(time)
            metadata["deletionGracePeriodSeconds"] = grace_s
        if first and "generation" in metadata:
            metadata["generation"] += 1
        return marked

    def _empty_namespace(self, namespace: str) -> None:
        for resource in self._store.resources():
            for obj in self._store.objects(resource):
                if obj["metadata"].get("namespace") == namespace and self._store.get(resource, key_of(obj)):
                    self.delete(resource, key_of(obj), DeleteOptions(grace_s=0))

    def _remove(self, resource: Resource, key: ObjectKey, *, collect: bool) -> Object:
        last = self._store.remove(resource, key)
        if collect:
            for other in self._store.resources():
                for obj in self._store.objects(other):
                    self.collect_if_orphan(other, obj)
        return last


def _grace_s(resource: Resource, obj: Object, asked_s: int | None) -> int:
    """Only a kubelet may end a pod at once, unless it was never bound or is over."""
    if resource != PODS:
        return 0
    phase = (obj.get("status") or {}).get("phase")
    if not obj["spec"].get("nodeName") or phase in {"Succeeded", "Failed"}:
        return 0
    if asked_s is not None:
        return max(asked_s, 0)
    return int(obj["spec"].get("terminationGracePeriodSeconds", _DEFAULT_POD_GRACE_S))
