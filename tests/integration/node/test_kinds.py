"""All kinds of devices between an API server, a kubelet and, for MPS, the real supervisor."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.node.conftest import NODE, World, until

from tangram import DRIVER_NAME
from tangram.base.clock import SystemClock
from tangram.hardware.machines import load_machine
from tangram.hardware.machines.faultplan import Fault
from tangram.hardware.mps.directory import MpsDirectory, mps_root
from tangram.hardware.mps.processes import read_boot_id
from tangram.hardware.mps.values import directory_name
from tangram.hardware.simulated import SimulatedBackend
from tangram.hardware.workers import Workers
from tangram.kube.resources import EVENTS, RESOURCE_SLICES
from tangram.model.gpu import GpuUuid
from tangram.model.mig import MigPlacement
from tangram.node.gpunotes import GpuNotes
from tangram.node.held import MigStep
from tangram.node.sight import look_at_files, look_at_gpus, plugin_directory

DRIVER = Path(__file__).parents[3] / "driver"
ALL = "gpu,mps,timeslice,mig"


def device(world: World, gpu: int, what: str) -> str:
    """The published device `mps`, `ts` or `mig-…` of the GPU at a position."""
    uuid = world.hardware.discover().gpus[gpu].uuid
    found = [
        name
        for name, each in world.devices().items()
        if name.endswith(f"-{what}")
        and uuid in (each["attributes"].get(key, {}).get("string") for key in ("uuid", "parentUUID"))
    ]
    assert len(found) == 1
    return found[0]


def uuid_of(world: World, gpu: int) -> GpuUuid:
    return world.hardware.discover().gpus[gpu].uuid


def in_mig_mode(world: World) -> None:
    """The first two GPUs; the others are off."""
    for gpu in world.hardware.discover().gpus[:2]:
        world.hardware.set_mig_mode(gpu.uuid, enabled=True)
        world.hardware.reset(gpu.uuid)


def parameters(**fields: Any) -> list[dict[str, Any]]:
    document = {"apiVersion": f"{DRIVER_NAME}/v1alpha1", "kind": "GPUClaimParameters", **fields}
    return [{"source": "FromClaim", "opaque": {"driver": DRIVER_NAME, "parameters": document}}]


@pytest.fixture
async def supervisor(world: World) -> AsyncIterator[MpsDirectory]:
    """`tangram mps run` with simulated daemons, and what it tells."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tangram", "mps", "run", "--simulated", "true",
        "--kubelet-dir", str(world.root), "--metrics-address", "",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(DRIVER)},
        stdin=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    directory = MpsDirectory(mps_root(str(world.root)), clock=SystemClock(), boot_id=read_boot_id())
    yield directory
    for gpu, members in directory.members().items():
        for uid in members:
            directory.leave(gpu, claim_uid=uid)
        with contextlib.suppress(Exception):
            await directory.gone(gpu, deadline_s=30)
    process.terminate()
    async with asyncio.timeout(60):
        await process.wait()


async def test_mig_devices_come_and_go(world: World) -> None:
    """1g + 2g + 3g on one GPU; a fault in the middle leaves nothing and tells why."""
    in_mig_mode(world)
    async with world.run(kinds=ALL) as running:
        await world.until_published(2 * 25 + 6 * 3)
        await running.until_ready()
        claims = [
            world.claim(f"c{number}", [device(world, 0, what)])
            for number, what in enumerate(("mig-1g10gb-0", "mig-2g20gb-2", "mig-3g40gb-4"))
        ]
        for claim in claims:
            await world.prepared(claim)
        assert len(world.hardware.gpu_instances(uuid_of(world, 0))) == 3
        variables = dict(entry.split("=", 1) for entry in world.cdi(claims[0])["containerEdits"]["env"])
        await world.server.until(lambda: bool(world.status(claims[0])))
        assert world.status(claims[0])[0]["data"]["migUUID"] == variables["TANGRAM_MIG_UUIDS"]
        assert world.status(claims[0])[0]["data"]["profile"] == "1g.10gb"
        await world.unprepare(*claims)
        assert world.hardware.gpu_instances(uuid_of(world, 0)) == ()
        world.hardware.fail(Fault(call="create_compute_instance", error="UNKNOWN"))
        failing = world.claim("failing", [device(world, 0, "mig-3g40gb-4")])
        assert "create_compute_instance" in await world.refused(failing)
        assert world.hardware.gpu_instances(uuid_of(world, 0)) == ()
        await world.server.until(
            lambda: any(event["reason"] == "PrepareFailed" for event in world.server.objects(EVENTS))
        )
        await world.prepared(failing)
        await world.unprepare(failing)
        assert world.state() == set()


