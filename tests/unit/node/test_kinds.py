"""Claims of each kind: what is made for them, what containers get, and what stands in the way."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.node.kinds import KindsNode, assert_consistent, claim, make_foreign, make_node
from tests.unit.node.support import Claims, uid

from tangram import DRIVER_NAME
from tangram.api import with_grants
from tangram.base.errors import (
    DeviceHeldError,
    GpuBusyError,
    InvalidObjectError,
)
from tangram.hardware.backend import GpuProcess
from tangram.hardware.machines.faultplan import Fault
from tangram.hardware.mps.values import MpsShare
from tangram.kube.objects import AllocationResult, ResourceClaim
from tangram.model.mig import MigPlacement
from tangram.node.claimstatus import prepared_entries
from tangram.node.held import MigStep
from tangram.node.steps.mig import BUSY_FOR_S
from tangram.testing.clock import FakeClock

MEBIBYTE = 2**20
GIBIBYTE = 2**30


@pytest.fixture
def claims() -> Claims:
    return Claims()


def put(claims: Claims, made: dict[str, Any]) -> ResourceClaim:
    return claims.put(made)


def parameters(**fields: Any) -> list[dict[str, Any]]:
    document = {"apiVersion": f"{DRIVER_NAME}/v1alpha1", "kind": "GPUClaimParameters", **fields}
    return [{"source": "FromClaim", "opaque": {"driver": DRIVER_NAME, "parameters": document}}]


def cdi(node: KindsNode, number: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.cdi_file(number).read_bytes())
    return found


def variables(edits: dict[str, Any]) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in edits["env"])


async def test_p17_p27_a_mig_device_has_its_own_uuid_and_two_capability_nodes(
    tmp_path: Path, claims: Claims
) -> None:
    node = make_node(tmp_path, mode="enabled")
    held, _ = await node.preparer.prepare(put(claims, claim(node, (0, "mig-3g40gb-4"))))
    (step,) = [step for step in held.undo if isinstance(step, MigStep)]
    (instance,) = node.hardware.gpu_instances(node.gpu_at(0).uuid)
    assert instance.placement == MigPlacement(4, 4)
    assert [compute.uuid for compute in instance.compute_instances] == [step.mig_uuid]
    assert step.mig_uuid.startswith("MIG-")
    spec = cdi(node)
    assert variables(spec["containerEdits"])["TANGRAM_MIG_UUIDS"] == step.mig_uuid
    assert variables(spec["containerEdits"])["TANGRAM_GPU_UUIDS"] == ""
    (device,) = spec["devices"]
    paths = [entry["path"] for entry in device["containerEdits"]["deviceNodes"]]
    assert paths[0] == f"/dev/nvidia{node.gpu_at(0).minor}"
    assert len(paths) == 3
    assert all(path.startswith("/dev/nvidia-caps/nvidia-cap") for path in paths[1:])
    # cap1 and cap2 would let the container change MIG, or watch all of the GPU.
    assert not {"/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2"} & set(paths)
    await node.preparer.unprepare(uid(1))
    again, _ = await node.preparer.prepare(put(claims, claim(node, (0, "mig-3g40gb-4"), number=2)))
    (other,) = [step for step in again.undo if isinstance(step, MigStep)]
    assert other.mig_uuid != step.mig_uuid


async def test_mig_devices_of_several_claims_share_a_gpu(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path, mode="enabled")
    for number, what in enumerate(("mig-1g10gb-0", "mig-2g20gb-2", "mig-3g40gb-4"), start=1):
        await node.preparer.prepare(put(claims, claim(node, (0, what), number=number)))
    assert len(assert_consistent(node)) == 3
    await node.preparer.unprepare(uid(2))
    assert len(assert_consistent(node)) == 2
    with pytest.raises(DeviceHeldError, match=f"claim ns/claim-3 .*{uid(3)}.*memory slices"):
        await node.preparer.prepare(put(claims, claim(node, (0, "mig-1g10gb-6"), number=4)))
    await node.preparer.prepare(put(claims, claim(node, (0, "mig-1g10gb-2"), number=4)))
    assert len(assert_consistent(node)) == 3


@pytest.mark.parametrize(
    ("first", "second"), [("gpu", "mps"), ("gpu", "ts"), ("mps", "gpu"), ("ts", "mps"), ("mps", "ts")]
)
async def test_two_kinds_never_share_a_gpu(tmp_path: Path, claims: Claims, first: str, second: str) -> None:
    node = make_node(tmp_path)
    await node.preparer.prepare(put(claims, claim(node, (0, first))))
    with pytest.raises(DeviceHeldError, match="is used") as caught:
        await node.preparer.prepare(put(claims, claim(node, (0, second), number=2)))
    assert (caught.value.holder, caught.value.holder_uid) == ("ns/claim-1", uid(1))
    await node.preparer.unprepare(uid(1))
    await node.preparer.prepare(put(claims, claim(node, (0, second), number=2)))


async def test_two_claims_share_a_gpu_by_mps(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path)
    gpu = node.gpu_at(0).uuid
    for number, percent in ((1, 40), (2, 60)):
        consumed = {"cores": str(percent), "memory": "20Gi"}
        await node.preparer.prepare(
            put(
                claims,
                claim(node, (0, "mps"), number=number, consumedCapacity=consumed, shareID=f"s{number}"),
            )
        )
    assert {share.cores_percent for share in node.mps.joined[gpu].values()} == {40, 60}
    assert node.hardware.compute_mode(gpu) == "exclusive_process"
    spec = cdi(node, 2)
    (device,) = spec["devices"]
    found = variables(device["containerEdits"])
    # P40: driver 580 needs it in clients too.
    assert found["CUDA_MPS_PIPE_DIRECTORY"] == "/run/tangram-mps"
    assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "60"
    assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={20 * 1024}M"
    assert device["containerEdits"]["mounts"]
    third = claim(node, (0, "mps"), number=3, consumedCapacity={"cores": "1", "memory": "1Gi"})
    with pytest.raises(DeviceHeldError, match="101 percent"):
        await node.preparer.prepare(put(claims, third))
    await node.preparer.unprepare(uid(1))
    assert node.hardware.compute_mode(gpu) == "exclusive_process"
    await node.preparer.unprepare(uid(2))
    assert node.hardware.compute_mode(gpu) == "default"


async def test_p37_the_compute_mode_is_what_it_was_before(tmp_path: Path, claims: Claims) -> None:
    """Saved, not blindly the default; and by the first of the claims, for the last."""
    node = make_node(tmp_path)
    gpu = node.gpu_at(0).uuid
    node.hardware.set_compute_mode(gpu, "prohibited")
    for number in (1, 2):
        await node.preparer.prepare(put(claims, claim(node, (0, "mps"), number=number)))
    for number in (1, 2):
        assert node.hardware.compute_mode(gpu) == "exclusive_process"
        await node.preparer.unprepare(uid(number))
    assert node.hardware.compute_mode(gpu) == "prohibited"
    await node.preparer.prepare(put(claims, claim(node, (0, "mps"))))
    node.hardware.set_compute_mode(gpu, "default")
    await node.preparer.unprepare(uid(1))
    assert node.hardware.compute_mode(gpu) == "default"  # somebody else has set it meanwhile


async def test_p46_four_claims_share_a_gpu_by_time_slicing(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path)
    for number in range(1, 5):
        await node.preparer.prepare(put(claims, claim(node, (0, "ts"), number=number)))
    with pytest.raises(DeviceHeldError, match=r"of its .* memory|replicas"):
        await node.preparer.prepare(put(claims, claim(node, (0, "ts"), number=5)))
    assert len(assert_consistent(node)) == 4
    assert all(held.undo == () or len(held.undo) == 1 for held in assert_consistent(node))


async def test_a_share_by_parameters_where_the_server_keeps_no_capacity(
    tmp_path: Path, claims: Claims
) -> None:
    """Servers up to 1.35 drop `consumedCapacity`: the size stands in the parameters alone."""
    node = make_node(tmp_path)
    config = parameters(shPolicy="mps", mps={"threadPercent": 30, "pinnedMemory": "10Gi"})
    held, _ = await node.preparer.prepare(put(claims, claim(node, (0, "mps"), config=config)))
    share = held.devices[0].share
    assert share is not None
    assert (share.memory_bytes, share.cores) == (10 * GIBIBYTE, 30)
    half = parameters(shPolicy="timeSlice", replicas=2)
    held, _ = await node.preparer.prepare(put(claims, claim(node, (1, "ts"), config=half, number=2)))
    share = held.devices[0].share
    total = node.gpu_at(1).memory_bytes
    assert share is not None
    assert total is not None
    assert share.replicas == 2
    assert abs(share.memory_bytes - total // 2) < 4 * MEBIBYTE


def forgotten(made: dict[str, Any], *consumed: dict[str, str]) -> dict[str, Any]:
    """A claim as our controller writes it to a server that keeps neither `shareID` nor `consumedCapacity`."""
    devices = made["status"]["allocation"]["devices"]
    for number, (result, amounts) in enumerate(zip(devices["results"], consumed, strict=True)):
        result |= {"shareID": f"s{number}", "consumedCapacity": amounts}
    allocation = msgspec.convert(made["status"]["allocation"], AllocationResult, strict=False)
    written = json.loads(msgspec.json.encode(with_grants(allocation)))
    devices["config"] = written["devices"]["config"]
    for result in devices["results"]:
        del result["shareID"], result["consumedCapacity"]
    return made


async def test_a_share_that_the_server_has_forgotten(tmp_path: Path, claims: Claims) -> None:
    """What the controller has written of it counts: the node's setting may be another since."""
    node = make_node(tmp_path)
    for number, amounts in ((1, {"cores": "40", "memory": "30Gi"}), (2, {"cores": "60", "memory": "20Gi"})):
        made = forgotten(claim(node, (0, "mps"), number=number), amounts)
        held, _ = await node.preparer.prepare(put(claims, made))
        share = held.devices[0].share
        assert share is not None
        assert share.cores == int(amounts["cores"])
        assert f"{share.memory_bytes // GIBIBYTE}Gi" == amounts["memory"]
        assert held.result is not None
        assert [result.share_id for result in held.result] == [None]  # the kubelet knows none
        assert (await node.preparer.prepare(put(claims, made)))[1] is False
    third = forgotten(claim(node, (0, "mps"), number=3), {"cores": "1", "memory": "1Gi"})
    with pytest.raises(DeviceHeldError, match="101 percent"):
        await node.preparer.prepare(put(claims, third))
    assert len(assert_consistent(node)) == 2


