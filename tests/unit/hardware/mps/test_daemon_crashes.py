"""The supervisor killed at any effect, and any sequence of what can happen to a daemon."""

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.unit.hardware.mps.support import Crashed, World, share

from tangram.hardware.mps.values import MpsShare, largest

SCENES = ("start", "raise", "lower", "stop", "replace")


async def scene(name: str) -> World:
    """A world just before the supervisor does what is named."""
    world = World()
    if name == "start":
        world.host.want(a=share(1000))
        return world
    world.host.want(a=share(1000), b=share(2000))
    await world.settle()
    world.host.connect()
    if name == "raise":
        world.host.want(a=share(1000), b=share(2000), c=share(3000))
    elif name == "lower":
        world.host.want(a=share(1000))
    elif name == "stop":
        world.host.want()
    else:
        world.host.hangs = True
        await world.clock.advance(11)
    return world


async def act(world: World) -> None:
    """What the scene is about; a daemon that hangs is another one afterwards."""
    for _ in range(6):
        if await world.step() in ("rest", "wait"):
            return


@pytest.mark.parametrize("name", SCENES)
async def test_killed_at_each_effect_the_next_run_finishes(name: str) -> None:
    """Before and after each effect: spawn, kill, sweep, each command that changes something, each status."""
    points = 0
    for point in itertools.count():
        world = await scene(name)
        wanted = largest([member.share for member in world.host.claims.values()])
        world.host.crash_at = itertools.chain(itertools.repeat(False, point), [True], itertools.repeat(False))
        try:
            await act(world)
        except Crashed:
            points += 1
        else:
            break
        world.host.hangs = False
        world.start().adopt()
        await world.settle()
        check(world, wanted)
    assert points >= 8


def check(world: World, wanted: MpsShare | None) -> None:
    """The machine is as the claims want it, and the status says so."""
    if wanted is None:
        assert world.host.running == {}
        assert world.status().state == "stopped"
        return
    (pid,) = world.host.controls
    assert (world.status().state, world.status().limits) == ("ready", wanted)
    daemon = world.status().daemon
    assert daemon is not None
    assert daemon.pid == pid
    assert world.host.limits == {"percent": str(wanted.cores_percent), "memory": f"{wanted.memory_mib}M"}


class Life(RuleBasedStateMachine):
    """Claims come and go, daemons and servers die or hang, the supervisor is killed, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.shares: dict[str, MpsShare] = {}

    @rule(uid=st.sampled_from("abcd"), memory_mib=st.integers(1, 9), percent=st.integers(1, 100))
    def join(self, uid: str, memory_mib: int, percent: int) -> None:
        self.shares[uid] = share(memory_mib, percent)
        self.world.host.want(**self.shares)

    @rule(uid=st.sampled_from("abcd"))
    def leave(self, uid: str) -> None:
        self.shares.pop(uid, None)
        self.world.host.want(**self.shares)

    @rule()
    def step(self) -> None:
        _run(self.world.step())

    @rule(seconds=st.sampled_from([1, 11, 70]))
    def wait(self, seconds: int) -> None:
        _run(self.world.clock.advance(seconds))

    @precondition(lambda self: self.world.host.running)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.world.host.die(data.draw(st.sampled_from(sorted(self.world.host.running))))

    @precondition(lambda self: self.world.host.controls)
    @rule()
    def connect(self) -> None:
        self.world.host.connect()

    @rule(fault=st.sampled_from(["hangs", "ignores_limits", "ignores_quit", "absent", "stubborn"]))
    def fail(self, fault: str) -> None:
        host = self.world.host
        setattr(host, fault, not getattr(host, fault))

    @rule(effects=st.integers(0, 6))
    def kill_supervisor(self, effects: int) -> None:
        host = self.world.host
        host.crash_at = itertools.chain(itertools.repeat(False, effects), [True], itertools.repeat(False))
        try:
            _run(act(self.world))
        except Crashed:
            self.world.start().adopt()
        host.crash_at = itertools.repeat(False)

    @rule()
    def mend(self) -> None:
        """Once nothing fails any more, all becomes as the claims want it."""
        host = self.world.host
        host.hangs = host.ignores_limits = host.ignores_quit = host.absent = host.stubborn = False
        _run(self.world.settle(steps=300))
        check(self.world, largest(list(self.shares.values())))

    @invariant()
    def one_daemon(self) -> None:
        assert len(self.world.host.controls) <= 1

    @invariant()
    def ready_is_true(self) -> None:
        """What the plugin would take for ready was so when it was written."""
        status = self.world.host.status
        if status is not None and status.state == "ready":
            assert status.limits is not None
            assert status.daemon is not None


def _run(work: Coroutine[Any, Any, object]) -> None:
    asyncio.run(work)


Life.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLife = Life.TestCase
