"""`tangram node status`, `doctor` and `drain-gpu` beside a running plugin, as an operator runs them."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.node.conftest import NODE, RunningPlugin, World, until

from tangram.kube.resources import RESOURCE_SLICES
from tangram.model.gpu import GpuUuid
from tangram.node.drains import DIRECTORY
from tangram.node.sight import plugin_directory

DRIVER = Path(__file__).parents[3] / "driver"
TAINT = "gpu.resource.admin/drained"


class Operator:
    """Runs commands on the node of a plugin."""

    def __init__(self, world: World, running: RunningPlugin) -> None:
        self.world, self.running = world, running

    async def run(self, *words: str) -> tuple[int, str, str]:
        """Exit code and what it printed."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tangram", "node", *words,
            "--node-name", NODE, "--simulate", "a100-sxm4-80gb-x8", "--kinds", "gpu",
            "--kubelet-dir", str(self.world.root), "--cdi-root", str(self.world.root / "cdi"),
            "--kubeconfig", self.world.kubeconfig,
            "--metrics-address", f"127.0.0.1:{self.running.plugin.server.port}",
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(DRIVER)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(120):
            out, err = await process.communicate()
        assert b"Traceback" not in out + err, err
        return process.returncode or 0, out.decode(), err.decode()

    async def status(self) -> tuple[int, dict[str, Any]]:
        """Exit code and the status."""
        code, out, _ = await self.run("status", "-o", "json")
        found: dict[str, Any] = json.loads(out)
        return code, found

    def drained(self) -> dict[str, set[str]]:
        """The devices with the taint, and those published as not healthy."""
        devices = self.world.devices()
        return {
            "taint": {
                name for name, each in devices.items() if TAINT in {t["key"] for t in each.get("taints", [])}
            },
            "unhealthy": {
                name for name, each in devices.items() if each["attributes"]["healthy"]["bool"] is False
            },
        }


@pytest.fixture
async def operator(world: World) -> AsyncIterator[Operator]:
    async with world.run() as running:
        await world.until_published()
        await running.until_ready()
        yield Operator(world, running)


def uuid_of(world: World, device: str) -> GpuUuid:
    return GpuUuid(world.devices()[device]["attributes"]["uuid"]["string"])


async def test_the_life_of_a_drain(operator: Operator) -> None:
    world = operator.world
    names = list(world.devices())
    runs = world.claim("runs", names[:1])
    await world.prepared(runs)
    late = world.claim("late", names[:1], adminAccess=False)
    uuid = uuid_of(world, names[0])

    code, out, err = await operator.run("drain-gpu", uuid, "--reason", "fan")
    assert code == 0, out + err
    lines = out.splitlines()
    assert lines[0].startswith(f"GPU {uuid} is drained since ")
    assert lines[1] == "published: no new claim gets it"
    assert lines[2] == "still held; delete the pods to free it:"
    assert "held by claim ns/runs, pods pod" in lines[3]
    assert operator.drained() == {"taint": {names[0]}, "unhealthy": {names[0]}}

    code, status = await operator.status()
    assert code == 0  # a drain is no trouble
    (gpu,) = [each for each in status["gpus"] if each["uuid"] == uuid]
    assert (gpu["state"], gpu["published"], gpu["drained"]["reason"]) == ("drained", "drained", "fan")
    assert gpu["holders"][0]["pods"] == ["pod"]
    assert status["plugin"]["state"] == "ready"

    # What runs is prepared as often as the kubelet asks; what is new is refused, also once the GPU is free.
    assert await world.prepared(runs)
    await world.unprepare(runs)
    answers = await world.prepare(late)
    assert f"GPU {uuid} ({names[0]}) is drained since " in answers[late.uid].error
    code, out, _ = await operator.run("drain-gpu", uuid)
    assert (code, out.splitlines()[-1]) == (0, "nobody holds a part of it")

    # A plugin that starts anew publishes it as drained from the first.
    await operator.running.stop()
    for item in world.slices():
        world.server.delete(RESOURCE_SLICES, name=item["metadata"]["name"])
    async with world.run() as again:
        await world.until_published()
        assert operator.drained() == {"taint": {names[0]}, "unhealthy": {names[0]}}
        await again.until_ready()
        operator.running = again
        code, out, err = await operator.run("drain-gpu", uuid, "--undo")
        assert code == 0, out + err
        assert out == f"GPU {uuid} is given back\npublished: new claims may get it again\n"
        assert operator.drained() == {"taint": set(), "unhealthy": set()}
        assert await world.prepared(late)
        code, out, _ = await operator.run("drain-gpu", uuid, "--undo")
        assert (code, out.splitlines()[0]) == (0, f"GPU {uuid} was not drained")


