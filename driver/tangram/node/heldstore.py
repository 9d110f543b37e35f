"""The directory of held state: one file per claim, written whole or not at all."""

import os
from pathlib import Path

import msgspec

from tangram.base.atomicfile import make_directory, remove_leftovers, state_error, write_atomically
from tangram.base.errors import StateError
from tangram.node.held import Contents, Damage, HeldClaim, decode, encode, is_uid, unknown_fields

_SUFFIX = ".json"
_SET_ASIDE = ".set-aside"
_MAXIMUM_FILE_BYTES = 1024 * 1024


_Known = tuple[tuple[int, int, int], HeldClaim | Damage]
"""What a file held when it looked like this."""


def _signature(status: os.stat_result) -> tuple[int, int, int]:
    """A write makes a new inode, and gives it a new time."""
    return status.st_ino, status.st_mtime_ns, status.st_size


class HeldStore:
    """The directory of held state. Blocking; every method may raise StateError.

    Two processes may use one directory: whoever writes or removes a claim's file holds that claim's lock.
    Unchanged files are not read again (a write makes a new inode).
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cache: dict[str, _Known] = {}

    def create(self) -> None:
        """Makes the directory, and removes what cut-off writes left in it."""
        make_directory(self._directory)
        remove_leftovers(self._directory, name_prefix="")

    def load(self) -> Contents:
        """All files as they are now."""
        cache: dict[str, _Known] = {}
        try:
            with os.scandir(self._directory) as entries:
                found = sorted((entry.name, entry) for entry in entries if entry.name.endswith(_SUFFIX))
                for name, entry in found:
                    uid = name.removesuffix(_SUFFIX)
                    if is_uid(uid) and (known := self._look(uid, entry)) is not None:
                        cache[uid] = known
        except OSError as error:
            raise state_error(error, self._directory, "cannot be read") from error
        self._cache = cache
        read = {uid: content for uid, (_, content) in cache.items()}
        return Contents(
            claims={uid: content for uid, content in read.items() if isinstance(content, HeldClaim)},
            damaged={uid: content for uid, content in read.items() if isinstance(content, Damage)},
        )

    def read(self, uid: str) -> HeldClaim | Damage | None:
        """One claim's file; None if there is none."""
        entry = self._read(uid)
        return None if entry is None else entry[1]

    def write(self, claim: HeldClaim, *, durably: bool = True) -> None:
        """Writes a claim's file in one step. A file of a newer version is refused, a damaged one replaced.

        Only what is written `durably` outlives a power cut; an intent announces what does not outlive one.
        """
        data = encode(claim, unknown=self._unknown_fields(claim.uid))
        write_atomically(self._path(claim.uid), data, mode=0o600, sync=durably)

    def remove(self, uid: str) -> None:
        """Removes a claim's file; none there is no error.

        Without fsync: one that a power cut brings back is of another boot, and its claim gone.
        """
        path = self._path(uid)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise state_error(error, path, "cannot be removed") from error

    def set_aside(self, uid: str) -> Path:
        """Renames a file that cannot be used; returns its new name, which begins with the old one."""
        path = self._path(uid)
        for number in range(1, 1000):
            target = path.with_name(f"{path.name}{_SET_ASIDE}-{number}")
            if not target.exists():
                break
        try:
            path.rename(target)
        except OSError as error:
            raise state_error(error, path, "cannot be set aside") from error
        return target

    def _path(self, uid: str) -> Path:
        if not is_uid(uid):
            raise StateError(f"claim uid {uid[:80]!r} cannot be a file name")
        return self._directory / f"{uid}{_SUFFIX}"

    def _look(self, uid: str, entry: os.DirEntry[str]) -> _Known | None:
        """A file that stands there as it was read last is not opened again."""
        try:
            known = self._cache.get(uid)
            if known is not None and known[0] == _signature(entry.stat(follow_symlinks=False)):
                return known
        except OSError:
            pass  # gone or unreadable: reading tells
        return self._read(uid)

    def _read(self, uid: str) -> _Known | None:
        path = self._path(uid)
        try:
            with path.open("rb") as file:
                signature = _signature(os.fstat(file.fileno()))
                if (cached := self._cache.get(uid)) is not None and cached[0] == signature:
                    return cached
                data = file.read(_MAXIMUM_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            # A bad sector or a directory in its place costs this claim, not the node.
            return (0, 0, 0), Damage(uid=uid, cause=f"cannot be read: {error.strerror or error}")
        if len(data) > _MAXIMUM_FILE_BYTES:
            return signature, Damage(uid=uid, cause=f"larger than {_MAXIMUM_FILE_BYTES} bytes")
        return signature, decode(data, uid=uid)

    def _unknown_fields(self, uid: str) -> dict[str, msgspec.Raw]:
        """Fields of the claim's present payload that this version does not know."""
        current = self.read(uid)
        if isinstance(current, Damage):
            if current.newer:
                raise StateError(
                    f"the held state of claim uid {uid} is not usable: {current.cause}",
                    next_step="finish the upgrade, or set the file aside by restarting this version",
                )
            return {}
        if current is None:
            return {}
        try:
            return unknown_fields(self._path(uid).read_bytes())
        except OSError:
            return {}
