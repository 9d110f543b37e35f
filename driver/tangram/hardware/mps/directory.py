"""The node plugin's side of MPS: claims join and leave GPUs, `tangram mps run` does the rest.

All passes through files of a directory on the host, so that plugin and supervisor live and die apart:

    <root>/keeper.lock              locked, with the name of its run inside, as long as a supervisor runs
    <root>/wake                     a datagram socket: look now
    <root>/<gpu>/claims/<uid>.json  a claim that uses this GPU, and its share: written by the plugin
    <root>/<gpu>/status.json        what the daemon of this GPU is doing: written by the supervisor
    <root>/<gpu>/pipe, …/log        CUDA_MPS_PIPE_DIRECTORY and CUDA_MPS_LOG_DIRECTORY of this GPU's daemon

A GPU is wanted while it has a claim's file. In Prepare: set the compute mode, then `join`, then `ready`. In
Unprepare, and to undo: `leave`, then `gone`, then restore the compute mode if the claim was the GPU's last
one. All may be repeated.
"""

import contextlib
import errno
import fcntl
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from tangram import DRIVER_NAME
from tangram.base.atomicfile import state_error, write_atomically
from tangram.base.clock import Clock
from tangram.base.errors import HardwareError, HardwareTimeoutError, StateError
from tangram.hardware.cdi import CdiEdits, Mount
from tangram.hardware.mps.values import (
    MpsMember,
    MpsShare,
    MpsStatus,
    decode,
    directory_name,
    encode,
    largest,
)
from tangram.model.gpu import GpuUuid

READY_DEADLINE_S = 8.0
"""So that Prepare answers within 10 s where a daemon hangs, dies, or is not taken up."""
STARTING_DEADLINE_S = 25.0
"""While it is coming up: on a node under load that takes longer, and no shorter when it is tried again. The
kubelet gives a call 45 s; undoing one that failed takes some too."""
CLIENT_PIPE_DIRECTORY = "/run/tangram-mps"
"""Where a container finds the sockets of its GPU's daemon."""
CLIENT_DEVICE = 0
"""The index of the GPU for a client: the daemon shows it one GPU alone."""
_POLL_S = 0.01
_MAXIMUM_READ = 64 * 1024 + 1
_CLAIM_SUFFIX = ".json"
_CLAIM_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_SHM = "/dev/shm"  # noqa: S108 - a mount point, no temporary file
_MOUNT_OPTIONS = ("rw", "nosuid", "nodev", "noexec", "rbind", "rprivate")
_NO_SUPERVISOR = "look at the pods of the DaemonSet tangram-mps on this node"


def mps_root(kubelet_dir: str) -> Path:
    """The directory that node plugin and supervisor share."""
    return Path(kubelet_dir) / "plugins" / DRIVER_NAME / "mps"


