"""Reconcile passes: what is unowned goes, what is foreign stays, what was lost comes back."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.unit.node.support import Claims, Node, claim_object, uid

from tangram.base.errors import DeviceHeldError, UnreachableError
from tangram.node.held import encode
from tangram.node.reconcile import CONFIRM_AFTER_S, CONFIRM_INTERVAL_S, INTERVAL_S, Reconciler
from tangram.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def node(tmp_path: Path, clock: FakeClock) -> Node:
    return Node(tmp_path, clock=clock)


@pytest.fixture
def claims() -> Claims:
    return Claims()


async def held(node: Node, claims: Claims, *, number: int = 1, device: int = 0) -> None:
    await node.preparer.prepare(claims.put(claim_object([node.devices[device]], number=number)))


async def gone_for_good(reconciler: Reconciler, clock: FakeClock) -> None:
    """Two looks, far enough apart."""
    await reconciler.pass_once()
    await clock.advance(CONFIRM_AFTER_S)
    await reconciler.pass_once()


async def test_a_live_claim_is_left_alone(node: Node, claims: Claims, clock: FakeClock) -> None:
    await held(node, claims)
    files = node.files()
    await gone_for_good(node.reconciler(claims), clock)
    assert node.files() == files
    assert [entry.uid for _, entry in node.confirmed] == [uid(1), uid(1)]


async def test_a_live_claim_gets_its_cdi_file_back(node: Node, claims: Claims) -> None:
    await held(node, claims)
    content = node.cdi_file(1).read_bytes()
    for damage in (b"{}", b""):
        node.cdi_file(1).write_bytes(damage)
        await node.reconciler(claims).pass_once()
        assert node.cdi_file(1).read_bytes() == content
    node.cdi_file(1).unlink()
    await node.reconciler(claims).local(at_start=True)
    assert node.cdi_file(1).read_bytes() == content


async def test_a_claim_that_is_gone_is_unprepared_at_the_second_look(
    node: Node, claims: Claims, clock: FakeClock
) -> None:
    await held(node, claims)
    await held(node, claims, number=2, device=1)
    claims.remove(1)
    reconciler = node.reconciler(claims)
    await reconciler.pass_once()
    await clock.advance(CONFIRM_AFTER_S - 1)
    await reconciler.pass_once()
    assert set(node.store.load().claims) == {uid(1), uid(2)}
    await clock.advance(1)
    await reconciler.pass_once()
    assert set(node.store.load().claims) == {uid(2)}
    assert node.cdi.uids() == {uid(2)}


async def test_a_claim_that_comes_back_in_between_stays(node: Node, claims: Claims, clock: FakeClock) -> None:
    await held(node, claims)
    reconciler = node.reconciler(claims)
    gone = claims.objects.pop("claim-1")
    await reconciler.pass_once()
    claims.put(gone)
    await clock.advance(CONFIRM_AFTER_S)
    await reconciler.pass_once()
    claims.remove(1)
    await clock.advance(CONFIRM_AFTER_S)
    await reconciler.pass_once()
    assert set(node.store.load().claims) == {uid(1)}


@pytest.mark.parametrize(
    "change", ["another uid", "deallocated", "another node", "another driver", "no status"]
)
async def test_a_claim_that_is_not_here_any_more_is_unprepared(
    node: Node, claims: Claims, clock: FakeClock, change: str
) -> None:
    await held(node, claims)
    changed = claim_object([node.devices[0]])
    if change == "another uid":
        changed["metadata"]["uid"] = uid(99)
    elif change == "deallocated":
        changed = claim_object([], allocated=False)
    elif change == "another node":
        changed = claim_object([node.devices[0]], pool="gpu.resource.admin/other")
    elif change == "another driver":
        changed = claim_object([node.devices[0]], driver="other.example.com")
    else:
        del changed["status"]
    claims.put(changed)
    await gone_for_good(node.reconciler(claims), clock)
    assert node.files() == set()


async def test_an_unreserved_claim_that_is_allocated_here_stays(
    node: Node, claims: Claims, clock: FakeClock
) -> None:
    """Its last pod has just ended, or the next is about to come: the kubelet decides."""
    await node.preparer.prepare(claims.put(claim_object([node.devices[0]], consumers=["pod"])))
    claims.put(claim_object([node.devices[0]], consumers=[]))
    await gone_for_good(node.reconciler(claims), clock)
    assert set(node.store.load().claims) == {uid(1)}


async def test_what_cannot_be_known_now_is_left_alone(node: Node, claims: Claims, clock: FakeClock) -> None:
    await held(node, claims)
    await held(node, claims, number=2, device=1)
    claims.objects["claim-2"] = {"metadata": {"name": "claim-2", "uid": uid(2)}, "spec": {"devices": 7}}
    node.held_file(1).unlink()
    files = node.files()
    claims.error = UnreachableError("connection refused")
    reconciler = node.reconciler(claims)
    await gone_for_good(reconciler, clock)
    assert node.files() == files
    claims.error = None
    await gone_for_good(reconciler, clock)  # claim 2 is malformed: left alone; claim 1 is rebuilt
    assert set(node.store.load().claims) == {uid(1), uid(2)}


@pytest.mark.parametrize("damage", [b"", b"{", b"\0" * 300, None])
async def test_a_damaged_or_deleted_file_is_rebuilt_from_the_claim(
    node: Node, claims: Claims, clock: FakeClock, damage: bytes | None
) -> None:
    await held(node, claims)
    before = node.store.load().claims[uid(1)]
    cdi = node.cdi_file(1).stat().st_ino
    if damage is None:
        node.held_file(1).unlink()
    else:
        node.held_file(1).write_bytes(damage)
    node.start()
    reconciler = node.reconciler(claims)
    await reconciler.local(at_start=True)
    await reconciler.pass_once()
    assert node.store.load().claims == {uid(1): before}
    assert node.cdi_file(1).stat().st_ino == cdi
    assert [entry.uid for entry, _ in node.set_aside] == ([] if damage is None else [uid(1)])


async def test_a_damaged_file_of_a_claim_that_is_gone_leaves_only_what_was_set_aside(
    node: Node, claims: Claims
) -> None:
    await held(node, claims)
    claims.remove(1)
    node.held_file(1).write_bytes(b"{")
    await node.reconciler(claims).pass_once()
    assert node.files() == {f"claims/{uid(1)}.json.set-aside-1"}


async def test_a_rebuilt_claim_holds_a_gpu_that_fell_ill(node: Node, claims: Claims) -> None:
    await held(node, claims)
    node.held_file(1).unlink()
    assert node.inventory is not None
    node.inventory = type(node.inventory)(
        machine=node.inventory.machine,
        unhealthy={node.gpu(node.devices[0]): "GPU is lost"},
        nodes=node.inventory.nodes,
        control_nodes=node.inventory.control_nodes,
    )
    await node.reconciler(claims).pass_once()
    assert set(node.store.load().claims) == {uid(1)}


@pytest.mark.parametrize("damage", [True, False])
async def test_a_gpu_whose_held_file_was_lost_is_not_given_to_another_claim(
    node: Node, claims: Claims, damage: bool
) -> None:
    await held(node, claims)
    if damage:
        node.held_file(1).write_bytes(b"{")
    else:
        node.held_file(1).unlink()
    with pytest.raises(DeviceHeldError, match=r"claim ns/claim-1 .* held state was lost") as caught:
        await held(node, claims, number=2)
    assert caught.value.holder == "ns/claim-1"
    await held(node, claims, number=3, device=1)
    claims.remove(1)
    await node.reconciler(claims).pass_once()
    await held(node, claims, number=2)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"containerEdits": {"env": [1]}}', b"\xff"])
async def test_a_cdi_file_of_ours_that_says_nothing_is_removed(
    node: Node, claims: Claims, content: bytes
) -> None:
    (node.root / "cdi").mkdir()
    node.cdi_file(1).write_bytes(content)
    await node.reconciler(claims).pass_once()
    assert node.files() == set()


async def test_foreign_files_are_never_touched(node: Node, claims: Claims, clock: FakeClock) -> None:
    await held(node, claims)
    claims.remove(1)
    foreign = {
        "cdi/nvidia.yaml", "cdi/k8s.gpu.nvidia.com-claim_1.json", "cdi/gpu.resource.admin_x.yaml",
        "claims/notes.txt", f"claims/{uid(9)}.json.set-aside-1",
    }  # fmt: skip
    for name in foreign:
        (node.root / name).write_text("{}")
    await gone_for_good(node.reconciler(claims), clock)
    assert node.files() == foreign


async def test_half_done_work_of_a_dead_process_is_undone(node: Node, claims: Claims) -> None:
    await held(node, claims)
    whole = node.store.load().claims[uid(1)]
    for phase in ("preparing", "unpreparing"):
        node.held_file(1).write_bytes(encode(msgspec.structs.replace(whole, phase=phase)))
        await node.reconciler(claims).local()
        assert node.files() == set()
        await held(node, claims)


async def test_a_newer_file_is_set_aside_only_at_the_start(node: Node, claims: Claims) -> None:
    """Later it is that of a newer plugin that takes over in a rolling update."""
    node.held_file(1).write_bytes(b'{"version": 3}')
    reconciler = node.reconciler(claims)
    await reconciler.pass_once()
    assert node.files() == {f"claims/{uid(1)}.json"}
    await reconciler.local(at_start=True)
    assert node.files() == {f"claims/{uid(1)}.json.set-aside-1"}


async def test_a_broken_directory_ends_no_pass(node: Node, claims: Claims) -> None:
    (node.root / "claims").rmdir()
    await node.reconciler(claims).pass_once()
    (node.root / "claims").mkdir()
    (node.root / "cdi").write_text("")
    await node.reconciler(claims).pass_once()


async def test_what_a_stopped_kubelet_left_running_keeps_its_devices(
    node: Node, claims: Claims, clock: FakeClock
) -> None:
    """Its containers run on although pod and claim are gone; the time begins anew when it is back."""
    await held(node, claims)
    claims.remove(1)
    reconciler = node.reconciler(claims)
    for claims.ready in ("False", "Unknown", ""):
        await gone_for_good(reconciler, clock)
        await gone_for_good(reconciler, clock)
        assert set(node.store.load().claims) == {uid(1)}
    claims.ready = "True"
    await reconciler.pass_once()
    await clock.advance(CONFIRM_AFTER_S - 1)
    await reconciler.pass_once()
    assert set(node.store.load().claims) == {uid(1)}
    await clock.advance(1)
    await reconciler.pass_once()
    assert node.files() == set()


async def test_the_loop_looks_again_soon_while_something_is_held_for_a_claim_that_is_gone(
    node: Node, claims: Claims, clock: FakeClock
) -> None:
    await held(node, claims)
    task = asyncio.create_task(node.reconciler(claims).run())
    await clock.until_sleeping()
    claims.remove(1)
    looks = round(CONFIRM_AFTER_S / CONFIRM_INTERVAL_S)
    for number in range(looks + 1):
        assert node.files()
        passed_s = await clock.advance_to_next()
        assert passed_s == (CONFIRM_INTERVAL_S if number else INTERVAL_S)
        await clock.until_sleeping()
    assert node.files() == set()
    task.cancel()


async def test_the_loop_looks_at_once_when_asked(node: Node, claims: Claims, clock: FakeClock) -> None:
    await held(node, claims)
    reconciler = node.reconciler(claims)
    task = asyncio.create_task(reconciler.run())
    await clock.until_sleeping()
    assert len(node.confirmed) == 1
    reconciler.ask()
    async with asyncio.timeout(10):
        while len(node.confirmed) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)  # the work is in threads
    assert clock.monotonic_s() == 0
    task.cancel()
