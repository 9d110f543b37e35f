"""Answers to the kubelet: what waits, and what is refused at once."""

import asyncio
from pathlib import Path

import pytest
from tests.unit.node.kinds import claim as kinds_claim
from tests.unit.node.kinds import make_node
from tests.unit.node.support import Claims, Node, claim_object, uid

from tangram.base.errors import DeviceHeldError, NoRoomError, TangramError, UnreachableError
from tangram.kube.objects import ResourceClaim
from tangram.model.mig import MigPlacement
from tangram.node.driver import FREED_WITHIN_S, NodeDriver
from tangram.node.held import HeldClaim
from tangram.node.inventory import Inventory
from tangram.testing.clock import FakeClock


class Reports:
    """What is reported of claims, by uid."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def prepared(
        self, claim: ResourceClaim, held: HeldClaim, inventory: Inventory | None, *, new: bool
    ) -> None:
        self.outcomes.append(f"prepared {claim.metadata.name}")

    def failed(self, claim: ResourceClaim, error: TangramError) -> None:
        self.outcomes.append(f"failed {claim.metadata.name}")

    def forget(self, uid: str) -> None:
        pass


class World:
    def __init__(self, root: Path) -> None:
        self.clock = FakeClock()
        self.node = Node(root, clock=self.clock)
        self.claims = Claims()
        self.reports = Reports()
        self.driver = NodeDriver(
            preparer=self.node.preparer,
            reporter=self.reports,  # type: ignore[arg-type]
            inventory=lambda: self.node.inventory,
            lives=self.node.reconciler(self.claims).lives,
            tidy=self.node.reconciler(self.claims).local,
            clock=self.clock,
        )

    def claim(self, number: int) -> ResourceClaim:
        return self.claims.put(claim_object([self.node.devices[0]], number=number))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_claim_waits_for_the_end_of_a_force_deleted_pod(world: World) -> None:
    await world.driver.prepare(world.claim(1))
    world.claims.remove(1)
    waiting = asyncio.create_task(world.driver.prepare(world.claim(2)))
    for _ in range(3):
        await world.clock.advance_to_next()
    assert not waiting.done()
    await world.node.preparer.unprepare(uid(1))
    await world.clock.advance_to_next()
    (device,) = await waiting
    assert device.device_name == world.node.devices[0]
    assert world.reports.outcomes == ["prepared claim-1", "prepared claim-2"]


async def test_a_claim_waits_no_longer_than_the_kubelet(world: World) -> None:
    await world.driver.prepare(world.claim(1))
    world.claims.remove(1)
    waiting = asyncio.create_task(world.driver.prepare(world.claim(2)))
    waited_s = 0.0
    while waited_s < FREED_WITHIN_S:
        waited_s += await world.clock.advance_to_next()
    with pytest.raises(DeviceHeldError):
        await waiting
    assert waited_s < 45
    assert world.reports.outcomes == ["prepared claim-1", "failed claim-2"]


@pytest.mark.parametrize("unreachable", [False, True])
async def test_a_device_of_a_claim_that_lives_is_refused_at_once(world: World, unreachable: bool) -> None:
    await world.driver.prepare(world.claim(1))
    second = world.claim(2)
    if unreachable:
        world.claims.error = UnreachableError("the API server is away")
    with pytest.raises(DeviceHeldError):
        await world.driver.prepare(second)
    assert world.clock.monotonic_s() == 0


async def test_a_device_of_a_claim_whose_held_state_was_lost_is_refused_at_once(world: World) -> None:
    await world.driver.prepare(world.claim(1))
    world.node.held_file(1).unlink()  # the CDI file is still there, and the claim
    with pytest.raises(DeviceHeldError, match="held state was lost"):
        await world.driver.prepare(world.claim(2))
    assert world.clock.monotonic_s() == 0


@pytest.mark.parametrize("helps", [True, False])
async def test_p26_room_is_made_once_by_tidying(tmp_path: Path, helps: bool) -> None:
    """What a process before has left half done may be in the way."""
    node, claims, reports = make_node(tmp_path, mode="enabled"), Claims(), Reports()
    gpu = node.gpu_at(0).uuid
    wanted = claims.put(kinds_claim(node, (0, "mig-3g40gb-4")))
    number = node.hardware.create_gpu_instance(gpu, profile_id=9, placement=MigPlacement(4, 4))
    tidied = 0

    async def tidy() -> None:
        nonlocal tidied
        tidied += 1
        if helps:
            node.hardware.destroy_gpu_instance(gpu, gpu_instance_id=number)

    driver = NodeDriver(
        preparer=node.preparer,
        reporter=reports,  # type: ignore[arg-type]
        inventory=lambda: node.inventory,
        lives=node.reconciler(claims).lives,
        tidy=tidy,
        clock=node.clock,
    )
    if helps:
        (device,) = await driver.prepare(wanted)
        assert device.device_name == node.device(0, "mig-3g40gb-4")
    else:
        with pytest.raises(NoRoomError, match=f"GPU instance {number}"):
            await driver.prepare(wanted)
        assert reports.outcomes == ["failed claim-1"]
    assert tidied == 1
