"""`tangram controller run` as a process: it starts, leads, and stops in time."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from tangram.kube.resources import LEASES, PODS
from tangram.testing.apiserver import FakeApiServer

DRIVER = Path(__file__).parents[3] / "driver"


async def test_it_leads_and_hands_the_lease_back(tmp_path: Path) -> None:
    async with FakeApiServer() as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tangram", "controller", "run", "--identity", "me",
            "--kubeconfig", server.kubeconfig(tmp_path / "kubeconfig"), "--metrics-address", "",
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(DRIVER)},
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            await server.until(
                lambda: any(
                    request.verb == "watch" and request.resource == PODS for request in server.requests
                ),
                timeout_s=30,
            )
            assert holder(server) == "me"
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(30):
                _, log = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        # It ends itself with code 1 after two seconds at most.
        assert process.returncode == 0, log.decode()
        assert b'"stopped"' in log
        assert holder(server) == ""


def holder(server: FakeApiServer) -> str | None:
    """Who holds the Lease; None before there is one."""
    for lease in server.objects(LEASES):
        return lease["spec"].get("holderIdentity") or ""
    return None
