"""HTTP in front of the registry: requests in, objects, lists, streams and Status answers out."""

import asyncio
import base64
import collections
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from tangram.base.clock import Clock
from tangram.base.errors import ApiError, ServerError
from tangram.kube.decoding import ObjectKey
from tangram.kube.resources import EVENTS, PODS, Resource
from tangram.testing.apiserver import coreevents, openapi, patches, routes, tables
from tangram.testing.apiserver.answers import bad_request, expired, no_such_path, status_object
from tangram.testing.apiserver.catalog import Version
from tangram.testing.apiserver.faults import Fault, Faults
from tangram.testing.apiserver.registry import Mutation, Registry
from tangram.testing.apiserver.selectors import selector
from tangram.testing.apiserver.store import Object, Store
from tangram.testing.apiserver.watches import Watch, Watches

_MAX_SNAPSHOTS = 100
_MAX_REQUESTS_LOGGED = 100_000
_DEFAULT_WATCH_S = 1800.0
PodLogs = Callable[[ObjectKey, Mapping[str, str]], AsyncIterator[bytes]]
"""What a pod has written, by the pod and the query (`container`, `follow`)."""

_HEALTH = frozenset({"/healthz", "/livez", "/readyz"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """A request as it arrived. `verb` is that of RBAC: get, list, watch, create, update, patch, delete."""

    method: str
    path: str
    verb: str
    resource: Resource
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


class Handler:
    """Answers every request of a server."""

    def __init__(
        self,
        *,
        store: Store,
        registry: Registry,
        watches: Watches,
        faults: Faults,
        version: Version,
        clock: Clock,
    ) -> None:
        self._store = store
        self._registry = registry
        self._watches = watches
        self._faults = faults
        self._version = version
        self._clock = clock
        self.pod_logs: PodLogs | None = None
        self._snapshots: dict[str, tuple[str, list[Object]]] = {}
        self.requests: collections.deque[LoggedRequest] = collections.deque(maxlen=_MAX_REQUESTS_LOGGED)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """The aiohttp handler."""
        if request.path in _HEALTH:
            return web.Response(text="ok")
        if (found := routes.discover(request.path, self._version)) is not None:
            return web.json_response(found)
        if (found := openapi.document(request.path)) is not None:
            return web.json_response(found)
        try:
            if (namespace := coreevents.parse(request.path)) is not None and request.method == "GET":
                return web.json_response(self._core_events(namespace, request.query))
            route = routes.parse(request.path)
            if route is None:
                raise no_such_path()
            return await self._serve(request, route)
        except ApiError as error:
            return _refusal(error)

    def expire_continue_tokens(self) -> None:
        """The next page of every running list is answered 410."""
        self._snapshots.clear()

    async def _serve(self, request: web.Request, route: routes.Route) -> web.StreamResponse:
        verb = _verb(request, route)
        body = await _body(request)
        self.requests.append(
            LoggedRequest(
                method=request.method,
                path=request.path,
                verb=verb,
                resource=route.resource,
                namespace=route.namespace,
                name=route.name,
                subresource=route.subresource,
                query=dict(request.query),
                headers={name.lower(): value for name, value in request.headers.items()},
                body=body,
            )
        )
        self._store.wake()
        fault = self._faults.take(
            verb=verb, resource=route.resource, subresource=route.subresource, name=route.name
        )
        if fault is not None and fault.stall:
            await fault.released.wait()
            fault = None
        if fault is None:
            return await self._execute(request, route, verb, body)
        return await self._fail(fault, request, route, verb, body)

    async def _fail(
        self, fault: Fault, request: web.Request, route: routes.Route, verb: str, body: Any
    ) -> web.StreamResponse:
        if fault.executed:
            await self._execute(request, route, verb, body)
        if fault.error is not None:
            raise fault.error
        if request.transport is not None:
            request.transport.abort()
        raise asyncio.CancelledError

    async def _execute(
        self, request: web.Request, route: routes.Route, verb: str, body: Any
    ) -> web.StreamResponse:
        if verb == "watch":
            return await self._watch(request, route)
        as_table = _as_table(request, route)
        if verb == "list":
            found = self._list(route, request.query)
            return _answer(self._table(route, found["items"]) if as_table else found)
        if route.resource == PODS and route.subresource == "log" and self.pod_logs is not None:
            return await self._log(request, self.pod_logs(route.key, request.query))
        if verb == "get":
            obj = self._registry.get(route.resource, route.key)
            return _answer(self._table(route, [obj]) if as_table else obj)
        if verb == "create":
            if route.name:
                raise no_such_path()
            created = self._registry.create(route.resource, _object(body), namespace=route.namespace)
            return _answer(created, status=201)
        if verb == "delete":
            return self._delete(route, request.query, body or {})
        mutation = _mutation(request, body)
        updated = self._registry.update(route.resource, route.key, mutation, subresource=route.subresource)
        return _answer(updated)

    def _delete(self, route: routes.Route, query: Mapping[str, str], body: Any) -> web.Response:
        if not route.name:
            raise ApiError("deletecollection is not served", status=405, reason="MethodNotAllowed")
        preconditions = body.get("preconditions") or {}
        grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        policy = body.get("propagationPolicy", query.get("propagationPolicy"))
        last = self._registry.delete(
            route.resource,
            route.key,
            uid=preconditions.get("uid") or "",
            resource_version=preconditions.get("resourceVersion") or "",
            grace_s=None if grace is None else int(grace),
            collect=policy != "Orphan",
        )
        return _answer(last)

    def _list(self, route: routes.Route, query: Mapping[str, str]) -> Object:
        limit = int(query.get("limit") or 0)
        token = query.get("continue")
        if token:
            version, items, start = self._continued(token)
        else:
            _check_version(query.get("resourceVersion"), self._store)
            version, items, start = str(self._store.version), self._select(route, query), 0
        metadata: Object = {"resourceVersion": version}
        end = len(items)
        if limit and start + limit < len(items):
            end = start + limit
            metadata["continue"] = self._continue(version, items, end)
            metadata["remainingItemCount"] = len(items) - end
        # Items of a typed list carry no kind and apiVersion of their own.
        shown = [
            {key: value for key, value in obj.items() if key not in {"kind", "apiVersion"}}
            for obj in items[start:end]
        ]
        resource = route.resource
        return {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": metadata,
            "items": shown,
        }

    def _table(self, route: routes.Route, objects: list[Object]) -> Object:
        version = str(self._store.version)
        return tables.table(route.resource, objects, version=version, now=self._clock.now())

    def _core_events(self, namespace: str, query: Mapping[str, str]) -> Object:
        """Events as core/v1 has them, which is what kubectl asks for."""
        events = [coreevents.view(event) for event in self._store.objects(EVENTS)]
        selects = _selector(query)
        items = [
            event
            for event in events
            if (not namespace or event["metadata"]["namespace"] == namespace) and selects(event)
        ]
        version = {"resourceVersion": str(self._store.version)}
        return {"kind": "EventList", "apiVersion": "v1", "metadata": version, "items": items}

    async def _log(self, request: web.Request, chunks: AsyncIterator[bytes]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/plain"})
        await response.prepare(request)
        async for chunk in chunks:
            await response.write(chunk)
        return response

    def _select(self, route: routes.Route, query: Mapping[str, str]) -> list[Object]:
        selects = _selector(query)
        return [
            obj
            for obj in self._store.objects(route.resource)
            if (not route.namespace or obj["metadata"].get("namespace") == route.namespace) and selects(obj)
        ]

    def _continue(self, version: str, items: list[Object], start: int) -> str:
        snapshot = f"{version}-{id(items)}"
        self._snapshots[snapshot] = (version, items)
        while len(self._snapshots) > _MAX_SNAPSHOTS:
            del self._snapshots[next(iter(self._snapshots))]
        return base64.b64encode(json.dumps({"snapshot": snapshot, "start": start}).encode()).decode()

    def _continued(self, token: str) -> tuple[str, list[Object], int]:
        try:
            parsed = json.loads(base64.b64decode(token))
            snapshot, start = parsed["snapshot"], int(parsed["start"])
        except (ValueError, KeyError, TypeError) as error:
            raise bad_request("continue key is not valid") from error
        if snapshot not in self._snapshots:
            raise expired("The provided continue parameter is too old to display a consistent list result.")
        version, items = self._snapshots[snapshot]
        return version, items, start

    async def _watch(self, request: web.Request, route: routes.Route) -> web.StreamResponse:
        query = request.query
        version = _check_version(query.get("resourceVersion"), self._store)
        initial = None
        if not version or query.get("sendInitialEvents") == "true":
            initial, version = self._select(route, query), self._store.version
        self._store.since(route.resource, version)  # 410 as the HTTP status
        watch = Watch(
            resource=route.resource,
            namespace=route.namespace,
            selects=_selector(query),
            version=version,
            bookmarks=query.get("allowWatchBookmarks") == "true",
        )
        if _as_table(request, route):
            watch.shown = lambda obj: self._table(route, [obj])
        timeout_s = float(query.get("timeoutSeconds") or _DEFAULT_WATCH_S)
        return await self._watches.serve(request, watch, initial=initial, timeout_s=timeout_s)


def _as_table(request: web.Request, route: routes.Route) -> bool:
    return tables.wanted(request.headers.get("accept", "")) and tables.known(route.resource)


def _verb(request: web.Request, route: routes.Route) -> str:
    if request.method == "GET":
        if request.query.get("watch") in {"true", "1"} and not route.name:
            return "watch"
        return "get" if route.name else "list"
    verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    if request.method not in verbs:
        raise ApiError(f"{request.method} is not served", status=405, reason="MethodNotAllowed")
    return verbs[request.method]


async def _body(request: web.Request) -> Any:
    data = await request.read()
    if not data:
        return None
    if not request.content_type.endswith(("json", "octet-stream")):
        raise ApiError(f"{request.content_type} is not served", status=415, reason="UnsupportedMediaType")
    try:
        return json.loads(data)
    except ValueError as error:
        raise bad_request(f"the body is not JSON: {error}") from error


def _object(body: Any) -> Mapping[str, Any]:
    if not isinstance(body, dict):
        raise bad_request("the body is not an object")
    return body


def _mutation(request: web.Request, body: Any) -> Mutation:
    if request.method == "PUT":
        replacement = _object(body)
        return lambda _old: dict(replacement)
    return mutation_of(body, content_type=request.content_type)


def mutation_of(patch: Any, *, content_type: str) -> Mutation:
    """The change a patch makes, by its media type; 415 for server-side apply, which is not served."""
    if content_type == "application/json-patch+json":
        if not isinstance(patch, list):
            raise bad_request("a JSON patch is a list of operations")
        return lambda old: patches.json_patch(old, patch)
    if content_type == "application/merge-patch+json":
        return lambda old: patches.merge_patch(old, _object(patch))
    if content_type == "application/strategic-merge-patch+json":
        return lambda old: patches.strategic_patch(old, _object(patch))
    raise ApiError(f"{content_type} is not served", status=415, reason="UnsupportedMediaType")


def _selector(query: Mapping[str, str]) -> Any:
    return selector(labels=query.get("labelSelector", ""), fields=query.get("fieldSelector", ""))


def _check_version(text: str | None, store: Store) -> int:
    if text and not text.isdigit():
        raise bad_request(f"invalid resource version {text!r}")
    version = int(text or 0)
    if version > store.version:
        raise ServerError(
            f"Too large resource version: {version}, current: {store.version}", status=504, reason="Timeout"
        )
    return version


def _answer(obj: Object, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(obj), status=status, content_type="application/json")


def _refusal(error: ApiError) -> web.Response:
    headers = {} if error.retry_after_s is None else {"retry-after": str(int(error.retry_after_s))}
    return web.json_response(status_object(error), status=error.status, headers=headers)
