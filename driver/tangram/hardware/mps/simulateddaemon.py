"""The daemon and server processes of the simulation in `simulated.py`; a program of its own as well.

It imports little, as that one does: a node under load would wait for it.
"""

import contextlib
import os
import selectors
import signal
import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

NAME = "nvidia-cuda-mps-control"
_DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - as the real one's
_UNKNOWN = "Unknown command\n"


class Limits:
    """What clients get at most: percent, and MiB by index of the GPU (0: all there is)."""

    def __init__(self) -> None:
        self.percent = 100.0
        self.memory_mib: dict[int, int] = {}

    def copy(self) -> "Limits":
        copy = Limits()
        copy.percent, copy.memory_mib = self.percent, dict(self.memory_mib)
        return copy


class Server:
    """A server process, and the limits that its next client gets."""

    def __init__(self, process: "subprocess.Popen[bytes]", limits: Limits) -> None:
        self.process = process
        self.limits = limits


class Connection:
    """Somebody at the socket; `client_pid` once it has said that it is a CUDA process."""

    def __init__(self, peer: socket.socket) -> None:
        self.socket = peer
        self.client_pid = self.limit_mib = self.used_mib = 0
        self.buffer = b""


class Daemon:
    """The control daemon. One thread; every connection sends lines and gets an answer to each."""

    def __init__(self, pipe: str) -> None:
        self._pipe = pipe
        self._gpus = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        self._selector = selectors.DefaultSelector()
        self._connections: set[Connection] = set()
        self._server: Server | None = None
        self._default = Limits()
        self._quit_at: float | None = None
        self._quitter: Connection | None = None
        self._commands: dict[str, Callable[[list[str]], str]] = {
            "get_server_list": lambda _: f"{self._server.process.pid}\n" if self._server else "",
            "get_server_status": self._get_server_status,
            "get_client_list": self._get_client_list,
            "get_default_active_thread_percentage": lambda _: f"{self._default.percent}\n",
            "set_default_active_thread_percentage": lambda words: _set_percent(self._default, words),
            "get_default_device_pinned_mem_limit": lambda words: self._get_memory(self._default, words),
            "set_default_device_pinned_mem_limit": lambda words: self._set_memory(self._default, words),
            "get_active_thread_percentage": lambda words: f"{self._of(words).percent}\n",
            "set_active_thread_percentage": lambda words: _set_percent(self._of(words), words[1:]),
            "get_device_pinned_mem_limit": lambda words: self._get_memory(self._of(words), words[1:]),
            "set_device_pinned_mem_limit": lambda words: self._set_memory(self._of(words), words[1:]),
        }

    def run(self) -> int:
        """Serves until it is told to quit."""
        if "refuse start" in self._faults():
            sys.stderr.write("Failed to start: no CUDA device is available\n")
            return 1
        path = f"{self._pipe}/control"
        with socket.socket(socket.AF_UNIX) as listener:
            if _answers(path):
                sys.stderr.write("An instance of this daemon is already running\n")
                return 1
            _remove(path)
            listener.bind(path)
            os.chmod(path, 0o666)  # noqa: S103 - for clients of any user
            listener.listen(64)
            with open(f"{self._pipe}/{NAME}.pid", "w") as file:
                file.write(f"{os.getpid()}\n")
            self._log("Start")
            self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))
            while not self._ended():
                for key, _ in self._selector.select(timeout=0.2 if self._quit_at else 1.0):
                    key.data()
            self._end()
        return 0

    def _accept(self, listener: socket.socket) -> None:
        connection = Connection(listener.accept()[0])
        self._connections.add(connection)
        self._selector.register(connection.socket, selectors.EVENT_READ, lambda: self._read(connection))

    def _read(self, connection: Connection) -> None:
        try:
            data = connection.socket.recv(4096)
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        *lines, connection.buffer = (connection.buffer + data).split(b"\n")
        for line in lines:
            answer = self._answer(connection, line.decode(errors="replace").split())
            if answer is not None:
                with contextlib.suppress(OSError):
                    connection.socket.sendall(answer.encode())
                if not connection.client_pid:
                    self._close(connection)

    def _answer(self, connection: Connection, words: list[str]) -> str | None:
        """The answer to one line; None to give none."""
        command, arguments = (words or [""])[0], words[1:]
        if command == "client":
            return self._join(connection, arguments)
        if command == "alloc" and connection.client_pid:
            return _allocate(connection, int(arguments[0]))
        faults = self._faults()
        if "hang" in faults:
            return None
        if "garbage" in faults:
            return "garbage " * 2**17
        if command == "quit":
            self._quitter = connection
            self._quit_at = time.monotonic() + (float(arguments[1]) if arguments[:1] == ["-t"] else 1e9)
            return None
        handler = self._commands.get(command)
        try:
            return handler(arguments) if handler else _UNKNOWN
        except (ValueError, IndexError):
            return _UNKNOWN

    def _of(self, words: list[str]) -> Limits:
        if self._server is None or self._server.process.pid != int(words[0]):
            raise ValueError(words)
        return self._server.limits

    def _get_server_status(self, words: list[str]) -> str:
        self._of(words)
        return "FAULT\n" if "fault" in self._faults() else "ACTIVE\n"

    def _get_client_list(self, words: list[str]) -> str:
        self._of(words)
        return "".join(f"{each.client_pid}\n" for each in self._connections if each.client_pid)

    def _get_memory(self, limits: Limits, words: list[str]) -> str:
        mib = limits.memory_mib.get(int(words[0]), 0)
        return f"{mib // 1024}G\n" if mib and mib % 1024 == 0 else f"{mib}M\n"

    def _set_memory(self, limits: Limits, words: list[str]) -> str:
        units = {"M": 1, "G": 1024}
        mib = int(words[1][:-1]) * units.get(words[1][-1:], 0)
        # By UUID it is accepted, and has no effect.
        if words[0].isdecimal() and int(words[0]) < len(self._gpus) and "ignore limits" not in self._faults():
            limits.memory_mib[int(words[0])] = mib
        return ""

    def _join(self, connection: Connection, arguments: list[str]) -> str:
        """A CUDA process: `client PID MIB PERCENT`, what it asks for itself (0: no limit)."""
        if self._quit_at is not None:
            return "refused: the daemon quits\n"
        if "fault" in self._faults():
            return "refused: the server is not ready\n"
        if self._server is None:
            command = [sys.executable, "-I", "-S", __file__, "--server"]
            import subprocess  # noqa: PLC0415 - not needed for the start

            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603
            self._server = Server(process, self._default.copy())
            self._selector.register(process.stdout or 0, selectors.EVENT_READ, self._server_ended)
            self._log(f"Starting new server {process.pid}")
        limits = self._server.limits
        own_mib, own_percent = int(arguments[1]), float(arguments[2])
        limit_mib = limits.memory_mib.get(0, 0)
        connection.client_pid = int(arguments[0])
        connection.limit_mib = min(own_mib, limit_mib) if own_mib and limit_mib else own_mib or limit_mib
        percent = min(own_percent or 100.0, limits.percent)
        self._log(f"User accepted client {connection.client_pid}")
        return f"joined {self._server.process.pid} {connection.limit_mib} {percent:g}\n"

    def _server_ended(self) -> None:
        """Its clients have lost their GPU contexts; the next client gets a new server."""
        server, self._server = self._server, None
        if server is not None and server.process.stdout is not None:
            self._selector.unregister(server.process.stdout)
            server.process.wait()
            self._log(f"Server {server.process.pid} exited with status {server.process.returncode}")
        for connection in [each for each in self._connections if each.client_pid]:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        self._connections.discard(connection)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.socket.close()

    def _ended(self) -> bool:
        if not os.path.isdir(self._pipe):
            return True  # and with it whoever could ask it to quit
        busy = any(connection.client_pid for connection in self._connections)
        return self._quit_at is not None and (not busy or time.monotonic() >= self._quit_at)

    def _end(self) -> None:
        if self._server is not None:
            self._server.process.kill()
            self._server.process.wait()
        self._log("Exit")
        for name in ("control", f"{NAME}.pid"):
            _remove(f"{self._pipe}/{name}")
        if self._quitter is not None:
            self._close(self._quitter)

    def _faults(self) -> set[str]:
        try:
            with open(os.path.join(os.path.dirname(self._pipe), "simulate")) as file:
                return set(file.read().splitlines())
        except OSError:
            return set()

    def _log(self, text: str) -> None:
        directory = os.environ.get("CUDA_MPS_LOG_DIRECTORY")
        if directory:
            with contextlib.suppress(OSError), open(f"{directory}/control.log", "a") as file:
                file.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')} Control {os.getpid()}] {text}\n")


def _set_percent(limits: Limits, words: list[str]) -> str:
    percent = float(words[0])
    if not 0 < percent <= 100:
        return "Invalid percentage\n"
    limits.percent = percent
    return ""


def _allocate(connection: Connection, mib: int) -> str:
    if connection.limit_mib and connection.used_mib + mib > connection.limit_mib:
        return "CUDA_ERROR_OUT_OF_MEMORY\n"
    connection.used_mib += mib
    return "allocated\n"


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(path) == 0


def _serve() -> int:
    """A server: lives until it is killed, or its daemon is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--server"]:
        sys.exit(_serve())
    sys.exit(Daemon(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _DEFAULT_PIPE_DIRECTORY)).run())
