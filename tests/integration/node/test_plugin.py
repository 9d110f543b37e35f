"""The node plugin between an API server and a kubelet: the main job, and what can go wrong."""

import asyncio
import contextlib
import errno
from typing import Any

import pytest
from tests.integration.node.conftest import NODE, POOL, World, until

from tangram import DRIVER_NAME
from tangram.kube.decoding import ObjectKey
from tangram.kube.resources import EVENTS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tangram.kubeletplugin.driver import ClaimReference
from tangram.model.gpu import GpuUuid
from tangram.testing.kubelet import PreparedClaim


async def test_from_start_to_a_prepared_claim_and_back(world: World) -> None:
    async with world.run() as running:
        names = await world.until_published()
        await running.until_ready()
        assert (await running.get("/readyz"))[0] == 200
        assert {each["spec"]["nodeName"] for each in world.slices()} == {NODE}
        assert {each["spec"]["pool"]["name"] for each in world.slices()} == {POOL}
        assert len(world.slices()) == 8
        claim = world.claim("c", names[:2])
        devices = await world.prepared(claim)
        assert [device.device_name for device in devices] == names[:2]
        assert [device.cdi_device_ids for device in devices] == [
            (f"gpu.resource.admin/claim={claim.uid}-{name}",) for name in names[:2]
        ]
        assert {device.request_names for device in devices} == {("gpu",)}
        assert [entry["name"] for entry in world.cdi(claim)["devices"]] == [
            f"{claim.uid}-{n}" for n in names[:2]
        ]
        await world.server.until(
            lambda: len(world.status(claim)) == 2 and len(world.server.objects(EVENTS)) == 2
        )
        entry = world.status(claim)[0]
        assert entry["conditions"][0]["type"] == "Ready"
        assert entry["data"]["uuid"] == world.devices()[names[0]]["attributes"]["uuid"]["string"]
        assert entry["data"]["memory"] == "80Gi"
        assert entry["data"]["linkedDevices"] == {names[1]: 12}
        _, metrics = await running.get("/metrics")
        assert 'tangram_gpus{state="healthy"} 8.0' in metrics
        assert 'tangram_claims_held{phase="prepared"} 1.0' in metrics
        assert f'claim_name="c",claim_namespace="ns",claim_uid="{claim.uid}",device="{names[0]}"' in metrics
        await world.unprepare(claim)
        assert world.state() == set()
    assert len(world.slices()) == 8  # a restart must leave no gap


async def test_several_claims_in_one_call_each_with_its_own_outcome(world: World) -> None:
    async with world.run():
        names = await world.until_published()
        good, other = world.claim("good", names[:1]), world.claim("other", names[1:2])
        foreign = world.claim("foreign", ["gpu-1"], pool="gpu.resource.admin/elsewhere")
        gone = ClaimReference(namespace="ns", name="gone", uid="00000000-0000-4000-8000-00000000000f")
        answers = await world.prepare(good, foreign, gone, other)
        assert {uid: bool(answer.error) for uid, answer in answers.items()} == {
            good.uid: False, foreign.uid: True, gone.uid: True, other.uid: False,
        }  # fmt: skip
        assert "is of pool 'gpu.resource.admin/elsewhere'" in answers[foreign.uid].error
        assert "not found" in answers[gone.uid].error
        await world.server.until(lambda: bool(world.status(foreign)))
        assert world.status(foreign)[0]["conditions"][0]["status"] == "False"
        await world.unprepare(good, foreign, gone, other)
        assert world.state() == set()


async def test_a_device_of_another_claim_is_refused_with_an_event(world: World) -> None:
    async with world.run():
        names = await world.until_published()
        first, second = world.claim("first", names[:1]), world.claim("second", names[:1])
        await world.prepared(first)
        error = await world.refused(second)
        assert f"device {names[0]}" in error
        assert "held by claim ns/first" in error
        await world.server.until(
            lambda: any(
                event["reason"] == "PrepareFailed" and event["regarding"]["kind"] == "Pod"
                for event in world.server.objects(EVENTS)
            )
        )
        await world.unprepare(first)
        await world.prepared(second)
        await world.server.until(
            lambda: [entry["conditions"][0]["status"] for entry in world.status(second)] == ["True"]
        )


async def test_the_api_server_is_away(world: World) -> None:
    async with world.run() as running:
        names = await world.until_published()
        await running.until_ready()
        prepared, wanted = world.claim("prepared", names[:1]), world.claim("wanted", names[1:2])
        await world.prepared(prepared)
        await world.server.pause()
        error = await world.refused(wanted)
        assert "the claim cannot be read" in error
        await world.unprepare(prepared)  # pods end without it
        assert world.state() == set()
        assert (await running.get("/healthz"))[0] == 200
        await world.server.resume()
        await world.prepared(wanted)


