"""Locks that hold between tasks and between processes: two plugins overlap in a rolling update.

Each lock is a file with `flock`: the kernel frees it when its process dies. Order, against deadlock: the lock
of one claim first, then those of GPUs in order of their names.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from tangram.base.atomicfile import state_error
from tangram.base.clock import Clock
from tangram.base.errors import PrepareError

_POLL_S = 0.01
_DEADLINE_S = 30.0
"""Below the 45 s that the kubelet waits for an answer."""


class Locks:
    """The lock files of one directory."""

    def __init__(self, directory: Path, *, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._local: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    def create(self) -> None:
        """Makes the directory, and removes claims' locks that dead processes left. Raises StateError."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in self._directory.glob("claim-*.lock"):
                if (descriptor := _try_lock(path)) is not None:
                    path.unlink(missing_ok=True)
                    os.close(descriptor)
        except OSError as error:
            raise state_error(error, self._directory, "cannot be made") from error

    @contextlib.asynccontextmanager
    async def claim(self, uid: str) -> AsyncIterator[None]:
        """Excludes all other work on a claim. Its lock file goes with it: claims come and go."""
        async with self._held(f"claim-{uid}", temporary=True):
            yield

    @contextlib.asynccontextmanager
    async def gpus(self, uuids: Iterable[str]) -> AsyncIterator[None]:
        """Excludes all other work on these GPUs."""
        async with contextlib.AsyncExitStack() as stack:
            for uuid in sorted(set(uuids)):
                digits = "".join(character for character in uuid.lower() if character.isalnum())
                await stack.enter_async_context(self._held(f"gpu-{digits.removeprefix('gpu')}"))
            yield

    @contextlib.asynccontextmanager
    async def _held(self, name: str, *, temporary: bool = False) -> AsyncIterator[None]:
        # Tasks of this process queue in order on an asyncio lock; only the first polls the file.
        local = self._local.setdefault(name, asyncio.Lock())
        self._users[name] = self._users.get(name, 0) + 1
        try:
            async with local:
                path = self._directory / f"{name}.lock"
                descriptor = await self._lock_file(path)
                try:
                    yield
                finally:
                    try:
                        if temporary:
                            path.unlink(missing_ok=True)
                    finally:
                        os.close(descriptor)
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._local[name]

    async def _lock_file(self, path: Path) -> int:
        deadline_s = self._clock.monotonic_s() + _DEADLINE_S
        while True:
            try:
                descriptor = _try_lock(path)
            except OSError as error:
                raise state_error(error, path, "cannot be locked") from error
            if descriptor is not None:
                return descriptor
            if self._clock.monotonic_s() >= deadline_s:
                raise PrepareError(
                    f"{path.stem} is locked by another process for more than {_DEADLINE_S:.0f} s",
                    next_step="look for a second, hanging plugin process on this node",
                )
            await self._clock.sleep(_POLL_S)


def _try_lock(path: Path) -> int | None:
    """The locked file, or None if somebody else has it (or removed it in this moment)."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The holder of a temporary lock removes the file before it unlocks: such a lock excludes nobody.
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
