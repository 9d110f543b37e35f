"""Preparing claims: what is held, what is refused, and that repeating changes nothing."""

import asyncio
import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.node.support import POOL, Node, backend, claim_object, make_claim, uid

from tangram import DRIVER_NAME
from tangram.base.errors import (
    ClaimNotPreparableError,
    DeviceHeldError,
    DriverUnavailableError,
    HardwareError,
    InvalidObjectError,
    StateError,
    TangramError,
)
from tangram.kube.decoding import decode
from tangram.kube.objects import ResourceClaim
from tangram.node.held import HeldClaim


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_prepare_holds_the_device_and_writes_cdi(node: Node) -> None:
    device = node.devices[0]
    held, new = await node.preparer.prepare(make_claim([device]))
    assert new
    assert held.phase == "prepared"
    assert held.result is not None
    assert held.result[0].cdi_device_ids == (f"gpu.resource.admin/claim={uid(1)}-{device}",)
    assert held.result[0].request_names == ("gpu",)
    spec = json.loads(node.cdi_file(1).read_bytes())
    assert [entry["name"] for entry in spec["devices"]] == [f"{uid(1)}-{device}"]
    environment = spec["containerEdits"]["env"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in environment
    assert f"TANGRAM_CLAIM_UID={uid(1)}" in environment
    assert f"TANGRAM_GPU_UUIDS={node.gpu(device)}" in environment
    assert node.store.load().claims == {uid(1): held}
    assert node.files() == {f"claims/{uid(1)}.json", f"cdi/{DRIVER_NAME}_{uid(1)}.json"}


async def test_repeating_gives_the_same_without_a_write(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = make_claim(node.devices[:4])
    first, _ = await node.preparer.prepare(claim)
    before = {path: path.stat().st_mtime_ns for path in (node.held_file(1), node.cdi_file(1))}
    node.start()
    second, new = await node.preparer.prepare(claim)
    assert (second, new) == (first, False)
    assert before == {path: path.stat().st_mtime_ns for path in before}


@pytest.mark.parametrize("damage", ["missing", "different", "directory gone"])
async def test_a_prepared_claim_gets_its_cdi_file_back(node: Node, damage: str) -> None:
    claim = make_claim([node.devices[0]])
    first, _ = await node.preparer.prepare(claim)
    content = node.cdi_file(1).read_bytes()
    if damage == "different":
        node.cdi_file(1).write_bytes(b"{}")
    else:
        node.cdi_file(1).unlink()
    if damage == "directory gone":
        (node.root / "cdi").rmdir()
    assert await node.preparer.prepare(claim) == (first, False)
    assert node.cdi_file(1).read_bytes() == content


async def test_preparing_an_exclusive_claim_calls_no_hardware(node: Node) -> None:
    for call in ("open", "discover", "probe", "device_nodes", "control_nodes"):
        node.hardware.hang(call)
    await node.preparer.prepare(make_claim(node.devices))
    await node.preparer.unprepare(uid(1))


async def test_unprepare_leaves_nothing(node: Node) -> None:
    held, _ = await node.preparer.prepare(make_claim(node.devices[:2]))
    assert await node.preparer.unprepare(uid(1)) == held
    assert node.files() == set()
    assert await node.preparer.unprepare(uid(1)) is None
    assert await node.preparer.unprepare("never-seen") is None


async def test_unprepare_needs_no_gpus(node: Node) -> None:
    await node.preparer.prepare(make_claim(node.devices[:2]))
    node.inventory = None
    node.start()
    await node.preparer.unprepare(uid(1))
    assert node.files() == set()


async def test_unprepare_of_an_unknown_claim_removes_its_cdi_file(node: Node) -> None:
    await node.preparer.prepare(make_claim([node.devices[0]]))
    node.held_file(1).unlink()
    assert await node.preparer.unprepare(uid(1)) is None
    assert node.files() == set()


async def test_results_of_other_drivers_are_not_ours(node: Node) -> None:
    own = {"request": "gpu", "driver": DRIVER_NAME, "pool": POOL, "device": node.devices[0]}
    other = {"request": "nic", "driver": "nic.example.com", "pool": "elsewhere", "device": "nic-0"}
    held, _ = await node.preparer.prepare(make_claim([other, own, {**other, "device": node.devices[1]}]))
    assert [device.device for device in held.devices] == [node.devices[0]]
    assert "nic" not in node.held_file(1).read_text()


async def test_subrequests_and_shares_are_kept(node: Node) -> None:
    held, _ = await node.preparer.prepare(
        make_claim([node.devices[0]], request="either/small", shareID="0a1b")
    )
    assert held.result is not None
    assert held.result[0].request_names == ("either/small",)
    assert held.result[0].share_id == "0a1b"


@pytest.mark.parametrize(
    ("claim", "error", "text"),
    [
        (claim_object([], number=1), ClaimNotPreparableError, "no device of gpu.resource.admin allocated"),
        (claim_object(["gpu-x"], allocated=False), ClaimNotPreparableError, "has no device of"),
        (claim_object(["gpu-x"]), ClaimNotPreparableError, "device 'gpu-x' is not on this node"),
        (claim_object([""]), ClaimNotPreparableError, "device '' is not on this node"),
        (claim_object(["gpu-x"], pool="gpu.resource.admin/other"), ClaimNotPreparableError,
         "status.allocation.devices.results[0] is of pool 'gpu.resource.admin/other'"),
        (claim_object(["gpu-x"], pool=""), ClaimNotPreparableError, "is of pool ''"),
        (claim_object(["gpu-x", "gpu-x"]), InvalidObjectError, "results[1].device: device 'gpu-x' is"),
        (claim_object(["gpu-x"], request="other"), InvalidObjectError, "results[0].request: request 'other'"),
        (claim_object(["gpu-x"], request="either"), InvalidObjectError, "request 'either' is not in"),
        (claim_object(["gpu-x"], request="either/other"), InvalidObjectError, "request 'either/other'"),
        (claim_object(["gpu-x"], request="gpu/small"), InvalidObjectError, "request 'gpu/small'"),
        (claim_object(["gpu-x"], request=""), InvalidObjectError, "request '' is not in"),
        (claim_object([f"gpu-{n}" for n in range(32)]), ClaimNotPreparableError, "device 'gpu-0' is not"),
    ],
)  # fmt: skip
async def test_claims_that_make_no_sense(
    node: Node, claim: dict[str, Any], error: type[TangramError], text: str
) -> None:
    with pytest.raises(error) as caught:
        await node.preparer.prepare(msgspec.convert(claim, ResourceClaim))
    assert "ns/claim-1" in caught.value.cause
    assert text in caught.value.cause
    assert node.files() == set()


@pytest.mark.parametrize("bad", ["", "../../etc/passwd", "a/b", "x" * 70, "a.json", "a\nb"])
async def test_a_uid_that_is_a_path(node: Node, bad: str) -> None:
    claim = claim_object([node.devices[0]])
    claim["metadata"]["uid"] = bad
    with pytest.raises(InvalidObjectError, match=r"metadata\.uid"):
        await node.preparer.prepare(msgspec.convert(claim, ResourceClaim))
    assert node.files() == set()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(["requests", "results", "request", "opaque", "device", "x"]), children
        )
    ),
    max_leaves=8,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_no_claim_crashes(node: Node, data: st.DataObject) -> None:
    """Any part of a valid claim replaced by anything: an error of ours, or prepared; then nothing stays."""
    claim = claim_object(
        [node.devices[0]],
        consumers=["pod"],
        config=[
            {
                "source": "FromClaim",
                "requests": ["gpu"],
                "opaque": {
                    "driver": DRIVER_NAME,
                    "parameters": {
                        "apiVersion": "gpu.resource.admin/v1alpha1",
                        "kind": "GPUClaimParameters",
                        "memoryGB": 80,
                        "mps": {"threadPercent": None},
                    },
                },
            }
        ],
    )
    target: Any = claim
    while True:
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        key = data.draw(st.sampled_from(keys), label="key")
        if (
            not isinstance(target[key], dict | list)
            or not target[key]
            or data.draw(st.booleans(), label="here")
        ):
            target[key] = data.draw(JSON, label="value")
            break
        target = target[key]
    try:
        decoded = decode(json.dumps(claim).encode(), ResourceClaim)
        await node.preparer.prepare(decoded)
    except TangramError as error:
        assert error.cause  # noqa: PT017
    for held in node.store.load().claims.values():
        await node.preparer.unprepare(held.uid)
    assert node.files() == set()


