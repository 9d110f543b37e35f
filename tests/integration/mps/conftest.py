"""The real supervisor's processes with simulated daemons, in a directory short enough for sockets."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tangram.base.clock import SystemClock
from tangram.hardware.mps import processes
from tangram.hardware.mps.directory import MpsDirectory, gpu_directories, mps_root, read_status
from tangram.hardware.mps.processes import MpsProcess
from tangram.hardware.mps.program import simulated_program
from tangram.hardware.mps.values import MpsShare, MpsStatus, directory_name
from tangram.model.gpu import GpuUuid

DRIVER = Path(__file__).parents[3] / "driver"
GPUS = [GpuUuid(f"GPU-0000000{number}-46c6-56dd-bd6e-c6dfb4a1427a") for number in range(4)]

T = TypeVar("T")


def share(memory_mib: int, cores_percent: int = 50) -> MpsShare:
    return MpsShare(memory_bytes=memory_mib * 2**20, cores_percent=cores_percent)


async def until(seen: Callable[[], T | None], *, timeout_s: float = 90.0) -> T:
    """The first true answer; TimeoutError after a generous time."""
    async with asyncio.timeout(timeout_s):
        while not (answer := seen()):  # noqa: ASYNC110 - an effect of another process
            await asyncio.sleep(0.02)
    return answer


class Client:
    """A CUDA process of a container, as far as MPS is concerned."""

    def __init__(self, process: asyncio.subprocess.Process, answers: list[str]) -> None:
        self.process = process
        self.answers = answers

    @property
    def lives(self) -> bool:
        return self.process.returncode is None

    async def ends(self) -> int:
        async with asyncio.timeout(60):
            return await self.process.wait()

    async def leave(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return await self.ends()


class Machine:
    """A node: its plugin's side, its supervisor, its containers."""

    def __init__(self, kubelet_dir: Path) -> None:
        self.kubelet_dir = kubelet_dir
        self.root = mps_root(str(kubelet_dir))
        self.boot_id = processes.read_boot_id()
        self.plugin = MpsDirectory(self.root, clock=SystemClock(), boot_id=self.boot_id)
        self.keepers: list[asyncio.subprocess.Process] = []
        self.clients: list[Client] = []

    async def supervise(self) -> asyncio.subprocess.Process:
        keeper = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tangram", "mps", "run", "--simulated", "true",
            "--kubelet-dir", str(self.kubelet_dir), "--metrics-address", "",
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(DRIVER)},
            stdin=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        self.keepers.append(keeper)
        return keeper

    def supervisors(self, keeper: asyncio.subprocess.Process) -> list[int]:
        """The keeper's child."""
        text = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text()
        return [int(pid) for pid in text.split()]

    def running(self, gpu: GpuUuid) -> list[MpsProcess]:
        return processes.find(self.directory(gpu) / "pipe", mark=gpu, boot_id=self.boot_id)

    def control(self, gpu: GpuUuid) -> int:
        (pid,) = [process.identity.pid for process in self.running(gpu) if process.control]
        return pid

    def servers(self, gpu: GpuUuid) -> list[int]:
        return [process.identity.pid for process in self.running(gpu) if not process.control]

    def directory(self, gpu: GpuUuid) -> Path:
        return self.root / directory_name(gpu)

    def status(self, gpu: GpuUuid) -> MpsStatus | None:
        return self.plugin.status(gpu)

    async def until_status(self, gpu: GpuUuid, right: Callable[[MpsStatus], bool]) -> MpsStatus:
        return await until(lambda: s if (s := self.status(gpu)) is not None and right(s) else None)

    async def client(
        self, gpu: GpuUuid, *allocate_mib: int, environment: dict[str, str] | None = None
    ) -> Client:
        """A process with the edits of its container; `environment` replaces them."""
        variables = {} if environment is None else environment
        process = await asyncio.create_subprocess_exec(
            *simulated_program().command, "--client", *(str(mib) for mib in allocate_mib),
            env=variables | {"CUDA_MPS_PIPE_DIRECTORY": str(self.directory(gpu) / "pipe")},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        async with asyncio.timeout(60):
            answers = [
                (await process.stdout.readline()).decode().strip() for _ in range(1 + len(allocate_mib))
            ]
        client = Client(process, answers)
        self.clients.append(client)
        return client

    async def close(self) -> None:
        for client in self.clients:
            if client.lives:
                client.process.kill()
                await client.ends()
        for keeper in self.keepers:
            if keeper.returncode is None:
                for pid in self.supervisors(keeper):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
                keeper.send_signal(signal.SIGTERM)
                async with asyncio.timeout(60):
                    await keeper.wait()
        for directory in gpu_directories(self.root):
            if (status := read_status(directory)) is not None:
                for process in processes.find(directory / "pipe", mark=status.uuid, boot_id=self.boot_id):
                    processes.kill(process.identity)


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    # A test's own directory is too long a path for sockets.
    with tempfile.TemporaryDirectory(prefix="mps") as directory:
        machine = Machine(Path(directory))
        try:
            yield machine
        finally:
            await machine.close()
