"""Lists: selection, pages that are one snapshot, and the versions a client may ask for."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from tangram.base.errors import ServerError
from tangram.kube.resources import Resource
from tangram.testing.apiserver.answers import bad_request, expired
from tangram.testing.apiserver.catalog import Version
from tangram.testing.apiserver.options import list_options
from tangram.testing.apiserver.routes import Route
from tangram.testing.apiserver.selectors import Predicate, selector
from tangram.testing.apiserver.store import Object, Store

_MAX_SNAPSHOTS = 100


class Lists:
    """The lists of one store."""

    def __init__(self, store: Store, *, version: Version) -> None:
        self._store = store
        self._version = version
        self._snapshots: dict[str, tuple[str, list[Object]]] = {}

    def expire(self) -> None:
        """The next page of every running list is answered 410."""
        self._snapshots.clear()

    def page(self, route: Route, query: Mapping[str, str]) -> Object:
        """One page."""
        options = list_options(query, watch=False)
        selects = self.predicate(query, route.resource)
        if options.token:
            version, items, start = self._continued(options.token)
        else:
            at = check_version(options.version, self._store)
            if query.get("resourceVersionMatch") != "Exact":
                at = self._store.version
            version, items, start = str(at), self._select(route, selects, at), 0
        metadata: Object = {"resourceVersion": version}
        end = len(items)
        if options.limit and start + options.limit < len(items):
            end = start + options.limit
            metadata["continue"] = self._continue(version, items, end)
            # Of a selection a real server does not know how many are left.
            if not query.get("labelSelector") and not query.get("fieldSelector"):
                metadata["remainingItemCount"] = len(items) - end
        return as_list(route.resource, items[start:end], metadata)

    def predicate(self, query: Mapping[str, str], resource: Resource) -> Predicate:
        """The selectors of a query."""
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        return selector(labels=labels, fields=fields, resource=resource, version=self._version)

    def select(self, route: Route, selects: Predicate) -> list[Object]:
        """What a route's collection holds, by namespace and name."""
        return self._select(route, selects, self._store.version)

    def _select(self, route: Route, selects: Predicate, version: int) -> list[Object]:
        return [
            obj
            for obj in self._store.objects_at(route.resource, version)
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
            raise bad_request("invalid continue token: continue key is not valid") from error
        if snapshot not in self._snapshots:
            raise expired("The provided continue parameter is too old to display a consistent list result.")
        version, items = self._snapshots[snapshot]
        return version, items, start


def as_list(resource: Resource, items: list[Object], metadata: Object) -> Object:
    """A typed list: its items carry no kind and apiVersion of their own."""
    shown: list[Any] = [
        {key: value for key, value in obj.items() if key not in {"kind", "apiVersion"}} for obj in items
    ]
    return {
        "kind": f"{resource.kind}List",
        "apiVersion": resource.api_version,
        "metadata": metadata,
        "items": shown,
    }


def check_version(version: int | None, store: Store) -> int:
    """The version to start from, 0 if any will do; 504 for one that is not there yet."""
    if (version or 0) > store.version:
        raise ServerError(
            f"Too large resource version: {version}, current: {store.version}", status=504, reason="Timeout"
        )
    return version or 0
