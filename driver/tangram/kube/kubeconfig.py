"""The API server as a kubeconfig tells it, read by the official `kubernetes` package: contexts, client
certificates, token files, exec plugins.

Of its asyncio flavour the loader, `Configuration` and the TLS of `RESTClientObject` are taken. Not taken:
`ApiClient` and the typed APIs, whose pydantic models cost some 10 MiB when touched, 30 times the CPU of
msgspec per object, and drop unknown fields. Imported only where a kubeconfig is used.
"""

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import kube_config

from tangram.base.errors import ConfigurationError
from tangram.kube.access import Server


class Kubeconfig:
    """The file or files `paths`, separated as in $KUBECONFIG; `context` "" is the current one."""

    def __init__(self, *, paths: str, context: str) -> None:
        self._paths = paths
        self._context = context
        self._configuration: Any = Configuration()
        self._loader: Any = None

    async def authorization(self, *, fresh: bool) -> str:
        await self._load(fresh=fresh)
        return str(self._configuration.api_key.get("BearerToken", "")).strip()

    async def server(self) -> Server:
        """Raises ConfigurationError."""
        await self._load(fresh=True)
        configuration = self._configuration
        if problem := _url_problem(configuration.host):
            raise ConfigurationError(problem, next_step="correct clusters[].cluster.server in the kubeconfig")
        try:
            context = RESTClientObject(configuration).ssl_context
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigurationError(
                f"the certificates for {configuration.host} cannot be used: {error}",
                next_step="check certificate-authority, client-certificate and client-key in the kubeconfig",
            ) from error
        return Server(
            url=configuration.host,
            ssl_context=context,
            tls_name=configuration.tls_server_name or None,
            proxy=configuration.proxy or None,
            proxy_headers=configuration.proxy_headers or {},
        )

    async def _load(self, *, fresh: bool) -> None:
        try:
            if fresh or self._loader is None:
                _require_file(self._paths)
                self._loader = await kube_config.load_kube_config(
                    config_file=self._paths,
                    context=self._context or None,
                    client_configuration=self._configuration,
                    persist_config=False,
                )
            else:
                # Reads a token file again, and asks an exec plugin only when what it gave has expired.
                await self._loader.load_and_set(self._configuration)
        except FileNotFoundError as error:
            raise ConfigurationError(
                f"kubeconfig {self._paths}: {error}",
                next_step="pass --kubeconfig, set KUBECONFIG, or run in a cluster",
            ) from error
        except Exception as error:
            # The loader checks little: a malformed file ends in TypeError, KeyError, YAMLError and more.
            raise ConfigurationError(
                f"kubeconfig {self._paths} cannot be used ({type(error).__name__}: {error})",
                next_step=f"see what `kubectl --kubeconfig {self._paths} config view` shows",
            ) from error


def _url_problem(url: str) -> str:
    """What is wrong with the API server's URL; empty for nothing. Shows no password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return f"the API server's URL cannot be read: {error}"
    if parts.username is not None:
        return "the API server's URL has credentials in it, which would be shown with it"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"the API server's URL {url!r} is neither http:// nor https:// and a host"
    return ""


def default_paths() -> str:
    """$KUBECONFIG, else `~/.kube/config`."""
    return os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


def _require_file(paths: str) -> None:
    # Without any file the loader fails over a None far from the cause.
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        raise FileNotFoundError("no such file")