async def test_while_the_drains_cannot_be_read_no_gpu_is_offered(world: World) -> None:
    """Any could be drained. Pods end and start all the same."""
    in_its_place = plugin_directory(world.settings()) / DIRECTORY
    in_its_place.parent.mkdir(parents=True)
    in_its_place.write_text("")
    async with world.run() as running:
        waits = f"the drains to be readable: {in_its_place} cannot be read: Not a directory"
        await until(lambda: running.plugin.waiting_for() == [waits, "its ResourceSlices to be published"])
        assert world.slices() == []
        in_its_place.unlink()
        names = await world.until_published()
        await running.until_ready()
        in_its_place.write_text("")  # what is known stays known
        await world.prepared(world.claim("c", names[:1]))
        assert running.plugin.waiting_for() == []


async def test_the_plugin_dies_and_the_drain_waits_for_the_next(operator: Operator) -> None:
    world = operator.world
    names = list(world.devices())
    held = world.claim("runs", names[:1])
    await world.prepared(held)
    uuid = uuid_of(world, names[0])
    await operator.running.stop()
    code, out, _ = await operator.run("drain-gpu", uuid)
    assert code == 3
    assert "the node plugin does not run: no new claim gets it once it has started" in out
    assert "held by claim ns/runs" in out
    code, status = await operator.status()
    assert (code, status["plugin"]["state"]) == (3, "not running")
    (gpu,) = [each for each in status["gpus"] if each["uuid"] == uuid]
    assert (gpu["state"], gpu["cause"]) == ("drained", "still published as healthy")
    async with world.run():
        await world.server.until(lambda: operator.drained()["taint"] == {names[0]}, timeout_s=20)


async def test_an_unhealthy_gpu_that_is_given_back_stays_unhealthy(operator: Operator) -> None:
    world = operator.world
    name = next(iter(world.devices()))
    uuid = uuid_of(world, name)
    await world.prepared(world.claim("runs", [name]))  # one that nobody holds would be published no more
    world.hardware.lose(uuid)
    await world.server.until(lambda: operator.drained()["unhealthy"] == {name}, timeout_s=20)
    assert (await operator.run("drain-gpu", uuid))[0] == 0
    await world.server.until(lambda: operator.drained()["taint"] == {name}, timeout_s=20)
    code, out, err = await operator.run("drain-gpu", uuid, "--undo")
    assert (code, operator.drained()) == (0, {"taint": set(), "unhealthy": {name}}), out + err


async def test_doctor_beside_a_running_plugin(operator: Operator) -> None:
    world = operator.world
    names = list(world.devices())
    await world.prepared(world.claim("runs", names[:1]))
    before = sorted(path for path in world.root.rglob("*") if "sock" not in path.name)
    code, out, _ = await operator.run("doctor", "-o", "json")
    report = json.loads(out)
    assert (report["kind"], report["nodeName"]) == ("NodeDoctorReport", NODE)
    results = {check["name"]: check["result"] for check in report["checks"]}
    wrong = [check for check in report["checks"] if check["result"] == "fail"]
    assert (code, wrong) == (0, [])
    for name in (
        *("settings", "plugin-directory", "plugins-registry", "cdi-root", "disk", "plugin"),
        *("registration-socket", "held-files", "cdi-files", "drains", "gpus", "health"),
        *("api-server", "node-object", "api-rights", "published"),
    ):
        assert results[name] == "ok", (name, report)
    assert sorted(path for path in world.root.rglob("*") if "sock" not in path.name) == before

    next((world.root / "cdi").glob("*.json")).unlink()
    world.server.delete(RESOURCE_SLICES, name=world.slices()[0]["metadata"]["name"])
    await operator.running.stop()
    code, out, _ = await operator.run("doctor")
    assert code == 3
    for text in (
        "FAIL  plugin               the node plugin does not run: ",
        "FAIL  cdi-files            none for claim ",
        "fix: ",
    ):
        assert text in out


@pytest.mark.parametrize("version", ["1.34"])
async def test_where_the_server_drops_the_taint(operator: Operator) -> None:
    world = operator.world
    name = next(iter(world.devices()))
    uuid = uuid_of(world, name)
    code, out, err = await operator.run("drain-gpu", uuid)
    assert (code, operator.drained()) == (0, {"taint": set(), "unhealthy": {name}}), out + err
    _, status = await operator.status()
    (gpu,) = [each for each in status["gpus"] if each["uuid"] == uuid]
    assert (gpu["state"], gpu["published"]) == ("drained", "unhealthy")
    code, out, err = await operator.run("drain-gpu", uuid, "--undo")
    assert (code, operator.drained()) == (0, {"taint": set(), "unhealthy": set()}), out + err