async def test_what_an_ended_claim_has_left_is_not_foreign(world: World) -> None:
    """Also to `tangram node status` and `doctor`, beside the plugin."""
    in_mig_mode(world)
    settings = world.settings(kinds="mig")
    uuid = uuid_of(world, 0)
    notes = GpuNotes(plugin_directory(settings) / "gpus", boot_id=read_boot_id())
    notes.create()
    number = world.hardware.create_gpu_instance(uuid, profile_id=9, placement=MigPlacement(0, 4))
    made = world.hardware.create_compute_instance(uuid, gpu_instance_id=number)

    async def foreign() -> Any:
        workers = Workers(world.hardware, clock=SystemClock())
        files = look_at_files(settings)
        gpus = await look_at_gpus(settings, files, workers=workers, clock=SystemClock())
        assert gpus.inventory is not None
        return gpus.inventory.foreign

    assert list(await foreign()) == [uuid]
    step = MigStep(
        device="d", uuid=uuid, profile_id=9, start=0, size=4, gpu_instance_id=number,
        compute_instance_id=made.compute_instance_id, mig_uuid=made.uuid,
    )  # fmt: skip
    notes.owe_instance(step)
    assert await foreign() == {}


async def test_an_administrators_instance_is_published_and_left_alone(world: World) -> None:
    in_mig_mode(world)
    async with world.run(kinds=ALL):
        await world.until_published(2 * 25 + 6 * 3)
        first = uuid_of(world, 0)
        place = next(
            profile for profile in world.hardware.discover().gpus[0].mig_profiles if profile.name == "3g.40gb"
        ).placements[0]
        number = world.hardware.create_gpu_instance(first, profile_id=9, placement=place)
        theirs = world.hardware.create_compute_instance(first, gpu_instance_id=number)
        await world.until_published(1 + 25 + 6 * 3)
        name = device(world, 0, "mig-3g40gb-0")
        assert world.devices()[name]["attributes"]["uuid"]["string"] == theirs.uuid
        claim = world.claim("c", [name])
        await world.prepared(claim)
        await world.unprepare(claim)
        assert len(world.hardware.gpu_instances(first)) == 1


async def test_claims_of_other_gpus_are_served_beside_one_that_hangs(world: World) -> None:
    """At the kubelet's socket: whoever waited for the GPU that hangs would wait as long as it does."""
    in_mig_mode(world)
    async with world.run(kinds=ALL) as running:
        await world.until_published(2 * 25 + 6 * 3)
        await running.until_ready()
        hang = world.hardware.hang("create_gpu_instance", uuid_of(world, 0))
        stuck = asyncio.create_task(world.prepare(world.claim("stuck", [device(world, 0, "mig-3g40gb-0")])))
        assert await asyncio.to_thread(hang.entered.wait, 30)
        names = [device(world, 1, "mig-3g40gb-0"), device(world, 2, "ts"), device(world, 3, "ts")]
        claims = [world.claim(f"c{number}", [name]) for number, name in enumerate(names)]
        await asyncio.gather(*(world.prepared(claim) for claim in claims))
        await world.unprepare(*claims)
        assert not stuck.done()
        hang.release()
        await stuck


