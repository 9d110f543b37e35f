"""The real process, `python -m tangram node run --simulate …`: killed, restarted, stopped."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.integration.node.conftest import NODE, World, until

from tangram import DRIVER_NAME

DRIVER = Path(__file__).parents[3] / "driver"


class Process:
    """One process of the plugin; its log is read to the end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log: list[dict[str, Any]] = []
        self.text = ""
        self._seen = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.text += line.decode()
            async with self._seen:
                with contextlib.suppress(ValueError):
                    self.log.append(json.loads(line))
                self._seen.notify_all()

    async def until(self, event: str, *, timeout_s: float = 30.0) -> dict[str, Any]:
        """The log entry of the first such event."""
        async with asyncio.timeout(timeout_s), self._seen:
            await self._seen.wait_for(lambda: any(entry["event"] == event for entry in self.log))
        return next(entry for entry in self.log if entry["event"] == event)

    async def ends(self, number: signal.Signals | None = None, *, timeout_s: float = 30.0) -> int:
        """Sends a signal, and returns the exit code."""
        if number is not None:
            self.process.send_signal(number)
        async with asyncio.timeout(timeout_s):
            code = await self.process.wait()
            await self._reader
        return code


class Starter:
    def __init__(self, world: World) -> None:
        self._world = world
        self.running: list[Process] = []

    async def __call__(self, *more: str, **environment: str) -> Process:
        world = self._world
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tangram", "node", "run",
            "--node-name", NODE, "--simulate", "a100-sxm4-80gb-x8", "--kinds", "gpu",
            "--kinds", "gpu", "--kubelet-dir", str(world.root), "--cdi-root", str(world.root / "cdi"),
            "--kubeconfig", world.kubeconfig, "--metrics-address", "127.0.0.1:0", *more,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(DRIVER), **environment},
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        started = Process(process)
        self.running.append(started)
        return started


@pytest.fixture
async def start(world: World) -> AsyncIterator[Starter]:
    starter = Starter(world)
    yield starter
    for process in starter.running:
        if process.process.returncode is None:
            await process.ends(signal.SIGKILL)


async def test_it_is_killed_and_restarted_while_a_pod_runs(world: World, start: Starter) -> None:
    process = await start()
    names = await world.until_published()
    running, new = world.claim("running", names[:2]), world.claim("new", names[2:3])
    before = await world.prepared(running)
    state = world.state()
    assert await process.ends(signal.SIGKILL) == -signal.SIGKILL
    assert world.state() == state
    assert len(world.slices()) == 8
    slices = [each["metadata"]["resourceVersion"] for each in world.slices()]
    (dead,) = world.kubelet.plugins(DRIVER_NAME)
    process = await start()
    await until(lambda: world.kubelet.plugins(DRIVER_NAME) not in ([dead], []))
    assert await world.prepared(running) == before
    await world.prepared(new)
    rival = world.claim("rival", names[:1])
    assert "held by claim ns/running" in await world.refused(rival)
    await world.unprepare(running, new)
    assert world.state() == set()
    assert [each["metadata"]["resourceVersion"] for each in world.slices()] == slices
    assert await process.ends(signal.SIGTERM) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_stops_in_time_and_leaves_its_slices(
    world: World, start: Starter, number: signal.Signals
) -> None:
    process = await start()
    names = await world.until_published()
    await world.prepared(world.claim("c", names[:1]))
    # It ends itself with code 1 after two seconds at most.
    assert await process.ends(number) == 0, process.text
    assert [entry["event"] for entry in process.log][-2:] == ["plugin_stopped", "stopped"]
    assert "internal_error" not in process.text
    assert len(world.slices()) == 8
    await world.kubelet.until(DRIVER_NAME, instances=0)
    assert not list((world.root / "plugins_registry").iterdir())


async def test_it_stops_in_time_although_the_api_server_hangs(world: World, start: Starter) -> None:
    process = await start()
    names = await world.until_published()
    world.server.faults.stall()
    call = asyncio.create_task(world.prepare(world.claim("c", names[:1])))
    await world.server.until(
        lambda: any(request.verb == "get" and request.name == "c" for request in world.server.requests)
    )
    assert await process.ends(signal.SIGTERM) == 0
    await asyncio.wait({call})
    call.exception()
    world.server.faults.clear()


async def test_its_first_log_line_says_what_holds(world: World, start: Starter) -> None:
    process = await start(TANGRAM_RESCAN_INTERVAL_S="7")
    entry = await process.until("settings")
    assert process.log[0] == entry
    assert entry["settings"]["rescanIntervalS"] == {
        "value": 7.0, "from": "environment variable TANGRAM_RESCAN_INTERVAL_S",
    }  # fmt: skip
    assert entry["settings"]["nodeName"] == {"value": NODE, "from": "flag"}
    assert entry["settings"]["allocator"] == {"value": "controller", "from": "default"}


async def test_ready_when_everything_is_there(world: World, start: Starter) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    await start("--metrics-address", f"127.0.0.1:{port}")
    await world.until_published()
    async with aiohttp.ClientSession() as session, asyncio.timeout(20):
        while True:
            async with session.get(f"http://127.0.0.1:{port}/readyz") as response:
                if response.status == 200:
                    break
            await asyncio.sleep(0.05)
        async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
            text = await response.text()
    for name in ("tangram_gpus", "tangram_kubelet_registered 1.0", "tangram_claims_held", "process_resident"):
        assert name in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--simulate", "no-such-machine"], "error: simulate: machine description no-such-machine"),
        (["--kubeconfig", "/nonexistent"], "error: "),
        (["--kubelet-dir", "/tmp/" + "x" * 200], "error: "),
        (["--metrics-address", "192.0.2.1:1"], "error: cannot serve metrics and health on 192.0.2.1:1"),
    ],
)
async def test_bad_input_ends_it_with_code_2(
    world: World, start: Starter, flags: list[str], message: str
) -> None:
    process = await start(*flags)
    assert await process.ends() == 2, process.text
    assert message in process.text
    assert "\nnext: " in process.text
    assert "Traceback" not in process.text
