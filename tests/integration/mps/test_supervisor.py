"""`tangram mps run` with simulated daemons: everything is killed once, and comes back."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys

import pytest
from tests.integration.mps.conftest import DRIVER, GPUS, Machine, share, until

from tangram.hardware.mps.host import MAXIMUM_LOG_BYTES

GPU = GPUS[0]


def environment(memory_mib: int, percent: int) -> dict[str, str]:
    return {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={memory_mib}M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{percent}",
    }


async def test_two_claims_share_a_gpu_within_their_limits(machine: Machine) -> None:
    await machine.supervise()
    machine.plugin.join(GPU, claim_uid="a", share=share(4000, 40))
    machine.plugin.join(GPU, claim_uid="b", share=share(6000, 60))
    status = await machine.plugin.ready(GPU, deadline_s=60)
    assert status.limits == share(6000, 60)
    small = await machine.client(GPU, 3000, 1001, environment=environment(4000, 40))
    large = await machine.client(GPU, 6000, environment=environment(6000, 60))
    (server,) = machine.servers(GPU)
    assert small.answers == [f"joined {server} 4000 40", "allocated", "CUDA_ERROR_OUT_OF_MEMORY"]
    assert large.answers == [f"joined {server} 6000 60", "allocated"]
    # A process that lifts its own limits meets the daemon's: those of the largest share.
    rogue = await machine.client(GPU, 6001)
    assert rogue.answers == [f"joined {server} 6000 60", "CUDA_ERROR_OUT_OF_MEMORY"]


async def test_claims_join_and_leave_without_a_restart(machine: Machine) -> None:
    await machine.supervise()
    machine.plugin.join(GPU, claim_uid="a", share=share(1000, 10))
    first = await machine.plugin.ready(GPU, deadline_s=60)
    client = await machine.client(GPU, 500)
    machine.plugin.join(GPU, claim_uid="b", share=share(3000, 30))
    assert (await machine.plugin.ready(GPU, deadline_s=60)).limits == share(3000, 30)
    later = await machine.client(GPU, 3000)
    assert later.answers[1:] == ["allocated"], "the server that runs was told the new limits"
    machine.plugin.leave(GPU, claim_uid="b")
    status = await machine.until_status(GPU, lambda status: status.limits == share(1000, 10))
    assert status.daemon == first.daemon
    assert (client.lives, later.lives) == (True, True)
    await client.leave()
    await later.leave()
    machine.plugin.leave(GPU, claim_uid="a")
    await machine.plugin.gone(GPU, deadline_s=60)
    assert machine.running(GPU) == []
    assert os.listdir(machine.directory(GPU) / "pipe") == []


async def test_p41_kill_9_of_the_control_daemon(machine: Machine) -> None:
    await machine.supervise()
    machine.plugin.join(GPU, claim_uid="a", share=share(1000))
    await machine.plugin.ready(GPU, deadline_s=60)
    client = await machine.client(GPU, 500)
    first = machine.control(GPU)
    os.kill(first, signal.SIGKILL)
    status = await machine.until_status(GPU, lambda status: status.state == "ready" and status.incidents == 1)
    assert status.incident is not None
    assert status.incident.kind == "died"
    assert machine.control(GPU) != first
    assert await client.ends() == 2
    again = await machine.client(GPU, 500)
    assert again.answers[1:] == ["allocated"]


@pytest.mark.thorough
async def test_p41_kill_9_of_a_server(machine: Machine) -> None:
    await machine.supervise()
    machine.plugin.join(GPU, claim_uid="a", share=share(1000))
    await machine.plugin.ready(GPU, deadline_s=60)
    client = await machine.client(GPU, 500)
    (server,) = machine.servers(GPU)
    await machine.until_status(GPU, lambda status: status.servers == (server,))
    os.kill(server, signal.SIGKILL)
    status = await machine.until_status(GPU, lambda status: status.incidents == 1)
    assert status.incident is not None
    assert status.incident.kind == "server_died"
    assert await client.ends() == 2
    again = await machine.client(GPU, 1000, environment=environment(1000, 50))
    (successor,) = machine.servers(GPU)
    assert again.answers == [f"joined {successor} 1000 50", "allocated"]


@pytest.mark.thorough
async def test_p41_prepare_beside_a_daemon_that_hangs(machine: Machine) -> None:
    await machine.supervise()
    machine.plugin.join(GPU, claim_uid="a", share=share(1000))
    await machine.plugin.ready(GPU, deadline_s=60)
    first = machine.control(GPU)
    os.kill(first, signal.SIGSTOP)
    machine.plugin.join(GPU, claim_uid="b", share=share(2000))
    status = await machine.plugin.ready(GPU, deadline_s=60)
    assert status.incident is not None
    assert status.incident.kind == "hung"
    assert machine.control(GPU) != first


@pytest.mark.thorough
async def test_a_gpu_that_hangs_delays_no_other(machine: Machine) -> None:
    await machine.supervise()
    for gpu in GPUS:
        machine.plugin.join(gpu, claim_uid="a", share=share(1000))
    for gpu in GPUS:
        await machine.plugin.ready(gpu, deadline_s=60)
    os.kill(machine.control(GPU), signal.SIGSTOP)
    machine.plugin.join(GPU, claim_uid="b", share=share(2000))
    others = [machine.status(gpu) for gpu in GPUS[1:]]
    for gpu in GPUS[1:]:
        machine.plugin.join(gpu, claim_uid="b", share=share(2000))
    for gpu in GPUS[1:]:
        await machine.plugin.ready(gpu, deadline_s=60)
    assert all(status is not None and status.incidents == 0 for status in others)
    await machine.plugin.ready(GPU, deadline_s=60)


async def test_kill_9_of_the_supervisor_leaves_daemons_and_clients_alone(machine: Machine) -> None:
    keeper = await machine.supervise()
    machine.plugin.join(GPU, claim_uid="a", share=share(1000))
    before = await machine.plugin.ready(GPU, deadline_s=60)
    client = await machine.client(GPU, 500)
    (first,) = machine.supervisors(keeper)
    os.kill(first, signal.SIGKILL)
    await until(lambda: [pid for pid in machine.supervisors(keeper) if pid != first])
    machine.plugin.join(GPU, claim_uid="b", share=share(2000))
    after = await machine.plugin.ready(GPU, deadline_s=60)
    assert (after.daemon, after.incidents) == (before.daemon, 0)
    assert client.lives


async def test_kill_9_of_the_keeper_leaves_daemons_to_the_next_one(machine: Machine) -> None:
    """Outside of a container; in one, all its processes end with the first."""
    keeper = await machine.supervise()
    machine.plugin.join(GPU, claim_uid="a", share=share(1000))
    before = await machine.plugin.ready(GPU, deadline_s=60)
    client = await machine.client(GPU, 500)
    keeper.kill()
    await keeper.wait()
    await machine.supervise()
    after = await machine.until_status(
        GPU, lambda status: status.keeper != before.keeper and status.state == "ready"
    )
    assert (after.daemon, after.incidents) == (before.daemon, 0)
    assert client.lives


async def test_sigterm_leaves_daemons_alone(machine: Machine) -> None:
    keeper = await machine.supervise()
    machine.plugin.join(GPU, claim_uid="a", share=share(1000))
    await machine.plugin.ready(GPU, deadline_s=60)
    pid = machine.control(GPU)
    keeper.send_signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        assert await keeper.wait() == 0
    assert machine.control(GPU) == pid


async def test_a_daemon_outlives_the_plugin(machine: Machine) -> None:
    """An update of the plugin leaves running clients alone: nothing of it is the daemon's parent or pipe."""
    await machine.supervise()
    code = (
        "import os, sys, signal\nfrom pathlib import Path\n"
        "from tangram.base.clock import SystemClock\n"
        "from tangram.hardware.mps.directory import MpsDirectory\n"
        "from tangram.hardware.mps.values import MpsShare\n"
        "plugin = MpsDirectory(Path(sys.argv[1]), clock=SystemClock(), boot_id='')\n"
        "plugin.join(sys.argv[2], claim_uid='a', share=MpsShare(memory_bytes=2**30, cores_percent=50))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    plugin = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(machine.root), GPU, env={"PYTHONPATH": str(DRIVER)}
    )
    assert await plugin.wait() == -signal.SIGKILL
    before = await machine.plugin.ready(GPU, deadline_s=60)
    client = await machine.client(GPU, 500)
    machine.plugin.join(GPU, claim_uid="a", share=share(1024))  # the next plugin repeats what it finds
    after = await machine.plugin.ready(GPU, deadline_s=60)
    assert after.daemon == before.daemon
    assert client.lives


