"""Events for people (events.k8s.io/v1): emitted without waiting, written in the background."""

import asyncio
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from prometheus_client import Counter

from tangram.base.clock import Clock, rfc3339_micro, within
from tangram.base.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    NotFoundError,
    ServerError,
    TangramError,
    TooManyRequestsError,
    UnauthorizedError,
    UnreachableError,
)
from tangram.base.logs import get_logger
from tangram.kube.client import Client
from tangram.kube.resources import EVENTS
from tangram.kube.workqueue import WorkQueue

EventKind = Literal["Normal", "Warning"]

_MAX_NOTE_BYTES = 1024  # limits of the API
_MAX_WORD_BYTES = 128
_MAX_RECORDS = 1000
_MAX_ATTEMPTS = 10
# Repeats within this time are one write; after that much silence a repeat is a new event.
_SERIES_INTERVAL_S = 30.0
_SERIES_IDLE_S = 360.0
# Trying again may change these; any other refusal is final.
_TRANSIENT = (UnreachableError, ServerError, TooManyRequestsError, ConflictError, UnauthorizedError)

_WRITTEN = Counter("tangram_events_written", "Events created, and series of events extended.")
_DROPPED = Counter("tangram_events_dropped", "Events given up.", ["cause"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReference:
    """The object an event is about; `namespace` is empty for cluster-scoped ones."""

    api_version: str
    kind: str
    name: str
    namespace: str
    uid: str

    def wire(self) -> dict[str, str]:
        """As `core/v1 ObjectReference`."""
        fields = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "namespace": self.namespace,
            "uid": self.uid,
        }
        return {key: value for key, value in fields.items() if value}


@dataclass(frozen=True, slots=True)
class _Fact:
    """What makes two events the same: all but the time. The note counts, for it cannot be changed later."""

    regarding: ObjectReference
    related: ObjectReference | None
    kind: EventKind
    reason: str
    action: str
    note: str


@dataclass(slots=True)
class _Record:
    """One Event object, written or not."""

    name: str
    first: datetime
    last: datetime
    last_s: float
    count: int = 1
    written: int = 0
    attempts: int = 0


class EventRecorder:
    """Records events. `emit` never waits and never raises; `run` writes, with back-off; `flush` ends it.

    A new event is written `delay_s` after it was emitted, so that the work it tells of goes first. Repeats of
    an event are counted in its `series`. At most 1,000 different events are remembered: beyond
    that, old ones are forgotten and, if none of them has been written, new ones dropped (and counted).
    """

    def __init__(
        self, client: Client, *, controller: str, instance: str, clock: Clock, delay_s: float = 0.0
    ) -> None:
        self._client = client
        self._delay_s = delay_s
        self._controller = controller
        self._instance = _cut(instance, _MAX_WORD_BYTES)
        self._clock = clock
        self._log = get_logger("events")
        self._records: OrderedDict[_Fact, _Record] = OrderedDict()
        self._queue: WorkQueue[_Fact] = WorkQueue(clock=clock, initial_retry_s=1.0)
        self._writing = asyncio.Lock()
        self._full = False

    def emit(
        self,
        regarding: ObjectReference,
        *,
        reason: str,
        note: str,
        action: str,
        kind: EventKind = "Normal",
        related: ObjectReference | None = None,
    ) -> None:
        """Queues an event. `reason` and `action` are CamelCase words; `note` is cut to 1,024 bytes."""
        fact = _Fact(
            regarding=regarding,
            related=related,
            kind=kind,
            reason=_cut(reason, _MAX_WORD_BYTES),
            action=_cut(action, _MAX_WORD_BYTES),
            note=_cut(note, _MAX_NOTE_BYTES),
        )
        now, now_s = self._clock.now(), self._clock.monotonic_s()
        record = self._records.get(fact)
        if record and record.written == record.count and now_s - record.last_s > _SERIES_IDLE_S:
            del self._records[fact]
            record = None
        if record:
            record.count += 1
            record.last, record.last_s = now, now_s
            self._records.move_to_end(fact)
            self._queue.add_after(fact, delay_s=_SERIES_INTERVAL_S)
        elif self._make_room():
            self._records[fact] = _Record(_name(regarding), first=now, last=now, last_s=now_s)
            self._queue.add_after(fact, delay_s=self._delay_s)
            self._full = False
        else:
            _DROPPED.labels("queue_full").inc()
            if not self._full:  # one line for a flood, not one per drop
                self._log.warning("event_queue_full", limit=_MAX_RECORDS)
            self._full = True

    async def run(self) -> None:
        """Writes what is emitted, until cancelled."""
        while True:
            fact = await self._queue.get()
            try:
                await self._write(fact)
            except TangramError as error:
                self._failed(fact, error)
            finally:
                self._queue.done(fact)

    async def flush(self, *, timeout_s: float) -> None:
        """Writes what is still pending, once, within `timeout_s`; the rest is lost. Raises nothing."""
        try:
            await within(self._flush(), seconds=timeout_s, clock=self._clock)
        except (TangramError, TimeoutError) as error:
            self._log.warning("events_not_flushed", error=str(error), pending=len(self._pending()))

    async def _flush(self) -> None:
        for fact in self._pending():
            await self._write(fact)

    def _pending(self) -> list[_Fact]:
        return [fact for fact, record in self._records.items() if record.written < record.count]

    async def _write(self, fact: _Fact) -> None:
        async with self._writing:
            record = self._records.get(fact)
            if record is None or record.written == record.count:
                return
            count = record.count
            try:
                if record.written:
                    await self._extend(fact, record)
                else:
                    await self._create(fact, record)
            except NotFoundError:
                if not record.written:
                    raise  # the namespace is gone
                record.written, record.name = 0, _name(fact.regarding)  # the old Event ran out (1 h)
                await self._create(fact, record)
            record.written, record.attempts = count, 0
            self._queue.forget(fact)
            _WRITTEN.inc()

    async def _create(self, fact: _Fact, record: _Record) -> None:
        body: dict[str, Any] = {
            "metadata": {"name": record.name, "namespace": _namespace(fact)},
            "eventTime": rfc3339_micro(record.first),
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "type": fact.kind,
            "reason": fact.reason,
            "action": fact.action,
            "note": fact.note,
            "regarding": fact.regarding.wire(),
        }
        if fact.related:
            body["related"] = fact.related.wire()
        if record.count > 1:
            body["series"] = _series(record)
        try:
            await self._client.create(EVENTS, body, namespace=_namespace(fact))
        except AlreadyExistsError:
            # Ours: the answer to an earlier attempt was lost. What was counted since is still to be told.
            if record.count > 1:
                await self._extend(fact, record)

    async def _extend(self, fact: _Fact, record: _Record) -> None:
        await self._client.patch(
            EVENTS, {"series": _series(record)}, name=record.name, namespace=_namespace(fact)
        )

    def _failed(self, fact: _Fact, error: TangramError) -> None:
        record = self._records.get(fact)
        if record is None:
            return
        record.attempts += 1
        final = not isinstance(error, _TRANSIENT)
        if final or record.attempts >= _MAX_ATTEMPTS:
            del self._records[fact]
            self._queue.forget(fact)
            _DROPPED.labels("refused" if final else "unreachable").inc()
            self._log.warning(
                "event_dropped", regarding=fact.regarding.name, reason=fact.reason, error=str(error)
            )
        elif isinstance(error, ApiError) and error.retry_after_s:
            self._queue.add_after(fact, delay_s=error.retry_after_s)
        else:
            self._queue.retry(fact)

    def _make_room(self) -> bool:
        if len(self._records) < _MAX_RECORDS:
            return True
        oldest = next(
            (fact for fact, record in self._records.items() if record.written == record.count), None
        )
        if oldest is None:
            return False
        del self._records[oldest]
        return True


def _series(record: _Record) -> dict[str, Any]:
    return {"count": record.count, "lastObservedTime": rfc3339_micro(record.last)}


def _namespace(fact: _Fact) -> str:
    # Events of cluster-scoped objects live in `default`: the API server's rule.
    return fact.regarding.namespace or "default"


def _name(regarding: ObjectReference) -> str:
    """A unique DNS subdomain that begins with the object's name, so that `kubectl get events` sorts well."""
    return f"{regarding.name[:230].rstrip('-.') or 'event'}.{uuid.uuid4().hex[:16]}"


def _cut(text: str, limit_bytes: int) -> str:
    data = text.encode(errors="replace")
    if len(data) <= limit_bytes:
        return data.decode()
    return data[: limit_bytes - 3].decode(errors="ignore") + "…"
