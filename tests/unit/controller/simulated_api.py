"""An API server in memory: versions, watches that lag, and writes whose fate a test decides."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from tangram import DRIVER_NAME
from tangram.base.errors import ConflictError, NotFoundError, ServerError, TangramError, UnreachableError
from tangram.kube.decoding import ObjectKey
from tangram.kube.resources import Resource

KINDS = ("ResourceSlice", "DeviceClass", "Node", "ResourceClaim", "Pod")
Json = dict[str, Any]


class Api:
    """Objects and their history. `faults` are the fates of the next writes; "" once they are used up."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, ObjectKey], Json] = {}
        self.events: dict[str, deque[tuple[ObjectKey, bytes | None]]] = {kind: deque() for kind in KINDS}
        self.faults: deque[str] = deque()
        self.slow: deque[asyncio.Future[None]] = deque()
        self.late: deque[Callable[[], object]] = deque()
        self.broken: dict[str, TangramError] = {}
        self.writes = 0
        self._version = 0
        self._uid = 0

    def create(self, item: Json) -> None:
        self._uid += 1
        item["metadata"]["uid"] = f"uid-{self._uid}"
        self.store(item)

    def store(self, item: Json) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        key = ObjectKey(item["metadata"].get("namespace", ""), item["metadata"]["name"])
        self.objects[item["kind"], key] = item
        self.events[item["kind"]].append((key, json.dumps(item).encode()))
        self._check()

    def delete(self, kind: str, name: str) -> None:
        key = ObjectKey("default", name)
        if self.objects.pop((kind, key), None) is not None:
            self._version += 1
            self.events[kind].append((key, None))

    def find(self, kind: str, name: str) -> Json | None:
        return self.objects.get((kind, ObjectKey("default", name)))

    def all(self, kind: str) -> list[Json]:
        return [item for (k, _), item in sorted(self.objects.items()) if k == kind]

    async def get(self, resource: Resource, *, name: str, namespace: str = "") -> bytes:
        await asyncio.sleep(0)
        if self.faults and self.faults.popleft() in ("lost", "dropped", "late"):
            raise UnreachableError("gone")
        item = self.find(resource.kind, name)
        if item is None:
            raise NotFoundError("not there", status=404)
        return json.dumps(item).encode()

    async def patch(
        self,
        resource: Resource,
        patch: Mapping[str, Any],
        *,
        name: str,
        namespace: str = "",
        subresource: str = "",
    ) -> bytes:
        fault = self.faults.popleft() if self.faults else ""
        self.writes += 1
        await asyncio.sleep(0)
        if fault in ("slow", "slow-lost", "slow-late"):
            await self._hold()
        if fault == "dropped":
            raise UnreachableError("no connection")
        if name in self.broken:
            raise self.broken[name]
        if fault == "failing":
            raise ServerError("out of order", status=500)
        if fault.endswith("late"):
            self.late.append(lambda: self._apply(resource.kind, name, patch))
            raise UnreachableError("no answer yet")
        answer = self._apply(resource.kind, name, patch)
        if fault == "slow-answer":
            await self._hold()
        if fault.endswith("lost"):
            raise UnreachableError("the answer was lost")
        return answer

    async def _hold(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self.slow.append(future)
        await future

    def _apply(self, kind: str, name: str, patch: Mapping[str, Any]) -> bytes:
        item = self.find(kind, name)
        if item is None:
            raise NotFoundError("not there", status=404)
        if item["metadata"]["resourceVersion"] != patch["metadata"]["resourceVersion"]:
            raise ConflictError("changed", status=409)
        item = json.loads(json.dumps(item))
        if "finalizers" in patch["metadata"]:
            item["metadata"]["finalizers"] = patch["metadata"]["finalizers"]
        status = {**(item.get("status") or {}), **patch.get("status", {})}
        item["status"] = {field: value for field, value in status.items() if value is not None}
        self.store(item)
        return json.dumps(item).encode()

    def _check(self) -> None:
        """The rule above all others."""
        taken: dict[tuple[str, str], str] = {}
        for item in self.all("ResourceClaim"):
            for result in devices_of(item):
                assert result not in taken, f"{result} in {taken[result]} and {item['metadata']['name']}"
                taken[result] = item["metadata"]["name"]


def allocation_of(item: Json) -> Json:
    found: Json = (item.get("status") or {}).get("allocation") or {}
    return found


def devices_of(item: Json) -> list[tuple[str, str]]:
    results = allocation_of(item).get("devices", {}).get("results", [])
    return [(result["pool"], result["device"]) for result in results]


def node_of(item: Json) -> str:
    (devices,) = {pool for pool, _ in devices_of(item)} or {""}
    return devices.removeprefix(f"{DRIVER_NAME}/")