async def test_a_stranger_in_the_pipe_directory_is_not_touched(machine: Machine) -> None:
    """An administrator's process with the same CUDA_MPS_PIPE_DIRECTORY is none of the daemon's."""
    await machine.supervise()
    machine.plugin.join(GPU, claim_uid="a", share=share(1000))
    await machine.plugin.ready(GPU, deadline_s=60)
    pipe = str(machine.directory(GPU) / "pipe")
    stranger = await asyncio.create_subprocess_exec(
        "sleep", "600", env={"CUDA_MPS_PIPE_DIRECTORY": pipe, "PATH": os.environ["PATH"]}
    )
    try:
        os.kill(machine.control(GPU), signal.SIGKILL)
        await machine.until_status(GPU, lambda status: status.state == "ready" and status.incidents == 1)
        machine.plugin.leave(GPU, claim_uid="a")
        await machine.plugin.gone(GPU, deadline_s=60)
        assert stranger.returncode is None
    finally:
        with contextlib.suppress(ProcessLookupError):
            stranger.kill()
        await stranger.wait()


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("refuse start", "no CUDA device is available"),
        ("ignore limits", "MPS reports"),
        ("garbage", "more than it can mean"),
    ],
)
async def test_what_a_daemon_does_wrong_is_told(machine: Machine, fault: str, cause: str) -> None:
    machine.directory(GPU).mkdir(parents=True)
    (machine.directory(GPU) / "simulate").write_text(fault)
    await machine.supervise()
    machine.plugin.join(GPU, claim_uid="a", share=share(1000))
    status = await machine.until_status(GPU, lambda status: status.state == "failing")
    assert cause in status.cause
    (machine.directory(GPU) / "simulate").unlink()
    assert (await machine.plugin.ready(GPU, deadline_s=90)).limits == share(1000)


