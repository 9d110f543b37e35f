"""Where simulated GPUs keep their state: in memory, or in files that outlive the process as hardware does."""

import contextlib
import fcntl
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from tangram.base.atomicfile import remove_leftovers, state_error, write_atomically
from tangram.base.errors import DriverUnavailableError, StateError
from tangram.hardware.simulated.state import GpuState, new_state, rebooted
from tangram.model.gpu import Gpu, GpuUuid

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Store(Protocol):
    """The states of the GPUs of a node."""

    @property
    def boot_id(self) -> str:
        """Of the boot that states are for."""
        ...

    def change(self, gpu: Gpu) -> AbstractContextManager[GpuState]:
        """The state of a GPU, to be looked at or changed by one at a time; kept if the block ends well.

        `gpu` is the GPU as described, for one that is new. DriverUnavailableError: files cannot be used.
        """
        ...

    def first(self, event: str) -> bool:
        """Whether this never happened before, as far as the store remembers; it has from now on."""
        ...


class MemoryStore:
    """States that end with the process."""

    boot_id = ""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: set[str] = set()
        self._states: dict[GpuUuid, GpuState] = {}

    @contextmanager
    def change(self, gpu: Gpu) -> Iterator[GpuState]:
        """The state of the GPU."""
        with self._lock:
            state = self._states.setdefault(gpu.uuid, new_state(gpu.mig_mode))
            working = msgspec.convert(msgspec.to_builtins(state), GpuState)
            yield working
            self._states[gpu.uuid] = working

    def first(self, event: str) -> bool:
        """Whether this process has not seen it."""
        with self._lock:
            new = event not in self._events
            self._events.add(event)
            return new


class _File(msgspec.Struct):
    boot_id: str
    state: GpuState


class FileStore:
    """One file for each GPU in a directory that several processes may share.

    States of another boot are lost, as on hardware. What is no state, or of another version, counts as none.
    """

    def __init__(self, directory: Path, *, boot_id: str | None = None) -> None:
        self._directory = directory
        self._boot_id = boot_id
        remove_leftovers(directory, name_prefix="GPU-")

    @property
    def boot_id(self) -> str:
        """Of the boot that states are for."""
        return self._boot_id or BOOT_ID.read_text(encoding="ascii").strip()

    @contextmanager
    def change(self, gpu: Gpu) -> Iterator[GpuState]:
        """The state of the GPU."""
        path = self._directory / f"{gpu.uuid}.json"
        with self._locked(path.with_suffix(".lock")):
            before = self._read(path)
            state = self._state(before, gpu)
            yield state
            data = msgspec.json.encode(_File(self.boot_id, state))
            if data != before:
                _write(path, data)

    def first(self, event: str) -> bool:
        """Whether no process has noted it in the directory."""
        path = self._directory / f"happened-{hashlib.sha256(event.encode()).hexdigest()[:16]}"
        with self._locked(path.with_suffix(".lock")):
            if path.exists():
                return False
            _write(path, event.encode())
            return True

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        try:
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unavailable(state_error(error, path, "cannot be opened")) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise _unavailable(state_error(error, path, "cannot be read")) from error

    def _state(self, data: bytes, gpu: Gpu) -> GpuState:
        with contextlib.suppress(msgspec.DecodeError):
            file = msgspec.json.decode(data, type=_File)
            if file.boot_id == self.boot_id:
                return file.state
            return rebooted(file.state, gpu)
        return new_state(gpu.mig_mode)


def _write(path: Path, data: bytes) -> None:
    try:
        # A GPU's own state is in no file: a simulated call is not to wait for the disk.
        write_atomically(path, data, mode=0o644, sync=False)
    except StateError as error:
        raise _unavailable(error) from error


def _unavailable(error: StateError) -> DriverUnavailableError:
    """A state that cannot be had is to the driver of simulated GPUs what a broken module is to a real one."""
    return DriverUnavailableError(error.cause, next_step=error.next_step)
