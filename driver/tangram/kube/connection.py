"""An authenticated pool of HTTP connections to one API server."""

import asyncio
import ipaddress
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

from tangram.base.clock import Clock
from tangram.base.errors import ConfigurationError, UnreachableError
from tangram.base.logs import get_logger
from tangram.kube import incluster
from tangram.kube.access import Credentials, Server

_log = get_logger("kube")

# Bound service account tokens are rotated on disk; a rotated-out one stays valid for minutes, not hours.
_CREDENTIALS_MAX_AGE_S = 60.0
_CONNECTIONS = 100
# Watch events are long lines.
_READ_BUFFER_BYTES = 2**18


class Connection:
    """Made by `connect`; closed by `close`."""

    def __init__(self, server: Server, credentials: Credentials, *, authorization: str, clock: Clock) -> None:
        self.host = server.url.rstrip("/")
        """The URL of the API server, without a slash at the end."""
        self._credentials = credentials
        self._authorization = authorization
        self._clock = clock
        self._loaded_at_s = clock.monotonic_s()
        self._loads = 0
        self._loading = asyncio.Lock()
        self._options: dict[str, Any] = {
            "server_hostname": server.tls_name,
            "proxy": server.proxy or _environment_proxy(server.url),
            "proxy_headers": server.proxy_headers or None,
        }
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=server.ssl_context, limit=_CONNECTIONS),
            # It would make aiohttp read ~/.netrc in a thread for every request: only the proxy is wanted.
            trust_env=False,
            # Load balancers set cookies, nobody here returns them.
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_READ_BUFFER_BYTES,
        )

    async def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: Any,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - it is aiohttp's, one per socket operation
    ) -> aiohttp.ClientResponse:
        """One request, `body` as JSON unless it is None; asks again once with fresh credentials after 401.

        The caller releases the answer. Raises UnreachableError.
        """
        if self._clock.monotonic_s() - self._loaded_at_s >= _CREDENTIALS_MAX_AGE_S:
            await self._refresh(seen=self._loads, fresh=False)
        data = None if body is None else msgspec.json.encode(body)
        used, seen = self._authorization, self._loads
        response = await self._send(method, path, headers, data, timeout)
        if response.status == 401:
            await self._refresh(seen=seen, fresh=True)
            if self._authorization != used:
                response.release()
                response = await self._send(method, path, headers, data, timeout)
        return response

    async def close(self) -> None:
        """Closes the pool; running watches end."""
        await self._session.close()

    async def _send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        data: bytes | None,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109
    ) -> aiohttp.ClientResponse:
        sent = {**headers, "authorization": self._authorization} if self._authorization else headers
        try:
            return await self._session.request(
                method, self.host + path, headers=sent, data=data, timeout=timeout, **self._options
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(f"{method} {path.partition('?')[0]}", error) from error

    async def _refresh(self, *, seen: int, fresh: bool) -> None:
        """Reads the credentials again, unless another request has done so since `seen` was read."""
        async with self._loading:
            if self._loads != seen:
                return
            try:
                self._authorization = await self._credentials.authorization(fresh=fresh)
            except ConfigurationError as error:
                # The file is being rotated, or the exec plugin failed: the old ones may still do.
                _log.warning("kube_credentials_not_refreshed", error=str(error))
            self._loads += 1
            self._loaded_at_s = self._clock.monotonic_s()


def unreachable(request: str, error: Exception) -> UnreachableError:
    """The error for a request that got no answer."""
    detail = str(error) or "timed out"
    return UnreachableError(
        f"{request}: {type(error).__name__}: {detail[:500]}",
        next_step="check that the API server runs and can be reached from here",
    )


async def connect(*, kubeconfig: str, context: str, clock: Clock) -> Connection:
    """Finds the API server: `kubeconfig`, else in-cluster, else $KUBECONFIG, else `~/.kube/config`.

    Raises ConfigurationError. Nothing is sent yet.
    """
    credentials: Credentials
    if not kubeconfig and not context and incluster.in_cluster():
        server, credentials = incluster.server(), incluster.ServiceAccount()
    else:
        from tangram.kube.kubeconfig import Kubeconfig, default_paths  # noqa: PLC0415 - loads `kubernetes`

        credentials = file = Kubeconfig(paths=kubeconfig or default_paths(), context=context)
        server = await file.server()
    authorization = await credentials.authorization(fresh=False)
    return Connection(server, credentials, authorization=authorization, clock=clock)


def _environment_proxy(host: str) -> str | None:
    """HTTPS_PROXY and NO_PROXY as client-go reads them: never for the loopback."""
    url = urllib.parse.urlsplit(host)
    name = url.hostname or ""
    try:
        loopback = ipaddress.ip_address(name).is_loopback
    except ValueError:
        loopback = name == "localhost"
    if loopback or urllib.request.proxy_bypass(name):
        return None
    return urllib.request.getproxies().get(url.scheme)