async def test_two_claims_share_a_gpu_by_mps(world: World, supervisor: MpsDirectory) -> None:
    """40 and 60 percent; an update of the plugin leaves the daemon alone."""
    async with world.run(kinds=ALL):
        await world.until_published(8 * 3)
        shared = device(world, 0, "mps")
        first, second = (
            world.claim(
                f"c{percent}", [shared],
                config=parameters(shPolicy="mps", mps={"threadPercent": percent, "pinnedMemory": "20Gi"}),
                class_name=f"mps.{DRIVER_NAME}", shareID=f"000000{percent}-0000-4000-8000-000000000000",
            )
            for percent in (40, 60)
        )  # fmt: skip
        await world.prepared(first)
        await world.prepared(second)
        gpu = uuid_of(world, 0)
        assert world.hardware.compute_mode(gpu) == "exclusive_process"
        status = supervisor.status(gpu)
        assert status is not None
        assert status.limits is not None
        assert status.limits.cores_percent == 60
        edits = world.cdi(first)["devices"][0]["containerEdits"]
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40" in edits["env"]
        tenth = parameters(mps={"threadPercent": 10})
        third = world.claim("third", [shared], config=tenth, class_name=f"mps.{DRIVER_NAME}")
        assert "110 percent" in await world.refused(third)
        whole = world.claim("whole", [shared.removesuffix("-mps")])
        assert "by MPS" in await world.refused(whole)
    async with world.run(kinds=ALL) as running:
        await running.until_ready()
        after = supervisor.status(gpu)
        assert after is not None
        assert after.daemon == status.daemon
        await world.unprepare(first, second)
        assert world.hardware.compute_mode(gpu) == "default"
        await until(lambda: (now := supervisor.status(gpu)) is not None and now.state == "stopped")


async def test_p41_a_share_is_unhealthy_while_its_daemon_serves_nobody(
    world: World, supervisor: MpsDirectory
) -> None:
    """In the slice and in the claim's status, and well again by itself."""
    async with world.run(kinds=ALL):
        await world.until_published(8 * 3)
        shared, gpu = device(world, 0, "mps"), uuid_of(world, 0)
        claim = world.claim("c", [shared], class_name=f"mps.{DRIVER_NAME}")
        await world.prepared(claim)
        status = supervisor.status(gpu)
        assert status is not None
        assert status.daemon is not None
        faults = mps_root(str(world.root)) / directory_name(gpu) / "simulate"
        faults.write_text("refuse start")
        os.kill(status.daemon.pid, signal.SIGKILL)

        def ill() -> set[str]:
            devices = world.devices().items()
            return {name for name, each in devices if not each["attributes"]["healthy"]["bool"]}

        def ready() -> str:
            return next((each["conditions"][0]["status"] for each in world.status(claim)), "")

        await until(lambda: ill() == {shared} and ready() == "False", timeout_s=60)
        # First it is told that the daemon died, then that another does not start.
        await until(
            lambda: "does not start" in world.status(claim)[0]["conditions"][0]["message"], timeout_s=60
        )
        assert list(look_at_files(world.settings(kinds=ALL)).mps_failing) == [gpu]
    for item in world.slices():
        world.server.delete(RESOURCE_SLICES, name=item["metadata"]["name"])
    async with world.run(kinds=ALL):
        await world.until_published(8 * 3)
        assert ill() == {shared}  # from the first
        faults.unlink()
        await until(lambda: ill() == set() and ready() == "True", timeout_s=90)
        await world.unprepare(claim)


async def test_four_claims_share_a_gpu_by_time_slicing(world: World) -> None:
    async with world.run(kinds="timeslice"):
        await world.until_published(8)
        shared = device(world, 0, "ts")
        claims = [world.claim(f"c{number}", [shared]) for number in range(5)]
        for claim in claims[:4]:
            await world.prepared(claim)
        assert "shares of GPU" in await world.refused(claims[4])
        await world.unprepare(claims[0])
        await world.prepared(claims[4])


@pytest.mark.parametrize(("version", "counted"), [("1.35", False), ("1.36", True)])
async def test_counters_only_where_kube_scheduler_allocates_and_the_server_keeps_them(
    world: World, counted: bool
) -> None:
    world.hardware = SimulatedBackend(load_machine("h100-sxm5-80gb-x8"), node_name=NODE)
    async with world.run(kinds=ALL, mig_mode="dynamic", allocator="scheduler"):
        await world.until_published(8 * 28 if counted else 8)
        devices = world.devices().values()
        assert all(bool(each.get("consumesCounters")) is counted for each in devices)
        sets = [each["name"] for one in world.slices() for each in one["spec"].get("sharedCounters") or []]
        assert len(sets) == (8 if counted else 0)
    # A new process does not take the devices away while it learns what it can see.
    before = {each["metadata"]["name"]: each["spec"] for each in world.slices()}
    async with world.run(kinds=ALL, mig_mode="dynamic", allocator="scheduler") as running:
        await running.until_ready()
    assert {each["metadata"]["name"]: each["spec"] for each in world.slices()} == before
