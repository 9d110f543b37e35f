"""A local copy of one collection of the API, kept current by list and watch."""

import asyncio
import contextlib
import random
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import msgspec
from prometheus_client import Counter, Gauge

from tangram.base.backoff import Backoff
from tangram.base.clock import Clock
from tangram.base.errors import ApiError, ExpiredError, InvalidObjectError, KubeError, TangramError
from tangram.base.logs import get_logger
from tangram.kube.client import Client
from tangram.kube.decoding import Identity, ObjectKey, decode, identify
from tangram.kube.resources import Resource
from tangram.kube.status import stream_error

T = TypeVar("T")

# Below this, a watch that ended counts as failed: a server that closes every watch at once must not be asked
# thousands of times a second.
_HEALTHY_WATCH_S = 5.0

_OBJECTS = Gauge("tangram_reflector_objects", "Objects in the local copy.", ["resource"])
_LISTS = Counter("tangram_reflector_lists", "Complete lists of a collection.", ["resource"])
_INTERRUPTIONS = Counter(
    "tangram_reflector_interruptions", "Lists and watches that failed, by error.", ["resource", "error"]
)
_UNDECODABLE = Counter(
    "tangram_reflector_undecodable_objects", "Objects left out as malformed.", ["resource"]
)


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """What happened to one object: appeared (`old` None), changed, or vanished (`new` None)."""

    key: ObjectKey
    old: T | None
    new: T | None


@dataclass(frozen=True, slots=True)
class _Version:
    uid: str
    resource_version: str


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel", gc=False):
    resource_version: str
    continue_token: str | None = msgspec.field(default=None, name="continue")


class _Page(msgspec.Struct, frozen=True, gc=False):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct, frozen=True, gc=False):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


class _Bookmark(msgspec.Struct, frozen=True, gc=False):
    class Metadata(msgspec.Struct, frozen=True, rename="camel", gc=False):
        resource_version: str

    metadata: Metadata


