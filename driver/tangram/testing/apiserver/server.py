"""A Kubernetes API server in one event loop, over loopback HTTP."""

import asyncio
import copy
import dataclasses
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from aiohttp import web

from tangram.base.clock import Clock, SystemClock
from tangram.kube.client import PatchKind
from tangram.kube.decoding import ObjectKey
from tangram.kube.resources import PODS, Resource
from tangram.testing.apiserver.catalog import DEFAULT_VERSION, NAMESPACES, VERSIONS
from tangram.testing.apiserver.faults import Faults
from tangram.testing.apiserver.http import Handler, LoggedRequest, PodLogs
from tangram.testing.apiserver.mutations import JSON, MERGE, STRATEGIC, mutation_of
from tangram.testing.apiserver.options import DeleteOptions
from tangram.testing.apiserver.registry import Registry
from tangram.testing.apiserver.store import Object, Store
from tangram.testing.apiserver.watches import Watches

_NAMESPACES = ("default", "kube-system", "tangram-system")
_CONTENT_TYPES: Mapping[PatchKind, str] = {
    "merge": MERGE,
    "json": JSON,
    "strategic": STRATEGIC,
}
_MAX_BODY_BYTES = 3 * 2**20


class FakeApiServer:
    """Serves the resources of `catalog.RESOURCES` as a real API server does, as far as Tangram can notice.

    Real: resourceVersions, preconditions, refusals with their causes, paging, watches with bookmarks,
    selectors, subresources, patches and server-side apply, finalizers, owner references, the types and rules
    of all that it serves, fields dropped by feature gates (`version`, or `features` instead of its
    defaults). Not there: authentication, most of admission, other controllers. What it answers is compared
    with a recording of a real one (tests/conformance).

    `async with FakeApiServer() as server`: then `server.url`, or `Client.connect(kubeconfig=
    server.kubeconfig(path), …)`. The direct methods (`create`, `patch` …) go the way of a request, without
    HTTP and faults; what they return is the caller's own.
    """

    def __init__(
        self,
        *,
        version: str = DEFAULT_VERSION,
        features: Collection[str] | None = None,
        clock: Clock | None = None,
        history_limit: int = 10_000,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        release = VERSIONS[version]
        if features is not None:
            release = dataclasses.replace(release, features=frozenset(features))
        clock = clock or SystemClock()
        self._store = Store(history_limit=history_limit)
        self._registry = Registry(self._store, clock=clock, version=release)
        self.watches = Watches(self._store, clock=clock)
        self.faults = Faults()
        self._handler = Handler(
            store=self._store,
            registry=self._registry,
            watches=self.watches,
            faults=self.faults,
            version=release,
            clock=clock,
        )
        self._ssl_context = ssl_context
        self._runner: web.AppRunner | None = None
        self._port = 0
        for namespace in _NAMESPACES:
            self.create(NAMESPACES, {"metadata": {"name": namespace}})

    async def __aenter__(self) -> Self:
        await self.resume()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.pause()

    @property
    def url(self) -> str:
        """E.g. `http://127.0.0.1:34567`; https with an `ssl_context`."""
        return f"{'https' if self._ssl_context else 'http'}://127.0.0.1:{self._port}"

    def kubeconfig(self, path: Path) -> str:
        """Writes a kubeconfig for this server to `path`; returns the path for `Client.connect`."""
        entry = {"cluster": "fake", "user": "fake"}
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
                    "users": [{"name": "fake", "user": {"token": "fake-token"}}],
                    "contexts": [{"name": "fake", "context": entry}],
                    "current-context": "fake",
                }
            )
        )
        return str(path)

    # --- life ----------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Running connections are reset and new ones refused, until `resume`. Objects stay."""
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        for site in list(runner.sites):
            await site.stop()
        for connection in list(runner.server.connections) if runner.server else []:
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()

    async def resume(self) -> None:
        """Listens again, on the same port."""
        if self._runner is not None:
            return
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handler.handle)
        # Cancellation: a watch ends when its client leaves, not at the next event.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self._port, ssl_context=self._ssl_context)
        await site.start()
        self._port = runner.addresses[0][1]
        self._runner = runner

    def serve_logs(self, reader: PodLogs) -> None:
        """Answers `GET …/pods/<name>/log` with what `reader` yields for (pod, query); 404 until then."""
        self._handler.pod_logs = reader

    # --- direct access -------------------------------------------------------------------------------------

    def create(self, resource: Resource, obj: Mapping[str, Any]) -> Object:
        """Creates `obj`, its namespace if that is missing, and then its status if `obj` has one. A pod
        without containers gets one."""
        metadata = obj.get("metadata") or {}
        spec = obj.get("spec") or {}
        if resource == PODS and not spec.get("containers"):
            obj = {**obj, "spec": {**spec, "containers": [{"name": "main", "image": "none"}]}}
        namespace = (metadata.get("namespace") or "default") if resource.namespaced else ""
        if namespace and self._store.get(NAMESPACES, ObjectKey("", namespace)) is None:
            self.create(NAMESPACES, {"metadata": {"name": namespace}})
        created = self._registry.create(resource, obj, namespace=namespace)
        status = obj.get("status")
        if status and status != created.get("status"):
            return self.patch(
                resource,
                {"status": status},
                name=created["metadata"]["name"],
                namespace=namespace,
                subresource="status",
            )
        return copy.deepcopy(created)

    def put_as_is(self, resource: Resource, obj: Object) -> Object:
        """Stores what no API server would accept: for tests of what reads it. Needs its whole metadata."""
        return copy.deepcopy(self._store.put(resource, copy.deepcopy(obj)))

    def bind(self, *, name: str, namespace: str, node: str) -> None:
        """As a scheduler binds a pod."""
        self._registry.bind(ObjectKey(namespace, name), node=node)

    def get(self, resource: Resource, *, name: str, namespace: str = "") -> Object:
        """One object; NotFoundError."""
        return copy.deepcopy(self._registry.get(resource, ObjectKey(namespace, name)))

    def objects(self, resource: Resource) -> list[Object]:
        """All of a resource, by namespace and name."""
        return copy.deepcopy(self._store.objects(resource))

    def patch(
        self,
        resource: Resource,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        name: str,
        namespace: str = "",
        subresource: str = "",
        kind: PatchKind = "merge",
    ) -> Object:
        """As a PATCH request."""
        mutation = mutation_of(patch, _CONTENT_TYPES[kind], kind=resource.kind)
        return copy.deepcopy(
            self._registry.update(resource, ObjectKey(namespace, name), mutation, subresource=subresource)
        )

    def delete(self, resource: Resource, *, name: str, namespace: str = "", grace_s: int = 0) -> None:
        """As a DELETE request; `grace_s` matters for pods bound to a node."""
        self._registry.delete(resource, ObjectKey(namespace, name), DeleteOptions(grace_s=grace_s))

    # --- what tests do and see -----------------------------------------------------------------------------

    @property
    def resource_version(self) -> int:
        """Of the last write."""
        return self._store.version

    @property
    def requests(self) -> Sequence[LoggedRequest]:
        """All requests for objects so far, in the order of their arrival, faulty ones included."""
        return self._handler.requests

    def compact(self) -> None:
        """Forgets the history: a watch from an older version is answered 410, running ones that are behind
        get it inside the stream, and lists cannot be continued."""
        self._store.compact()
        self._handler.expire_continue_tokens()

    def end_watches(self, resource: Resource | None = None) -> int:
        """Ends running watches as at their timeout; how many."""
        return self.watches.direct("end", resource)

    def cut_watches(self, resource: Resource | None = None) -> int:
        """Resets the connections of running watches; how many."""
        return self.watches.direct("cut", resource)

    def bookmark_watches(self, resource: Resource | None = None) -> int:
        """Sends a bookmark to running watches; how many."""
        return self.watches.direct("bookmark", resource)

    def send_to_watches(self, data: bytes, resource: Resource | None = None) -> int:
        """Sends bytes as they are to running watches, e.g. half a line; how many."""
        return self.watches.direct(data, resource)

    async def changes(self) -> AsyncIterator[None]:
        """Yields once at the start and then after writes and requests; many at once may yield only once."""
        changed = asyncio.Event()
        self._store.listen(changed)
        try:
            while True:
                changed.clear()
                yield
                await changed.wait()
        finally:
            self._store.unlisten(changed)

    async def until(self, predicate: Callable[[], Any], *, timeout_s: float = 10.0) -> None:
        """Waits until `predicate` holds, asked again after every request, write and change of watches.

        TimeoutError after `timeout_s` of real time.
        """
        changed = asyncio.Event()
        self._store.listen(changed)
        try:
            async with asyncio.timeout(timeout_s):
                while not predicate():
                    changed.clear()
                    await changed.wait()
        finally:
            self._store.unlisten(changed)