async def test_a_device_of_another_claim_is_refused_until_that_is_unprepared(node: Node) -> None:
    shared = node.devices[1]
    await node.preparer.prepare(make_claim(node.devices[:2], number=1))
    with pytest.raises(DeviceHeldError) as caught:
        await node.preparer.prepare(make_claim([shared, node.devices[3]], number=2))
    assert caught.value.device == shared
    assert caught.value.holder == "ns/claim-1"
    assert f"held by claim ns/claim-1 (uid {uid(1)})" in caught.value.cause
    assert "ns/claim-1" in caught.value.next_step
    assert set(node.store.load().claims) == {uid(1)}
    await node.preparer.unprepare(uid(1))
    await node.preparer.prepare(make_claim([shared, node.devices[3]], number=2))


async def test_admin_access_conflicts_with_nobody(node: Node) -> None:
    device = node.devices[0]
    await node.preparer.prepare(make_claim([device], number=1))
    await node.preparer.prepare(make_claim([device], number=2, adminAccess=True))
    await node.preparer.prepare(make_claim([device], number=3, adminAccess=True))
    await node.preparer.unprepare(uid(1))
    await node.preparer.prepare(make_claim([device], number=4))
    with pytest.raises(DeviceHeldError):
        await node.preparer.prepare(make_claim([device], number=5))