async def test_two_forgotten_shares_of_one_gpu_in_a_claim(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path)
    made = claim(node, (0, "ts"), (0, "ts"))
    made["spec"]["devices"]["requests"].append({"name": "other", "exactly": {"deviceClassName": "any"}})
    made["status"]["allocation"]["devices"]["results"][1]["request"] = "other"
    amounts = {"memory": "20Gi", "replicas": "1"}, {"memory": "30Gi", "replicas": "2"}
    held, _ = await node.preparer.prepare(put(claims, forgotten(made, *amounts)))
    assert [device.share.replicas for device in held.devices if device.share] == [1, 2]
    entries = prepared_entries(held, node.inventory, node_name="n")
    (entry,) = entries  # the API takes no key twice
    assert (entry["data"]["replicas"], entry["data"]["memory"]) == (3, "50Gi")
    await node.preparer.prepare(put(claims, claim(node, (0, "ts"), number=2)))
    with pytest.raises(DeviceHeldError, match="of its 81920Mi memory"):
        await node.preparer.prepare(put(claims, claim(node, (0, "ts"), number=3)))


async def test_p77_a_forgotten_share_that_cannot_be_read(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path)
    made = forgotten(claim(node, (0, "mps")), {"cores": "40"})
    made["status"]["allocation"]["devices"]["config"][0]["opaque"]["parameters"]["results"] = 7
    with pytest.raises(InvalidObjectError, match=r"config\[0\]\.opaque\.parameters"):
        await node.preparer.prepare(put(claims, made))
    assert assert_consistent(node) == []


