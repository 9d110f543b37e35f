"""Claims are told what happened to the MPS daemons of their GPUs."""

import asyncio
from collections.abc import Mapping
from typing import cast

import msgspec
import pytest

from tangram.base.errors import StateError
from tangram.hardware.mps.directory import MpsDirectory
from tangram.hardware.mps.values import MpsIncident, MpsState, MpsStatus
from tangram.model.devices import Kind
from tangram.model.gpu import GpuUuid
from tangram.node.held import HeldClaim, HeldDevice
from tangram.node.mpswatch import LOOK_S, MpsWatch
from tangram.testing.clock import FakeClock


class Directory:
    def __init__(self) -> None:
        self.said: dict[str, MpsStatus] = {}
        self.broken = False

    def fail(self, gpu: str, incidents: int, *, time: str = "") -> MpsIncident:
        incident = MpsIncident(kind="died", cause=f"the MPS daemon died ({incidents})", time=time)
        self.said[gpu] = MpsStatus(
            uuid=gpu, state="ready", keeper="k", incidents=incidents, incident=incident if incidents else None
        )
        return incident

    def statuses(self) -> Mapping[str, MpsStatus]:
        if self.broken:
            raise StateError("the disk")
        return self.said


def claim(name: str, *devices: tuple[str, Kind], admin: bool = False) -> HeldClaim:
    return HeldClaim(
        namespace="ns",
        name=name,
        uid=name,
        boot_id="b",
        phase="prepared",
        devices=tuple(
            HeldDevice(
                pool="p",
                device="d",
                uuid=gpu,
                request_names=("r",),
                kind=kind,
                admin_access=admin,
            )
            for gpu, kind in devices
        ),
    )


class World:
    def __init__(self, *held: HeldClaim) -> None:
        self.directory, self.clock = Directory(), FakeClock()
        self.told: list[tuple[str, str]] = []
        self.changes: list[Mapping[GpuUuid, str]] = []
        self.watch = MpsWatch(
            directory=cast("MpsDirectory", self.directory),
            held=lambda: held,
            tell=lambda claim, incident: self.told.append((claim.name, incident.cause)),
            changed=lambda: self.changes.append(self.watch.failing),
            clock=self.clock,
        )

    async def look(self) -> list[tuple[str, str]]:
        """What one look tells."""
        before = len(self.told)
        await self.watch.look()
        return self.told[before:]


async def test_p41_each_claim_of_the_gpu_is_told_once() -> None:
    world = World(
        claim("a", ("g1", "mps")),
        claim("b", ("g1", "mps")),
        claim("elsewhere", ("g2", "mps")),
        claim("whole", ("g1", "gpu")),
        claim("admin", ("g1", "mps"), admin=True),
    )
    for gpu in ("g1", "g2"):
        world.directory.fail(gpu, 0)
    assert await world.look() == []
    incident = world.directory.fail("g1", 1)
    assert await world.look() == [("a", incident.cause), ("b", incident.cause)]
    assert await world.look() == []
    again = world.directory.fail("g1", 3)
    assert await world.look() == [("a", again.cause), ("b", again.cause)]


async def test_what_happened_long_before_the_plugin_started_is_not_told() -> None:
    for time in ("2026-01-01T00:00:00Z", "", "yesterday", "2026-01-01T00:04:59"):
        world = World(claim("a", ("g1", "mps")))
        await world.clock.advance(300)
        world.directory.fail("g1", 7, time=time)
        assert await world.look() == []


async def test_what_happened_while_the_plugin_restarted_is_told() -> None:
    world = World(claim("a", ("g1", "mps")))
    await world.clock.advance(300)
    incident = world.directory.fail("g1", 7, time="2026-01-01T00:00:01Z")
    assert await world.look() == [("a", incident.cause)]
    assert await world.look() == []


async def test_it_goes_on_when_the_disk_fails() -> None:
    world = World(claim("a", ("g1", "mps")))
    world.directory.fail("g1", 0)
    await world.watch.look()
    running = asyncio.ensure_future(world.watch.run())
    try:
        await world.clock.until_sleeping()
        world.directory.broken = True
        await world.clock.advance(LOOK_S)
        await world.clock.until_sleeping()
        world.directory.broken = False
        incident = world.directory.fail("g1", 1)
        await world.clock.advance(LOOK_S)
        await world.clock.until_sleeping()
        assert world.told == [("a", incident.cause)]
    finally:
        running.cancel()


async def test_p41_a_daemon_that_serves_nobody_is_told_until_it_does() -> None:
    world = World(claim("a", ("g1", "mps")))
    world.directory.fail("g1", 0)
    running = asyncio.ensure_future(world.watch.run())
    try:
        for state in ("ready", "failing", "failing", "ready"):
            await world.clock.until_sleeping()
            said = world.directory.said["g1"]
            cause = "it does not start" if state == "failing" else ""
            world.directory.said["g1"] = msgspec.structs.replace(said, state=state, cause=cause)
            await world.clock.advance(LOOK_S)
        await world.clock.until_sleeping()
        assert world.changes == [{"g1": "it does not start"}, {}]
    finally:
        running.cancel()


@pytest.mark.parametrize("end", ["ready", "stopping", "stopped"])
async def test_p41_a_daemon_that_is_tried_again_serves_nobody_yet(end: MpsState) -> None:
    """One that never comes up would else be well and ill in turns, and be given to claims in between."""
    world = World()
    world.directory.fail("g1", 0)
    said = world.directory.said["g1"]

    async def failing(state: MpsState, cause: str = "") -> Mapping[GpuUuid, str]:
        world.directory.said["g1"] = msgspec.structs.replace(said, state=state, cause=cause)
        await world.watch.look()
        return world.watch.failing

    assert await failing("starting") == {}
    for _ in range(2):
        assert await failing("failing", "it does not start") == {"g1": "it does not start"}
        assert await failing("starting") == {"g1": "it does not start"}
    assert await failing(end) == {}
    assert await failing("starting") == {}