async def test_two_processes_over_one_node(node: Node) -> None:
    """Rolling update: a device is held once, and each process can undo the other's work."""
    other = node.process()
    claims = [make_claim([node.devices[0]], number=number) for number in range(1, 9)]
    outcomes = await asyncio.gather(
        *((node.preparer if n % 2 else other).prepare(claim) for n, claim in enumerate(claims)),
        return_exceptions=True,
    )
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(errors) == 7
    assert all(isinstance(error, DeviceHeldError) for error in errors)
    (winner,) = node.store.load().claims.values()
    claim = next(claim for claim in claims if claim.metadata.uid == winner.uid)
    assert await other.prepare(claim) == (winner, False)
    assert await node.preparer.prepare(claim) == (winner, False)
    await other.unprepare(winner.uid)
    assert node.files() == set()


async def test_many_claims_at_once(node: Node) -> None:
    """64 simultaneous claims on 8 GPUs, each held until the next gets it."""

    async def work(number: int) -> None:
        claim = make_claim([node.devices[number % 8]], number=number)
        while True:
            try:
                await node.preparer.prepare(claim)
            except DeviceHeldError:
                await asyncio.sleep(0)
            else:
                break
        holders = [
            held
            for held in node.store.load().claims.values()
            if node.gpu(node.devices[number % 8]) in held.gpus
        ]
        assert [held.uid for held in holders if held.phase == "prepared"] == [uid(number)]
        await node.preparer.unprepare(uid(number))

    await asyncio.gather(*(work(number) for number in range(64)))
    assert node.files() == set()


async def test_an_unhealthy_gpu_is_refused_but_what_runs_on_it_is_not_disturbed(node: Node) -> None:
    device, ill = node.devices[0], node.devices[1]
    assert node.inventory is not None
    first, _ = await node.preparer.prepare(make_claim([device], number=1))
    node.inventory = replace(
        node.inventory, unhealthy={node.gpu(device): "GPU is lost", node.gpu(ill): "GPU is lost"}
    )
    node.start()
    assert await node.preparer.prepare(make_claim([device], number=1)) == (first, False)
    with pytest.raises(HardwareError, match="is unhealthy: GPU is lost") as caught:
        await node.preparer.prepare(make_claim([ill], number=2))
    assert caught.value.next_step
    await node.preparer.prepare(make_claim([ill], number=3, adminAccess=True))


async def test_before_the_gpus_are_known(node: Node) -> None:
    prepared = make_claim([node.devices[0]], number=1)
    wanted = make_claim([node.devices[1]], number=2)
    first, _ = await node.preparer.prepare(prepared)
    inventory, node.inventory = node.inventory, None
    node.start()
    assert await node.preparer.prepare(prepared) == (first, False)
    with pytest.raises(DriverUnavailableError, match="not known yet"):
        await node.preparer.prepare(wanted)
    node.cdi_file(1).unlink()
    with pytest.raises(DriverUnavailableError, match=r"CDI file of claim ns/claim-1 .* is missing"):
        await node.preparer.prepare(prepared)
    node.inventory = inventory
    assert await node.preparer.prepare(prepared) == (first, False)
    await node.preparer.prepare(wanted)


