"""Keeps the ResourceSlices of one driver on one node as they should be, whatever happens to them."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tangram.base.backoff import Backoff
from tangram.base.clock import Clock
from tangram.base.errors import SliceLimitError, TangramError
from tangram.base.logs import get_logger
from tangram.kube.client import Client, decode
from tangram.kube.decoding import ObjectKey
from tangram.kube.objects import Node
from tangram.kube.reflector import Change, Reflector
from tangram.kube.resources import NODES, RESOURCE_SLICES
from tangram.kube.workqueue import WorkQueue
from tangram.kubeletplugin.metrics import POOLS_FAILED
from tangram.kubeletplugin.slice_limits import check_pool
from tangram.kubeletplugin.slice_plan import NodeIdentity, Plan, StoredSlice, plan_pool
from tangram.kubeletplugin.slice_writer import SliceWriter
from tangram.kubeletplugin.slices import Pool

_log = get_logger("slices")

# A burst of `publish` calls, and the events of a kubelet that wipes slice by slice, become one sync.
COALESCE_S = 0.1
HEAL_S = 0.5
# Whoever keeps deleting or changing our slices gets slower answers, until it has been quiet for so long.
_HEAL_MAXIMUM_S = 30.0
_QUIET_S = 60.0


@dataclass(slots=True)
class _Heals:
    """When slices of one pool that others touched are put right."""

    backoff: Backoff = field(default_factory=lambda: Backoff(initial_s=HEAL_S, maximum_s=_HEAL_MAXIMUM_S))
    last_s: float = 0.0
    due_s: float = 0.0

    def delay_s(self, *, now_s: float) -> float:
        """How long to wait after an event at `now_s`; events until then belong to the same round."""
        if now_s - self.last_s > _QUIET_S:
            self.backoff.reset()
        if now_s >= self.due_s:
            self.due_s = now_s + self.backoff.next_s()
        self.last_s = now_s
        return self.due_s - now_s


class SlicePublisher:
    """Publishes pools: `publish` says what there should be, `run` makes it so and keeps it so.

    Slices are owned by the Node object, so they go with the node, and are made anew for a node made anew.
    What others delete or change is put right. Nothing is written where nothing differs: not after a restart,
    not on a server that drops fields whose feature gate is off (reported once, see `dropped_fields`). A pool
    that breaks a limit of the API is not published; what was published of it before stays, other pools go on.
    """

    def __init__(self, *, client: Client, driver_name: str, node_name: str, clock: Clock) -> None:
        self._client = client
        self._driver_name = driver_name
        self._node_name = node_name
        self._clock = clock
        self._selector = f"spec.driver={driver_name},spec.nodeName={node_name}"
        # None: wanted, but what is wanted breaks a limit and nothing valid was wanted before.
        self._desired: dict[str, Pool | None] | None = None
        self._node: NodeIdentity | None = None
        # The highest seen or written (perhaps, if the answer was lost): a wiped pool does not start from 1.
        self._generations: defaultdict[str, int] = defaultdict(int)
        self._limit_errors: dict[str, TangramError] = {}
        self._sync_errors: dict[str, TangramError] = {}
        self._settled: set[str] = set()
        self._heals: defaultdict[str, _Heals] = defaultdict(_Heals)
        self._queue: WorkQueue[str] = WorkQueue(clock=clock)
        self._reflector = Reflector(
            client,
            RESOURCE_SLICES,
            StoredSlice.decode,
            clock=clock,
            on_change=self._note_change,
            field_selector=self._selector,
        )
        self._writer = SliceWriter(client=client, clock=clock, shown=self._shown_version)

    @property
    def published(self) -> bool:
        """Whether the server has all that `publish` asked for last and no more, as far as we have seen."""
        return (
            self._desired is not None
            and not self.errors
            and self._desired.keys() <= self._settled
            and not self._stored_pools() - self._desired.keys()
        )

    @property
    def errors(self) -> Mapping[str, TangramError]:
        """By pool, why it is not as it should be."""
        return MappingProxyType(self._sync_errors | self._limit_errors)

    @property
    def dropped_fields(self) -> frozenset[str]:
        """Paths such as `devices[].taints` that the server does not keep: their feature gates are off."""
        return self._writer.dropped_fields

    async def keeps(self, field_name: str) -> bool | None:
        """Whether the server keeps a field of slices such as `sharedCounters`, from what is stored and what
        became of writes; None until one that has it was written. Waits until the stored slices are known."""
        await self._reflector.synced.wait()
        if field_name in self._writer.dropped_fields:
            return False
        stored = any(each.spec.get(field_name) for each in self._reflector.store.values())
        return True if stored or field_name in self._writer.known_fields else None

    def publish(self, pools: Mapping[str, Pool]) -> None:
        """Replaces the whole desired state, by pool name; returns at once. Pools left out are deleted."""
        before = self._desired or {}
        desired: dict[str, Pool | None] = {}
        self._limit_errors = {}
        for name, pool in pools.items():
            try:
                check_pool(pool_name=name, pool=pool)
            except SliceLimitError as error:
                self._limit_errors[name] = error
                desired[name] = before.get(name)
                _log.error("pool_breaks_a_limit", pool=name, device=error.device, error=str(error))
            else:
                desired[name] = pool.copy()
        changed = {name for name in desired.keys() | before.keys() if desired.get(name) != before.get(name)}
        unwanted = self._stored_pools() - desired.keys()
        # Before the first one there is no burst to wait for, and the node has no devices.
        delay_s = 0.0 if self._desired is None else COALESCE_S
        self._desired = desired
        self._settled -= changed
        self._count_errors()
        for name in changed | unwanted:
            self._queue.add_after(name, delay_s=delay_s)

    async def run(self) -> None:
        """Until cancelled. Does nothing before the first `publish`."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reflector.run())
            await self._reflector.synced.wait()
            while True:
                pool_name = await self._queue.get()
                try:
                    await self._attempt(pool_name)
                finally:
                    self._queue.done(pool_name)

    async def _attempt(self, pool_name: str) -> None:
        desired = self._desired
        try:
            settled = await self._sync(pool_name)
        except TangramError as error:
            self._fail(pool_name, error)
        except Exception as error:  # noqa: BLE001 - one pool must not end the publishing of the others
            _log.exception("slice_sync_failed_internally", pool=pool_name)
            self._fail(pool_name, TangramError(f"internal error ({type(error).__name__}); see the log"))
        else:
            self._queue.forget(pool_name)
            self._sync_errors.pop(pool_name, None)
            if settled and self._desired is desired:
                self._settled.add(pool_name)
            else:
                self._queue.add(pool_name)
        self._count_errors()

    def _fail(self, pool_name: str, error: TangramError) -> None:
        _log.warning("slice_sync_failed", pool=pool_name, error=str(error))
        self._sync_errors[pool_name] = error
        self._queue.retry(pool_name)

    def _count_errors(self) -> None:
        POOLS_FAILED.set(len(self.errors))

    async def _sync(self, pool_name: str) -> bool:
        """One round; whether nothing was left to do."""
        if self._desired is None:
            return True
        stored = self._stored(pool_name)
        if pool_name not in self._desired:
            # One that has finalizers is on its way already.
            doomed = tuple(each for each in stored if each.metadata.deletion_timestamp is None)
            await self._apply(pool_name, Plan(generation=0, deletes=doomed))
            return not doomed
        pool = self._desired[pool_name]
        if pool is None:
            return True
        node = self._node or await self._read_node()
        plan = self._plan(pool_name, pool, node)
        if plan.creates:
            # That slices are gone may mean that their Node object is: the new one has another uid.
            plan = self._plan(pool_name, pool, await self._read_node())
        await self._apply(pool_name, plan)
        return not (plan.creates or plan.updates or plan.deletes)

    def _shown_version(self, name: str) -> str:
        stored = self._reflector.store.get(ObjectKey("", name))
        return stored.metadata.resource_version if stored else ""

    def _stored(self, pool_name: str) -> list[StoredSlice]:
        return [each for each in self._reflector.store.values() if each.pool_name == pool_name]

    def _stored_pools(self) -> set[str]:
        return {each.pool_name for each in self._reflector.store.values()}

    def _plan(self, pool_name: str, pool: Pool, node: NodeIdentity) -> Plan:
        return plan_pool(
            driver_name=self._driver_name,
            node=node,
            pool_name=pool_name,
            pool=pool,
            stored=self._stored(pool_name),
            floor_generation=self._generations[pool_name],
            known_fields=self._writer.known_fields,
            dropped_fields=self._writer.dropped_fields,
        )

    async def _read_node(self) -> NodeIdentity:
        node = decode(await self._client.get(NODES, name=self._node_name), Node)
        if self._node is not None and self._node.uid != node.metadata.uid:
            _log.info("node_made_anew", node=self._node_name, uid=node.metadata.uid)
        self._node = NodeIdentity(name=self._node_name, uid=node.metadata.uid)
        return self._node

    async def _apply(self, pool_name: str, plan: Plan) -> None:
        if not (plan.creates or plan.updates or plan.deletes):
            return
        self._note_generation(pool_name, plan.generation)
        _log.info(
            "publishing_pool",
            pool=pool_name,
            generation=plan.generation,
            creates=len(plan.creates),
            updates=len(plan.updates),
            deletes=len(plan.deletes),
        )
        await self._writer.apply(plan, self._node)

    def _note_generation(self, pool_name: str, generation: int) -> None:
        self._generations[pool_name] = max(self._generations[pool_name], generation)

    def _note_change(self, change: Change[StoredSlice]) -> None:
        if change.new:
            self._note_generation(change.new.pool_name, change.new.generation)
        if self._writer.is_own(change):
            return
        now_s = self._clock.monotonic_s()
        for pool_name in {each.pool_name for each in (change.old, change.new) if each is not None}:
            self._settled.discard(pool_name)
            self._queue.add_after(pool_name, delay_s=self._heals[pool_name].delay_s(now_s=now_s))
