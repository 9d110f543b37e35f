"""A stand-in for `nvidia-cuda-mps-control` (v2) without a GPU: daemon, servers, control interface, clients.

A program that needs nothing but Python's standard library, and little of it: it is started often. It behaves
as the real one where that matters to whoever runs it: `-f` and `-d`, a pid file, a socket in
CUDA_MPS_PIPE_DIRECTORY, one server process that starts with the first client and takes its clients along
when it dies, defaults that hold for later servers only, limits by the index of a GPU (by UUID they are
accepted and ignored), `quit` that waits for clients. `--client` plays a CUDA process. What should go wrong
stands in the file `simulate` beside the pipe directory: `hang` (no answers), `garbage` (endless answers),
`ignore limits`, `refuse start`, `fault` (a fatal exception of the GPU: servers refuse new clients).
"""

import os
import select
import socket
import sys

_DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - as the real one's
_HELP = "usage: nvidia-cuda-mps-control [-d | -f] [-M] [-v]\n"
_DAEMON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "simulateddaemon.py")


def main(arguments: list[str]) -> int:
    """Runs as the arguments say; returns the exit code."""
    if arguments[:1] == ["--client"]:
        return _client(arguments[1:])
    if not set(arguments) <= {"-d", "-f", "-M", "-v"}:
        sys.stdout.write(_HELP)
        return 1
    if "-f" in arguments:
        os.execv(sys.executable, _command(arguments))  # noqa: S606 - the same process, as one daemon
    if "-d" in arguments:
        return _in_background(arguments)
    return _control()


def _command(arguments: list[str]) -> list[str]:
    # The arguments stand last, as those of the real program do.
    return [sys.executable, "-I", "-S", _DAEMON, *arguments]


def _socket_path() -> str:
    return f"{os.environ.get('CUDA_MPS_PIPE_DIRECTORY', _DEFAULT_PIPE_DIRECTORY)}/control"


def _connect() -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(_socket_path())
    except OSError:
        connection.close()
        return None
    return connection


def _in_background(arguments: list[str]) -> int:
    """Returns once the daemon in the background listens, or has failed."""
    words = ["-f" if word == "-d" else word for word in arguments]
    pid = os.posix_spawn(sys.executable, _command(words), os.environ, setsid=True)
    while (connection := _connect()) is None:
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return 1
        select.select([], [], [], 0.01)
    connection.close()
    return 0


def _control() -> int:
    """Without a mode: sends each line of standard input to the daemon and prints the answers."""
    for line in sys.stdin:
        connection = _connect()
        if connection is None:
            sys.stderr.write("Cannot find MPS control daemon process\n")
            return 1
        try:
            connection.sendall(f"{line.strip()}\n".encode())
            while data := connection.recv(65536):
                sys.stdout.write(data.decode(errors="replace"))
                sys.stdout.flush()
        except ConnectionError:
            return 1
        finally:
            connection.close()
    return 0


def _client(arguments: list[str]) -> int:
    """`--client [MIB …]`: joins as its environment says, allocates, and stays until standard input ends.

    Exit code 0 then, 2 if the daemon or the server went away meanwhile, 3 if it could not join.
    """
    memory = os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=0M").partition("=")[2].rstrip("M") or "0"
    percent = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "0")
    connection = _connect()
    if connection is None:
        sys.stdout.write("no MPS daemon\n")
        return 3
    for request in (f"client {os.getpid()} {memory} {percent}", *(f"alloc {mib}" for mib in arguments)):
        connection.sendall(f"{request}\n".encode())
        sys.stdout.write(connection.recv(4096).decode())
        sys.stdout.flush()
    while True:
        ready, _, _ = select.select([connection.fileno(), 0], [], [])
        if connection.fileno() in ready:
            return 2
        if not os.read(0, 4096):
            return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
