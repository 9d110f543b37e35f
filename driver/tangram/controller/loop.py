"""The allocation loop: takes a pod from the queue, decides, and carries the decision out.

Decisions are made one after the other on one ledger; writes go out beside each other, and count in the ledger
from the moment they are decided.
"""

import asyncio
from collections.abc import Awaitable

from tangram.allocation import (
    ClaimAllocation,
    ClaimKey,
    Placement,
    Settings,
    Statistics,
    claim_key,
    observe,
)
from tangram.base.clock import Clock, rfc3339
from tangram.base.errors import ConflictError, NotFoundError, TangramError
from tangram.base.logs import get_logger
from tangram.controller import metrics
from tangram.controller.claims import allocation_body
from tangram.controller.decide import Allocate, Free, Hold, Nothing, Placed, Wait, decide
from tangram.controller.freeing import Outcome, take_back
from tangram.controller.ledger import Assumption, held
from tangram.controller.reporting import Reporter
from tangram.controller.state import State
from tangram.controller.waiting import Waiting
from tangram.controller.writer import add_finalizer, certainly, write_status
from tangram.kube.client import Client, decode
from tangram.kube.decoding import ObjectKey
from tangram.kube.objects import ResourceClaim
from tangram.kube.resources import RESOURCE_CLAIMS
from tangram.kube.workqueue import WorkQueue

log = get_logger("controller")

_CONCURRENT_WRITES = 16


