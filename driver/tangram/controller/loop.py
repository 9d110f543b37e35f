"""The allocation loop: takes a pod from the queue, decides, and carries the decision out.

Decisions are made one after the other on one ledger; writes go out beside each other, and count in the ledger
from the moment they are decided.
"""

import asyncio
from collections.abc import Awaitable

from tangram.allocation import ClaimAllocation, Placement, PodKey, Settings, Statistics, observe
from tangram.base.backoff import Backoff
from tangram.base.clock import Clock, rfc3339
from tangram.base.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    UnreachableError,
)
from tangram.base.logs import get_logger
from tangram.controller import metrics
from tangram.controller.claims import allocation_body, claim_key
from tangram.controller.decide import Allocate, Free, Nothing, Placed, Wait, decide
from tangram.controller.ledger import Assumption
from tangram.controller.state import State
from tangram.controller.writer import add_finalizer, deallocation, write_status
from tangram.kube.client import Client, decode
from tangram.kube.decoding import ObjectKey
from tangram.kube.events import EventRecorder, ObjectReference
from tangram.kube.objects import ResourceClaim
from tangram.kube.resources import PODS, RESOURCE_CLAIMS
from tangram.kube.workqueue import WorkQueue

log = get_logger("controller")

_CONCURRENT_WRITES = 16
_QUIET_S = 1.0
"""A wait shorter than this is not worth an event: slices being replaced, a claim being freed."""
_RBAC_NEXT_STEP = (
    "grant the controller patch on resourceclaims, resourceclaims/status and (Kubernetes 1.36 and later) "
    "resourceclaims/binding by a ClusterRoleBinding"
)


