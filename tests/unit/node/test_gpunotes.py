"""What a node owes its GPUs outlives claims and their held files: no GPU stays changed, nothing of ours turns
foreign."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.kinds import KindsNode, assert_consistent, claim, make_foreign, make_node
from tests.unit.node.support import Claims, uid

from tangram.base.errors import NoRoomError, StateError
from tangram.hardware.backend import ComputeMode, GpuProcess
from tangram.hardware.machines.faultplan import Fault
from tangram.model.gpu import GpuUuid
from tangram.model.mig import MigPlacement
from tangram.node.gpunotes import GpuNotes
from tangram.node.held import ComputeModeStep, MigStep
from tangram.testing.clock import FakeClock

EXCLUSIVE = [("mps", {}), ("gpu", {"exclusive_compute_mode": True})]


@pytest.fixture
def claims() -> Claims:
    return Claims()


def mode(node: KindsNode) -> ComputeMode:
    return node.hardware.compute_mode(node.gpu_at(0).uuid)


@pytest.mark.parametrize("before", ["default", "prohibited"])
@pytest.mark.parametrize(("what", "policy"), EXCLUSIVE)
async def test_p37_a_claim_whose_files_are_all_lost_leaves_no_gpu_exclusive(
    tmp_path: Path, claims: Claims, what: str, policy: dict[str, Any], before: ComputeMode
) -> None:
    node = make_node(tmp_path, **policy)
    node.hardware.set_compute_mode(node.gpu_at(0).uuid, before)
    await node.preparer.prepare(claims.put(claim(node, (0, what))))
    assert mode(node) == "exclusive_process"
    node.held_file(1).unlink()
    node.cdi_file(1).unlink()
    await node.reconciler(claims).local()
    assert mode(node) == before
    assert node.mps.joined == {}
    assert node.notes.gpus() == []


async def test_a_gpu_that_containers_may_still_use_keeps_its_mode(tmp_path: Path, claims: Claims) -> None:
    """The held file is lost, the CDI file is not: the claim may live, until the API server has been asked."""
    node = make_node(tmp_path)
    await node.preparer.prepare(claims.put(claim(node, (0, "mps"))))
    node.held_file(1).unlink()
    await node.reconciler(claims).local()
    assert mode(node) == "exclusive_process"
    claims.remove(1)
    await node.reconciler(claims).claims()
    await node.reconciler(claims).local()
    assert assert_consistent(node) == []


async def test_a_claim_that_is_rebuilt_remembers_the_mode_before_it(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path)
    node.hardware.set_compute_mode(node.gpu_at(0).uuid, "prohibited")
    held, _ = await node.preparer.prepare(claims.put(claim(node, (0, "mps"))))
    node.held_file(1).unlink()
    await node.reconciler(claims).claims()
    assert list(node.store.load().claims.values()) == [held]
    await node.preparer.unprepare(uid(1))
    assert mode(node) == "prohibited"


async def test_the_next_claim_does_not_take_our_own_mode_for_what_was_found(
    tmp_path: Path, claims: Claims
) -> None:
    """It comes before a pass has tidied up."""
    node = make_node(tmp_path)
    await node.preparer.prepare(claims.put(claim(node, (0, "mps"))))
    node.held_file(1).unlink()
    node.cdi_file(1).unlink()
    node.mps.joined.clear()
    await node.preparer.prepare(claims.put(claim(node, (0, "mps"), number=2)))
    await node.preparer.unprepare(uid(2))
    assert assert_consistent(node) == []


async def test_a_claim_that_needs_no_mode_does_not_keep_ours(tmp_path: Path, claims: Claims) -> None:
    """In the mode that was left, only one program of those that take turns would run."""
    node = make_node(tmp_path)
    await node.preparer.prepare(claims.put(claim(node, (0, "mps"))))
    node.held_file(1).unlink()
    node.cdi_file(1).unlink()
    await node.preparer.prepare(claims.put(claim(node, (0, "ts"), number=2)))
    await node.reconciler(claims).local()
    assert mode(node) == "default"
    assert [held.uid for held in assert_consistent(node)] == [uid(2)]


async def test_a_mode_that_somebody_else_has_set_since_stays(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path)
    await node.preparer.prepare(claims.put(claim(node, (0, "mps"))))
    node.held_file(1).unlink()
    node.cdi_file(1).unlink()
    node.hardware.set_compute_mode(node.gpu_at(0).uuid, "prohibited")
    await node.reconciler(claims).local()
    assert mode(node) == "prohibited"
    assert node.notes.gpus() == []


@pytest.mark.parametrize(("what", "policy"), EXCLUSIVE)
@pytest.mark.parametrize("gone", ["the GPU", "the driver"])
async def test_p37_a_gpu_that_comes_back_without_a_reset_gets_its_mode_back(
    tmp_path: Path, claims: Claims, what: str, policy: dict[str, Any], gone: str
) -> None:
    node = make_node(tmp_path, **policy)
    await node.preparer.prepare(claims.put(claim(node, (0, what))))
    gpu = node.gpu_at(0).uuid
    if gone == "the GPU":
        node.hardware.lose(gpu)
    else:
        node.hardware.make_unavailable("driver not loaded")
    await node.preparer.unprepare(uid(1))
    assert node.store.load().claims == {}
    await node.reconciler(claims).local()  # is nothing to be told, nor forgotten
    assert node.notes.gpus() == [gpu]
    node.hardware.recover(gpu)
    node.hardware.make_unavailable("")
    assert mode(node) == "exclusive_process"
    await node.reconciler(claims).local()
    assert assert_consistent(node) == []


async def test_p22_an_instance_on_a_gpu_that_comes_back_is_still_ours(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path, mode="enabled")
    await node.preparer.prepare(claims.put(claim(node, (0, "mig-3g40gb-0"))))
    gpu = node.gpu_at(0).uuid
    node.hardware.lose(gpu)
    await node.preparer.unprepare(uid(1))
    assert node.store.load().claims == {}
    await node.reconciler(claims).local()
    node.hardware.recover(gpu)
    node.start()  # by the next process, too
    node.look()
    assert node.inventory is not None
    assert node.inventory.foreign == {}
    await node.reconciler(claims).local()
    assert assert_consistent(node) == []


async def test_a_claim_for_the_place_of_an_instance_that_is_owed(tmp_path: Path, claims: Claims) -> None:
    """It comes before a pass has tidied up: refused as any other in the way, and served after the pass."""
    node = make_node(tmp_path, mode="enabled")
    await node.preparer.prepare(claims.put(claim(node, (0, "mig-3g40gb-0"))))
    gpu = node.gpu_at(0).uuid
    node.hardware.lose(gpu)
    await node.preparer.unprepare(uid(1))
    node.hardware.recover(gpu)
    wanted = claims.put(claim(node, (0, "mig-1g10gb-2"), number=2))
    with pytest.raises(NoRoomError, match="taken by"):
        await node.preparer.prepare(wanted)
    await node.reconciler(claims).local()
    await node.preparer.prepare(wanted)
    assert [held.uid for held in assert_consistent(node)] == [uid(2)]


async def test_p22_a_strangers_instance_in_its_place_is_left_alone(tmp_path: Path, claims: Claims) -> None:
    """The GPU came back by a reset, and somebody was faster than we."""
    node = make_node(tmp_path, mode="enabled")
    await node.preparer.prepare(claims.put(claim(node, (0, "mig-3g40gb-0"))))
    gpu = node.gpu_at(0).uuid
    (ours,) = node.hardware.gpu_instances(gpu)
    node.hardware.destroy_compute_instance(gpu, gpu_instance_id=ours.gpu_instance_id, compute_instance_id=0)
    node.hardware.destroy_gpu_instance(gpu, gpu_instance_id=ours.gpu_instance_id)
    theirs = make_foreign(node)
    node.hardware.lose(gpu)
    await node.preparer.unprepare(uid(1))
    node.hardware.recover(gpu)
    await node.reconciler(claims).local()
    assert node.notes.gpus() == []
    assert assert_consistent(node, foreign={gpu: [(MigPlacement(0, 4), (theirs,))]}) == []


async def test_an_instance_that_nothing_proves_ours_is_not_owed(tmp_path: Path, claims: Claims) -> None:
    """Prepare ended in the middle of its creation: its ids were never noted. After the GPU was away, what
    lies in that place may be anybody's."""
    node = make_node(tmp_path, mode="enabled")
    gpu = node.gpu_at(0).uuid
    node.hardware.fail(Fault(call="create_gpu_instance", error="GPU_IS_LOST", effect=True))
    node.hardware.fail(Fault(call="gpu_instances", error="GPU_IS_LOST", after=1))
    with pytest.raises(Exception, match="create_gpu_instance"):
        await node.preparer.prepare(claims.put(claim(node, (0, "mig-3g40gb-0"))))
    assert node.store.load().claims == {}
    await node.reconciler(claims).local()
    assert len(node.hardware.gpu_instances(gpu)) == 1
    assert node.notes.gpus() == []


