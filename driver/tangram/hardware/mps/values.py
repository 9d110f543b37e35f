"""What the node plugin and the supervisor of MPS daemons tell each other: values, and their files."""

from typing import Literal, TypeVar

import msgspec

from tangram.model.gpu import GpuUuid

MIB = 2**20
_MAXIMUM_FILE_BYTES = 64 * 1024

T = TypeVar("T", bound="_Struct")


class _Struct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of what is written to disk: add fields with defaults only, so that any two versions can talk."""


class MpsShare(_Struct, frozen=True, kw_only=True):
    """What one claim may use of a GPU: memory, at least 1 MiB, and percent (1 to 100) of multiprocessors."""

    memory_bytes: int
    cores_percent: int

    def __post_init__(self) -> None:
        if self.memory_bytes < MIB:
            raise ValueError(f"memory_bytes is {self.memory_bytes}, the least is 1 MiB")
        if not 1 <= self.cores_percent <= 100:
            raise ValueError(f"cores_percent is {self.cores_percent}, not within 1 and 100")

    @property
    def memory_mib(self) -> int:
        """The limit as MPS takes it: whole MiB, rounded down, so that the sum of all stays on the GPU."""
        return self.memory_bytes // MIB

    def covers(self, other: "MpsShare") -> bool:
        """Whether a daemon with these limits leaves the other share whole: a client can only ask for less."""
        return self.memory_mib >= other.memory_mib and self.cores_percent >= other.cores_percent


def largest(shares: "list[MpsShare]") -> MpsShare | None:
    """The limits of a daemon that serves all these shares; None for none."""
    if not shares:
        return None
    return MpsShare(
        memory_bytes=max(share.memory_mib for share in shares) * MIB,
        cores_percent=max(share.cores_percent for share in shares),
    )


class MpsMember(_Struct, frozen=True, kw_only=True):
    """A claim that uses a GPU through MPS: the content of its file."""

    uuid: str
    share: MpsShare


class MpsDaemon(_Struct, frozen=True, kw_only=True):
    """A control daemon's process: a pid is used again, but not with this start (clock ticks since boot)."""

    pid: int
    start_ticks: int
    boot_id: str


IncidentKind = Literal["died", "hung", "server_died", "server_faulted", "start_failed", "limits_refused"]
"""Control daemon gone · it does not answer · its server gone · its server refuses clients after a fatal
exception of the GPU · it does not come up · limits differ."""


class MpsIncident(_Struct, frozen=True, kw_only=True):
    """Something that went wrong with a GPU's daemon. `time` is RFC 3339, `cause` one sentence for people."""

    kind: IncidentKind
    cause: str
    time: str


MpsState = Literal["starting", "ready", "failing", "stopping", "stopped"]


class MpsStatus(_Struct, frozen=True, kw_only=True):
    """What the supervisor says about one GPU's daemon.

    `keeper` names the run of the supervisor that wrote it: what an earlier one wrote is past. `limits` are
    those that were read back from the daemon. `incidents` counts since the directory was made, `incident` is
    the last one. `servers` are the pids of its MPS servers.
    """

    uuid: str
    state: MpsState
    keeper: str
    limits: MpsShare | None = None
    cause: str = ""
    daemon: MpsDaemon | None = None
    servers: tuple[int, ...] = ()
    incidents: int = 0
    incident: MpsIncident | None = None

    def serves(self, wanted: MpsShare) -> bool:
        """Whether claims whose largest share is this may start."""
        return self.state == "ready" and self.limits is not None and self.limits.covers(wanted)


def encode(value: _Struct) -> bytes:
    """The file of a value."""
    return msgspec.json.encode(value)


def decode(data: bytes, kind: type[T]) -> T | None:
    """The value in a file; None if it is not one (cut off, foreign, too large)."""
    if len(data) > _MAXIMUM_FILE_BYTES:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return None


def directory_name(uuid: GpuUuid) -> str:
    """The first 12 hex digits of a GPU's UUID: sockets below it must fit into 107 bytes (unix(7)).

    ValueError for what is not a UUID.
    """
    digits = "".join(character for character in uuid.lower().removeprefix("gpu-") if character != "-")
    if len(digits) != 32 or not set(digits) <= set("0123456789abcdef"):
        raise ValueError(f"{uuid[:80]!r} is not the UUID of a GPU")
    return digits[:12]
