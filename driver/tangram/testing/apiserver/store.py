"""Objects by resource and key, one resourceVersion for all, and the history that watches read."""

import asyncio
import bisect
import collections
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tangram.kube.decoding import ObjectKey
from tangram.kube.resources import Resource
from tangram.testing.apiserver.answers import expired

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """A change: `object` after it (for DELETED: last state), `previous` before it."""

    version: int
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Object
    previous: Object | None


def key_of(obj: Mapping[str, Any]) -> ObjectKey:
    """Namespace and name of an object."""
    metadata = obj["metadata"]
    return ObjectKey(metadata.get("namespace", ""), metadata["name"])


class Store:
    """Holds objects as they are: who reads must not change them, who writes hands over a new one."""

    def __init__(self, *, history_limit: int) -> None:
        self.version = 1
        self._compacted_version = 0
        self._trimmed_version: dict[Resource, int] = collections.defaultdict(int)
        self._history_limit = history_limit
        self._objects: dict[Resource, dict[ObjectKey, Object]] = collections.defaultdict(dict)
        self._history: dict[Resource, list[Event]] = collections.defaultdict(list)
        self._listeners: set[asyncio.Event] = set()

    def get(self, resource: Resource, key: ObjectKey) -> Object | None:
        """The stored object itself."""
        return self._objects[resource].get(key)

    def objects(self, resource: Resource) -> list[Object]:
        """All of a resource, by namespace and name."""
        return [obj for _, obj in sorted(self._objects[resource].items())]

    def put(self, resource: Resource, obj: Object) -> Object:
        """Stores `obj` under a new resourceVersion."""
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        key = key_of(obj)
        previous = self._objects[resource].get(key)
        self._objects[resource][key] = obj
        self._record(resource, Event(self.version, "MODIFIED" if previous else "ADDED", obj, previous))
        return obj

    def remove(self, resource: Resource, key: ObjectKey) -> Object:
        """Removes an object; its last state carries the resourceVersion of the removal."""
        previous = self._objects[resource].pop(key)
        self.version += 1
        last = {**previous, "metadata": {**previous["metadata"], "resourceVersion": str(self.version)}}
        self._record(resource, Event(self.version, "DELETED", last, previous))
        return last

    def since(self, resource: Resource, version: int) -> list[Event]:
        """The changes after `version`; ExpiredError (410) if some of them are forgotten."""
        oldest = max(self._compacted_version, self._trimmed_version[resource])
        if version < oldest:
            raise expired(f"too old resource version: {version} ({oldest})")
        history = self._history[resource]
        return history[bisect.bisect_right(history, version, key=lambda event: event.version) :]

    def objects_at(self, resource: Resource, version: int) -> list[Object]:
        """All of a resource as they were at `version`; ExpiredError (410) if that is forgotten."""
        found = dict(self._objects[resource])
        for event in reversed(self.since(resource, version)):
            key = key_of(event.object)
            if event.previous is None:
                del found[key]
            else:
                found[key] = event.previous
        return [obj for _, obj in sorted(found.items())]

    def compact(self) -> None:
        """Forgets all history: whoever is behind gets 410."""
        self._history.clear()
        self._compacted_version = self.version

    def listen(self, listener: asyncio.Event) -> None:
        """`listener` is set at every change."""
        self._listeners.add(listener)

    def unlisten(self, listener: asyncio.Event) -> None:
        """Undoes `listen`."""
        self._listeners.discard(listener)

    def wake(self) -> None:
        """Sets all listeners."""
        for listener in self._listeners:
            listener.set()

    def owners(self) -> Iterator[str]:
        """The uids of all objects."""
        for objects in self._objects.values():
            for obj in objects.values():
                yield obj["metadata"]["uid"]

    def resources(self) -> list[Resource]:
        """The resources that hold anything."""
        return list(self._objects)

    def _record(self, resource: Resource, event: Event) -> None:
        history = self._history[resource]
        history.append(event)
        if len(history) > self._history_limit:
            self._trimmed_version[resource] = history[0].version
            del history[0]
        self.wake()
