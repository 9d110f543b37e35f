"""Held state: what this node holds for a claim, and the steps that undo it, as its file says.

A file is `{"version": 2, "checksum": "sha256:…", "payload": {…}}`; the checksum covers the payload's bytes as
they stand in the file, so that a field that this version does not know breaks nothing. Unknown fields of a
payload are kept when the file is written again. A file of a newer version, or a damaged one, is never
overwritten: it is set aside under another name.
"""

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from tangram.hardware.backend import ComputeMode
from tangram.model.devices import Kind
from tangram.model.mig import MigPlacement

VERSION = 2
"""What this version writes at most; it reads all from 1 on."""
_ONLY_WHOLE_GPUS = 1
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


class _Struct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of what is written to disk: add fields with defaults only."""


class HeldShare(_Struct, frozen=True, kw_only=True):
    """What a claim takes of a shared GPU (`tangram.model.shares.Share`)."""

    memory_bytes: int = 0
    cores: int = 0
    replicas: int = 0


class HeldPlacement(_Struct, frozen=True, kw_only=True):
    """Where a MIG device lies, in memory slices. `foreign`: UUID of an instance that somebody else made."""

    profile_id: int
    start: int
    size: int
    foreign: str = ""

    @property
    def placement(self) -> MigPlacement:
        return MigPlacement(self.start, self.size)


class HeldDevice(_Struct, frozen=True, kw_only=True):
    """A device that a claim holds: the intent.

    `uuid` is the GPU's; overlaps are found by it, since names may change. A device with `admin_access` is
    used, not held: it conflicts with nobody, and nothing of the GPU is changed for it. `mig` is set for kind
    `mig`, `share` for `mps` and `timeslice`.
    """

    pool: str
    device: str
    uuid: str
    request_names: tuple[str, ...]
    share_id: str | None = msgspec.field(default=None, name="shareID")
    admin_access: bool = False
    kind: Kind = "gpu"
    share: HeldShare | None = None
    mig: HeldPlacement | None = None


class HeldResult(_Struct, frozen=True, kw_only=True):
    """What the kubelet was told about one device."""

    pool: str
    device: str
    request_names: tuple[str, ...]
    cdi_device_ids: tuple[str, ...]
    share_id: str | None = msgspec.field(default=None, name="shareID")


class CdiStep(_Struct, frozen=True, kw_only=True, tag_field="step", tag="cdi"):
    """The claim's CDI file may have been written. Undo: remove it."""


class MigStep(_Struct, frozen=True, kw_only=True, tag_field="step", tag="mig"):
    """An instance may have been made at this place of the GPU. Undo: destroy it.

    `before` are the instances (id, start) that were there already. The ids and the UUID are set once it
    stands: ids are used again after a destroy, so that the UUID decides whether an instance is this one.
    """

    device: str
    uuid: str
    profile_id: int
    start: int
    size: int
    before: tuple[tuple[int, int], ...] = ()
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    mig_uuid: str = ""


class ComputeModeStep(_Struct, frozen=True, kw_only=True, tag_field="step", tag="computeMode"):
    """The GPU's compute mode may have been set. Undo: back to `before`."""

    uuid: str
    before: ComputeMode
    wanted: ComputeMode


class MpsStep(_Struct, frozen=True, kw_only=True, tag_field="step", tag="mps"):
    """The claim may have joined the GPU's MPS daemon. Undo: leave it."""

    uuid: str


Step = CdiStep | MigStep | ComputeModeStep | MpsStep
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
    undo: tuple[Step, ...] = ()
    result: tuple[HeldResult, ...] | None = None

    @property
    def label(self) -> str:
        """The claim for people."""
        return f"claim {self.namespace}/{self.name} (uid {self.uid})"

    @property
    def is_whole_gpus(self) -> bool:
        """Whether it is files alone, as of version 1: no hardware was changed for it."""
        return all(device.kind == "gpu" for device in self.devices) and all(
            isinstance(step, CdiStep) for step in self.undo
        )

    @property
    def gpus(self) -> frozenset[str]:
        """UUIDs of the GPUs it touches."""
        return frozenset(device.uuid for device in self.devices)


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
        _Envelope(version=_version_of(claim), checksum=_checksum(payload), payload=msgspec.Raw(payload))
    )


def _version_of(claim: HeldClaim) -> int:
    """The oldest version that understands the file, so that a node can go back to it."""
    return _ONLY_WHOLE_GPUS if claim.is_whole_gpus else VERSION


def decode(data: bytes, *, uid: str) -> HeldClaim | Damage:
    """The claim in a file named after `uid`, or what is wrong with the file."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if not 1 <= version <= VERSION:
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


def unknown_fields(data: bytes) -> dict[str, msgspec.Raw]:
    """Fields of the payload in a file that this version does not know; none if it cannot be read."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        payload = msgspec.json.decode(envelope.payload, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return {}
    known = HeldClaim.__struct_encode_fields__
    return {name: value for name, value in payload.items() if name not in known}


def is_uid(text: str) -> bool:
    """Whether a claim uid may become a file name."""
    return _UID.fullmatch(text) is not None


def _checksum(payload: bytes) -> str:
    return f"sha256:{hashlib.sha256(payload).hexdigest()}"