class Reflector(Generic[T]):
    """Keeps `store` equal to what the server has, and tells `on_change` every difference, in order.

    The list is a quorum read (resourceVersion unset), so a reflector started after winning an election knows
    everything its predecessor wrote. A watch that is cut resumes where it was; one that is too old (410, as
    the HTTP status or inside the stream) is followed by a list that is compared with the store, so that no
    delete is missed. Failures back off with jitter, for ever.

    An object that `decode` refuses (TangramError) is left out, logged and counted; if an older version of it
    is in the store, that stays. An exception of `on_change` is logged; the change stands. `decode` must
    return what does not refer to its input, so that pages and events are freed. `synced` is set by the first
    list.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        decode: Callable[[msgspec.Raw], T],
        *,
        clock: Clock,
        on_change: Callable[[Change[T]], None] = lambda _change: None,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
    ) -> None:
        self._client = client
        self._resource = resource
        self._decode = decode
        self._clock = clock
        self._on_change = on_change
        self._namespace = namespace
        self._field_selector = field_selector
        self._label_selector = label_selector
        self._log = get_logger("reflector", resource=resource.plural)
        self._objects: dict[ObjectKey, T] = {}
        self._versions: dict[ObjectKey, _Version] = {}
        self._resource_version = ""  # where the watch resumes; empty: list first
        self._page_limit = 500
        self.synced = asyncio.Event()

    @property
    def store(self) -> Mapping[ObjectKey, T]:
        """A live, read-only view."""
        return types.MappingProxyType(self._objects)

    async def run(self) -> None:
        """Lists and watches until cancelled."""
        backoff = Backoff()
        while True:
            error: TangramError | None = None
            watching_since_s: float | None = None
            try:
                if not self._resource_version:
                    await self._list()
                watching_since_s = self._clock.monotonic_s()
                await self._watch()
            except (KubeError, InvalidObjectError) as caught:
                error = caught
                self._note_interruption(caught)
            lasted = (
                watching_since_s is not None
                and self._clock.monotonic_s() - watching_since_s >= _HEALTHY_WATCH_S
            )
            if lasted:
                backoff.reset()
            # A watch that ran its time is simply renewed. All else waits, for thousands of clients lose the
            # same server at the same moment.
            if error or not lasted:
                await self._clock.sleep(max(backoff.next_s(), _retry_after_s(error)))

    def _note_interruption(self, error: TangramError) -> None:
        # Too old, or the stream holds what cannot be read: only a list leads past it.
        if isinstance(error, ExpiredError | InvalidObjectError):
            if isinstance(error, ExpiredError) and not self._resource_version:
                self._page_limit = 0  # the list itself expired between two pages: in one piece, then
            self._resource_version = ""
        _INTERRUPTIONS.labels(self._resource.plural, type(error).__name__).inc()
        self._log.warning("reflector_interrupted", error=str(error), kind=type(error).__name__)

    async def _list(self) -> None:
        seen: set[ObjectKey] = set()
        continue_token = ""
        while True:
            page = decode(
                await self._client.list_page(
                    self._resource,
                    namespace=self._namespace,
                    limit=self._page_limit,
                    continue_token=continue_token,
                    field_selector=self._field_selector,
                    label_selector=self._label_selector,
                ),
                _Page,
            )
            for raw in page.items or ():
                if identity := self._identify(raw):
                    seen.add(identity.metadata.key)
                    self._upsert(identity, raw)
            # A long page must not hold up leases and gRPC.
            await asyncio.sleep(0)
            continue_token = page.metadata.continue_token or ""
            if not continue_token:
                break
        for key in self._objects.keys() - seen:
            self._remove(key)
        if not page.metadata.resource_version:
            raise InvalidObjectError(
                "is empty", object_name=f"list of {self._resource.plural}", field="metadata.resourceVersion"
            )
        self._resource_version = page.metadata.resource_version
        self._page_limit = 500
        _LISTS.labels(self._resource.plural).inc()
        self._count()
        if not self.synced.is_set():
            self._log.info("reflector_synced", objects=len(self._objects))
            self.synced.set()

    async def _watch(self) -> None:
        # Spread, so that watches opened together do not end together.
        timeout_s = random.randint(240, 360)  # noqa: S311 - not for secrets
        events = self._client.watch(
            self._resource,
            resource_version=self._resource_version,
            namespace=self._namespace,
            field_selector=self._field_selector,
            label_selector=self._label_selector,
            timeout_s=timeout_s,
        )
        async with contextlib.aclosing(events):
            async for line in events:
                self._apply(decode(line, _Event))

    def _apply(self, event: _Event) -> None:
        if event.type == "ERROR":
            raise stream_error(event.object, request=f"watch of {self._resource.plural}")
        if event.type == "BOOKMARK":
            self._resource_version = decode(event.object, _Bookmark).metadata.resource_version
            return
        if identity := self._identify(event.object):
            if event.type == "DELETED":
                self._remove(identity.metadata.key)
            else:
                self._upsert(identity, event.object)
            self._resource_version = identity.metadata.resource_version or self._resource_version
            self._count()

    def _upsert(self, identity: Identity, raw: msgspec.Raw) -> None:
        key = identity.metadata.key
        version = _Version(identity.metadata.uid, identity.metadata.resource_version)
        known = self._versions.get(key)
        if known == version:
            return  # listed again, unchanged
        if known and known.uid != version.uid:
            self._remove(key)  # deleted and made anew while nobody watched
        try:
            new = self._decode(raw)
        except TangramError as error:
            self._skip(error)
            return
        old = self._objects.get(key)
        self._objects[key] = new
        self._versions[key] = version
        self._tell(Change(key, old, new))

    def _remove(self, key: ObjectKey) -> None:
        self._versions.pop(key, None)
        if key in self._objects:
            self._tell(Change(key, self._objects.pop(key), None))

    def _tell(self, change: Change[T]) -> None:
        try:
            self._on_change(change)
        except Exception:  # noqa: BLE001
            # The store is right whatever the handler makes of it; the next change must still arrive.
            self._log.exception("change_handler_failed", object=str(change.key))

    def _identify(self, raw: msgspec.Raw) -> Identity | None:
        try:
            return identify(raw)
        except InvalidObjectError as error:
            self._skip(error)
            return None

    def _skip(self, error: TangramError) -> None:
        _UNDECODABLE.labels(self._resource.plural).inc()
        self._log.error("undecodable_object_skipped", error=str(error))

    def _count(self) -> None:
        _OBJECTS.labels(self._resource.plural).set(len(self._objects))


def _retry_after_s(error: TangramError | None) -> float:
    return (error.retry_after_s or 0.0) if isinstance(error, ApiError) else 0.0
