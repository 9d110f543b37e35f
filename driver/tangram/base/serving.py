"""The small HTTP server of every long-running command: /metrics, /healthz, /readyz."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder

from tangram.base.errors import ConfigurationError

if TYPE_CHECKING:
    from aiohttp import web

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer(AbstractAsyncContextManager["HttpServer"]):
    """Serves while the context is entered.

    `waiting_for` returns what the process still waits for before it does its work; empty: ready. An empty
    `address` serves nothing. Entering raises ConfigurationError if the address is malformed or in use.
    """

    def __init__(
        self,
        address: str,
        *,
        waiting_for: Callable[[], Sequence[str]],
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self._address = address
        self._waiting_for = waiting_for
        self._registry = registry
        self._runner: web.AppRunner | None = None
        self.port = 0
        """The port listened on; 0 before the start and where nothing is served."""

    async def __aenter__(self) -> "HttpServer":
        if not self._address:
            return self
        host, port = parse_address(self._address)
        from aiohttp import web  # noqa: PLC0415 - a command that serves nothing does not load it

        app = web.Application()
        routes: list[tuple[str, Handler]] = [
            ("/metrics", self._metrics),
            ("/healthz", self._health),
            ("/readyz", self._ready),
        ]
        app.add_routes([web.get(path, handler) for path, handler in routes])
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
        await runner.setup()
        site = web.TCPSite(runner, host or None, port)
        try:
            await site.start()
        except (OSError, UnicodeError) as error:  # UnicodeError: what cannot be a host name
            await runner.cleanup()
            cause = getattr(error, "strerror", None) or error
            raise ConfigurationError(
                f"cannot serve metrics and health on {self._address}: {cause}",
                next_step="set --metrics-address to a free address, or to nothing to serve none",
            ) from None
        self._runner = runner
        self.port = runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _metrics(self, request: "web.Request") -> "web.StreamResponse":
        from aiohttp import web  # noqa: PLC0415

        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        # Hundreds of series take tens of milliseconds: too long for the event loop.
        body = await asyncio.to_thread(encode, self._registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _health(self, _request: "web.Request") -> "web.StreamResponse":
        """That this is answered at all shows that the event loop runs.

        What is waited for stands here too: `kubectl get --raw` does not show the text of a 503.
        """
        from aiohttp import web  # noqa: PLC0415

        return web.Response(text=self._text() or "ok\n")

    async def _ready(self, _request: "web.Request") -> "web.StreamResponse":
        from aiohttp import web  # noqa: PLC0415

        waiting = self._text()
        return web.Response(status=503 if waiting else 200, text=waiting or "ok\n")

    def _text(self) -> str:
        """What is waited for, a line each."""
        return "".join(f"waiting for {what}\n" for what in self._waiting_for())


def parse_address(address: str) -> tuple[str, int]:
    """Host ("" for all) and port of `[host]:port`, an IPv6 host in brackets. Raises ConfigurationError."""
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not port.isascii() or not port.isdigit() or int(port) > 65535 or (":" in host and not bracketed):
        raise ConfigurationError(
            f"{address!r} is not an address", next_step="write [host]:port, e.g. :9464 or 127.0.0.1:9464"
        )
    return host[1:-1] if bracketed else host, int(port)
