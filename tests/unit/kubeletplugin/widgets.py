"""A driver and an API server for tests of the library: widgets, which nobody has to buy."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tangram.base.errors import NotFoundError
from tangram.kube.objects import ResourceClaim
from tangram.kube.resources import RESOURCE_CLAIMS, Resource
from tangram.kubeletplugin.driver import ClaimReference, PreparedDevice


def reference(uid: str, name: str = "") -> ClaimReference:
    return ClaimReference(namespace="default", name=name or f"claim-{uid}", uid=uid)


class Claims:
    """The API server's claims, by name; a KubeError in place of an object is raised."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any] | Exception | bytes] = {}
        self.reads: list[str] = []

    def add(self, claim: ClaimReference, **changes: Any) -> None:
        self.objects[claim.name] = {
            "metadata": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid},
            "status": {"allocation": {"devices": {"results": []}}},
        } | changes

    async def get(self, resource: Resource, *, name: str, namespace: str = "") -> bytes:
        assert resource is RESOURCE_CLAIMS
        self.reads.append(name)
        await asyncio.sleep(0)
        found = self.objects.get(name)
        if found is None:
            raise NotFoundError(f"{name} not found", status=404)
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, bytes) else json.dumps(found).encode()


@dataclass
class WidgetDriver:
    """Prepares one widget per claim; `gates` hold a claim back, `failures` are raised for it."""

    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    failures: dict[str, BaseException] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    prepared: set[str] = field(default_factory=set)
    request_names: tuple[str, ...] = ("widget",)
    share_id: str | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, *, started: int = 0, finished: int = 0) -> None:
        """Waits until so many steps have begun and ended."""
        while len(self.started) < started or len(self.finished) < finished:
            self.changed.clear()
            await self.changed.wait()

    async def _pass(self, uid: str, step: str) -> None:
        self.started.append(f"{step} {uid}")
        self.changed.set()
        if gate := self.gates.get(uid):
            await gate.wait()
        if failure := self.failures.get(uid):
            raise failure
        self.finished.append(f"{step} {uid}")
        self.changed.set()

    async def prepare(self, claim: ResourceClaim) -> Sequence[PreparedDevice]:
        uid = claim.metadata.uid
        await self._pass(uid, "prepare")
        self.prepared.add(uid)
        return [
            PreparedDevice(
                request_names=self.request_names,
                pool_name="pool",
                device_name=f"widget-{uid}",
                cdi_device_ids=(f"example.com/widget={uid}",),
                share_id=self.share_id,
            )
        ]

    async def unprepare(self, claim: ClaimReference) -> None:
        await self._pass(claim.uid, "unprepare")
        self.prepared.discard(claim.uid)
