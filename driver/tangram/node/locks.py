"""Locks that hold between tasks and between processes: two plugins overlap in a rolling update.

All are bytes of one file, locked by open file description (fcntl(2), `F_OFD_SETLK`): the kernel frees them
when the process dies, and no file comes or goes with a claim. Two names that share a byte only wait for each
other. Order, against deadlock: the lock of one claim first, then those of GPUs in order of their names.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import struct
import weakref
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from tangram.base.atomicfile import make_directory, state_error
from tangram.base.clock import Clock
from tangram.base.errors import PrepareError

_FILE = "lock"
_POLL_S = 0.01
_DEADLINE_S = 30.0
"""Below the 45 s that the kubelet waits for an answer."""


class Locks:
    """The locks of one directory."""

    def __init__(self, directory: Path, *, clock: Clock) -> None:
        self._path = directory / _FILE
        self._clock = clock
        self._descriptor: int | None = None
        self._local: dict[int, asyncio.Lock] = {}
        self._users: dict[int, int] = {}

    def create(self) -> None:
        """Makes the directory and the file. Raises StateError."""
        make_directory(self._path.parent)
        self._opened()

    @contextlib.asynccontextmanager
    async def claim(self, uid: str) -> AsyncIterator[None]:
        """Excludes all other work on a claim."""
        async with self._held(f"claim {uid}"):
            yield

    @contextlib.asynccontextmanager
    async def gpus(self, uuids: Iterable[str]) -> AsyncIterator[None]:
        """Excludes all other work on these GPUs."""
        async with contextlib.AsyncExitStack() as stack:
            for uuid in sorted(set(uuids)):
                await stack.enter_async_context(self._held(uuid))
            yield

    @contextlib.asynccontextmanager
    async def _held(self, name: str) -> AsyncIterator[None]:
        # The file's locks are those of the process: its tasks queue here, in order, and only the first polls.
        byte = _byte_of(name)
        local = self._local.setdefault(byte, asyncio.Lock())
        self._users[byte] = self._users.get(byte, 0) + 1
        try:
            async with local:
                await self._lock(byte, name)
                try:
                    yield
                finally:
                    self._set(fcntl.F_UNLCK, byte)
        finally:
            self._users[byte] -= 1
            if not self._users[byte]:
                del self._users[byte], self._local[byte]

    async def _lock(self, byte: int, name: str) -> None:
        deadline_s = self._clock.monotonic_s() + _DEADLINE_S
        while True:
            try:
                self._set(fcntl.F_WRLCK, byte)
            except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: somebody else has it
                pass
            except OSError as error:
                raise state_error(error, self._path, "cannot be locked") from error
            else:
                return
            if self._clock.monotonic_s() >= deadline_s:
                raise PrepareError(
                    f"{name} is locked by another process for more than {_DEADLINE_S:.0f} s",
                    next_step="look for a second, hanging plugin process on this node",
                )
            await self._clock.sleep(_POLL_S)

    def _set(self, kind: int, byte: int) -> None:
        # `struct flock`: type, whence, start, length, and no pid.
        fcntl.fcntl(self._opened(), fcntl.F_OFD_SETLK, struct.pack("hhqqi", kind, os.SEEK_SET, byte, 1, 0))

    def _opened(self) -> int:
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise state_error(error, self._path, "cannot be locked") from error
            weakref.finalize(self, os.close, self._descriptor)
        return self._descriptor


def _byte_of(name: str) -> int:
    """Of 2^62: that two of a node's names share one is out of the question."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 2