async def test_a_simulated_daemon_ends_with_its_directory(machine: Machine) -> None:
    """Whoever simulates a node removes its directory, and nothing is left of it."""
    keeper = await machine.supervise()
    machine.plugin.join(GPU, claim_uid="a", share=share(1000))
    await machine.plugin.ready(GPU, deadline_s=60)
    client = await machine.client(GPU, 500)
    keeper.send_signal(signal.SIGTERM)
    await keeper.wait()
    shutil.rmtree(machine.root)
    assert await client.ends() == 2
    await until(lambda: not machine.running(GPU))


async def test_a_second_supervisor_waits_for_the_first(machine: Machine) -> None:
    first = await machine.supervise()
    machine.plugin.join(GPU, claim_uid="a", share=share(1000))
    before = await machine.plugin.ready(GPU, deadline_s=60)
    second = await machine.supervise()
    machine.plugin.join(GPU, claim_uid="b", share=share(2000))
    assert (await machine.plugin.ready(GPU, deadline_s=60)).keeper == before.keeper
    first.send_signal(signal.SIGTERM)
    await first.wait()
    after = await machine.until_status(
        GPU, lambda status: status.keeper != before.keeper and status.state == "ready"
    )
    assert after.daemon == before.daemon
    assert second.returncode is None


async def test_logs_are_bounded(machine: Machine) -> None:
    await machine.supervise()
    machine.plugin.join(GPU, claim_uid="a", share=share(1000))
    await machine.plugin.ready(GPU, deadline_s=60)
    log = machine.directory(GPU) / "log" / "server.log"
    with log.open("wb") as file:
        for _ in range(MAXIMUM_LOG_BYTES // 2**20 + 1):
            file.write(b"x" * 2**20)
    await machine.client(GPU)
    await until(lambda: log.stat().st_blocks * 512 < 2**20)
    assert (log.parent / "server.log.old").stat().st_size <= 2**20


def test_p43_no_pod_is_made() -> None:
    """The supervisor starts processes; neither it nor the plugin's side knows the Kubernetes API."""
    code = (
        "import sys\nimport tangram.hardware.mps.supervisor, tangram.hardware.mps.directory\n"
        "print([name for name in sys.modules if name.startswith(('tangram.kube', 'kubernetes', 'grpc'))])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(DRIVER)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "[]\n"


async def test_joining_a_daemon_that_serves_takes_no_process(machine: Machine) -> None:
    """A claim that is not larger than the largest one waits for nothing but files."""
    keeper = await machine.supervise()
    machine.plugin.join(GPU, claim_uid="a", share=share(1000))
    await machine.plugin.ready(GPU, deadline_s=60)
    (supervisor,) = machine.supervisors(keeper)
    os.kill(supervisor, signal.SIGSTOP)
    machine.plugin.join(GPU, claim_uid="b", share=share(500))
    await machine.plugin.ready(GPU, deadline_s=0)
