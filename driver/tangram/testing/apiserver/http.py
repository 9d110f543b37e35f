"""HTTP in front of the registry: requests in, objects, lists, streams and Status answers out."""

import asyncio
import collections
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from tangram.base.clock import Clock
from tangram.base.errors import ApiError
from tangram.kube.decoding import ObjectKey
from tangram.kube.resources import EVENTS, PODS, Resource
from tangram.testing.apiserver import coreevents, objects, openapi, routes, scaling, tables
from tangram.testing.apiserver.answers import (
    bad_request,
    deleted,
    internal,
    no_such_path,
    not_allowed,
    status_object,
)
from tangram.testing.apiserver.catalog import RETURNS_DELETED, Version
from tangram.testing.apiserver.faults import Fault, Faults
from tangram.testing.apiserver.lists import Lists, as_list, check_version
from tangram.testing.apiserver.mutations import APPLY, mutation_of
from tangram.testing.apiserver.options import WriteOptions, delete_options, list_options, write_options
from tangram.testing.apiserver.registry import Registry
from tangram.testing.apiserver.store import Object, Store
from tangram.testing.apiserver.watches import Watch, Watches

_MAX_REQUESTS_LOGGED = 100_000
_DEFAULT_WATCH_S = 1800.0
PodLogs = Callable[[ObjectKey, Mapping[str, str]], AsyncIterator[bytes]]
"""What a pod has written, by the pod and the query (`container`, `follow`)."""