class MpsDirectory:
    """The directory `<kubelet dir>/plugins/gpu.resource.admin/mps`. What is not `async` blocks on files.

    `shm_directory` is the host's directory that daemons and clients share as /dev/shm; None, for simulated
    GPUs: none. Whoever joins or leaves holds the GPU's lock, as for every other step of Prepare.
    """

    def __init__(self, root: Path, *, clock: Clock, boot_id: str, shm_directory: Path | None = None) -> None:
        self._root = root
        self._clock = clock
        self._boot_id = boot_id
        self._shm_directory = shm_directory

    def join(self, gpu: GpuUuid, *, claim_uid: str, share: MpsShare) -> None:
        """From now on the claim wants this share of the GPU; another share replaces it. Raises StateError."""
        path = self._claim_file(gpu, claim_uid)
        if others := {member.uuid for member in read_members(self._directory(gpu)).values()} - {gpu}:
            raise StateError(
                f"{gpu} and {min(others)} begin alike: {path.parent.parent} is the directory of both",
                next_step="use one of the two GPUs without MPS",
            )
        data = encode(MpsMember(uuid=gpu, share=share))
        if _read(path) != data:
            write_atomically(path, data, mode=0o600, sync=False)  # no daemon outlives a power cut
            self.wake()

    def leave(self, gpu: GpuUuid, *, claim_uid: str) -> None:
        """The claim does not use the GPU any more; one that never joined is no error. Raises StateError."""
        path = self._claim_file(gpu, claim_uid)
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise state_error(error, path, "cannot be removed") from error
        self.wake()

    def members(self) -> dict[GpuUuid, dict[str, MpsShare]]:
        """GPU → claim uid → share: for the reconciler. A damaged file counts for nobody. StateError."""
        found: dict[GpuUuid, dict[str, MpsShare]] = {}
        for directory in gpu_directories(self._root):
            for claim_uid, member in read_members(directory).items():
                found.setdefault(GpuUuid(member.uuid), {})[claim_uid] = member.share
        return found

    def status(self, gpu: GpuUuid) -> MpsStatus | None:
        """What the supervisor that runs now says about the GPU's daemon; None if it says nothing (yet)."""
        status = read_status(self._directory(gpu))
        if status is None or status.uuid != gpu or status.keeper != running_keeper(self._root):
            return None
        if status.daemon is not None and status.daemon.boot_id != self._boot_id:
            return None
        return status

    def statuses(self) -> dict[GpuUuid, MpsStatus]:
        """GPU → what is said about its daemon, incidents included: for events and health. StateError."""
        uuids = [status.uuid for each in gpu_directories(self._root) if (status := read_status(each))]
        return {GpuUuid(uuid): status for uuid in uuids if (status := self.status(GpuUuid(uuid)))}

    async def ready(
        self,
        gpu: GpuUuid,
        *,
        deadline_s: float = READY_DEADLINE_S,
        slow: Callable[[str], None] | None = None,
    ) -> MpsStatus:
        """Waits until the daemon serves all the GPU's claims: it runs, its limits cover the largest share.

        At once where that is so already. Raises HardwareTimeoutError after `deadline_s`, HardwareError where
        no supervisor runs then, both with what to look at; StateError. One that is coming up is waited for
        longer, and `slow` told so once.
        """
        began_s = self._clock.monotonic_s()
        told = False
        while True:
            status = self.status(gpu)
            shares = [member.share for member in read_members(self._directory(gpu)).values()]
            wanted = largest(shares)
            if wanted is None:
                raise StateError(f"no claim has joined the MPS daemon of {gpu}", next_step="call join first")
            if status is not None and status.serves(wanted):
                return status
            waited_s = self._clock.monotonic_s() - began_s
            if waited_s >= deadline_s:
                starting = status is not None and status.state == "starting"
                if not starting or waited_s >= max(deadline_s, STARTING_DEADLINE_S):
                    raise self._not_ready(gpu, status, waited_s)
                if slow is not None and not told:
                    slow(f"the MPS daemon of {gpu} is still starting after {waited_s:.0f} s")
                told = True
            await self._clock.sleep(_POLL_S)

    async def gone(self, gpu: GpuUuid, *, deadline_s: float = READY_DEADLINE_S) -> None:
        """Waits until nothing of the GPU's daemon is left; returns at once while a claim uses it.

        Also where no supervisor runs: a daemon does not outlive the container it runs in. Raises
        HardwareTimeoutError.
        """
        end_s = self._clock.monotonic_s() + deadline_s
        while not read_members(self._directory(gpu)) and (status := self.status(gpu)) is not None:
            if status.state == "stopped":
                return
            if self._clock.monotonic_s() >= end_s:
                raise HardwareTimeoutError(
                    f"the MPS daemon of {gpu} still runs {deadline_s:g} s after its last claim left"
                    f" ({_in_words(status)})",
                    next_step="end the processes that use the GPU; see the log of tangram-mps on this node",
                )
            await self._clock.sleep(_POLL_S)

    def client_edits(self, gpu: GpuUuid, share: MpsShare) -> CdiEdits:
        """What a container needs to be a client with this share; only for containers that got this device.

        The limits hold for each process of the container by itself, and a process can lift them up to the
        limits of the daemon, which are those of the largest share: `isolation` is `none`.
        """
        mounts = [
            Mount(
                host_path=str(self._directory(gpu) / "pipe"),
                container_path=CLIENT_PIPE_DIRECTORY,
                options=_MOUNT_OPTIONS,
            )
        ]
        if self._shm_directory is not None:
            mounts.append(
                Mount(host_path=str(self._shm_directory), container_path=_SHM, options=_MOUNT_OPTIONS)
            )
        return CdiEdits(
            env=(
                f"CUDA_MPS_PIPE_DIRECTORY={CLIENT_PIPE_DIRECTORY}",
                f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={CLIENT_DEVICE}={share.memory_mib}M",
                f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={share.cores_percent}",
            ),
            mounts=tuple(mounts),
        )

    def wake(self) -> None:
        """Lets the supervisor look at once instead of within a second; never raises."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as waker:
            waker.setblocking(False)
            waker.sendto(b"\n", str(self._root / "wake"))

    def _not_ready(self, gpu: GpuUuid, status: MpsStatus | None, waited_s: float) -> HardwareError:
        if running_keeper(self._root) is None:
            return HardwareError(
                "no MPS supervisor (tangram mps run) runs on this node", next_step=_NO_SUPERVISOR
            )
        return HardwareTimeoutError(
            f"the MPS daemon of {gpu} is not ready after {waited_s:.0f} s ({_in_words(status)})",
            next_step=_NO_SUPERVISOR,
        )

    def _claim_file(self, gpu: GpuUuid, claim_uid: str) -> Path:
        if not _CLAIM_UID.fullmatch(claim_uid):
            raise StateError(f"claim uid {claim_uid[:80]!r} cannot be a file name")
        return self._directory(gpu) / "claims" / f"{claim_uid}{_CLAIM_SUFFIX}"

    def _directory(self, gpu: GpuUuid) -> Path:
        return self._root / directory_name(gpu)


def _in_words(status: MpsStatus | None) -> str:
    if status is None:
        return "the supervisor has not taken it up"
    return f"{status.state}: {status.cause}" if status.cause else status.state


def gpu_directories(root: Path) -> list[Path]:
    """The directories of GPUs that were ever used, sorted; none where nothing is there yet. StateError."""
    try:
        return sorted(path for path in root.iterdir() if (path / "claims").is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise state_error(error, root, "cannot be read") from error


def read_members(directory: Path) -> dict[str, MpsMember]:
    """Claim uid → member of one GPU. Damaged files, and those of another GPU, are left out. StateError."""
    return {uid: member for uid, data in _claim_files(directory) if (member := decode(data, MpsMember))}


def read_status(directory: Path) -> MpsStatus | None:
    """The status file of one GPU; None if there is none, or it cannot be used."""
    data = _read(directory / "status.json")
    status = None if data is None else decode(data, MpsStatus)
    if status is None:
        return None
    try:
        belongs = directory_name(GpuUuid(status.uuid)) == directory.name
    except ValueError:
        belongs = False
    return status if belongs else None


def running_keeper(root: Path) -> str | None:
    """The name of the supervisor's run that holds the directory now; None if none does."""
    try:
        with (root / "keeper.lock").open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read(_MAXIMUM_READ).decode(errors="replace") or None
    except OSError:
        return None
    return None


def _claim_files(directory: Path) -> Iterator[tuple[str, bytes]]:
    claims = directory / "claims"
    try:
        names = sorted(os.listdir(claims))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise state_error(error, claims, "cannot be read") from error
    for name in names:
        if name.endswith(_CLAIM_SUFFIX) and (data := _read(claims / name)) is not None:
            yield name.removesuffix(_CLAIM_SUFFIX), data


def _read(path: Path) -> bytes | None:
    """A small file's bytes, None if there is none. StateError where the disk refuses."""
    try:
        with path.open("rb") as file:
            return file.read(_MAXIMUM_READ)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
            return None
        raise state_error(error, path, "cannot be read") from error
