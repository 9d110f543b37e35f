"""kill -9 at every file operation of prepare and unprepare: the next process finishes or undoes it."""

import contextlib
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.unit.node.support import Claims, Killed, Killer, Node, claim_object, uid

from tangram.node.held import HeldClaim

BOTH_FILES = {f"claims/{uid(1)}.json", f"cdi/gpu.resource.admin_{uid(1)}.json"}


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Killer:
    return Killer(monkeypatch)


async def die_at_each_step(
    tmp_path: Path, killer: Killer, *, prepared: bool, act: Callable[[Node, Claims], Awaitable[object]]
) -> "list[tuple[int, Node, Claims]]":
    """Nodes whose process died in `act`, one for each step it has."""
    dead: list[tuple[int, Node, Claims]] = []
    for step in itertools.count(1):
        node, claims = Node(tmp_path / str(step)), Claims()
        claim = claims.put(claim_object(node.devices[:2]))
        if prepared:
            await node.preparer.prepare(claim)
        with killer.alive(until_step=step):
            try:
                await act(node, claims)
            except Killed:
                dead.append((step, node, claims))
        if not killer.dead:
            break
        node.start()
    return dead


async def prepare(node: Node, claims: Claims) -> None:
    await node.preparer.prepare(claims.put(claims.objects["claim-1"]))


async def unprepare(node: Node, claims: Claims) -> None:
    await node.preparer.unprepare(uid(1))


def assert_all_or_nothing(node: Node, step: int) -> HeldClaim | None:
    contents = node.store.load()
    assert contents.damaged == {}, step
    held = contents.claims.get(uid(1))
    assert node.files() == (BOTH_FILES if held else set()), step
    if held is not None:
        assert held.phase == "prepared", step
        assert held.result is not None, step
        assert {entry.device for entry in held.result} == set(node.devices[:2]), step
    return held


async def test_prepare_dies_and_is_repeated(tmp_path: Path, killer: Killer) -> None:
    dead = await die_at_each_step(tmp_path, killer, prepared=False, act=prepare)
    assert len(dead) > 20
    for step, node, claims in dead:
        await prepare(node, claims)
        assert assert_all_or_nothing(node, step) is not None, step
        await unprepare(node, claims)
        assert node.files() == set(), step


async def test_prepare_dies_and_the_claim_is_gone(tmp_path: Path, killer: Killer) -> None:
    """No kubelet calls again: the first pass of the next process leaves nothing but whole work."""
    outcomes = set()
    for step, node, claims in await die_at_each_step(tmp_path, killer, prepared=False, act=prepare):
        await node.reconciler(claims).local(at_start=True)
        held = assert_all_or_nothing(node, step)
        outcomes.add(held is not None)
        other = claims.put(claim_object(node.devices[:2], number=2))
        if held is None:
            await node.preparer.prepare(other)
    assert outcomes == {True, False}


async def test_prepare_dies_in_one_process_and_is_repeated_in_another(tmp_path: Path, killer: Killer) -> None:
    """A rolling update: the other process was there all the time."""
    for step, node, claims in await die_at_each_step(tmp_path, killer, prepared=False, act=prepare):
        other = node.process()
        await other.prepare(claims.put(claims.objects["claim-1"]))
        assert assert_all_or_nothing(node, step) is not None, step


async def test_unprepare_dies_and_is_repeated(tmp_path: Path, killer: Killer) -> None:
    dead = await die_at_each_step(tmp_path, killer, prepared=True, act=unprepare)
    assert len(dead) == 4
    for step, node, claims in dead:
        await unprepare(node, claims)
        assert node.files() == set(), step


async def test_unprepare_dies_and_nobody_repeats_it(tmp_path: Path, killer: Killer) -> None:
    outcomes = set()
    for step, node, claims in await die_at_each_step(tmp_path, killer, prepared=True, act=unprepare):
        await node.reconciler(claims).local(at_start=True)
        outcomes.add(assert_all_or_nothing(node, step) is not None)
    # Before the note that it began, the claim is as it was; from then on it is finished.
    assert outcomes == {True, False}


async def test_preparing_anew_after_a_reboot_dies(tmp_path: Path, killer: Killer) -> None:
    async def booted(node: Node, claims: Claims) -> None:
        node.boot_id = "boot-2"
        node.preparer = node.process()
        await prepare(node, claims)

    for step, node, claims in await die_at_each_step(tmp_path, killer, prepared=True, act=booted):
        await prepare(node, claims)
        held = assert_all_or_nothing(node, step)
        assert held is not None, step
        assert held.boot_id == "boot-2"


async def test_setting_a_damaged_file_aside_dies(tmp_path: Path, killer: Killer) -> None:
    for step in itertools.count(1):
        node, claims = Node(tmp_path / str(step)), Claims()
        await node.preparer.prepare(claims.put(claim_object(node.devices[:2])))
        node.held_file(1).write_bytes(b"{")
        with killer.alive(until_step=step), contextlib.suppress(Killed):
            await prepare(node, claims)
        if not killer.dead:
            break
        node.start()
        await prepare(node, claims)
        aside = {name for name in node.files() if "set-aside" in name}
        assert aside == {f"claims/{uid(1)}.json.set-aside-1"}, step
        assert node.files() - aside == BOTH_FILES, step


async def test_a_reconcile_pass_dies(tmp_path: Path, killer: Killer) -> None:
    """What reconcile itself does can be repeated too: a lost held file is rebuilt from its CDI file."""

    async def reconcile(node: Node, claims: Claims) -> None:
        await node.reconciler(claims).pass_once()

    for step in itertools.count(1):
        node, claims = Node(tmp_path / str(step)), Claims()
        await node.preparer.prepare(claims.put(claim_object(node.devices[:2])))
        node.held_file(1).unlink()
        with killer.alive(until_step=step), contextlib.suppress(Killed):
            await reconcile(node, claims)
        if not killer.dead:
            break
        node.start()
        await node.reconciler(claims).local(at_start=True)
        await reconcile(node, claims)
        assert assert_all_or_nothing(node, step) is not None, step
