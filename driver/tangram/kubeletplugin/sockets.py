"""Unix sockets of a plugin: their names, and files that belong to one process.

A socket's file is made under a hidden name and renamed to its own once the server listens. So there is no
moment in which the kubelet finds a socket that nobody serves, a file left by a killed process is replaced
in one step, and gRPC, which removes the path it was given when a server stops, cannot remove a newer
process's file: it looks for the hidden name.
"""

import base64
import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from tangram.base.errors import ConfigurationError

# sockaddr_un.sun_path has 108 bytes, the last one is NUL.
MAXIMUM_PATH_BYTES = 107
DIRECTORY_MODE = 0o750
SOCKET_MODE = 0o600


def _digest(text: str, *, size_bytes: int) -> str:
    digest = hashlib.sha256(text.encode()).digest()[:size_bytes]
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _first_that_fits(directory: Path, candidates: list[str]) -> Path:
    for name in candidates:
        if len(os.fsencode(directory / name)) <= MAXIMUM_PATH_BYTES:
            return directory / name
    raise ConfigurationError(
        f"no socket fits into {directory}: even {directory / candidates[-1]} is longer than"
        f" {MAXIMUM_PATH_BYTES} bytes",
        next_step="use a shorter kubelet directory",
    )


def dra_socket_path(*, plugin_directory: Path, pod_uid: str) -> Path:
    """The path of the DRA socket: one per pod, so that two pods can serve at once during a rolling update.

    Raises ConfigurationError when no name is short enough for a Unix socket.
    """
    if not pod_uid:
        return _first_that_fits(plugin_directory, ["dra.sock"])
    return _first_that_fits(
        plugin_directory, [f"dra-{pod_uid}.sock", f"dra-{_digest(pod_uid, size_bytes=8)}.sock"]
    )


def registration_socket_path(*, registry_directory: Path, driver_name: str, pod_uid: str) -> Path:
    """The path of the registration socket; names as `k8s.io/dynamic-resource-allocation` makes them.

    Raises ConfigurationError when no name is short enough for a Unix socket.
    """
    if not pod_uid:
        return _first_that_fits(registry_directory, [f"{driver_name}-reg.sock"])
    return _first_that_fits(
        registry_directory,
        [
            f"{driver_name}-{pod_uid}-reg.sock",
            f"{driver_name}-{_digest(pod_uid, size_bytes=8)}-reg.sock",
            "dra-" + _digest(f"{driver_name}\0{pod_uid}", size_bytes=16) + "-reg.sock",
        ],
    )


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Two processes must not decide at once whose file a path is; held for microseconds."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class SocketFile:
    """The file of a listening socket, owned by this process until somebody replaces or removes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hidden = path.with_name(f".{secrets.token_hex(4)}")
        self._descriptor: int | None = None

    @property
    def bind_path(self) -> Path:
        """Where the server binds, before `publish`."""
        return self._hidden

    def publish(self) -> None:
        """Gives the bound socket its name, in place of whatever had it. Raises OSError."""
        # The open descriptor keeps the inode's number from being used again, and counts its names.
        self._descriptor = os.open(self._hidden, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._hidden.chmod(SOCKET_MODE)
        with _locked(self.path.parent):
            self._hidden.rename(self.path)

    @property
    def intact(self) -> bool:
        """Whether the name still leads to this process's socket."""
        if self._descriptor is None:
            return False
        own = os.fstat(self._descriptor)
        try:
            found = self.path.lstat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)

    @property
    def lost(self) -> bool:
        """Whether the name leads to nobody: removed, or replaced by something on which nobody listens."""
        return not self.intact and (not self.path.is_socket() or _refuses_connections(self.path))

    def remove(self) -> None:
        """Removes the name if it is still ours; never another process's."""
        if self._descriptor is None:
            return
        with contextlib.suppress(FileNotFoundError), _locked(self.path.parent):
            if self.intact:
                self.path.unlink()
        os.close(self._descriptor)
        self._descriptor = None


def remove_dead_sockets(directory: Path, pattern: str) -> list[Path]:
    """Removes the sockets matching `pattern` (a glob) on which nobody listens; returns their paths.

    Killed pods leave them behind under names that nobody will use again. A socket of ours always listens
    before it has its name, so a refused connection means that its process is gone.
    """
    removed = []
    with contextlib.suppress(FileNotFoundError), _locked(directory):
        for path in sorted(directory.glob(pattern)):
            if _refuses_connections(path):
                path.unlink(missing_ok=True)
                removed.append(path)
    return removed


def _refuses_connections(path: Path) -> bool:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            return probe.connect_ex(os.fspath(path)) == errno.ECONNREFUSED
    except OSError:
        return False
