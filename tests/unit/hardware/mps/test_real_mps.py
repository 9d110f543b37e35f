"""On a machine with an idle GPU: the driver's own MPS daemon, run as by `tangram mps run`, and CUDA programs.

In directories of its own, beside whatever else runs. No mode, clock or power of the GPU is changed: that one
process may use it at a time is the node plugin's step, not MPS's. Without a GPU these tests are skipped, with
the reason.

TANGRAM_RECORD_MPS=FILE keeps what the driver answers.
"""

import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tangram.base.clock import SystemClock
from tangram.base.errors import HardwareError, TangramError
from tangram.hardware.mps import control
from tangram.hardware.mps.directory import MpsDirectory, running_keeper
from tangram.hardware.mps.host import MachineHost
from tangram.hardware.mps.processes import read_boot_id
from tangram.hardware.mps.program import MpsProgram, driver_program
from tangram.hardware.mps.supervisor import Supervisor
from tangram.hardware.mps.values import MpsShare, directory_name
from tangram.hardware.nvml import NvmlBackend
from tangram.model.gpu import Gpu

CLIENT = Path(__file__).parents[1] / "cuda_client.py"
OUT_OF_MEMORY = 2
START_S = 60.0
SMALL = MpsShare(memory_bytes=1024 * 2**20, cores_percent=40)
LARGE = MpsShare(memory_bytes=2048 * 2**20, cores_percent=60)


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    """An idle GPU in the compute mode `default`, not in MIG mode."""
    before = pynvml.nvmlLib
    backend = NvmlBackend(driver_root=Path("/"))
    try:
        backend.open()
        found = backend.discover().gpus
    except HardwareError as error:
        pytest.skip(f"no GPU here: {error}")
    suitable = [
        each
        for each in found
        if each.mig_mode != "enabled"
        and each.memory_bytes is not None
        and backend.compute_mode(each.uuid) == "default"
        and not backend.processes(each.uuid)
    ]
    if not suitable:
        pytest.skip(f"none of {len(found)} GPUs is idle, in compute mode default and not in MIG mode")
    yield suitable[0]
    backend.close()
    pynvml.nvmlLib = before


@dataclass
class Running:
    """The supervisor in this process, over directories of this test."""

    root: Path
    gpu: Gpu
    program: MpsProgram
    plugin: MpsDirectory

    @property
    def host(self) -> MachineHost:
        directory = self.root / directory_name(self.gpu.uuid)
        return MachineHost(
            directory,
            self.gpu.uuid,
            program=lambda: self.program,
            clock=SystemClock(),
            boot_id=read_boot_id(),
        )

    async def client(self, share: MpsShare | None, *sizes_mib: int) -> dict[str, Any]:
        """What a CUDA program sees that is a client with this share, or with no limits of its own."""
        pipe = str(self.root / directory_name(self.gpu.uuid) / "pipe")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        environment["CUDA_MPS_PIPE_DIRECTORY"] = pipe
        if share is not None:
            entries = dict(
                entry.split("=", 1) for entry in self.plugin.client_edits(self.gpu.uuid, share).env
            )
            environment |= {**entries, "CUDA_MPS_PIPE_DIRECTORY": pipe}
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(CLIENT), *map(str, sizes_mib), env=environment,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(120):
            out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        seen: dict[str, Any] = json.loads(out)
        return seen


@pytest.fixture
async def running(gpu: Gpu) -> AsyncIterator[Running]:
    root = Path(tempfile.mkdtemp(prefix="tg", dir="/tmp"))  # sockets need short paths
    try:
        program = driver_program(driver_root=Path("/"), visible_root=Path("/"), links=root / "lib")
    except TangramError as error:
        shutil.rmtree(root)
        pytest.skip(f"no MPS here: {error}")
    keeper = (root / "keeper.lock").open("w")
    plugin = MpsDirectory(root, clock=SystemClock(), boot_id=read_boot_id())
    with _locked(keeper, "test"):
        assert running_keeper(root) == "test"
        supervisor = asyncio.create_task(Supervisor(root, program=lambda: program, keeper="test").run())
        yield Running(root=root, gpu=gpu, program=program, plugin=plugin)
        for uid in plugin.members().get(gpu.uuid, {}):
            plugin.leave(gpu.uuid, claim_uid=uid)
        await plugin.gone(gpu.uuid, deadline_s=START_S)
        supervisor.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await supervisor
    shutil.rmtree(root)


@contextlib.contextmanager
def _locked(file: Any, keeper: str) -> Iterator[None]:
    import fcntl  # noqa: PLC0415 - as the keeper of a supervisor does

    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(keeper)
    file.flush()
    try:
        yield
    finally:
        file.close()


async def test_p38_limits_by_index_are_read_back_and_by_uuid_have_no_effect(running: Running) -> None:
    running.plugin.join(running.gpu.uuid, claim_uid="small", share=SMALL)
    running.plugin.join(running.gpu.uuid, claim_uid="large", share=LARGE)
    status = await running.plugin.ready(running.gpu.uuid, deadline_s=START_S)
    assert status.limits == LARGE
    ask = running.host.ask
    by_index = await ask("get_default_device_pinned_mem_limit 0")
    refusal = await ask(f"set_default_device_pinned_mem_limit {running.gpu.uuid} 512M")
    after = await ask("get_default_device_pinned_mem_limit 0")
    _keep("limits", {"byIndex": by_index, "refusalByUuid": refusal, "afterByUuid": after})
    assert after == by_index


async def test_p39_a_program_beyond_its_limit_is_refused(running: Running) -> None:
    """A share of 1 GiB beside one of 2 GiB: each gets what it has, and no more; without limits of its own a
    program gets as much as the largest share, which is why `isolation` is `none`."""
    running.plugin.join(running.gpu.uuid, claim_uid="small", share=SMALL)
    running.plugin.join(running.gpu.uuid, claim_uid="large", share=LARGE)
    await running.plugin.ready(running.gpu.uuid, deadline_s=START_S)
    seen = {
        "small": await running.client(SMALL, 512, 1024),
        "large": await running.client(LARGE, 1536, 1024),
        "unlimited": await running.client(None, 1536, 1024),
    }
    _keep("clients", seen)
    assert all(each["written"] == [4711] for each in seen.values())
    assert seen["small"]["allocations"] == [0, OUT_OF_MEMORY]
    assert seen["large"]["allocations"] == [0, OUT_OF_MEMORY]
    assert seen["unlimited"]["allocations"] == [0, OUT_OF_MEMORY]


async def test_the_server_of_a_client_is_seen_and_is_well(running: Running) -> None:
    running.plugin.join(running.gpu.uuid, claim_uid="small", share=SMALL)
    await running.plugin.ready(running.gpu.uuid, deadline_s=START_S)
    await running.client(SMALL, 16)
    servers = await control.servers(running.host.ask)
    states = {pid: await running.host.ask(f"get_server_status {pid}") for pid in servers}
    _keep("servers", list(states.values()))
    assert servers
    assert not [pid for pid in servers if await control.faulted(running.host.ask, pid)]


def _keep(what: str, found: Any) -> None:
    """Adds to the recording, where one is wanted."""
    if path := os.environ.get("TANGRAM_RECORD_MPS"):
        file = Path(path)
        kept = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**kept, what: found}, indent=1, sort_keys=True) + "\n")