async def test_start_without_an_api_server(world: World) -> None:
    names: list[str] = []
    async with world.run():
        names = await world.until_published()
        claim = world.claim("c", names[:1])
        await world.prepared(claim)
    await world.kubelet.until(DRIVER_NAME, instances=0)
    await world.server.pause()
    async with world.run() as running:
        await world.unprepare(claim)
        assert world.state() == set()
        assert any("ResourceSlices" in text for text in running.plugin.waiting_for())
        await world.server.resume()
        await running.until_ready()


async def test_a_slice_deleted_or_changed_by_others_is_healed(world: World) -> None:
    async with world.run() as running:
        await world.until_published()
        await running.until_ready()
        before = world.devices()
        name = world.slices()[3]["metadata"]["name"]
        world.server.delete(RESOURCE_SLICES, name=name)
        await world.server.until(lambda: world.devices() == before)
        await running.until_ready()


@pytest.mark.parametrize("wipe", [True, False])
async def test_a_restarted_kubelet_registers_and_prepares_again(world: World, wipe: bool) -> None:
    async with world.run() as running:
        names = await world.until_published()
        claim = world.claim("c", names[:2])
        before = await world.prepared(claim)
        slices = world.devices()
        await world.kubelet.restart(wipe_slices=wipe)
        assert await world.prepared(claim) == before
        await world.server.until(lambda: world.devices() == slices)
        await running.until_ready()
        await world.unprepare(claim)


