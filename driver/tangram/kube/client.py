"""The Kubernetes API as raw bytes: get, list, watch, create, patch, delete."""

import urllib.parse
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal, Self

import aiohttp
import msgspec

from tangram.base.clock import Clock, SystemClock
from tangram.base.errors import InvalidObjectError
from tangram.kube.connection import Connection, connect, unreachable
from tangram.kube.decoding import decode
from tangram.kube.lines import split_lines
from tangram.kube.resources import Resource
from tangram.kube.status import api_error

__all__ = ["Client", "PatchKind", "decode"]

PatchKind = Literal["merge", "json", "strategic"]

_CONTENT_TYPES: Mapping[PatchKind, str] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
_CONNECT_TIMEOUT_S = 5.0
_CALL_TIMEOUT = aiohttp.ClientTimeout(total=30.0, sock_connect=_CONNECT_TIMEOUT_S)
# How much longer than the watch itself we wait for the next byte: bookmarks come once a minute.
_WATCH_READ_SLACK_S = 30.0


class _Version(msgspec.Struct, frozen=True):
    major: str
    minor: str


class Client:
    """One API server. Every method raises the KubeErrors: UnreachableError, or an ApiError by status.

    Objects go in as plain mappings and come out as the bytes of the answer: nothing is lost or made up on the
    way. A call gives up after 30 s, a watch never does (but notices a dead connection).
    """

    def __init__(self, connection: Connection, *, user_agent: str) -> None:
        self._connection = connection
        self._headers = {
            "accept": "application/json",
            # Decompressing 26 MB of slices costs more than the network inside a cluster.
            "accept-encoding": "identity",
            "user-agent": user_agent,
        }
        self._field_manager = user_agent.partition("/")[0].partition(" ")[0]

    @classmethod
    async def connect(
        cls, *, kubeconfig: str = "", context: str = "", user_agent: str, clock: Clock | None = None
    ) -> Self:
        """Finds the API server: `kubeconfig`, else in-cluster, else $KUBECONFIG, else `~/.kube/config`.

        `user_agent`, e.g. `tangram-node/0.1.0`, also names the field manager of what is written. Raises
        ConfigurationError. Sends nothing.
        """
        connection = await connect(kubeconfig=kubeconfig, context=context, clock=clock or SystemClock())
        return cls(connection, user_agent=user_agent)

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return self._connection.host

    async def get(self, resource: Resource, *, name: str, namespace: str = "") -> bytes:
        """One object."""
        return await self._call("GET", _path(resource, namespace=namespace, name=name))

    async def list_page(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        limit: int = 500,
        continue_token: str = "",
        resource_version: str = "",
        field_selector: str = "",
        label_selector: str = "",
    ) -> bytes:
        """One page of a list; with `resource_version` empty as of now (a quorum read).

        ExpiredError means that the list must start again: the `continue_token` is too old.
        """
        query = {
            "limit": str(limit) if limit else "",
            "continue": continue_token,
            "resourceVersion": resource_version,
            "fieldSelector": field_selector,
            "labelSelector": label_selector,
        }
        return await self._call("GET", _collection(resource, namespace=namespace), query=query)

    async def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        timeout_s: int = 300,
    ) -> AsyncGenerator[bytes, None]:
        """The changes after `resource_version`, each as the JSON of one watch event, bookmarks among them.

        Ends without an error when the server closes the watch, after `timeout_s` or before. Raises
        ExpiredError if `resource_version` is too old; that answer may also come as an event of type ERROR,
        which is handed out like any other. InvalidObjectError: an event above 8 MiB.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_s),
            "fieldSelector": field_selector,
            "labelSelector": label_selector,
        }
        path = _collection(resource, namespace=namespace)
        timeout = aiohttp.ClientTimeout(
            sock_connect=_CONNECT_TIMEOUT_S, sock_read=timeout_s + _WATCH_READ_SLACK_S
        )
        response = await self._open("GET", path, query=query, timeout=timeout)
        try:
            async for line in split_lines(response.content.iter_any(), source=f"watch of {path}"):
                yield line
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(f"watch of {path}", error) from error
        finally:
            response.close()

    async def create(self, resource: Resource, body: Mapping[str, Any], *, namespace: str = "") -> bytes:
        """Creates an object, in `namespace` or else in its own; `apiVersion` and `kind` are filled in."""
        metadata = body.get("metadata") or {}
        target = namespace or metadata.get("namespace") or ""
        if resource.namespaced and not target:
            raise _incomplete(resource, metadata.get("name", ""), field="metadata.namespace")
        sent = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return await self._call(
            "POST",
            _collection(resource, namespace=target),
            query={"fieldManager": self._field_manager},
            body=sent,
            content_type="application/json",
        )

    async def patch(
        self,
        resource: Resource,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        name: str,
        namespace: str = "",
        subresource: str = "",
        kind: PatchKind = "merge",
    ) -> bytes:
        """Changes an object in place. `metadata.resourceVersion` in a merge patch makes it a compare-and-swap
        that answers ConflictError."""
        return await self._call(
            "PATCH",
            _path(resource, namespace=namespace, name=name, subresource=subresource),
            query={"fieldManager": self._field_manager},
            body=patch,
            content_type=_CONTENT_TYPES[kind],
        )

    async def delete(
        self, resource: Resource, *, name: str, namespace: str = "", uid: str = "", resource_version: str = ""
    ) -> None:
        """Deletes an object; with `uid` or `resource_version` only that one (ConflictError)."""
        preconditions = {
            key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value
        }
        await self._call(
            "DELETE",
            _path(resource, namespace=namespace, name=name),
            body={"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
            if preconditions
            else None,
            content_type="application/json",
        )

    async def server_version(self) -> tuple[int, int]:
        """Major and minor version of the API server, e.g. (1, 36); InvalidObjectError if it is no number."""
        version = decode(await self._call("GET", "/version"), _Version)
        # Some vendors append a sign: `36+`.
        numbers = (version.major.rstrip("+"), version.minor.rstrip("+"))
        if not all(number.isascii() and number.isdigit() for number in numbers):
            raise InvalidObjectError(f"{numbers!r:.200} are not numbers", object_name="/version")
        return int(numbers[0]), int(numbers[1])

    async def close(self) -> None:
        """Closes all connections; running watches end with UnreachableError."""
        await self._connection.close()

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "",
    ) -> bytes:
        response = await self._open(
            method, path, query=query, body=body, content_type=content_type, timeout=_CALL_TIMEOUT
        )
        return await _read(response, request=f"{method} {path}")

    async def _open(
        self,
        method: str,
        path: str,
        *,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - it is aiohttp's, one per socket operation
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "",
    ) -> aiohttp.ClientResponse:
        parameters = urllib.parse.urlencode({key: value for key, value in (query or {}).items() if value})
        headers = {**self._headers, "Content-Type": content_type} if content_type else self._headers
        response = await self._connection.send(
            method,
            f"{path}?{parameters}" if parameters else path,
            headers=headers,
            body=body,
            timeout=timeout,
        )
        if response.status < 300:
            return response
        request = f"{method} {path}"
        raise api_error(
            status=response.status,
            body=await _read(response, request=request),
            request=request,
            retry_after=response.headers.get("retry-after"),
        )


async def _read(response: aiohttp.ClientResponse, *, request: str) -> bytes:
    try:
        return await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise unreachable(request, error) from error
    finally:
        response.release()


def _path(resource: Resource, *, namespace: str, name: str, subresource: str = "") -> str:
    if not name:
        raise _incomplete(resource, name, field="metadata.name")  # it would address the whole collection
    if resource.namespaced and not namespace:
        raise _incomplete(resource, name, field="metadata.namespace")
    return resource.path(
        namespace=_segment(resource, namespace, field="metadata.namespace"),
        name=_segment(resource, name, field="metadata.name"),
        subresource=subresource,
    )


def _collection(resource: Resource, *, namespace: str) -> str:
    return resource.path(namespace=_segment(resource, namespace, field="metadata.namespace"))


def _segment(resource: Resource, value: str, *, field: str) -> str:
    # What the API server itself refuses; names reach us from the kubelet and from users.
    if value in {".", ".."} or "/" in value or "%" in value:
        raise InvalidObjectError(
            "may be neither '.' nor '..', nor contain '/' or '%'",
            object_name=f"{resource.kind} {value[:300]!r}",
            field=field,
        )
    return urllib.parse.quote(value, safe="")


def _incomplete(resource: Resource, name: str, *, field: str) -> InvalidObjectError:
    return InvalidObjectError("is empty", object_name=f"{resource.kind} {name}".strip(), field=field)
