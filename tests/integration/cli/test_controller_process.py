"""`tangram controller run` as a process: it starts, leads, and stops in time."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tangram.kube.resources import LEASES, PODS
from tangram.testing.apiserver import FakeApiServer

DRIVER = Path(__file__).parents[3] / "driver"
TIMEOUT_S = 60


@contextlib.asynccontextmanager
async def controller(
    server: FakeApiServer, identity: str, directory: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A controller, killed at the end if it has not ended."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tangram", "controller", "run", "--identity", identity,
        "--kubeconfig", server.kubeconfig(directory / "kubeconfig"), "--metrics-address", "",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(DRIVER)},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def stopped(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, and the end in good order: it ends itself with code 1 after two seconds at most."""
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(TIMEOUT_S):
        _, log = await process.communicate()
    assert process.returncode == 0, log.decode()
    assert b'"stopped"' in log


def holder(server: FakeApiServer) -> str | None:
    """Who holds the Lease; None before there is one."""
    for lease in server.objects(LEASES):
        return lease["spec"].get("holderIdentity") or ""
    return None


async def test_it_leads_and_hands_the_lease_back(tmp_path: Path) -> None:
    async with FakeApiServer() as server, controller(server, "me", tmp_path) as process:
        await server.until(
            lambda: any(request.verb == "watch" and request.resource == PODS for request in server.requests),
            timeout_s=TIMEOUT_S,
        )
        assert holder(server) == "me"
        await stopped(process)
        assert holder(server) == ""


async def test_its_successor_leads_at_its_next_look(tmp_path: Path) -> None:
    """Also if SIGTERM cuts off a renewal that the API server carries out."""
    async with (
        FakeApiServer() as server,
        controller(server, "first", tmp_path) as first,
    ):
        await server.until(lambda: holder(server) == "first", timeout_s=TIMEOUT_S)
        async with controller(server, "second", tmp_path) as second:
            looks = reads(server)
            await server.until(lambda: reads(server) > looks, timeout_s=TIMEOUT_S)
            fault = server.faults.stall(verb="patch", resource=LEASES, times=1, executed=True)
            await server.until(lambda: fault.hits == 1, timeout_s=TIMEOUT_S)
            await stopped(first)
            looks = reads(server)
            await server.until(lambda: holder(server) == "second", timeout_s=TIMEOUT_S)
            assert reads(server) <= looks + 1
            await stopped(second)
            assert holder(server) == ""


def reads(server: FakeApiServer) -> int:
    """How often the Lease was looked at: by a candidate every second at the latest."""
    return sum(request.verb == "get" and request.resource == LEASES for request in server.requests)
