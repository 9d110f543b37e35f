"""Preparing and unpreparing claims, free of any gRPC version: one answer per claim, whatever happens."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from tangram.base.clock import Clock
from tangram.base.errors import ClaimNotPreparableError, InvalidObjectError, KubeError, TangramError
from tangram.base.logs import get_logger
from tangram.kube.client import decode
from tangram.kube.objects import ResourceClaim
from tangram.kube.resources import RESOURCE_CLAIMS
from tangram.kubeletplugin.driver import ClaimReader, ClaimReference, Driver, PreparedDevice
from tangram.kubeletplugin.metrics import CLAIM_DURATION, CLAIMS_IN_FLIGHT

_log = get_logger("kubeletplugin")

# The kubelet sends the claims of one pod: a few.
MAXIMUM_CLAIMS_PER_CALL = 512
_CLAIMS_AT_ONCE = 64
_MAXIMUM_ERROR_CHARACTERS = 4096

_UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}[A-Za-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")

Operation = Literal["prepare", "unprepare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the kubelet is told about one claim; `error` is empty on success."""

    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""


Work = Callable[[ClaimReference], Coroutine[Any, Any, Answer]]


class ClaimService:
    """Answers the kubelet's calls through a `Driver`.

    Claims of a call are worked on at the same time, calls for the same claim one after the other. Work that
    has begun is finished even if the kubelet stops waiting for it (its deadline is 45 s): the next call for
    that claim waits for it, so a driver never sees half of its own work.
    """

    def __init__(self, *, driver_name: str, driver: Driver, claims: ClaimReader, clock: Clock) -> None:
        self._driver_name = driver_name
        self._driver = driver
        self._claims = claims
        self._clock = clock
        self._slots = asyncio.Semaphore(_CLAIMS_AT_ONCE)
        self._running: dict[str, asyncio.Task[Answer]] = {}

    async def prepare(self, references: Sequence[ClaimReference]) -> dict[str, Answer]:
        """Answers by claim uid, exactly one for each uid in `references`. Never raises for a claim's sake."""
        return await self._answer("prepare", references, self._prepare)

    async def unprepare(self, references: Sequence[ClaimReference]) -> dict[str, Answer]:
        """As `prepare`."""
        return await self._answer("unprepare", references, self._unprepare)

    async def drain(self, *, grace_s: float) -> None:
        """Waits up to `grace_s` for the work that has begun, then cancels it."""
        if not self._running:
            return
        _, late = await asyncio.wait(tuple(self._running.values()), timeout=grace_s)
        for task in late:
            task.cancel()
        if late:
            _log.error("claims_abandoned_at_stop", claims=len(late), grace_s=grace_s)
            await asyncio.wait(late)

    async def _answer(
        self, operation: Operation, references: Sequence[ClaimReference], work: Work
    ) -> dict[str, Answer]:
        answers, accepted = _sort_out(references)
        if answers:
            _log.warning("claims_refused", operation=operation, claims=len(answers))
        calls = [self._measured(operation, reference, work) for reference in accepted]
        # A single claim, the usual case, needs no task of its own.
        done = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
        return answers | {reference.uid: answer for reference, answer in zip(accepted, done, strict=True)}

    async def _measured(self, operation: Operation, reference: ClaimReference, work: Work) -> Answer:
        started_s = self._clock.monotonic_s()
        outcome = "abandoned"
        with CLAIMS_IN_FLIGHT.labels(operation).track_inprogress():
            try:
                answer = await self._alone(operation, reference, work)
                outcome = "error" if answer.error else "success"
            finally:
                duration_s = self._clock.monotonic_s() - started_s
                CLAIM_DURATION.labels(operation, outcome).observe(duration_s)
                # The answer goes first: whoever reads the log may be slow.
                asyncio.get_running_loop().call_soon(
                    partial(
                        _log.info,
                        "claim_answered",
                        operation=operation,
                        outcome=outcome,
                        namespace=reference.namespace,
                        claim=reference.name,
                        uid=reference.uid,
                        duration_s=round(duration_s, 6),
                    )
                )
        return answer

    async def _alone(self, operation: Operation, reference: ClaimReference, work: Work) -> Answer:
        uid = reference.uid
        while (running := self._running.get(uid)) is not None and not running.done():
            await asyncio.wait({running})
        task = asyncio.create_task(self._guarded(operation, reference, work))
        self._running[uid] = task
        task.add_done_callback(partial(self._forget, uid))
        # Unlike `await task`: when this call is cancelled, the task goes on.
        await asyncio.wait({task})
        if task.cancelled():
            return Answer(error=f"{operation} of {reference} was interrupted: the plugin is stopping")
        return task.result()

    def _forget(self, uid: str, task: asyncio.Task[Answer]) -> None:
        if self._running.get(uid) is task:
            del self._running[uid]

    async def _guarded(self, operation: Operation, reference: ClaimReference, work: Work) -> Answer:
        try:
            async with self._slots:
                return await work(reference)
        except TangramError as error:
            text = str(error)
            _log.warning(
                "claim_failed",
                operation=operation,
                namespace=reference.namespace,
                claim=reference.name,
                uid=reference.uid,
                error=text,
            )
        except Exception as error:  # noqa: BLE001 - the driver is not ours; one claim must not cost the others
            text = f"internal error of driver {self._driver_name} ({type(error).__name__}); see its log"
            _log.exception(
                "claim_failed_internally",
                operation=operation,
                namespace=reference.namespace,
                claim=reference.name,
                uid=reference.uid,
            )
        return Answer(error=f"{operation} of {reference}: {text}"[:_MAXIMUM_ERROR_CHARACTERS])

    async def _prepare(self, reference: ClaimReference) -> Answer:
        claim = await self._read(reference)
        prepared = await self._driver.prepare(claim)
        return Answer(devices=tuple(_for_kubelet(device) for device in prepared))

    async def _unprepare(self, reference: ClaimReference) -> Answer:
        await self._driver.unprepare(reference)
        return Answer()

    async def _read(self, reference: ClaimReference) -> ResourceClaim:
        try:
            data = await self._claims.get(RESOURCE_CLAIMS, name=reference.name, namespace=reference.namespace)
        except KubeError as error:
            raise ClaimNotPreparableError(
                f"the claim cannot be read: {error}",
                next_step="the kubelet tries again; check the API server if this goes on",
            ) from error
        claim = decode(data, ResourceClaim)
        if claim.metadata.uid != reference.uid:
            raise ClaimNotPreparableError(
                f"the claim has uid {claim.metadata.uid!r}, the kubelet asks for {reference.uid!r}:"
                " it was deleted and created again",
                next_step="delete the pod, so that it is created for the new claim",
            )
        if claim.allocation is None:
            raise ClaimNotPreparableError(
                "the claim is not allocated (any more)",
                next_step="the kubelet tries again; if it stays so, see the claim's events",
            )
        return claim


