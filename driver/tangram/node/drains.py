"""GPUs that an operator has taken out of allocation (`tangram node drain-gpu`): nobody new gets them.

One file for each, `<plugin directory>/drained/<GPU UUID>.json`, written by the command and read by the
plugin, so that a drain outlives both. The file's name alone says that the GPU is drained: one whose contents
are damaged keeps it drained.
"""

import asyncio
import contextlib
import errno
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from tangram.base.atomicfile import remove_leftovers, state_error, write_atomically
from tangram.base.clock import Clock
from tangram.base.errors import StateError
from tangram.base.logs import get_logger
from tangram.model.gpu import GpuUuid

LOOK_S = 1.0
"""How often the plugin looks for drains: a directory that mostly is not there."""
DIRECTORY = "drained"
"""Beside the claims' held files."""
_SUFFIX = ".json"
_MAXIMUM_READ = 64 * 1024
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,95}")

_log = get_logger("node")


class Drain(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """`since` is a time in RFC 3339, `reason` a line of the operator's; both may be missing."""

    since: str = ""
    reason: str = ""

    @property
    def text(self) -> str:
        """The drain in words."""
        since = f" since {self.since}" if self.since else ""
        return f"drained{since}{f': {self.reason}' if self.reason else ''}"


class DrainStore:
    """The directory of drains. Blocking; every method may raise StateError."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self) -> dict[GpuUuid, Drain]:
        """All drains, by GPU in order of UUIDs."""
        try:
            names = sorted(os.listdir(self._directory))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise state_error(error, self._directory, "cannot be read") from error
        uuids = [GpuUuid(name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX)]
        return {uuid: _read(self._path(uuid)) for uuid in uuids if _UUID.fullmatch(uuid)}

    def add(self, uuid: GpuUuid, drain: Drain) -> None:
        """Drains a GPU; another drain of it is replaced. Outlives a power cut once it returns."""
        path = self._path(uuid)
        remove_leftovers(self._directory, name_prefix=path.name)
        write_atomically(path, msgspec.json.encode(drain), mode=0o600)
        self._sync()

    def remove(self, uuid: GpuUuid) -> bool:
        """Ends a drain; returns whether there was one."""
        path = self._path(uuid)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise state_error(error, path, "cannot be removed") from error
        self._sync()
        return True

    def _path(self, uuid: GpuUuid) -> Path:
        if not _UUID.fullmatch(uuid):
            raise StateError(f"GPU UUID {uuid[:100]!r} cannot be a file name")
        return self._directory / f"{uuid}{_SUFFIX}"

    def _sync(self) -> None:
        """The names, too: whoever drains a GPU may be about to cut its power."""
        try:
            descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system without it
                raise state_error(error, self._directory, "cannot be synced") from error


def _read(path: Path) -> Drain:
    with contextlib.suppress(OSError, msgspec.MsgspecError, RecursionError), path.open("rb") as file:
        return msgspec.json.decode(file.read(_MAXIMUM_READ), type=Drain)
    return Drain(reason="the file of the drain is damaged")


class DrainWatch:
    """What is drained, as seen last; `changed` is called when that is another, or known at last.

    Until it is `known` once, no GPU may be offered: any could be drained.
    """

    def __init__(self, store: DrainStore, *, changed: Callable[[], None], clock: Clock) -> None:
        self._store = store
        self._changed = changed
        self._clock = clock
        self.known = False
        self.problem = ""
        """Why the drains cannot be read now; empty if they can."""
        self.drained: Mapping[GpuUuid, str] = MappingProxyType({})
        """The GPUs, with the drain in words; not necessarily on this node."""

    async def look(self) -> None:
        """Once. What cannot be read is as it was."""
        try:
            found = await asyncio.to_thread(self._store.load)
        except StateError as error:
            if self.problem != error.cause:
                _log.error("drains_unreadable", error=error.cause, next_step=error.next_step)
            self.problem = error.cause
            return
        self.problem = ""
        drained = {uuid: drain.text for uuid, drain in found.items()}
        if drained != self.drained or not self.known:
            self.known = True
            self.drained = MappingProxyType(drained)
            self._changed()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._clock.sleep(LOOK_S)
            await self.look()
