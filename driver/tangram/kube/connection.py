"""Where the API server is, who we are to it, and the HTTP pool: all by the official `kubernetes` package.

Taken from its asyncio flavour: `Configuration`, the two configuration loaders, and `RESTClientObject` (TLS,
client certificates, proxy, the aiohttp pool). Not taken: `ApiClient` and the typed APIs, whose pydantic
models cost some 10 MiB when touched, 30 times the CPU of msgspec per object, and drop unknown fields.
Importing any part of the package runs its `__init__` files, some 20 MiB above bare aiohttp; there is no
lighter way in.
"""

import asyncio
import ipaddress
import os
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import aiohttp
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import incluster_config, kube_config

from tangram.base.clock import Clock
from tangram.base.errors import ConfigurationError, UnreachableError
from tangram.base.logs import get_logger

_log = get_logger("kube")

# Bound service account tokens are rotated on disk; a rotated-out one stays valid for minutes, not hours.
_CREDENTIALS_MAX_AGE_S = 60.0


class _Load(Protocol):
    """Sets server and credentials in the configuration.

    `fresh`: the present ones were refused, so that nothing remembered of an exec plugin or a file will do.
    """

    async def __call__(self, *, fresh: bool) -> None: ...


class Connection:
    """An authenticated HTTP pool to one API server. Made by `connect`; closed by `close`."""

    def __init__(self, configuration: Any, load: _Load, *, clock: Clock) -> None:
        self._configuration = configuration
        self._load = load
        self._clock = clock
        self._loaded_at_s = clock.monotonic_s()
        self._loads = 0
        self._loading = asyncio.Lock()
        self._rest = RESTClientObject(configuration)

    @property
    def host(self) -> str:
        """The URL of the API server, without a slash at the end."""
        host: str = self._configuration.host
        return host.rstrip("/")

    async def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: Any,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - it is aiohttp's, one per socket operation
    ) -> aiohttp.ClientResponse:
        """One request; asks again once with fresh credentials after 401. The caller releases the answer.

        Raises UnreachableError.
        """
        if self._clock.monotonic_s() - self._loaded_at_s >= _CREDENTIALS_MAX_AGE_S:
            await self._refresh(seen=self._loads, fresh=False)
        used, seen = self._authorization(), self._loads
        response = await self._send(method, path, headers, body, timeout)
        if response.status == 401:
            await self._refresh(seen=seen, fresh=True)
            if self._authorization() != used:
                response.release()
                response = await self._send(method, path, headers, body, timeout)
        return response

    async def close(self) -> None:
        """Closes the pool; running watches end."""
        await self._rest.close()

    async def _send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Any,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109
    ) -> aiohttp.ClientResponse:
        authorization = self._authorization()
        sent = {**headers, "authorization": authorization} if authorization else dict(headers)
        try:
            answer = await self._rest.request(
                method, self.host + path, headers=sent, body=body, _request_timeout=timeout
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(f"{method} {path.partition('?')[0]}", error) from error
        response: aiohttp.ClientResponse = answer.response
        return response

    def _authorization(self) -> str:
        return str(self._configuration.api_key.get("BearerToken", "")).strip()

    async def _refresh(self, *, seen: int, fresh: bool) -> None:
        """Reads the credentials again, unless another request has done so since `seen` was read."""
        async with self._loading:
            if self._loads != seen:
                return
            try:
                await self._load(fresh=fresh)
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
    configuration = Configuration()
    in_cluster = (
        not kubeconfig and not context and bool(os.environ.get(incluster_config.SERVICE_HOST_ENV_NAME))
    )
    load = _in_cluster(configuration) if in_cluster else _from_file(configuration, kubeconfig, context)
    await load(fresh=True)
    if not configuration.host.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"the API server's URL {configuration.host!r} is neither http:// nor https://",
            next_step="correct clusters[].cluster.server in the kubeconfig",
        )
    # trust_env would make aiohttp read ~/.netrc in a thread for every request: only the proxy is wanted.
    # The jar: load balancers set cookies, nobody here returns them.
    configuration.client_session_kwargs = {
        "trust_env": False,
        "cookie_jar": aiohttp.DummyCookieJar(),
        "read_bufsize": 2**18,
    }
    configuration.proxy = configuration.proxy or _environment_proxy(configuration.host)
    try:
        return Connection(configuration, load, clock=clock)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigurationError(
            f"the certificates for {configuration.host} cannot be used: {error}",
            next_step="check certificate-authority, client-certificate and client-key in the kubeconfig",
        ) from error


def _in_cluster(configuration: Any) -> _Load:
    async def load(*, fresh: bool) -> None:  # noqa: ARG001 - the file is read either way
        loader = incluster_config.InClusterConfigLoader(
            incluster_config.SERVICE_TOKEN_FILENAME,
            incluster_config.SERVICE_CERT_FILENAME,
            try_refresh_token=False,  # its own hook never learns of a 401
        )
        try:
            loader.load_and_set(configuration)
        except (incluster_config.ConfigException, OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"in-cluster configuration: {error}",
                next_step="mount the service account token into the pod, or pass --kubeconfig",
            ) from error

    return load


def _from_file(configuration: Any, kubeconfig: str, context: str) -> _Load:
    paths = kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")

    loader: Any = None

    async def load(*, fresh: bool) -> None:
        nonlocal loader
        try:
            if fresh or loader is None:
                _require_file(paths)
                loader = await kube_config.load_kube_config(
                    config_file=paths,
                    context=context or None,
                    client_configuration=configuration,
                    persist_config=False,
                )
            else:
                # Reads a token file again, and asks an exec plugin only when what it gave has expired.
                await loader.load_and_set(configuration)
        except FileNotFoundError as error:
            raise ConfigurationError(
                f"kubeconfig {paths}: {error}",
                next_step="pass --kubeconfig, set KUBECONFIG, or run in a cluster",
            ) from error
        except Exception as error:
            # The loader checks little: a malformed file ends in TypeError, KeyError, YAMLError and more.
            raise ConfigurationError(
                f"kubeconfig {paths} cannot be used ({type(error).__name__}: {error})",
                next_step=f"see whether `kubectl --kubeconfig {paths} config view` shows what you expect",
            ) from error

    return load


def _require_file(paths: str) -> None:
    # Without any file the loader fails over a None far from the cause.
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        raise FileNotFoundError("no such file")


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