async def test_an_instance_in_use_stays_owed_until_it_is_not(tmp_path: Path, claims: Claims) -> None:
    clock = FakeClock()
    node = make_node(tmp_path, mode="enabled", clock=clock)
    await node.preparer.prepare(claims.put(claim(node, (0, "mig-3g40gb-0"))))
    gpu = node.gpu_at(0).uuid
    node.hardware.lose(gpu)
    await node.preparer.unprepare(uid(1))
    node.hardware.recover(gpu)
    node.hardware.fail(Fault(call="destroy_gpu_instance", error="UNKNOWN"))
    node.hardware.set_processes(gpu, [])
    await node.reconciler(claims).local()
    assert len(node.hardware.gpu_instances(gpu)) == 1
    assert node.notes.gpus() == [gpu]
    node.hardware.set_processes(gpu, [GpuProcess(pid=1, gpu_instance_id=99)])  # of another instance
    await node.reconciler(claims).local()
    assert assert_consistent(node) == []


async def test_a_reboot_pays_all(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path, mode="enabled")
    await node.preparer.prepare(claims.put(claim(node, (0, "mig-3g40gb-0"))))
    gpu = node.gpu_at(0).uuid
    node.hardware.lose(gpu)
    await node.preparer.unprepare(uid(1))
    node.hardware.recover(gpu)
    node.reboot()
    theirs = make_foreign(node)
    await node.reconciler(claims).local()
    assert node.notes.gpus() == []
    assert assert_consistent(node, foreign={gpu: [(MigPlacement(0, 4), (theirs,))]}) == []