@pytest.mark.parametrize(
    ("consumed", "cause"),
    [
        ({"cores": "many"}, "many"),
        ({"cores": "0"}, "0 is no share"),
        ({"cores": "-5"}, "-5 is no share"),
        ({"memory": "-1Gi"}, "is no share"),
        ({"memory": "0"}, "0 is no share"),
        ({"memory": "1023Ki"}, "is no share"),
    ],
)
async def test_p77_a_share_that_makes_no_sense_is_an_error(
    tmp_path: Path, claims: Claims, consumed: dict[str, str], cause: str
) -> None:
    node = make_node(tmp_path)
    with pytest.raises(InvalidObjectError, match=cause) as caught:
        await node.preparer.prepare(put(claims, claim(node, (0, "mps"), consumedCapacity=consumed)))
    assert "consumedCapacity" in caught.value.field
    assert assert_consistent(node) == []


async def test_p44_one_share_by_mps_in_a_claim(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path)
    with pytest.raises(InvalidObjectError, match="more than one share by MPS"):
        await node.preparer.prepare(put(claims, claim(node, (0, "mps"), (1, "mps"))))


async def test_a_claim_may_have_several_shares_of_a_gpu_by_time_slicing(
    tmp_path: Path, claims: Claims
) -> None:
    """kube-scheduler gives a claim that asks for two shares both on one device."""
    node = make_node(tmp_path)
    made = claim(node, (0, "ts"), (0, "ts"))
    for number, result in enumerate(made["status"]["allocation"]["devices"]["results"]):
        result["shareID"] = f"s{number}"
    made["spec"]["devices"]["requests"].append({"name": "other", "exactly": {"deviceClassName": "any"}})
    made["status"]["allocation"]["devices"]["results"][1]["request"] = "other"
    held, _ = await node.preparer.prepare(put(claims, made))
    assert held.result is not None
    assert [result.share_id for result in held.result] == ["s0", "s1"]
    (device,) = cdi(node)["devices"]
    kind = f"{DRIVER_NAME}/claim"
    assert {result.cdi_device_ids for result in held.result} == {(f"{kind}={device['name']}",)}
    gpu = node.gpu_at(0).uuid
    found = variables(device["containerEdits"])
    assert (found["TANGRAM_GPU_UUIDS_GPU"], found["TANGRAM_GPU_UUIDS_OTHER"]) == (gpu, gpu)
    assert (await node.preparer.prepare(put(claims, made)))[1] is False
    two = claim(node, (0, "ts"), (0, "ts"), number=2)
    for number, result in enumerate(two["status"]["allocation"]["devices"]["results"]):
        result["shareID"] = f"t{number}"
    await node.preparer.prepare(put(claims, two))
    with pytest.raises(DeviceHeldError):  # four replicas are all
        await node.preparer.prepare(put(claims, claim(node, (0, "ts"), number=3)))