def _for_kubelet(device: PreparedDevice) -> PreparedDevice:
    """With base names of requests: the kubelet matches them with those in the pod's containers."""
    names = dict.fromkeys(name.partition("/")[0] for name in device.request_names)
    return replace(device, request_names=tuple(names))


def _sort_out(references: Sequence[ClaimReference]) -> tuple[dict[str, Answer], list[ClaimReference]]:
    """The answers for claims that are refused unseen, and the claims to work on, each uid once."""
    refused: dict[str, Answer] = {}
    accepted: dict[str, ClaimReference] = {}
    for reference in references:
        uid = reference.uid
        if uid in refused or accepted.get(uid) == reference:
            continue
        try:
            _check(reference, position=len(accepted), other=accepted.get(uid))
        except InvalidObjectError as error:
            refused[uid] = Answer(error=str(error))
            accepted.pop(uid, None)
        else:
            accepted[uid] = reference
    return refused, list(accepted.values())


def _check(reference: ClaimReference, *, position: int, other: ClaimReference | None) -> None:
    """Raises InvalidObjectError for what a kubelet never sends; uids become file names, names become URLs."""
    for field, value, pattern in (
        ("uid", reference.uid, _UID),
        ("namespace", reference.namespace, _NAMESPACE),
        ("name", reference.name, _NAME),
    ):
        if not pattern.fullmatch(value):
            raise InvalidObjectError(f"{value[:80]!r} is not valid", object_name="claim", field=field)
    if other is not None:
        raise InvalidObjectError(
            f"{reference.uid} is given for both {other} and {reference}", object_name="claim", field="uid"
        )
    if position >= MAXIMUM_CLAIMS_PER_CALL:
        raise InvalidObjectError(
            f"more than {MAXIMUM_CLAIMS_PER_CALL} claims in one call",
            object_name=str(reference),
            next_step="use fewer claims in one pod",
        )
