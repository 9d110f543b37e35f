"""One GPU's machine in memory: an MPS daemon that can hang, lie, refuse to start and refuse to die."""

import asyncio
import itertools
from collections.abc import Iterator

from tangram.base.errors import DriverUnavailableError, HardwareError, HardwareTimeoutError
from tangram.hardware.mps.daemon import GpuDaemon
from tangram.hardware.mps.decide import Action
from tangram.hardware.mps.processes import MpsProcess
from tangram.hardware.mps.values import MpsDaemon, MpsIncident, MpsMember, MpsShare, MpsStatus
from tangram.testing.clock import FakeClock

GPU = "GPU-05b16a01-46c6-56dd-bd6e-c6dfb4a1427a"
BOOT = "boot-1"


def share(memory_mib: int, cores_percent: int = 50) -> MpsShare:
    return MpsShare(memory_bytes=memory_mib * 2**20, cores_percent=cores_percent)


class Crashed(BaseException):
    """The supervisor's process was killed here."""


class FakeHost:
    """A `tangram.hardware.mps.daemon.Host`; `crash_at` counts effects down, before and after each."""

    def __init__(self) -> None:
        self.claims: dict[str, MpsMember] = {}
        self.status: MpsStatus | None = None
        self.statuses: list[MpsStatus] = []
        self.running: dict[int, MpsProcess] = {}
        self.killed: list[int] = []
        self.limits: dict[str, str] = {}
        self.hangs = self.ignores_limits = self.stubborn = self.ignores_quit = False
        self.absent = self.dies_at_once = False
        self.faulted: set[int] = set()
        self.swept = False
        self.crash_at: Iterator[bool] = itertools.repeat(False)
        self.commands: list[str] = []
        self._pids = itertools.count(100)

    # --- what the test does ---

    def want(self, **shares: MpsShare) -> None:
        self.claims = {uid: MpsMember(uuid=GPU, share=each) for uid, each in shares.items()}

    def die(self, pid: int) -> None:
        del self.running[pid]

    def connect(self) -> int:
        """A client comes: the daemon starts a server. Returns its pid."""
        return self._new(control=False).pid

    @property
    def controls(self) -> list[int]:
        return [pid for pid, process in self.running.items() if process.control]

    # --- the protocol ---

    def members(self) -> dict[str, MpsMember]:
        return dict(self.claims)

    def read_status(self) -> MpsStatus | None:
        return self.status

    def write_status(self, status: MpsStatus) -> None:
        self._effect()
        self.status = status
        self.statuses.append(status)
        self._effect()

    def find(self) -> list[MpsProcess]:
        return list(self.running.values())

    def identify(self, pid: int) -> MpsDaemon | None:
        process = self.running.get(pid)
        return None if process is None else process.identity

    def lives(self, process: MpsDaemon) -> bool:
        return self.identify(process.pid) == process

    def spawn(self) -> MpsDaemon:
        if self.absent:
            raise DriverUnavailableError("no nvidia-cuda-mps-control below the driver root /")
        assert not self.running, "a second daemon in one directory"
        assert self.swept, "not swept"
        self._effect()
        if self.dies_at_once:
            raise HardwareError("no CUDA device is available")
        identity = self._new(control=True)
        self.swept = False
        self.limits = {"percent": "100.0", "memory": "0M"}
        self._effect()
        return identity

    def output(self) -> str:
        return ""

    def kill(self, process: MpsDaemon) -> None:
        self._effect()
        assert self.lives(process)
        self.killed.append(process.pid)
        if not self.stubborn:
            self.die(process.pid)
        self._effect()

    async def ask(self, command: str) -> str:
        await asyncio.sleep(0)
        if self.hangs:
            raise HardwareTimeoutError("the MPS daemon did not answer")
        if not self.controls:
            raise HardwareError("cannot find MPS control daemon process")
        return "".join(self._answer(line) for line in command.splitlines())

    def sweep(self) -> None:
        self._effect()
        assert not self.running, "swept below a running daemon"
        self.swept = True
        self._effect()

    def trim_logs(self) -> None: ...

    def _new(self, *, control: bool) -> MpsDaemon:
        pid = next(self._pids)
        identity = MpsDaemon(pid=pid, start_ticks=pid, boot_id=BOOT)
        self.running[pid] = MpsProcess(identity=identity, control=control)
        return identity

    def _answer(self, command: str) -> str:
        self.commands.append(command)
        words = command.split()
        if words[0] == "get_server_list":
            return "".join(f"{pid}\n" for pid, process in self.running.items() if not process.control)
        if words[0] == "get_server_status":
            return "FAULT\n" if int(words[1]) in self.faulted else "ACTIVE\n"
        if words[0] == "quit":
            self._effect()
            if not self.ignores_quit:
                self.running.clear()
            self._effect()
            return ""
        kind = "percent" if "percentage" in words[0] else "memory"
        if words[0].startswith("get_"):
            return f"{self.limits[kind]}\n"
        self._effect()
        if not self.ignores_limits:
            self.limits[kind] = words[-1]
        self._effect()
        return ""

    def _effect(self) -> None:
        if next(self.crash_at):
            raise Crashed


class World:
    """A host, and the supervisor's part for its GPU, which may be started anew."""

    def __init__(self) -> None:
        self.host = FakeHost()
        self.clock = FakeClock()
        self.daemon = self.start()

    def start(self, keeper: str = "keeper-1") -> GpuDaemon:
        self.daemon = GpuDaemon(GPU, self.host, clock=self.clock, keeper=keeper)
        return self.daemon

    async def step(self) -> Action:
        task = asyncio.ensure_future(self.daemon.step())
        for _ in range(10_000):
            if task.done():
                return task.result()
            await asyncio.sleep(0)
            if self.clock.sleeping and not task.done():
                await self.clock.advance_to_next()
        raise AssertionError("the step does not end")

    async def settle(self, *, steps: int = 60) -> list[Action]:
        """Steps until all is as it should be; back-off passes at once."""
        actions: list[Action] = []
        for _ in range(steps):
            actions.append(await self.step())
            if actions[-1] == "rest":
                return actions
            if actions[-1] == "wait":
                await self.clock.advance(1)
        return actions

    def incident(self) -> MpsIncident:
        """The last thing that went wrong."""
        incident = self.status().incident
        assert incident is not None
        return incident

    def status(self) -> MpsStatus:
        """What the plugin is told."""
        assert self.host.status is not None
        return self.host.status