async def test_a_claim_cannot_overlap_itself(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path, mode="enabled")
    with pytest.raises(InvalidObjectError, match=r"overlaps .* of the same claim"):
        await node.preparer.prepare(put(claims, claim(node, (0, "mig-3g40gb-0"), (0, "mig-1g10gb-2"))))
    off = make_node(tmp_path / "off")
    with pytest.raises(InvalidObjectError, match=r"overlaps .* of the same claim"):
        await off.preparer.prepare(put(claims, claim(off, (0, "gpu"), (0, "ts"))))


async def test_p63_a_device_of_another_claim_is_refused_until_it_ends(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path, mode="enabled")
    await node.preparer.prepare(put(claims, claim(node, (0, "mig-3g40gb-0"))))
    second = put(claims, claim(node, (0, "mig-3g40gb-0"), number=2))
    with pytest.raises(DeviceHeldError, match="claim ns/claim-1"):
        await node.preparer.prepare(second)
    await node.preparer.unprepare(uid(1))
    await node.preparer.prepare(second)
    assert len(assert_consistent(node)) == 1


async def test_the_claim_of_a_mig_device_is_looked_after_while_its_gpu_is_lost(
    tmp_path: Path, claims: Claims
) -> None:
    """Its user hears that the GPU is lost, although nothing can be asked of that."""
    node = make_node(tmp_path, mode="enabled")
    held, _ = await node.preparer.prepare(put(claims, claim(node, (0, "mig-3g40gb-0"))))
    node.hardware.lose(node.gpu_at(0).uuid)
    await node.reconciler(claims).claims()
    assert [each for _, each in node.confirmed] == [held]
    assert node.gone == []


