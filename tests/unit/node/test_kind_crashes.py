"""kill -9 at every effect of every kind, in both directions: hardware = held files = claims in the end.

An effect is a file operation, a call of the driver or of an MPS daemon; the process dies before or after it.
"""

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.kinds import KindsNode, assert_consistent, claim, killable, make_node
from tests.unit.node.support import Claims, Killed, Killer, uid

from tangram.base.errors import TangramError

OTHER = 9


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What dies. `node` are arguments of `make_node`, `other` the devices of a claim that stands by."""

    name: str
    devices: tuple[tuple[int, str], ...]
    node: dict[str, Any] = field(default_factory=dict)
    other: tuple[tuple[int, str], ...] = ()


SCENARIOS = (
    Scenario(
        name="exclusive",
        devices=((0, "gpu"), (1, "gpu")),
        node={"exclusive_compute_mode": True, "leftovers": "warn"},
    ),
    Scenario(name="timeslice", devices=((0, "ts"),), other=((0, "ts"),)),
    Scenario(name="mps", devices=((0, "mps"),)),
    Scenario(name="mps-joins", devices=((0, "mps"),), other=((0, "mps"),)),
    Scenario(name="mig", devices=((0, "mig-3g40gb-4"),), node={"mode": "enabled"}),
    Scenario(
        name="mig-many",
        devices=((0, "mig-1g10gb-0"), (0, "mig-2g20gb-2"), (1, "mig-7g80gb-0")),
        node={"mode": "enabled"},
        other=((0, "mig-3g40gb-4"),),
    ),
    Scenario(
        name="mig-mode-on",
        devices=((0, "mig-1g10gb-0"),),
        node={"board": "h100-sxm5-80gb-x8", "dynamic": True},
    ),
    Scenario(
        name="mig-mode-off",
        devices=((0, "gpu"),),
        node={"board": "h100-sxm5-80gb-x8", "mode": "enabled", "dynamic": True},
    ),
    Scenario(
        name="mixed",
        devices=((0, "ts"), (1, "mps")),
        node={"board": "h100-sxm5-80gb-x8", "dynamic": True},
    ),
)
Act = Callable[[KindsNode, Claims], Awaitable[object]]
TOTALS: dict[str, int] = {}


@pytest.fixture(params=SCENARIOS, ids=lambda scenario: scenario.name)
def scenario(request: pytest.FixtureRequest) -> Scenario:
    found: Scenario = request.param
    return found


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Killer:
    return Killer(monkeypatch)


async def prepare(node: KindsNode, claims: Claims) -> None:
    await node.preparer.prepare(claims.put(claims.objects["claim-1"]))


async def unprepare(node: KindsNode, claims: Claims) -> None:
    await node.preparer.unprepare(uid(1))


async def deaths(
    tmp_path: Path, killer: Killer, scenario: Scenario, *, prepared: bool, act: Act
) -> list[tuple[int, KindsNode, Claims]]:
    """Nodes whose process died in `act`, one for each effect it has; the next process runs."""
    dead: list[tuple[int, KindsNode, Claims]] = []
    for step in itertools.count(1):
        node, claims = make_node(tmp_path / str(step), **scenario.node), Claims()
        if scenario.other:
            await node.preparer.prepare(claims.put(claim(node, *scenario.other, number=OTHER)))
        claims.put(claim(node, *scenario.devices))
        if prepared:
            await prepare(node, claims)
        with killable(node, killer, until_step=step):
            try:
                await act(node, claims)
            except (Killed, TangramError):
                assert killer.dead
        if not killer.dead:
            return dead
        node.start()
        node.look()
        dead.append((step, node, claims))
    raise AssertionError


def holders(node: KindsNode, step: int) -> set[str]:
    return {held.uid for held in assert_consistent(node, step)}


async def test_prepare_dies_and_is_repeated(tmp_path: Path, killer: Killer, scenario: Scenario) -> None:
    """P15: what the first attempt has made is not made twice."""
    dead = await deaths(tmp_path, killer, scenario, prepared=False, act=prepare)
    for step, node, claims in dead:
        await prepare(node, claims)
        assert uid(1) in holders(node, step)
        await unprepare(node, claims)
        assert uid(1) not in holders(node, step)


async def test_p06_prepare_dies_and_nobody_asks_again(
    tmp_path: Path, killer: Killer, scenario: Scenario
) -> None:
    """One pass of the next process, without API server or kubelet, leaves nothing but whole work."""
    outcomes = set()
    for step, node, claims in await deaths(tmp_path, killer, scenario, prepared=False, act=prepare):
        await node.reconciler(claims).local(at_start=True)
        outcomes.add(uid(1) in holders(node, step))
        await node.preparer.unprepare(uid(1))
        await node.preparer.unprepare(uid(OTHER))
        assert holders(node, step) == set()
        assert set(_compute_modes(node)) == {"default"}
    assert outcomes == {True, False}


async def test_p04_prepare_dies_by_a_reboot(tmp_path: Path, killer: Killer, scenario: Scenario) -> None:
    """P05 too: the CDI directory is empty. Every claim is prepared again before its pod starts."""
    for step, node, claims in await deaths(tmp_path, killer, scenario, prepared=False, act=prepare):
        node.reboot()
        node.mps.joined.clear()
        await node.reconciler(claims).local(at_start=True)
        if scenario.other:
            await node.preparer.prepare(claims.put(claims.objects[f"claim-{OTHER}"]))
        await prepare(node, claims)
        assert uid(1) in holders(node, step)
        assert {held.boot_id for held in node.store.load().claims.values()} == {node.boot_id}


async def test_unprepare_dies_and_is_repeated(tmp_path: Path, killer: Killer, scenario: Scenario) -> None:
    for step, node, claims in await deaths(tmp_path, killer, scenario, prepared=True, act=unprepare):
        await unprepare(node, claims)
        assert uid(1) not in holders(node, step)
        await prepare(node, claims)
        assert uid(1) in holders(node, step)


async def test_unprepare_dies_and_nobody_repeats_it(
    tmp_path: Path, killer: Killer, scenario: Scenario
) -> None:
    outcomes = set()
    for step, node, claims in await deaths(tmp_path, killer, scenario, prepared=True, act=unprepare):
        await node.reconciler(claims).local(at_start=True)
        outcomes.add(uid(1) in holders(node, step))
    # Before the note that it began, the claim is as it was; from then on it is finished.
    assert outcomes == {True, False}


async def test_unprepare_dies_by_a_reboot(tmp_path: Path, killer: Killer, scenario: Scenario) -> None:
    for step, node, claims in await deaths(tmp_path, killer, scenario, prepared=True, act=unprepare):
        node.reboot()
        node.mps.joined.clear()
        await node.reconciler(claims).local(at_start=True)
        await unprepare(node, claims)
        assert uid(1) not in holders(node, step)


async def test_there_are_more_than_three_hundred_crash_points(tmp_path: Path, killer: Killer) -> None:
    """Counted, for prepare and unprepare alone; each is met by several tests above."""
    total = 0
    for scenario in SCENARIOS:
        for prepared, act in ((False, prepare), (True, unprepare)):
            node, claims = make_node(tmp_path / scenario.name / str(prepared), **scenario.node), Claims()
            if scenario.other:
                await node.preparer.prepare(claims.put(claim(node, *scenario.other, number=OTHER)))
            claims.put(claim(node, *scenario.devices))
            if prepared:
                await prepare(node, claims)
            with killable(node, killer, until_step=0):
                await act(node, claims)
            total += killer.steps
    assert total >= 300


def _compute_modes(node: KindsNode) -> list[str]:
    return [node.hardware.compute_mode(gpu.uuid) for gpu in node.hardware.discover().gpus]
