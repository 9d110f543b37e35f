"""Held state: what this node holds for each claim, one file per claim.

A file is `{"version": 1, "checksum": "sha256:…", "payload": {…}}`; the checksum covers the payload's bytes as
they stand in the file, so that a field that this version does not know breaks nothing. Unknown fields of a
payload are kept when the file is written again. A file of a newer version, or a damaged one, is never
overwritten: it is set aside under another name.
"""

import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from tangram.base.atomicfile import remove_leftovers, state_error, write_atomically
from tangram.base.errors import StateError

VERSION = 1
_SUFFIX = ".json"
_SET_ASIDE = ".set-aside"
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_MAXIMUM_FILE_BYTES = 1024 * 1024


class _Struct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of what is written to disk: add fields with defaults only."""


class HeldDevice(_Struct, frozen=True, kw_only=True):
    """A device that a claim holds: the intent.

    `uuid` is the GPU's; overlaps are found by it, since names may change. A device with `admin_access` is
    used, not held: it conflicts with nobody.
    """

    pool: str
    device: str
    uuid: str
    request_names: tuple[str, ...]
    share_id: str | None = msgspec.field(default=None, name="shareID")
    admin_access: bool = False


class HeldResult(_Struct, frozen=True, kw_only=True):
    """What the kubelet was told about one device."""

    pool: str
    device: str
    request_names: tuple[str, ...]
    cdi_device_ids: tuple[str, ...]
    share_id: str | None = msgspec.field(default=None, name="shareID")


class CdiStep(_Struct, frozen=True, kw_only=True, tag_field="step", tag="cdi"):
    """The claim's CDI file may have been written. Undo: remove it."""


Phase = Literal["preparing", "prepared", "unpreparing"]


class HeldClaim(_Struct, frozen=True, kw_only=True, omit_defaults=False):
    """What the node holds for a claim.

    `boot_id` is that of the kernel when it was prepared. `undo` lists, in order, the steps that may have had
    an effect; `result` is set from phase `prepared` on.
    """

    namespace: str
    name: str
    uid: str
    boot_id: str
    phase: Phase
    devices: tuple[HeldDevice, ...]
    undo: tuple[CdiStep, ...] = ()
    result: tuple[HeldResult, ...] | None = None

    @property
    def label(self) -> str:
        """The claim for people."""
        return f"claim {self.namespace}/{self.name} (uid {self.uid})"

    @property
    def gpus(self) -> frozenset[str]:
        """UUIDs of the GPUs it touches."""
        return frozenset(device.uuid for device in self.devices)


_FIELDS = frozenset(HeldClaim.__struct_encode_fields__)


class _Versioned(msgspec.Struct, frozen=True, kw_only=True):
    version: int


class _Envelope(_Versioned, frozen=True, kw_only=True):
    checksum: str
    payload: msgspec.Raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A file that cannot be used, and why. `newer`: written by a later version of Tangram."""

    uid: str
    cause: str
    newer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All held state: claims by uid, and the files that cannot be used."""

    claims: dict[str, HeldClaim] = field(default_factory=dict)
    damaged: dict[str, Damage] = field(default_factory=dict)


def encode(claim: HeldClaim, *, unknown: dict[str, msgspec.Raw] | None = None) -> bytes:
    """The file of a claim; `unknown` are payload fields of another version to keep."""
    known: dict[str, Any] = msgspec.to_builtins(claim)
    payload = msgspec.json.encode((unknown or {}) | known)
    return msgspec.json.encode(
        _Envelope(version=VERSION, checksum=_checksum(payload), payload=msgspec.Raw(payload))
    )


def decode(data: bytes, *, uid: str) -> HeldClaim | Damage:
    """The claim in a file named after `uid`, or what is wrong with the file."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != VERSION:
            return Damage(
                uid=uid, cause=f"version {version}, this is version {VERSION}", newer=version > VERSION
            )
        envelope = msgspec.json.decode(data, type=_Envelope)
        if _checksum(bytes(envelope.payload)) != envelope.checksum:
            return Damage(uid=uid, cause="the checksum does not match")
        claim = msgspec.json.decode(envelope.payload, type=HeldClaim)
    except (msgspec.MsgspecError, RecursionError) as error:
        return Damage(uid=uid, cause=str(error) or type(error).__name__)
    if claim.uid != uid:
        return Damage(uid=uid, cause=f"the file holds claim uid {claim.uid!r}")
    return claim


def is_uid(text: str) -> bool:
    """Whether a claim uid may become a file name."""
    return _UID.fullmatch(text) is not None


def _checksum(payload: bytes) -> str:
    return f"sha256:{hashlib.sha256(payload).hexdigest()}"


class HeldStore:
    """The directory of held state. Blocking; every method may raise StateError.

    Two processes may use one directory: whoever writes or removes a claim's file holds that claim's lock.
    Unchanged files are not read again (a write makes a new inode).
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cache: dict[str, tuple[tuple[int, int, int], HeldClaim | Damage]] = {}

    def create(self) -> None:
        """Makes the directory, and removes what cut-off writes left in it."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise state_error(error, self._directory, "cannot be made") from error
        remove_leftovers(self._directory, name_prefix="")

    def load(self) -> Contents:
        """All files as they are now."""
        cache: dict[str, tuple[tuple[int, int, int], HeldClaim | Damage]] = {}
        try:
            with os.scandir(self._directory) as entries:
                uids = sorted(
                    entry.name.removesuffix(_SUFFIX) for entry in entries if entry.name.endswith(_SUFFIX)
                )
        except OSError as error:
            raise state_error(error, self._directory, "cannot be read") from error
        for uid in uids:
            if is_uid(uid) and (entry := self._read(uid)) is not None:
                cache[uid] = entry
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

    def write(self, claim: HeldClaim) -> None:
        """Writes a claim's file in one step. A file of a newer version is refused, a damaged one replaced."""
        data = encode(claim, unknown=self._unknown_fields(claim.uid))
        write_atomically(self._path(claim.uid), data, mode=0o600)

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

    def _read(self, uid: str) -> tuple[tuple[int, int, int], HeldClaim | Damage] | None:
        path = self._path(uid)
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                signature = (status.st_ino, status.st_mtime_ns, status.st_size)
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
            envelope = msgspec.json.decode(self._path(uid).read_bytes(), type=_Envelope)
            payload = msgspec.json.decode(envelope.payload, type=dict[str, msgspec.Raw])
        except (OSError, msgspec.MsgspecError):
            return {}
        return {name: value for name, value in payload.items() if name not in _FIELDS}