async def test_p06_a_member_of_a_daemon_without_a_claim_is_removed(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path)
    await node.preparer.prepare(put(claims, claim(node, (0, "mps"))))
    node.mps.join(node.gpu_at(1).uuid, claim_uid=uid(7), share=MpsShare(memory_bytes=2**30, cores_percent=5))
    await node.reconciler(claims).local()
    assert len(assert_consistent(node)) == 1


async def test_a_claim_whose_instance_is_gone_is_prepared_anew(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path, mode="enabled")
    made = put(claims, claim(node, (0, "mig-3g40gb-0")))
    await node.preparer.prepare(made)
    gpu = node.gpu_at(0).uuid
    (ours,) = node.hardware.gpu_instances(gpu)
    node.hardware.destroy_compute_instance(gpu, gpu_instance_id=ours.gpu_instance_id, compute_instance_id=0)
    node.hardware.destroy_gpu_instance(gpu, gpu_instance_id=ours.gpu_instance_id)
    _, new = await node.preparer.prepare(made)
    assert new
    assert len(assert_consistent(node)) == 1


async def test_p18_a_busy_instance_is_destroyed_once_it_is_not(tmp_path: Path, claims: Claims) -> None:
    clock = FakeClock()
    node = make_node(tmp_path, mode="enabled", clock=clock)
    await node.preparer.prepare(put(claims, claim(node, (0, "mig-3g40gb-0"))))
    gpu = node.gpu_at(0).uuid
    (ours,) = node.hardware.gpu_instances(gpu)
    monitor = GpuProcess(pid=4711, gpu_instance_id=ours.gpu_instance_id, compute_instance_id=None)
    node.hardware.set_processes(gpu, [monitor])
    task = asyncio.create_task(node.preparer.unprepare(uid(1)))
    started_s = clock.monotonic_s()
    while not task.done():
        await clock.advance(0.25)
        await asyncio.sleep(0.001)  # a thread answers in real time
    assert clock.monotonic_s() - started_s >= 5.0
    assert BUSY_FOR_S >= 5.0
    with pytest.raises(GpuBusyError, match="pid 4711"):
        await task
    (left,) = node.hardware.gpu_instances(gpu)
    assert left.compute_instances == ()  # it got so far
    # A new claim for the place is refused while it goes on.
    with pytest.raises(DeviceHeldError):
        await node.preparer.prepare(put(claims, claim(node, (0, "mig-1g10gb-0"), number=2)))
    node.hardware.set_processes(gpu, [])
    await node.preparer.unprepare(uid(1))
    assert assert_consistent(node) == []


async def test_a_whole_gpu_by_default_takes_no_call_of_the_driver(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path)
    node.hardware.fail(Fault(call="*", error="UNKNOWN", times="always"))
    for number, what in ((1, "gpu"), (2, "ts")):
        made = put(claims, claim(node, (number - 1, what), number=number))
        await node.preparer.prepare(made)
        await node.preparer.prepare(made)
        await node.preparer.unprepare(uid(number))
    assert node.store.load().claims == {}


async def test_p64_many_claims_at_once(tmp_path: Path, claims: Claims) -> None:
    """On different GPUs side by side; on one GPU one after another, without errors."""
    node = make_node(tmp_path, mode="enabled")
    wanted = [
        put(claims, claim(node, (gpu, f"mig-1g10gb-{start}"), number=10 * gpu + start + 1))
        for gpu in (0, 1)
        for start in range(7)
    ]
    await asyncio.gather(*(node.preparer.prepare(made) for made in wanted))
    assert len(assert_consistent(node)) == 14
    await asyncio.gather(*(node.preparer.unprepare(made.metadata.uid) for made in wanted))
    assert assert_consistent(node) == []