class AllocationLoop:
    """Owns nothing but its tasks; all that it knows is in `state`."""

    def __init__(
        self,
        *,
        client: Client,
        state: State,
        queue: WorkQueue[ObjectKey],
        reporter: Reporter,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._client = client
        self._state = state
        self._queue = queue
        self._reporter = reporter
        self._clock = clock
        self._settings = settings
        self._statistics = Statistics()
        self._waiting = Waiting()
        self._writes = asyncio.Semaphore(_CONCURRENT_WRITES)

    async def run(self) -> None:
        """Until cancelled. An error on one pod costs that pod a retry, never the loop."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                key = await self._queue.get()
                try:
                    self._process(key, tasks)
                except Exception:  # the loop must outlive any one pod
                    log.exception("pod_failed", pod=f"{key.namespace}/{key.name}")
                    self._queue.failed(key)
                # A thousand decisions in a row must not hold up watches, writes and the Lease.
                await asyncio.sleep(0)

    def _process(self, key: ObjectKey, tasks: asyncio.TaskGroup) -> None:
        with metrics.DECISION_SECONDS.time():
            action = decide(
                self._state,
                key,
                now_s=self._clock.monotonic_s(),
                settings=self._settings,
                statistics=self._statistics,
            )
        match action:
            case Nothing():
                self._state.unplace(key)
                self._settle(key)
                self._queue.done(key)
            case Placed(node):
                self._state.place(key, node)
                self._settle(key)
                self._queue.done(key)
            case Wait():
                self._state.unplace(key)
                self._wait(key, action)
                self._queue.done(key)
            case Hold():
                self._state.unplace(key)
                self._hold(key, action)
                self._queue.done(key)
            case Allocate():
                self._state.place(key, action.placement.node)
                self._assume(action)
                tasks.create_task(self._carry_out(key, self._allocate(action)))
            case Free():
                self._state.unplace(key)
                tasks.create_task(self._carry_out(key, self._free(action)))

    async def _carry_out(self, key: ObjectKey, work: Awaitable[bool]) -> None:
        """Runs the writes of one pod; the key is not handed out again before they have ended."""
        try:
            async with self._writes:
                done = await work
        except Exception:  # as above
            log.exception("write_failed", pod=f"{key.namespace}/{key.name}")
            done = False
        if done:
            self._queue.done(key)
            self._queue.forget(key)
        else:
            # Not at once: the devices that were not written are for others to take first. Nor whenever
            # something becomes free: two claims whose writes are refused would wake each other for ever.
            self._state.waiting.discard(key)
            metrics.WAITING.set(len(self._state.waiting))
            self._queue.failed(key)

    def _settle(self, key: ObjectKey) -> None:
        self._state.waiting.discard(key)
        self._waiting.forget(key)
        self._queue.forget(key)
        metrics.WAITING.set(len(self._state.waiting))

    def _wait(self, key: ObjectKey, action: Wait) -> None:
        state = self._state
        state.waiting.add(key)
        metrics.WAITING.set(len(state.waiting))
        if action.kind is not None:
            state.refuse(action.kind, action.why)
        if action.dear is not None and action.retry_s is not None:
            until_s = self._clock.monotonic_s() + action.retry_s
            state.put_off(action.dear, action.why, until_s=until_s)
        self._tell(key, action)

    def _hold(self, key: ObjectKey, action: Hold) -> None:
        state = self._state
        state.waiting.discard(key)
        metrics.WAITING.set(len(state.waiting))
        for claim in action.fresh:
            state.returned.add(claim_key(claim), (state.pods[key],), now_s=self._clock.monotonic_s())
        self._tell(key, action)

    def _tell(self, key: ObjectKey, action: Wait | Hold) -> None:
        """Says why the pod has no devices, if it is time to, and looks again when it will be."""
        if action.retry_s is not None:
            self._queue.add_after(key, delay_s=action.retry_s)
        pod = self._state.pods[key].key
        now, again_s = self._waiting.tell(pod, action.why, now_s=self._clock.monotonic_s())
        if now:
            self._reporter.waits(pod, action.claims, action.why, held=isinstance(action, Hold))
        self._queue.add_after(key, delay_s=again_s)

    # --- allocating -----------------------------------------------------------------------------------

    def _assume(self, action: Allocate) -> None:
        placement = action.placement
        for claim, allocation in zip(action.claims, placement.claims, strict=True):
            self._state.ledger.assume(
                claim_key(claim),
                Assumption(
                    node=placement.node,
                    devices=held(allocation.results),
                    versions={claim.metadata.resource_version},
                ),
            )

    async def _allocate(self, action: Allocate) -> bool:
        """Writes all claims of a pod; False if the pod must be decided again."""
        placement = action.placement
        written = await asyncio.gather(
            *(
                self._write(claim, allocation, placement)
                for claim, allocation in zip(action.claims, placement.claims, strict=True)
            )
        )
        if not all(written):
            return False
        metrics.ALLOCATIONS.labels(outcome="allocated").inc()
        self._statistics = observe(
            self._statistics, sum(len(allocation.results) for allocation in placement.claims)
        )
        return True

    async def _write(self, claim: ResourceClaim, allocation: ClaimAllocation, placement: Placement) -> bool:
        """One claim, by the protocol; True if the API server has the allocation."""
        key = claim_key(claim)
        try:
            with metrics.WRITE_SECONDS.time():
                written = await self._write_allocation(claim, allocation)
        except (ConflictError, NotFoundError) as error:
            log.info("claim_changed", claim=str(key), error=error.cause)
            written = False
        except TangramError as error:
            self._reporter.failed(claim, error)
            written = False
        except Exception as error:  # a bug, or a claim made to find one, must not keep devices
            log.exception("write_failed", claim=str(key))
            self._reporter.failed(claim, TangramError(f"internal error: {error!r:.200}"))
            written = False
        if written:
            self._state.landed(key)
            self._reporter.allocated(claim, allocation, placement)
        else:
            self._state.release(key)
        return written

    async def _write_allocation(self, claim: ResourceClaim, allocation: ClaimAllocation) -> bool:
        """False if the claim changed meanwhile; raises TangramError."""
        key, client, clock = claim_key(claim), self._client, self._clock
        body = allocation_body(allocation, timestamp=rfc3339(clock.now()))
        prepared = await certainly(lambda: add_finalizer(client, claim), clock=clock)
        if prepared is None:
            return False
        self._state.ledger.note_version(key, prepared.metadata.resource_version)
        stored = await certainly(lambda: write_status(client, prepared, {"allocation": body}), clock=clock)
        if stored is None:
            # It changed after an answer was lost: by the write without an answer, or by somebody else.
            stored = await certainly(lambda: self._read(key), clock=clock)
            if stored is None or claim_key(stored) != key or stored.allocation is None:
                return False
        self._state.ledger.note_version(key, stored.metadata.resource_version)
        return True

    async def _read(self, claim: ClaimKey) -> ResourceClaim:
        raw = await self._client.get(RESOURCE_CLAIMS, name=claim.name, namespace=claim.namespace)
        return decode(raw, ResourceClaim)

    async def _free(self, action: Free) -> bool:
        """Takes allocations back so that the pod can be placed as a whole: it is decided again when the watch
        shows that. False if that failed."""
        for claim in action.claims:
            if await take_back(self._client, self._state, claim, clock=self._clock) is Outcome.FAILED:
                return False
        return True
