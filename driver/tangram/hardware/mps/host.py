"""The effects on one GPU's MPS daemon on this machine: its processes, its files, its control interface."""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from tangram.base.atomicfile import state_error, write_atomically
from tangram.base.clock import Clock, within
from tangram.base.errors import HardwareError, HardwareTimeoutError
from tangram.hardware.mps import processes
from tangram.hardware.mps.directory import read_members, read_status
from tangram.hardware.mps.processes import DAEMON_ARGUMENTS, MARK_VARIABLE, PIPE_VARIABLE, MpsProcess
from tangram.hardware.mps.program import MpsProgram
from tangram.hardware.mps.values import MpsDaemon, MpsMember, MpsStatus, encode

COMMAND_S = 5.0
"""How long a daemon may take for one command. A node under load must not look like a daemon that hangs: to
replace one ends every CUDA process that uses it."""
MAXIMUM_ANSWER_BYTES = 64 * 1024
MAXIMUM_LOG_BYTES = 8 * 2**20
"""Of each log file on the disk; twice that for a moment."""
_KEPT_LOG_BYTES = 256 * 1024
_OUTPUT = "output.log"
_LONGEST_OUTPUT = 300


class MachineHost:
    """A `tangram.hardware.mps.daemon.Host`. `program` says how to start the driver's program now."""

    def __init__(
        self, directory: Path, uuid: str, *, program: Callable[[], MpsProgram], clock: Clock, boot_id: str
    ) -> None:
        self._directory = directory
        self._uuid = uuid
        self._pipe = directory / "pipe"
        self._logs = directory / "log"
        self._look_up = program
        self._program: MpsProgram | None = None
        self._clock = clock
        self._boot_id = boot_id
        self._children: set[int] = set()

    def members(self) -> dict[str, MpsMember]:
        return read_members(self._directory)

    def read_status(self) -> MpsStatus | None:
        return read_status(self._directory)

    def write_status(self, status: MpsStatus) -> None:
        write_atomically(self._directory / "status.json", encode(status), mode=0o600, sync=False)

    def find(self) -> list[MpsProcess]:
        self._collect()
        return processes.find(self._pipe, mark=self._uuid, boot_id=self._boot_id)

    def identify(self, pid: int) -> MpsDaemon | None:
        return processes.identify(pid, boot_id=self._boot_id)

    def lives(self, process: MpsDaemon) -> bool:
        self._collect()
        return processes.lives(process)

    def kill(self, process: MpsDaemon) -> None:
        processes.kill(process)

    def spawn(self) -> MpsDaemon:
        """In a session of its own: it outlives this process."""
        program = self._program = self._look_up()
        command = (*program.command, *DAEMON_ARGUMENTS)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            pid = os.posix_spawn(
                command[0],
                command,
                self._environment(program)
                | {
                    "CUDA_MPS_LOG_DIRECTORY": str(self._logs),
                    "CUDA_VISIBLE_DEVICES": self._uuid,
                    MARK_VARIABLE: self._uuid,
                },
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, str(self._logs / _OUTPUT), flags, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores these, and it would be inherited
            )
        except OSError as error:
            raise HardwareError(
                f"{command[0]} cannot be run: {error.strerror or error}",
                next_step="look at the installation of the GPU driver",
            ) from error
        self._children.add(pid)
        identity = self.identify(pid)
        if identity is None:
            raise HardwareError(self.output() or "it ended at once")
        return identity

    def output(self) -> str:
        lines = _tail(self._logs / _OUTPUT, 4096).decode(errors="replace").split("\n")
        return next((line.strip()[:_LONGEST_OUTPUT] for line in reversed(lines) if line.strip()), "")

    async def ask(self, command: str) -> str:
        """What the program prints, run for a moment."""
        program = self._program = self._program or self._look_up()
        try:
            process = await asyncio.create_subprocess_exec(
                *program.command,
                env=self._environment(program),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            raise HardwareError(f"{program.command[0]} cannot be run: {error.strerror or error}") from error
        try:
            return await within(_exchange(process, command), seconds=COMMAND_S, clock=self._clock)
        except TimeoutError:
            raise HardwareTimeoutError(
                f"the MPS daemon did not answer {command!r} within {COMMAND_S:g} s"
            ) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            with contextlib.suppress(TimeoutError):
                await within(_end(process), seconds=1, clock=self._clock)

    def sweep(self) -> None:
        # The pipe directory itself stays: containers that are to meet the next daemon have it mounted.
        try:
            for directory, mode in ((self._pipe, 0o755), (self._logs, 0o700)):
                directory.mkdir(exist_ok=True)
                directory.chmod(mode)
            for entry in list(os.scandir(self._pipe)):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    Path(entry.path).unlink(missing_ok=True)
        except OSError as error:
            raise state_error(error, self._pipe, "cannot be emptied") from error

    def trim_logs(self) -> None:
        try:
            for path in self._logs.iterdir():
                # A writer that does not append leaves a hole at the front: what is on the disk counts.
                if path.suffix != ".old" and path.stat().st_blocks * 512 > MAXIMUM_LOG_BYTES:
                    path.with_suffix(path.suffix + ".old").write_bytes(_tail(path, _KEPT_LOG_BYTES))
                    os.truncate(path, 0)
        except OSError as error:
            raise state_error(error, self._logs, "cannot be trimmed") from error

    def _environment(self, program: MpsProgram) -> dict[str, str]:
        return {**program.environment, PIPE_VARIABLE: str(self._pipe)}

    def _collect(self) -> None:
        """Lets children of this process that have ended go."""
        for pid in list(self._children):
            try:
                ended = os.waitpid(pid, os.WNOHANG)[0] == pid
            except ChildProcessError:
                ended = True
            if ended:
                self._children.discard(pid)


async def _exchange(process: asyncio.subprocess.Process, command: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(f"{command}\n".encode())
        process.stdin.close()
    answer = b""
    while data := await process.stdout.read(MAXIMUM_ANSWER_BYTES):
        answer += data
        if len(answer) > MAXIMUM_ANSWER_BYTES:
            raise HardwareError(f"the MPS daemon answers {command!r} with more than it can mean")
    code = await process.wait()
    text = answer.decode(errors="replace")
    if code:
        raise HardwareError(
            f"the MPS daemon refused {command!r}: {text.strip()[:_LONGEST_OUTPUT] or f'exit code {code}'}"
        )
    return text


async def _end(process: asyncio.subprocess.Process) -> None:
    """Waits for a process that was killed. What it has printed is read, or its pipe would stay open."""
    assert process.stdout is not None
    while await process.stdout.read(MAXIMUM_ANSWER_BYTES):
        pass
    await process.wait()


def _tail(path: Path, length: int) -> bytes:
    """The last bytes of a file; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - length))
            return file.read(length)
    except OSError:
        return b""