async def test_a_gpu_without_device_nodes_is_not_handed_out(node: Node) -> None:
    assert node.inventory is not None
    node.inventory = replace(node.inventory, nodes={})
    with pytest.raises(DriverUnavailableError, match="device nodes of GPU"):
        await node.preparer.prepare(make_claim([node.devices[0]]))
    assert node.files() == set()


async def test_after_a_reboot_a_claim_is_prepared_anew(node: Node) -> None:
    claim = make_claim([node.devices[0]])
    first, _ = await node.preparer.prepare(claim)
    node.cdi_file(1).unlink()
    node.boot_id = "boot-2"
    node.start()
    second, new = await node.preparer.prepare(claim)
    assert new
    assert second.result == first.result
    assert second.boot_id == "boot-2"
    assert node.cdi_file(1).exists()


async def test_another_allocation_of_the_same_claim_replaces_the_first(node: Node) -> None:
    await node.preparer.prepare(make_claim([node.devices[0]]))
    held, new = await node.preparer.prepare(make_claim([node.devices[1]]))
    assert new
    assert held.gpus == {node.gpu(node.devices[1])}
    await node.preparer.prepare(make_claim([node.devices[0]], number=2))


async def test_a_damaged_file_is_set_aside_and_the_claim_prepared_anew(node: Node) -> None:
    claim = make_claim([node.devices[0]])
    first, _ = await node.preparer.prepare(claim)
    node.held_file(1).write_bytes(b'{"version": 1')
    assert await node.preparer.prepare(claim) == (first, True)
    ((damage, path),) = node.set_aside
    assert damage.uid == uid(1)
    assert path == f"{node.held_file(1)}.set-aside-1"
    node.held_file(1).write_bytes(b"\0" * 100)
    assert await node.preparer.unprepare(uid(1)) is None
    assert node.cdi.uids() == frozenset()
    assert len(node.set_aside) == 2


async def test_a_file_of_a_newer_version_is_left_to_it(node: Node) -> None:
    claim = make_claim([node.devices[0]])
    node.held_file(1).write_bytes(b'{"version": 3}')
    for work in (node.preparer.prepare(claim), node.preparer.unprepare(uid(1))):
        with pytest.raises(StateError, match="newer Tangram"):
            await work
    assert node.held_file(1).read_bytes() == b'{"version": 3}'
    await node.preparer.prepare(make_claim([node.devices[0]], number=2))


@pytest.mark.parametrize("failing_write", [1, 2])
async def test_a_full_disk_leaves_nothing_half_done(
    node: Node, monkeypatch: pytest.MonkeyPatch, failing_write: int
) -> None:
    writes = 0
    fchmod = os.fchmod

    def full(descriptor: int, mode: int) -> None:
        nonlocal writes
        writes += 1
        if writes == failing_write:
            raise OSError(errno.ENOSPC, "No space left on device")
        fchmod(descriptor, mode)

    claim = make_claim([node.devices[0]])
    monkeypatch.setattr("os.fchmod", full)
    with pytest.raises(StateError, match="No space left on device") as caught:
        await node.preparer.prepare(claim)
    assert "free space" in caught.value.next_step
    assert node.files() == set()
    monkeypatch.undo()
    await node.preparer.prepare(claim)


async def test_a_full_disk_does_not_keep_a_pod_from_ending(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.preparer.prepare(make_claim([node.devices[0]]))

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    await node.preparer.unprepare(uid(1))
    assert node.files() == set()


async def test_a_cancelled_caller_does_not_stop_the_work(node: Node) -> None:
    claim = make_claim([node.devices[0]])
    task = asyncio.create_task(node.preparer.prepare(claim))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    held, new = await node.preparer.prepare(claim)  # waits for the lock of the first
    assert not new
    assert held.phase == "prepared"


async def test_a_node_of_another_kind(tmp_path: Path) -> None:
    node = Node(tmp_path, hardware=backend("t4-x4"))
    held, _ = await node.preparer.prepare(make_claim(node.devices))
    assert isinstance(held, HeldClaim)
    assert len(held.gpus) == 4