async def test_a_gpu_that_hangs_keeps_no_other_from_getting_its_due(tmp_path: Path, claims: Claims) -> None:
    clock = FakeClock()
    node = make_node(tmp_path, clock=clock)
    for number in (1, 2):
        await node.preparer.prepare(claims.put(claim(node, (number - 1, "mps"), number=number)))
        node.held_file(number).unlink()
        node.cdi_file(number).unlink()
    node.hardware.fail(Fault(call="compute_mode", error="UNKNOWN", target=node.gpu_at(0).uuid))
    await node.reconciler(claims).local()
    assert [node.hardware.compute_mode(node.gpu_at(gpu).uuid) for gpu in (0, 1)] == [
        "exclusive_process",
        "default",
    ]
    await node.reconciler(claims).local()
    assert assert_consistent(node) == []


def test_notes_are_kept_and_what_is_no_note_counts_as_none(tmp_path: Path) -> None:
    gpu = GpuUuid("GPU-00000000-0000-4000-8000-000000000001")
    notes = GpuNotes(tmp_path / "gpus", boot_id="one")
    notes.create()
    mode_step = ComputeModeStep(uuid=gpu, before="default", wanted="exclusive_process")
    instance = MigStep(
        device="d", uuid=gpu, profile_id=9, start=0, size=4, gpu_instance_id=1, mig_uuid="MIG-1"
    )
    notes.owe_mode(gpu, mode_step)
    notes.owe_instance(instance)
    notes.owe_instance(instance)
    assert notes.instances() == (instance,)
    assert notes.read(gpu).compute_mode == mode_step
    assert GpuNotes(tmp_path / "gpus", boot_id="two").instances() == ()
    (path,) = (tmp_path / "gpus").iterdir()
    for damage in (b"", b"{}", b'{"uuid":1}', path.read_bytes()[:-5], b"[" * 10_000):
        path.write_bytes(damage)
        assert notes.instances() == ()
        assert notes.read(gpu).is_empty
    notes.owe_mode(gpu, None)
    assert notes.gpus() == []


def test_what_cannot_be_removed_costs_its_gpu_and_not_the_node(tmp_path: Path) -> None:
    gpu, other = (GpuUuid(f"GPU-00000000-0000-4000-8000-00000000000{number}") for number in (1, 2))
    (tmp_path / "gpus" / f"{gpu}.json" / "full").mkdir(parents=True)
    (tmp_path / "gpus" / f"{other}.json").write_bytes(b"damaged")
    notes = GpuNotes(tmp_path / "gpus", boot_id="one")
    notes.create()
    assert notes.gpus() == [gpu]
    for uuid in (gpu, other):
        with pytest.raises(StateError) if uuid == gpu else contextlib.nullcontext():
            notes.owe_mode(uuid, ComputeModeStep(uuid=uuid, before="default", wanted="exclusive_process"))
    assert notes.gpus() == [gpu, other]