_HEALTH = frozenset({"/healthz", "/livez", "/readyz"})
_OPTIONS_KINDS = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """A request as it arrived. `verb` is that of RBAC: get, list, watch, create, update, patch, delete,
    deletecollection."""

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
        self._lists = Lists(store, version=version)
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
            if (event := coreevents.parse(request.path)) is not None and request.method == "GET":
                return web.json_response(self._core_events(event, request.query))
            route = routes.parse(request.path)
            if route is None and not routes.is_served(request.path):
                return web.Response(text="404 page not found\n", status=404)
            if route is None:
                raise no_such_path()
            return await self._serve(request, route)
        except ApiError as error:
            return _refusal(error)

    def expire_continue_tokens(self) -> None:
        """The next page of every running list is answered 410."""
        self._lists.expire()

    async def _serve(self, request: web.Request, route: routes.Route) -> web.StreamResponse:
        verb = _verb(request, route)
        duplicates: list[str] = []
        data = await request.read()
        body = (
            objects.parse(data, content_type=request.content_type, duplicates=duplicates)
            if data or verb in {"create", "update", "patch"}
            else None
        )
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
        if fault is not None and not fault.executed:
            if not fault.stall:
                return self._fail(fault, request)
            await fault.released.wait()
        response = await self._execute(request, route, verb, body, duplicates)
        if fault is not None and fault.executed:
            if not fault.stall:
                return self._fail(fault, request)
            await fault.released.wait()
        return response

    def _fail(self, fault: Fault, request: web.Request) -> web.StreamResponse:
        if fault.error is not None:
            raise fault.error
        if request.transport is not None:
            request.transport.abort()
        raise asyncio.CancelledError

    async def _execute(
        self, request: web.Request, route: routes.Route, verb: str, body: Any, duplicates: list[str]
    ) -> web.StreamResponse:
        if verb == "watch":
            return await self._watch(request, route)
        if verb in {"list", "get"}:
            return await self._read(request, route, verb)
        if verb == "delete":
            return self._delete(route, request.query, body)
        if verb == "deletecollection":
            return self._delete_collection(route, request.query, body)
        told: list[str] = []
        applies = verb == "patch" and request.content_type == APPLY
        options = write_options(
            request.query,
            kind="ApplyOptions" if applies else _OPTIONS_KINDS[verb],
            user_agent=request.headers.get("user-agent", ""),
            warn=told.append,
        )
        if verb == "create":
            return _answer(self._create(route, body, options, duplicates), status=201, warnings=told)
        if route.subresource == "scale":
            obj, created = self._scale(request, route, body, options), False
        elif verb == "update":
            obj, created = self._registry.replace(
                route.resource,
                route.key,
                body,
                subresource=route.subresource,
                options=options,
                duplicates=duplicates,
            )
        else:
            obj, created = self._patch(request.content_type, route, body, options)
        return _answer(obj, status=201 if created else 200, warnings=told)

    def _create(self, route: routes.Route, body: Any, options: WriteOptions, duplicates: list[str]) -> Object:
        if route.resource == PODS and route.subresource == "binding":
            target = body.get("target") if isinstance(body, dict) else None
            self._registry.bind(route.key, node=str((target or {}).get("name") or ""))
            return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        return self._registry.create(
            route.resource, body, namespace=route.namespace, options=options, duplicates=duplicates
        )

    def _patch(
        self, content_type: str, route: routes.Route, body: Any, options: WriteOptions
    ) -> tuple[Object, bool]:
        resource, key, subresource = route.resource, route.key, route.subresource
        if content_type == APPLY:
            return self._registry.apply(resource, key, body, subresource=subresource, options=options)
        mutation = mutation_of(body, content_type, kind=resource.kind)
        updated = self._registry.update(resource, key, mutation, subresource=subresource, options=options)
        return updated, False

    def _scale(self, request: web.Request, route: routes.Route, body: Any, options: WriteOptions) -> Object:
        def replacement(_old: Object) -> Any:
            return body

        patching = request.method == "PATCH"
        mutation = mutation_of(body, request.content_type, kind="Scale") if patching else replacement
        return scaling.change(self._registry, route.resource, route.key, mutation, options)

    async def _read(self, request: web.Request, route: routes.Route, verb: str) -> web.StreamResponse:
        form = tables.form(request.headers.get("accept", ""), route.resource)
        if verb == "list":
            return _answer(self._shown(form, route.resource, self._lists.page(route, request.query)))
        if route.resource == PODS and route.subresource == "log" and self.pod_logs is not None:
            return await self._log(request, self.pod_logs(route.key, request.query))
        version = request.query.get("resourceVersion") or "0"
        if not version.isdigit():
            raise internal(f'resourceVersion: Invalid value: "{version}": invalid syntax')
        if not routes.serves(route):
            raise no_such_path()
        obj = self._registry.get(route.resource, route.key)
        if route.subresource == "scale":
            return _answer(scaling.view(obj))
        return _answer(self._shown(form, route.resource, obj))

    def _shown(self, form: tables.Form, resource: Resource, found: Object) -> Object:
        """An object or list in the form that was asked for."""
        if form == "Table":
            listed = found.get("items") if "items" in found else [found]
            return tables.table(
                resource,
                listed or [],
                metadata=found["metadata"] if "items" in found else {},
                now=self._clock.now(),
            )
        return tables.partial(found) if form == "PartialObjectMetadata" else found

    def _delete(self, route: routes.Route, query: Mapping[str, str], body: Any) -> web.Response:
        options = delete_options(query, _delete_body(body))
        last, gone = self._registry.delete(route.resource, route.key, options)
        if gone and route.resource not in RETURNS_DELETED:
            return _answer(deleted(route.resource, name=route.name, uid=last["metadata"]["uid"]))
        return _answer(last)

    def _delete_collection(self, route: routes.Route, query: Mapping[str, str], body: Any) -> web.Response:
        options = delete_options(query, _delete_body(body))
        chosen = self._lists.select(route, self._lists.predicate(query, route.resource))
        metadata = {"resourceVersion": str(self._store.version)}
        for obj in chosen:
            key = ObjectKey(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
            self._registry.delete(route.resource, key, options)
        return _answer(as_list(route.resource, chosen, metadata))

    def _core_events(self, address: coreevents.Address, query: Mapping[str, str]) -> Object:
        """Events as core/v1 has them, which is what kubectl asks for."""
        namespace, name = address
        if name:
            return coreevents.view(self._registry.get(EVENTS, ObjectKey(namespace, name)))
        selects = self._lists.predicate(query, EVENTS)
        items = [
            coreevents.in_list(view)
            for view in (coreevents.view(event) for event in self._store.objects(EVENTS))
            if (not namespace or view["metadata"]["namespace"] == namespace) and selects(view)
        ]
        version = {"resourceVersion": str(self._store.version)}
        return {"kind": "EventList", "apiVersion": "v1", "metadata": version, "items": items}

    async def _log(self, request: web.Request, chunks: AsyncIterator[bytes]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/plain"})
        await response.prepare(request)
        async for chunk in chunks:
            await response.write(chunk)
        return response

    async def _watch(self, request: web.Request, route: routes.Route) -> web.StreamResponse:
        query = request.query
        if not (query.get("resourceVersion") or "0").isdigit():
            raise internal(f'resourceVersion: Invalid value: "{query["resourceVersion"]}": invalid syntax')
        options = list_options(query, watch=True)
        version = check_version(options.version, self._store)
        selects = self._lists.predicate(query, route.resource)
        initial = None
        if not version or options.initial_events:
            initial, version = self._lists.select(route, selects), self._store.version
        watch = Watch(
            resource=route.resource,
            namespace=route.namespace,
            selects=selects,
            version=version,
            bookmarks=options.bookmarks,
            initial_events=options.initial_events,
        )
        form = tables.form(request.headers.get("accept", ""), route.resource)
        if form != "Object":
            watch.shown = lambda obj: self._shown(form, route.resource, obj)
        timeout_s = float(query.get("timeoutSeconds") or _DEFAULT_WATCH_S)
        return await self._watches.serve(request, watch, initial=initial, timeout_s=timeout_s)


def _verb(request: web.Request, route: routes.Route) -> str:
    if request.method == "GET":
        if request.query.get("watch", "false") not in {"false", "0"} or route.watch:
            return "watch"
        return "get" if route.name else "list"
    if request.method == "DELETE" and not route.name and routes.deletes_collections(route):
        return "deletecollection"
    verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    verb = verbs.get(request.method, "")
    on_collection = not route.name
    if not verb or on_collection != (verb == "create" and route.subresource != "binding"):
        raise not_allowed()
    if not routes.serves(route):
        raise no_such_path()
    return verb


def _delete_body(body: Any) -> Mapping[str, Any]:
    """DeleteOptions; any other kind is refused."""
    if body is None:
        return {}
    if not isinstance(body, Mapping) or body.get("kind", "DeleteOptions") != "DeleteOptions":
        raise bad_request("the body of a deletion is no DeleteOptions")
    return body


def _answer(obj: Object, *, status: int = 200, warnings: list[str] | None = None) -> web.Response:
    response = web.Response(body=msgspec.json.encode(obj), status=status, content_type="application/json")
    for text in warnings or ():
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("warning", f'299 - "{escaped}"')
    return response


def _refusal(error: ApiError) -> web.Response:
    headers = {} if error.retry_after_s is None else {"retry-after": str(int(error.retry_after_s))}
    return web.json_response(status_object(error), status=error.status, headers=headers)