class AllocationLoop:
    """Owns nothing but its tasks; all that it knows is in `state`."""

    def __init__(
        self,
        *,
        client: Client,
        state: State,
        queue: WorkQueue[ObjectKey],
        events: EventRecorder,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._client = client
        self._state = state
        self._queue = queue
        self._events = events
        self._clock = clock
        self._settings = settings
        self._statistics = Statistics()
        self._waiting_since_s: dict[ObjectKey, float] = {}
        self._reported: dict[ObjectKey, str] = {}
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
                    self._queue.done(key)
                    self._queue.retry(key)

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
                self._settle(key)
                self._queue.done(key)
            case Placed(node):
                self._state.place(key, node)
                self._settle(key)
                self._queue.done(key)
            case Wait():
                self._wait(key, action)
                self._queue.done(key)
            case Allocate():
                self._assume(key, action)
                tasks.create_task(self._carry_out(key, self._allocate(key, action)))
            case Free():
                tasks.create_task(self._carry_out(key, self._free(action)))

    async def _carry_out(self, key: ObjectKey, work: Awaitable[bool]) -> None:
        """Runs the writes of one pod; the key is not handed out again before they have ended."""
        try:
            async with self._writes:
                again = await work
        except Exception:
            log.exception("write_failed", pod=f"{key.namespace}/{key.name}")
            again = True
        self._queue.done(key)
        if again:
            self._queue.retry(key)
        else:
            self._queue.forget(key)

    def _settle(self, key: ObjectKey) -> None:
        self._state.waiting.discard(key)
        self._waiting_since_s.pop(key, None)
        self._reported.pop(key, None)
        self._queue.forget(key)
        metrics.WAITING.set(len(self._state.waiting))

    # --- waiting --------------------------------------------------------------------------------------

    def _wait(self, key: ObjectKey, action: Wait) -> None:
        state = self._state
        state.waiting.add(key)
        state.unplace(key)
        metrics.WAITING.set(len(state.waiting))
        if action.retry_s is not None:
            self._queue.add_after(key, delay_s=action.retry_s)
        if self._reported.get(key) == action.why:
            return
        now_s = self._clock.monotonic_s()
        waited_s = now_s - self._waiting_since_s.setdefault(key, now_s)
        if waited_s < _QUIET_S:
            self._queue.add_after(key, delay_s=_QUIET_S - waited_s)
            return
        self._reported[key] = action.why
        metrics.ALLOCATIONS.labels(outcome="waiting").inc()
        record = state.pods[key]
        log.info("pod_waits", pod=str(record.key), why=action.why)
        for regarding in (_pod_reference(record.key), *(_claim_reference(claim) for claim in action.claims)):
            self._events.emit(
                regarding,
                reason="WaitingForDevices",
                note=action.why,
                action="Allocating",
                kind="Warning",
            )

    # --- allocating -----------------------------------------------------------------------------------

    def _assume(self, key: ObjectKey, action: Allocate) -> None:
        placement = action.placement
        for claim, allocation in zip(action.claims, placement.claims, strict=True):
            self._state.ledger.assume(
                claim_key(claim),
                Assumption(
                    node=placement.node,
                    devices=tuple(result.device for result in allocation.results),
                    versions={claim.metadata.resource_version},
                ),
            )
        self._state.place(key, placement.node)

    async def _allocate(self, key: ObjectKey, action: Allocate) -> bool:
        """Writes all claims of a pod; returns True if the pod must be decided again."""
        placement = action.placement
        written = await asyncio.gather(
            *(
                self._write(claim, allocation, placement)
                for claim, allocation in zip(action.claims, placement.claims, strict=True)
            )
        )
        if not all(written):
            self._state.unplace(key)
            return True
        metrics.ALLOCATIONS.labels(outcome="allocated").inc()
        self._statistics = observe(
            self._statistics, sum(len(allocation.results) for allocation in placement.claims)
        )
        return False

    async def _write(self, claim: ResourceClaim, allocation: ClaimAllocation, placement: Placement) -> bool:
        """One claim, by the protocol; True if the API server has the allocation."""
        key = claim_key(claim)
        body = allocation_body(
            claim,
            allocation,
            self._state.classes,
            node=placement.node,
            timestamp=rfc3339(self._clock.now()),
        )
        try:
            with metrics.WRITE_SECONDS.time():
                prepared = await add_finalizer(self._client, claim)
                self._note_version(claim, prepared)
                stored = await write_status(self._client, prepared, {"allocation": body})
                self._note_version(claim, stored)
        except (UnreachableError, ServerError):
            # Whether the write happened is unknown; the devices stay taken until the API server says.
            return await self._find_out(claim)
        except (ConflictError, NotFoundError) as error:
            log.info("claim_changed", claim=str(key), error=error.cause)
            self._state.ledger.drop_assumption(key)
            return False
        except KubeError as error:
            self._report_failure(claim, error)
            self._state.ledger.drop_assumption(key)
            return False
        self._land(claim)
        self._report_allocation(claim, allocation, placement)
        return True

    def _note_version(self, claim: ResourceClaim, stored: ResourceClaim) -> None:
        assumed = self._state.ledger.assumption(claim_key(claim))
        if assumed is not None:
            assumed.versions.add(stored.metadata.resource_version)

    def _land(self, claim: ResourceClaim) -> None:
        assumed = self._state.ledger.assumption(claim_key(claim))
        if assumed is not None:
            assumed.in_flight = False

    async def _find_out(self, claim: ResourceClaim) -> bool:
        """Asks until the API server answers whether the claim is allocated; True if it is."""
        key = claim_key(claim)
        backoff = Backoff()
        while True:
            await self._clock.sleep(backoff.next_s())
            try:
                raw = await self._client.get(RESOURCE_CLAIMS, name=key.name, namespace=key.namespace)
            except NotFoundError:
                break
            except (UnreachableError, ServerError, TooManyRequestsError):
                continue
            except ApiError as error:
                self._report_failure(claim, error)
                continue
            current = decode(raw, ResourceClaim)
            if claim_key(current) == key and current.allocation is not None:
                self._note_version(claim, current)
                self._land(claim)
                return True
            break
        self._state.ledger.drop_assumption(key)
        return False

    async def _free(self, action: Free) -> bool:
        """Takes allocations back so that the pod can be placed as a whole; always decided again."""
        for claim in action.claims:
            key = claim_key(claim)
            self._state.deallocating.add(key)
            try:
                await write_status(self._client, claim, deallocation())
            except KubeError as error:
                self._state.deallocating.discard(key)
                log.info("claim_not_freed", claim=str(key), error=str(error))
                return True
            log.info("sibling_freed", claim=str(key))
        return True

    # --- reporting ------------------------------------------------------------------------------------

    def _report_allocation(
        self, claim: ResourceClaim, allocation: ClaimAllocation, placement: Placement
    ) -> None:
        names = [result.device.device for result in allocation.results]
        terms = placement.terms
        note = f"allocated {', '.join(names)} on node {placement.node}"
        if len(names) > 1:
            note += f" ({'fully linked' if terms.linked else 'not all linked'}, {terms.set_links} links wide)"
        note += f"; {-terms.fullness} GPUs left free there"
        log.info(
            "claim_allocated",
            claim=str(claim_key(claim)),
            node=placement.node,
            devices=names,
            terms=terms._asdict(),
            runner_up=placement.runner_up[0] if placement.runner_up else None,
        )
        self._events.emit(_claim_reference(claim), reason="Allocated", note=note, action="Allocating")

    def _report_failure(self, claim: ResourceClaim, error: KubeError) -> None:
        metrics.ALLOCATIONS.labels(outcome="failed").inc()
        next_step = _RBAC_NEXT_STEP if isinstance(error, ForbiddenError) else error.next_step
        log.error("claim_not_written", claim=str(claim_key(claim)), error=error.cause, next_step=next_step)
        self._events.emit(
            _claim_reference(claim),
            reason="AllocationFailed",
            note=f"{error.cause}; {next_step}" if next_step else error.cause,
            action="Allocating",
            kind="Warning",
        )


def _claim_reference(claim: ResourceClaim) -> ObjectReference:
    return ObjectReference(
        api_version=RESOURCE_CLAIMS.api_version,
        kind=RESOURCE_CLAIMS.kind,
        name=claim.metadata.name,
        namespace=claim.metadata.namespace,
        uid=claim.metadata.uid,
    )


def _pod_reference(pod: PodKey) -> ObjectReference:
    return ObjectReference(
        api_version=PODS.api_version, kind=PODS.kind, name=pod.name, namespace=pod.namespace, uid=pod.uid
    )
