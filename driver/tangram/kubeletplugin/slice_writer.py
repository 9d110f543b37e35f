"""Carries out plans, learns what the server keeps, and tells our own changes from those of others."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from tangram.base.clock import Clock
from tangram.base.errors import InvalidObjectError, KubeError, NotFoundError
from tangram.base.logs import get_logger
from tangram.kube.client import Client
from tangram.kube.reflector import Change
from tangram.kube.resources import RESOURCE_SLICES
from tangram.kubeletplugin.metrics import FIELDS_DROPPED, SLICE_WRITES
from tangram.kubeletplugin.slice_compare import difference, paths
from tangram.kubeletplugin.slice_plan import NodeIdentity, Plan, StoredSlice, Write

_log = get_logger("slices")

# How long to wait until the watch shows what was written; later writes have preconditions anyway.
_CATCH_UP_S = 10.0


class SliceWriter:
    """Writes the slices of one node. `shown` tells the resourceVersion the watch has shown last, by name.

    `known_fields` and `dropped_fields` are for `plan_pool`.
    """

    def __init__(self, *, client: Client, clock: Clock, shown: Callable[[str], str]) -> None:
        self._client = client
        self._clock = clock
        self._shown = shown
        self.known_fields: frozenset[str] = frozenset()
        self.dropped_fields: frozenset[str] = frozenset()
        # Our writes that the watch has not shown yet: by name, the resourceVersion, or "" for a delete.
        self._expected: dict[str, str] = {}
        self._caught_up = asyncio.Event()

    async def apply(self, plan: Plan, node: NodeIdentity | None) -> None:
        """Phase by phase, then waits until the watch has shown it: the next plan must not start from before.

        Raises the first error of the first phase that had one. `node` is None for deletes only.
        """
        await _all(self._write(each, node) for each in plan.creates)
        await _all(self._write(each, node) for each in plan.updates)
        await _all(self.delete(each.name, uid=each.metadata.uid) for each in plan.deletes)
        await self._catch_up()

    async def delete(self, name: str, *, uid: str = "") -> None:
        """Deletes a slice, unless it is gone already. Raises KubeError."""
        try:
            await self._client.delete(RESOURCE_SLICES, name=name, uid=uid)
        except NotFoundError:
            pass
        except KubeError as error:
            SLICE_WRITES.labels("delete", type(error).__name__).inc()
            raise
        SLICE_WRITES.labels("delete", "success").inc()
        self._expect(name, "")

    def is_own(self, change: Change[StoredSlice]) -> bool:
        """Whether this is what we wrote, and now the watch shows it."""
        version = change.new.metadata.resource_version if change.new else ""
        if self._expected.get(change.key.name) != version:
            return False
        del self._expected[change.key.name]
        if not self._expected:
            self._caught_up.set()
        return True

    async def _write(self, write: Write, node: NodeIdentity | None) -> None:
        assert node is not None, "slices are planned for a node"
        metadata = {"ownerReferences": node.owner_references()}
        verb = "update" if write.replaces else "create"
        try:
            if write.replaces is None:
                answer = await self._client.create(
                    RESOURCE_SLICES, {"metadata": {"name": write.name, **metadata}, "spec": write.spec}
                )
            else:
                removed = dict.fromkeys(write.replaces.spec.keys() - write.spec.keys())
                answer = await self._client.patch(
                    RESOURCE_SLICES,
                    {
                        "metadata": metadata | {"resourceVersion": write.replaces.metadata.resource_version},
                        "spec": write.spec | removed,
                    },
                    name=write.name,
                )
        except KubeError as error:
            SLICE_WRITES.labels(verb, type(error).__name__).inc()
            raise
        SLICE_WRITES.labels(verb, "success").inc()
        stored = StoredSlice.decode(answer)
        self._expect(stored.name, stored.metadata.resource_version)
        self._learn(write, stored)

    def _learn(self, write: Write, stored: StoredSlice) -> None:
        """What the server made of a write; InvalidObjectError if it is neither that nor a part of it."""
        found = difference(write.spec, stored.spec)
        written = paths(write.spec)
        if dropped := found.missing - self.dropped_fields:
            _log.warning(
                "slice_fields_dropped",
                fields=sorted(dropped),
                next_step="turn their feature gates on, or accept that they have no effect",
            )
        self.known_fields |= written
        self.dropped_fields = (self.dropped_fields - written) | found.missing
        FIELDS_DROPPED.set(len(self.dropped_fields))
        if found.other:
            raise InvalidObjectError(
                "the API server stored something else than was written",
                object_name=f"ResourceSlice {stored.name}",
                field=f"spec.{found.other}",
                next_step="look for an admission webhook or policy that changes ResourceSlices",
            )

    def _expect(self, name: str, resource_version: str) -> None:
        if self._shown(name) != resource_version:
            self._expected[name] = resource_version

    async def _catch_up(self) -> None:
        self._caught_up.clear()
        if not self._expected:
            return
        waits = {
            asyncio.ensure_future(self._caught_up.wait()),
            asyncio.ensure_future(self._clock.sleep(_CATCH_UP_S)),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._expected.clear()


async def _all(calls: Iterable[Awaitable[None]]) -> None:
    """All at once, for the pool is unusable in between; then the first error, if any."""
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