async def test_p05_the_cdi_file_of_a_mig_claim_is_written_again(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path, mode="enabled")
    made = put(claims, claim(node, (0, "mig-3g40gb-0")))
    held, _ = await node.preparer.prepare(made)
    before = cdi(node)
    node.cdi_file(1).unlink()
    again, new = await node.preparer.prepare(made)
    assert (again, new) == (held, False)
    assert cdi(node) == before
    node.start()
    node.look()
    node.cdi_file(1).unlink()
    await node.reconciler(claims).local(at_start=True)
    assert cdi(node) == before


async def test_a_lost_held_file_of_a_mig_claim_is_rebuilt(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path, mode="enabled")
    held, _ = await node.preparer.prepare(put(claims, claim(node, (0, "mig-3g40gb-0"))))
    node.held_file(1).unlink()
    with pytest.raises(DeviceHeldError, match="held state was lost"):
        await node.preparer.prepare(put(claims, claim(node, (0, "mig-3g40gb-0"), number=2)))
    claims.remove(2)
    await node.reconciler(claims).claims()
    (rebuilt,) = assert_consistent(node)
    assert [step.mig_uuid for step in rebuilt.undo if isinstance(step, MigStep)] == [
        step.mig_uuid for step in held.undo if isinstance(step, MigStep)
    ]
    await node.preparer.unprepare(uid(1))
    assert assert_consistent(node) == []


@pytest.mark.parametrize("what", ["mps", "gpu"])
async def test_a_lost_held_file_leaves_no_gpu_exclusive(tmp_path: Path, claims: Claims, what: str) -> None:
    node = make_node(tmp_path, exclusive_compute_mode=True)
    held, _ = await node.preparer.prepare(put(claims, claim(node, (0, what))))
    node.held_file(1).unlink()
    await node.reconciler(claims).claims()
    (rebuilt,) = assert_consistent(node)
    assert rebuilt == held
    await node.preparer.unprepare(uid(1))
    assert assert_consistent(node) == []


@pytest.mark.parametrize("lives", [True, False])
async def test_without_held_file_an_instance_becomes_foreign(
    tmp_path: Path, claims: Claims, lives: bool
) -> None:
    """Nothing proves any more that it is ours: it is kept, and offered as what it is."""
    node = make_node(tmp_path, mode="enabled")
    held, _ = await node.preparer.prepare(put(claims, claim(node, (0, "mig-3g40gb-0"))))
    (step,) = [step for step in held.undo if isinstance(step, MigStep)]
    node.held_file(1).unlink()
    node.look()
    if not lives:
        claims.remove(1)
    await node.reconciler(claims).claims()
    foreign = {node.gpu_at(0).uuid: [(MigPlacement(0, 4), (step.mig_uuid,))]}
    assert len(assert_consistent(node, foreign=foreign)) == lives
    await node.preparer.unprepare(uid(1))
    assert assert_consistent(node, foreign=foreign) == []
    await node.preparer.prepare(put(claims, claim(node, (0, "mig-3g40gb-0"), number=2)))


async def test_unprepare_after_a_reboot_touches_nothing(tmp_path: Path, claims: Claims) -> None:
    node = make_node(tmp_path, mode="enabled")
    await node.preparer.prepare(put(claims, claim(node, (0, "mig-3g40gb-0"))))
    node.reboot()
    theirs = make_foreign(node)
    await node.preparer.unprepare(uid(1))
    assert assert_consistent(node, foreign={node.gpu_at(0).uuid: [(MigPlacement(0, 4), (theirs,))]}) == []


def test_results_of_other_drivers_do_not_matter_to_shares(tmp_path: Path) -> None:
    """P08: what another driver says of its devices is none of our business."""
    node = make_node(tmp_path)
    made = claim(node, (0, "ts"))
    other = {"request": "gpu", "driver": "other.example.com", "pool": "p", "device": "d"}
    made["status"]["allocation"]["devices"]["results"].append({**other, "consumedCapacity": {"x": "?"}})
    held, _ = asyncio.run(node.preparer.prepare(Claims().put(made)))
    assert len(held.devices) == 1
    assert msgspec.structs.asdict(held)["phase"] == "prepared"
