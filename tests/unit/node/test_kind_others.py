"""What others have on a GPU: monitors that only look, and MIG instances that no claim has made."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.kinds import KindsNode, assert_consistent, claim, make_foreign, make_node
from tests.unit.node.support import Claims, uid

from tangram.base.errors import ClaimNotPreparableError, NoRoomError
from tangram.model.mig import MigPlacement
from tangram.node.held import MigStep
from tangram.node.steps.mig import foreign_instances


@pytest.fixture
def claims() -> Claims:
    return Claims()


def migs(node: KindsNode, number: int = 1) -> str:
    """UUIDs of the MIG devices that containers of a claim get."""
    spec: dict[str, Any] = json.loads(node.cdi_file(number).read_bytes())
    environment: dict[str, str] = dict(entry.split("=", 1) for entry in spec["containerEdits"]["env"])
    return environment["TANGRAM_MIG_UUIDS"]


async def test_a_monitor_may_see_all_gpus_that_are_shared_by_mps(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path)
    await node.preparer.prepare(claims.put(claim(node, (0, "mps"))))
    monitor = claim(node, (0, "mps"), (1, "mps"), number=2, adminAccess=True)
    await node.preparer.prepare(claims.put(monitor))
    assert len(assert_consistent(node)) == 2


async def test_a_monitor_does_not_get_an_instance_of_another_profile(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path, mode="enabled")
    await node.preparer.prepare(claims.put(claim(node, (0, "mig-2g20gb-0"))))
    monitor = claim(node, (0, "mig-1g20gb-0"), number=2, adminAccess=True)
    with pytest.raises(ClaimNotPreparableError, match="is not there"):
        await node.preparer.prepare(claims.put(monitor))


async def test_p76_admin_access_changes_no_hardware(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path, mode="enabled")
    await node.preparer.prepare(claims.put(claim(node, (0, "mig-3g40gb-0"))))
    monitor = claims.put(claim(node, (0, "mig-3g40gb-0"), number=2, adminAccess=True))
    held, _ = await node.preparer.prepare(monitor)
    assert not any(isinstance(step, MigStep) for step in held.undo)
    mine = migs(node, 1)
    assert migs(node, 2) == mine
    await node.preparer.unprepare(uid(2))
    assert len(assert_consistent(node)) == 1
    nothing = claims.put(claim(node, (1, "mig-3g40gb-0"), number=3, adminAccess=True))
    with pytest.raises(ClaimNotPreparableError, match="is not there"):
        await node.preparer.prepare(nothing)


async def test_p22_foreign_instances_are_used_and_never_touched(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path, mode="enabled")
    theirs = make_foreign(node)
    node.look()
    assert node.inventory is not None
    names = [name for name, offer in node.inventory.devices.items() if offer.gpu == node.gpu_at(0)]
    assert len(names) == 1
    held, _ = await node.preparer.prepare(claims.put(claim(node, (0, "mig-3g40gb-0"))))
    assert migs(node) == theirs
    assert not any(isinstance(step, MigStep) for step in held.undo)
    await node.preparer.unprepare(uid(1))
    foreign = {node.gpu_at(0).uuid: [(MigPlacement(0, 4), (theirs,))]}
    assert assert_consistent(node, foreign=foreign) == []


async def test_p26_an_instance_in_the_way_is_named(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path, mode="enabled")
    wanted = claims.put(claim(node, (0, "mig-3g40gb-4")))
    theirs = make_foreign(node, start=4)
    with pytest.raises(NoRoomError, match=r"taken by GPU instance \d+ \(slices 4 to 7\)"):
        await node.preparer.prepare(wanted)
    foreign = {node.gpu_at(0).uuid: [(MigPlacement(4, 4), (theirs,))]}
    assert assert_consistent(node, foreign=foreign) == []


async def test_an_instance_in_the_place_of_ours_is_not_destroyed(tmp_path: Path, claims: Claims) -> None:
    """Ids are used again: the UUID is verified before a destroy."""
    node = make_node(tmp_path, mode="enabled")
    held, _ = await node.preparer.prepare(claims.put(claim(node, (0, "mig-3g40gb-0"))))
    gpu = node.gpu_at(0).uuid
    (ours,) = node.hardware.gpu_instances(gpu)
    node.hardware.destroy_compute_instance(gpu, gpu_instance_id=ours.gpu_instance_id, compute_instance_id=0)
    node.hardware.destroy_gpu_instance(gpu, gpu_instance_id=ours.gpu_instance_id)
    assert await node.preparer.vanished(held) == [held.devices[0].device]
    theirs = make_foreign(node)
    (there,) = node.hardware.gpu_instances(gpu)
    assert there.gpu_instance_id == ours.gpu_instance_id
    assert foreign_instances([there], uuid=gpu, claims=[held]) == (there,)
    await node.reconciler(claims).claims()
    assert node.gone == [held.devices[0].device]  # told to the user
    await node.preparer.unprepare(uid(1))
    assert assert_consistent(node, foreign={gpu: [(MigPlacement(0, 4), (theirs,))]}) == []


async def test_a_foreign_instance_that_goes_is_told(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path, mode="enabled")
    make_foreign(node)
    node.look()
    held, _ = await node.preparer.prepare(claims.put(claim(node, (0, "mig-3g40gb-0"))))
    gpu = node.gpu_at(0).uuid
    (theirs,) = node.hardware.gpu_instances(gpu)
    number = theirs.gpu_instance_id
    node.hardware.destroy_compute_instance(gpu, gpu_instance_id=number, compute_instance_id=0)
    node.hardware.destroy_gpu_instance(gpu, gpu_instance_id=number)
    node.look()
    await node.reconciler(claims).claims()
    assert node.gone == [held.devices[0].device]