async def test_a_full_disk_is_an_error_of_the_claim(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.run():
        names = await world.until_published()
        claim = world.claim("c", names[:1])

        def full(_descriptor: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", full)
            error = await world.refused(claim)
        assert "No space left on device" in error
        assert "free space" in error
        assert world.state() == set()
        await world.prepared(claim)


MALFORMED: list[dict[str, Any]] = [
    {"allocation": None},
    {"allocation": {"devices": {"results": None}}},
    {"allocation": {"devices": None}},
    {"allocation": {"devices": {"results": [None]}}},
    {"allocation": {"devices": {"results": [{}]}}},
    {"allocation": {"devices": {"results": "gpu"}}},
    {"allocation": {"devices": {"results": [{"driver": DRIVER_NAME}]}}},
    {"allocation": {"devices": {"results": [{"driver": DRIVER_NAME, "pool": POOL, "request": "gpu"}]}}},
    {"allocation": 7},
    {},
]


async def test_malformed_claims_cost_only_themselves(world: World) -> None:
    """Straight from etcd, as no validation would let them through."""
    async with world.run():
        names = await world.until_published()
        good = world.claim("good", names[:1])
        for number, status in enumerate(MALFORMED):
            bad = world.claim(f"bad-{number}", names[1:2])
            stored = world.server._store.get(RESOURCE_CLAIMS, ObjectKey(bad.namespace, bad.name))
            assert stored is not None
            stored["status"] = status
            answers = await world.prepare(bad, good)
            assert answers[good.uid].error == ""
            assert answers[bad.uid].error
            assert "internal error" not in answers[bad.uid].error, status
        await world.unprepare(good)
        assert world.state() == set()


async def test_two_instances_overlap_without_a_gap_or_a_double_prepare(world: World) -> None:
    old, new = world.run(pod_uid="old"), world.run(pod_uid="new")
    await old.__aenter__()
    try:
        names = await world.until_published()
        held = world.claim("held", names[:1])
        await world.prepared(held)
        deletes = _deletes(world)
        async with new:
            await world.kubelet.until(DRIVER_NAME, instances=2)
            # Both are asked at once, as when the kubelet turns to the newer one in the middle of its work.
            rivals = [world.claim(f"rival-{number}", names[1:2]) for number in range(8)]
            calls = [world.prepare(rival) for rival in rivals[:4]]
            stopping = asyncio.create_task(old.stop())
            calls += [world.prepare(rival) for rival in rivals[4:]]
            answers: dict[str, PreparedClaim] = {}
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(outcome, dict), outcome
                answers |= outcome
            await stopping
            assert sorted(bool(answer.error) for answer in answers.values()) == [False, *[True] * 7]
            await world.kubelet.until(DRIVER_NAME, instances=1)
            await new.until_ready()
            assert _deletes(world) == deletes
            assert (await world.prepared(held))[0].device_name == names[0]
            await world.unprepare(held, *rivals)
            assert world.state() == set()
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await old.stop()


def _deletes(world: World) -> int:
    return sum(
        request.verb == "delete" and request.resource == RESOURCE_SLICES for request in world.server.requests
    )


@pytest.mark.parametrize(("version", "slices"), [("1.34", 1), ("1.35", 1), ("1.36", 8)])
async def test_the_layout_on_a_node_that_kube_scheduler_allocates(world: World, slices: int) -> None:
    async with world.run(allocator="scheduler"):
        await world.until_published()
        assert len(world.slices()) == slices
        allocators = {device["attributes"]["allocator"]["string"] for device in world.devices().values()}
        assert allocators == {"scheduler"}


async def test_a_driver_that_comes_late(world: World) -> None:
    world.hardware.make_unavailable("driver not loaded")
    async with world.run() as running:
        await world.kubelet.plugin(DRIVER_NAME)
        early = world.claim("early", ["gpu-unknown"])
        assert "not known yet" in await world.refused(early)
        await world.unprepare(early)
        assert world.slices() == []
        status, text = await running.get("/readyz")
        assert status == 503
        assert "waiting for the GPUs: driver not loaded" in text
        assert (await running.get("/healthz"))[0] == 200
        world.hardware.make_unavailable("")
        await world.until_published()
        await running.until_ready()


async def test_a_driver_that_hangs_holds_up_neither_start_nor_stop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tangram.node.app._FIRST_LOOK_S", 0.05)
    hang = world.hardware.hang("discover")
    async with world.run() as running:
        await world.kubelet.plugin(DRIVER_NAME)
        await world.unprepare(world.claim("c", ["gpu-unknown"]))
        async with asyncio.timeout(5):  # its deadline would be 30 s
            await running.stop()
    hang.release()


async def test_a_lost_gpu_is_unhealthy_while_held_and_goes_afterwards(world: World) -> None:
    async with world.run():
        names = await world.until_published()
        claim = world.claim("c", names[:1])
        await world.prepared(claim)
        uuid = world.devices()[names[0]]["attributes"]["uuid"]["string"]
        world.hardware.lose(uuid)
        await world.server.until(
            lambda: world.devices()[names[0]]["attributes"]["healthy"] == {"bool": False}
        )
        assert len(world.devices()) == 8
        await world.server.until(
            lambda: (
                {
                    event["regarding"]["kind"]
                    for event in world.server.objects(EVENTS)
                    if event["reason"] == "GpuUnhealthy" and "GPU is lost" in event["note"]
                }
                == {"Pod", "ResourceClaim"}
            )
        )
        await world.server.until(
            lambda: [entry["conditions"][0]["reason"] for entry in world.status(claim)] == ["GpuUnhealthy"]
        )
        await world.prepared(claim)  # the kubelet restarts: the pod goes on
        other = world.claim("other", names[:1])
        await world.unprepare(claim)
        await world.refused(other)
        await world.until_published(7)
        world.hardware.recover(uuid)
        await world.until_published(8)
        await world.prepared(other)


async def test_an_xid_is_published_at_once_and_cleared_by_a_reset(world: World) -> None:
    async with world.run() as running:
        names = await world.until_published()
        await running.until_ready()
        gpu = GpuUuid(world.devices()[names[0]]["attributes"]["uuid"]["string"])
        # The plugin listens from some moment after its first look on.
        async with asyncio.timeout(60):
            while world.devices()[names[0]]["attributes"]["healthy"]["bool"]:
                world.hardware.raise_xid(gpu, 79)
                await asyncio.sleep(0.2)  # slices are written by another task
        assert world.devices()[names[1]]["attributes"]["healthy"]["bool"]
        assert "XID 79" in await world.refused(world.claim("c", names[:1]))
        world.hardware.lose(gpu)
        await world.server.until(lambda: names[0] not in world.devices(), timeout_s=60)
        world.hardware.recover(gpu)
        await world.server.until(
            lambda: (
                names[0] in world.devices()
                and world.devices()[names[0]]["attributes"]["healthy"]["bool"] is True
            ),
            timeout_s=60,
        )


async def test_a_gpu_that_was_lost_before_the_start_is_told_on_the_node(world: World) -> None:
    uuid = world.hardware.discover().gpus[0].uuid
    world.hardware.lose(uuid)
    async with world.run() as running:
        await world.until_published(7)
        await world.server.until(
            lambda: any(
                event["reason"] == "GpuNotAnswering"
                and event["regarding"]["kind"] == "Node"
                and "GPU is lost" in event["note"]
                for event in world.server.objects(EVENTS)
            )
        )
        _, metrics = await running.get("/metrics")
        assert 'tangram_gpus{state="not_answering"} 1.0' in metrics


async def test_what_was_left_of_claims_that_are_gone_is_freed(world: World) -> None:
    async with world.run():
        names = await world.until_published()
        lost = world.claim("lost", names[:1])
        await world.prepared(lost)
    await world.kubelet.until(DRIVER_NAME, instances=0)
    held = world.root / "plugins" / DRIVER_NAME / "claims" / f"{lost.uid}.json"
    content = held.read_bytes()
    held.write_bytes(content[:50])
    async with world.run() as running:
        await until(lambda: held.is_file() and held.read_bytes() == content)
        await world.server.until(
            lambda: any(event["reason"] == "HeldStateSetAside" for event in world.server.objects(EVENTS))
        )
        assert f"{lost.uid}.json.set-aside-1" in world.state()
        _, metrics = await running.get("/metrics")
        assert 'tangram_claims_held{phase="prepared"} 1.0' in metrics
        await world.unprepare(lost)
