"""One gRPC server on one Unix socket."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc

from tangram.base.errors import ConfigurationError
from tangram.kubeletplugin.sockets import DIRECTORY_MODE, SocketFile

# A server whose file was taken away may still work for the kubelet on an old connection.
_RETIREMENT_S = 60.0


class SocketServer:
    """Serves `services` on `path` until stopped; can be opened again when its file was taken away.

    `services` adds its handlers to a server. It may be called more than once.
    """

    def __init__(self, *, path: Path, services: Callable[[grpc.aio.Server], None]) -> None:
        self.path = path
        self._services = services
        self._server: grpc.aio.Server | None = None
        self._file = SocketFile(path)
        self._retired: dict[grpc.aio.Server, asyncio.Task[None]] = {}

    @property
    def intact(self) -> bool:
        """Whether the path leads to this server."""
        return self._file.intact

    @property
    def lost(self) -> bool:
        """Whether the path leads to nobody, so that `open` is due. Another live process may have taken it."""
        return self._file.lost

    async def open(self) -> None:
        """Listens, then gives the socket its name; a server that was open before finishes its calls.

        Raises ConfigurationError when the socket cannot be made.
        """
        socket_file = SocketFile(self.path)
        server = grpc.aio.server()
        self._services(server)
        try:
            self.path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            server.add_insecure_port(f"unix:{socket_file.bind_path}")
            await server.start()
            socket_file.publish()
        except (OSError, RuntimeError) as error:
            await server.stop(0)
            raise ConfigurationError(
                f"cannot serve at {self.path}: {error}",
                next_step="check that the directory exists, is writable and has room",
            ) from error
        previous_server, previous_file = self._server, self._file
        self._server, self._file = server, socket_file
        previous_file.remove()
        if previous_server is not None:
            self._retire(previous_server)

    def _retire(self, server: grpc.aio.Server) -> None:
        task = asyncio.create_task(server.stop(_RETIREMENT_S))
        self._retired[server] = task
        task.add_done_callback(lambda _: self._retired.pop(server))

    def hide(self) -> None:
        """Removes the file, so that nobody new finds the server."""
        self._file.remove()

    async def stop(self, *, grace_s: float) -> None:
        """Refuses new calls at once (UNAVAILABLE); running ones are cancelled after `grace_s`."""
        self.hide()
        if self._server is not None:
            self._retire(self._server)
            self._server = None
        retired = dict(self._retired)
        # Stopping again with less grace shortens the first one.
        await asyncio.gather(*(server.stop(grace_s) for server in retired), *retired.values())
