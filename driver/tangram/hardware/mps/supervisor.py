"""`tangram mps run`: one task per GPU that keeps its MPS daemon as the claims want it."""

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from tangram.base.clock import Clock, SystemClock
from tangram.base.errors import TangramError
from tangram.base.logs import get_logger
from tangram.base.serving import HttpServer
from tangram.hardware.mps.daemon import GpuDaemon
from tangram.hardware.mps.directory import gpu_directories, mps_root, read_members, read_status
from tangram.hardware.mps.host import MachineHost
from tangram.hardware.mps.processes import read_boot_id
from tangram.hardware.mps.program import MpsProgram, driver_program, simulated_program
from tangram.hardware.mps.settings import MpsSettings

_SHM = Path("/dev/shm")  # noqa: S108 - shared with containers, see the chart
_ANYBODY = 0o1777
TICK_S = 1.0
"""How often daemons are looked at when nobody wakes the supervisor."""

_log = get_logger("mps")


async def run(settings: MpsSettings, *, keeper: str, beat: Callable[[], None]) -> None:
    """Until cancelled; daemons go on. `beat` is called at every tick. Raises ConfigurationError."""
    if not settings.simulated:
        open_to_all(_SHM)
    root = mps_root(settings.kubelet_dir)
    supervisor = Supervisor(root, program=_program(settings, root), keeper=keeper, beat=beat)
    async with HttpServer(settings.metrics_address, waiting_for=lambda: ()):
        await supervisor.run()


def open_to_all(directory: Path) -> None:
    """Lets clients of any user make their own files there, and only these, as /dev/shm always is.

    What the kubelet makes for a mount is root's alone.
    """
    try:
        if stat.S_IMODE(directory.stat().st_mode) != _ANYBODY:
            directory.chmod(_ANYBODY)
    except OSError as error:
        _log.warning("mps_shared_memory_unusable", path=str(directory), error=error.strerror)


def _program(settings: MpsSettings, root: Path) -> Callable[[], MpsProgram]:
    if settings.simulated:
        return simulated_program
    driver_root = Path(settings.driver_root)
    visible_root = Path(settings.driver_root_mount or settings.driver_root)
    return lambda: driver_program(driver_root=driver_root, visible_root=visible_root, links=root / "lib")


class Supervisor:
    """All GPUs' daemons below one directory. `run` may be called once."""

    def __init__(
        self,
        root: Path,
        *,
        program: Callable[[], MpsProgram],
        keeper: str,
        beat: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._root = root
        self._program = program
        self._keeper = keeper
        self._beat = beat
        self._clock = clock or SystemClock()
        self._boot_id = read_boot_id()
        self._awake: dict[Path, asyncio.Event] = {}
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        with self._listening():
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._beat()
                    self._look_for_gpus(tasks)
                    for awake in self._awake.values():
                        awake.set()
                    await self._pause(self._woken)

    def _look_for_gpus(self, tasks: asyncio.TaskGroup) -> None:
        try:
            for directory in gpu_directories(self._root):
                if directory not in self._awake and (uuid := _uuid_of(directory)) is not None:
                    self._awake[directory] = asyncio.Event()
                    tasks.create_task(self._keep(directory, uuid))
        except TangramError as error:
            _log.error("mps_directory_unreadable", error=str(error))

    async def _keep(self, directory: Path, uuid: str) -> None:
        """Keeps one GPU's daemon; whatever goes wrong with one does not touch the others."""
        host = MachineHost(directory, uuid, program=self._program, clock=self._clock, boot_id=self._boot_id)
        daemon = GpuDaemon(uuid, host, clock=self._clock, keeper=self._keeper)
        awake = self._awake[directory]
        adopted = False
        while True:
            awake.clear()
            try:
                if not adopted:
                    daemon.adopt()
                    adopted = True
                action = await daemon.step()
            except TangramError as error:
                _log.error("mps_step_failed", gpu=uuid, error=str(error))
                action = "wait"
            if action in ("wait", "rest"):
                await awake.wait()

    async def _pause(self, woken: asyncio.Event) -> None:
        """Until somebody wakes the supervisor, at most one tick."""
        tick = asyncio.ensure_future(self._clock.sleep(TICK_S))
        wait = asyncio.ensure_future(woken.wait())
        try:
            await asyncio.wait({tick, wait}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tick.cancel()
            wait.cancel()
        woken.clear()

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Hears the plugin's call; without the socket it sees the same one tick later."""
        path = self._root / "wake"
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.setblocking(False)
            try:
                path.unlink(missing_ok=True)
                listener.bind(str(path))
            except OSError as error:
                _log.warning("mps_wake_socket_unusable", path=str(path), error=os.strerror(error.errno or 0))
            loop.add_reader(listener, self._heard, listener)
            try:
                yield
            finally:
                loop.remove_reader(listener)

    def _heard(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while listener.recv(64):
                pass
        self._woken.set()


def _uuid_of(directory: Path) -> str | None:
    """The GPU that a directory is for; None where it was never used."""
    members = read_members(directory)
    status = read_status(directory)
    return next((member.uuid for member in members.values()), status.uuid if status else None)
