"""The effects on the machine: processes that are really ours, files of any kind, answers of any length."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.hardware.mps.support import GPU

from tangram.base.clock import SystemClock
from tangram.base.errors import HardwareError, HardwareTimeoutError
from tangram.hardware.mps import host as host_module
from tangram.hardware.mps import processes
from tangram.hardware.mps.host import MachineHost
from tangram.hardware.mps.program import MpsProgram
from tangram.hardware.mps.supervisor import open_to_all
from tangram.hardware.mps.values import MpsDaemon

BOOT = processes.read_boot_id()
PATH = {"PATH": os.environ["PATH"]}


def scripted(script: str) -> MpsProgram:
    """A program that answers as the script says; as a daemon it is started with -f -M."""
    return MpsProgram(command=(sys.executable, "-I", "-S", "-c", script), environment=PATH)


def machine_host(directory: Path, script: str = "") -> MachineHost:
    host = MachineHost(directory, GPU, program=lambda: scripted(script), clock=SystemClock(), boot_id=BOOT)
    directory.mkdir(exist_ok=True)
    host.sweep()
    return host


@pytest.fixture
def sleepers() -> Iterator[list["subprocess.Popen[bytes]"]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def sleeper(*arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
    code = "import sys; print(flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, *arguments],
        env=PATH | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_only_processes_with_both_marks_are_the_daemon_s(
    tmp_path: Path, sleepers: list["subprocess.Popen[bytes]"]
) -> None:
    pipe = tmp_path / "pipe"
    ours = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "TANGRAM_MPS_GPU": GPU}
    sleepers += [
        sleeper("-f", "-M", **ours),
        sleeper("server", **ours),
        sleeper("-f", "-M", CUDA_MPS_PIPE_DIRECTORY=str(pipe)),
        sleeper("-f", "-M", **ours | {"TANGRAM_MPS_GPU": "GPU-another"}),
        sleeper("-f", "-M", **ours | {"CUDA_MPS_PIPE_DIRECTORY": f"{pipe}2"}),
    ]
    found = processes.find(pipe, mark=GPU, boot_id=BOOT)
    assert {process.identity.pid: process.control for process in found} == {
        sleepers[0].pid: True,
        sleepers[1].pid: False,
    }


def test_a_pid_that_is_another_s_now_is_left_alone(sleepers: list["subprocess.Popen[bytes]"]) -> None:
    sleepers.append(sleeper())
    identity = processes.identify(sleepers[0].pid, boot_id=BOOT)
    assert identity is not None
    for other in (
        MpsDaemon(pid=identity.pid, start_ticks=identity.start_ticks + 1, boot_id=BOOT),
        MpsDaemon(pid=2**22, start_ticks=1, boot_id=BOOT),
    ):
        assert not processes.lives(other)
        processes.kill(other)
    assert sleepers[0].poll() is None
    processes.kill(identity)
    assert sleepers[0].wait() == -signal.SIGKILL


def test_a_process_that_only_waits_to_be_collected_does_not_live(
    sleepers: list["subprocess.Popen[bytes]"],
) -> None:
    sleepers.append(sleeper())
    identity = processes.identify(sleepers[0].pid, boot_id=BOOT)
    assert identity is not None
    processes.kill(identity)
    os.waitid(os.P_PID, identity.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.lives(identity)


def test_a_name_with_parentheses_and_spaces(
    tmp_path: Path, sleepers: list["subprocess.Popen[bytes]"]
) -> None:
    link = tmp_path / "a) S 1 (b"
    link.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(link), "600"])
    sleepers.append(process)
    identity = processes.identify(process.pid, boot_id=BOOT)
    assert identity is not None
    assert identity.start_ticks > 1000


async def test_an_answer_without_end_is_cut_off(tmp_path: Path) -> None:
    host = machine_host(tmp_path / "gpu", "while True: print('x' * 10000)")
    with pytest.raises(HardwareError, match="more than it can mean"):
        await host.ask("get_server_list")


async def test_no_answer_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "COMMAND_S", 0.3)
    host = machine_host(tmp_path / "gpu", "import signal; signal.pause()")
    with pytest.raises(HardwareTimeoutError, match="did not answer 'get_server_list' within"):
        await host.ask("get_server_list")


async def test_a_refusal_carries_what_the_program_said(tmp_path: Path) -> None:
    host = machine_host(tmp_path / "gpu", "import sys; sys.exit('Cannot find MPS control daemon process')")
    with pytest.raises(HardwareError, match="Cannot find MPS control daemon process"):
        await host.ask("get_server_list")


async def test_a_program_that_cannot_be_run(tmp_path: Path) -> None:
    program = MpsProgram(command=(str(tmp_path / "absent"),))
    host = MachineHost(tmp_path, GPU, program=lambda: program, clock=SystemClock(), boot_id=BOOT)
    host.sweep()
    with pytest.raises(HardwareError, match="No such file"):
        await host.ask("x")
    with pytest.raises(HardwareError, match="No such file"):
        host.spawn()


async def test_p40_the_daemon_gets_its_variables_and_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "x")
    script = "import os, signal, sys; print(*os.environ, *sys.argv[1:], flush=True); signal.pause()"
    host = machine_host(tmp_path / "gpu", script)
    daemon = host.spawn()
    try:
        async with asyncio.timeout(60):
            while not host.output():  # noqa: ASYNC110 - what another process prints
                await asyncio.sleep(0.01)
    finally:
        host.kill(daemon)
    shown = set(host.output().split())
    assert shown >= {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_VISIBLE_DEVICES", "-f", "-M"}
    assert "SECRET" not in shown


def test_the_pipe_directory_is_emptied_whatever_lies_in_it(tmp_path: Path) -> None:
    host = machine_host(tmp_path / "gpu")
    pipe, outside = tmp_path / "gpu" / "pipe", tmp_path / "outside"
    inode = pipe.stat().st_ino
    outside.mkdir()
    (outside / "file").write_text("kept")
    (pipe / "directory" / "deep").mkdir(parents=True)
    (pipe / "directory" / "link").symlink_to(outside)
    (pipe / "link").symlink_to(outside)
    (pipe / "dangling").symlink_to("nowhere")
    os.mkfifo(pipe / "fifo")
    host.sweep()
    assert list(pipe.iterdir()) == []
    assert pipe.stat().st_ino == inode, "containers have it mounted"
    assert (outside / "file").read_text() == "kept"


def test_modes_of_the_directories(tmp_path: Path) -> None:
    """Clients of any user reach the sockets; nobody else reads the logs."""
    machine_host(tmp_path / "gpu")
    assert (tmp_path / "gpu" / "pipe").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "gpu" / "log").stat().st_mode & 0o777 == 0o700


def test_shared_memory_is_open_to_clients_of_any_user(tmp_path: Path) -> None:
    directory = tmp_path / "shm"
    directory.mkdir(mode=0o755)
    for _ in range(2):
        open_to_all(directory)
        assert directory.stat().st_mode & 0o7777 == 0o1777
    open_to_all(tmp_path / "absent")


def test_large_logs_keep_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "MAXIMUM_LOG_BYTES", 100_000)
    host = machine_host(tmp_path / "gpu")
    log = tmp_path / "gpu" / "log" / "server.log"
    log.write_bytes(b"a" * 400_000 + b"the end")
    (log.parent / "control.log").write_bytes(b"small")
    host.trim_logs()
    assert log.read_bytes() == b""
    assert (log.parent / "server.log.old").read_bytes().endswith(b"the end")
    assert (log.parent / "control.log").read_bytes() == b"small"
    host.trim_logs()
    assert (log.parent / "server.log.old").read_bytes().endswith(b"the end")
