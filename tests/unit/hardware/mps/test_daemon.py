"""One GPU's daemon through its life: started, limited, watched, replaced, ended."""

import asyncio

import pytest
from tests.unit.hardware.mps.support import World, share

from tangram.base.errors import HardwareError
from tangram.hardware.mps.daemon import PROBE_S
from tangram.hardware.mps.values import MpsMember, MpsStatus


@pytest.fixture
def world() -> World:
    return World()


async def test_nothing_is_done_for_a_gpu_that_nobody_wants(world: World) -> None:
    assert await world.settle() == ["stop", "rest"]
    assert world.host.running == {}
    assert world.status().state == "stopped"


async def test_a_claim_starts_the_daemon_and_the_last_one_ends_it(world: World) -> None:
    world.host.want(a=share(1000, 40))
    assert await world.settle() == ["start", "probe", "rest"]
    assert (world.status().state, world.status().limits) == ("ready", share(1000, 40))
    assert world.host.limits == {"percent": "40", "memory": "1000M"}
    (pid,) = world.host.controls
    daemon = world.status().daemon
    assert daemon is not None
    assert daemon.pid == pid
    world.host.want()
    assert await world.settle() == ["stop", "rest"]
    assert world.host.running == {}
    assert (world.status().state, world.status().limits, world.status().daemon) == ("stopped", None, None)
    assert world.host.killed == []


async def test_p46_many_claims_come_and_go_with_one_daemon(world: World) -> None:
    seen = set()
    for count in (1, 2, 4, 8, 3, 1):
        world.host.want(**{f"c{each}": share(1000 * (each + 1), 10 * (each + 1)) for each in range(count)})
        await world.settle()
        seen.add(tuple(world.host.controls))
        assert world.status().limits == share(1000 * count, 10 * count)
        assert world.host.limits == {"percent": f"{10 * count}", "memory": f"{1000 * count}M"}
    assert len(seen) == 1


async def test_servers_that_run_are_told_new_limits_too(world: World) -> None:
    world.host.want(a=share(1000))
    await world.settle()
    server = world.host.connect()
    world.host.want(a=share(1000), b=share(2000))
    await world.settle()
    assert f"set_device_pinned_mem_limit {server} 0 2000M" in world.host.commands
    assert f"set_active_thread_percentage {server} 50" in world.host.commands


async def test_lower_limits_are_told_before_they_are_set(world: World) -> None:
    """Else a claim that joins meanwhile would take the old ones for settled."""
    world.host.want(a=share(3000, 80), b=share(1000, 20))
    await world.settle()
    world.host.want(b=share(1000, 20))
    asked: list[MpsStatus] = []
    ask = world.host.ask

    async def watched(command: str) -> str:
        asked.append(world.status())
        return await ask(command)

    world.host.ask = watched  # type: ignore[method-assign]
    await world.step()
    assert {status.limits for status in asked} == {share(1000, 20)}


async def test_a_claim_that_joins_while_limits_sink_keeps_them(world: World) -> None:
    large = share(3000, 80)
    world.host.want(a=large, b=share(1000, 20))
    await world.settle()
    world.host.want(b=share(1000, 20))
    write = world.host.write_status

    def join_then_write(status: MpsStatus) -> None:
        write(status)
        world.host.want(b=share(1000, 20), c=large)

    world.host.write_status = join_then_write  # type: ignore[method-assign]
    await world.settle()
    assert world.status().limits == large
    assert world.host.limits == {"percent": "80", "memory": "3000M"}


async def test_a_claim_that_joins_while_the_daemon_stops_keeps_it(world: World) -> None:
    world.host.want(a=share(1000))
    await world.settle()
    (before,) = world.host.controls
    world.host.want()
    write = world.host.write_status

    def join_then_write(status: MpsStatus) -> None:
        world.host.want(b=share(1000))
        write(status)

    world.host.write_status = join_then_write  # type: ignore[method-assign]
    await world.settle()
    assert world.host.controls == [before]
    assert world.status().state == "ready"


async def test_p41_a_daemon_that_dies_is_noticed_told_and_started_again(world: World) -> None:
    world.host.want(a=share(1000))
    await world.settle()
    (first,) = world.host.controls
    world.host.connect()
    world.host.die(first)
    assert await world.step() == "wait"
    assert world.status().state == "failing"
    assert world.incident().kind == "died"
    await world.settle()
    (second,) = world.host.controls
    assert second != first
    assert (world.status().state, world.status().incidents) == ("ready", 1)
    assert len(world.host.running) == 1, "its old server is left"


async def test_p41_a_daemon_that_hangs_is_replaced(world: World) -> None:
    world.host.want(a=share(1000))
    await world.settle()
    (first,) = world.host.controls
    await world.clock.advance(11)
    world.host.hangs = True
    assert [await world.step() for _ in range(4)] == ["probe", "probe", "probe", "replace"]
    world.host.hangs = False
    await world.settle()
    assert world.host.killed == [first]
    assert world.status().state == "ready"
    assert (world.incident().kind, world.status().incidents) == ("hung", 1)


async def test_one_missed_answer_is_forgiven(world: World) -> None:
    world.host.want(a=share(1000))
    await world.settle()
    await world.clock.advance(11)
    world.host.hangs = True
    await world.step()
    world.host.hangs = False
    assert await world.settle() == ["probe", "rest"]
    assert world.host.killed == []
    assert world.status().incidents == 0


async def test_p41_a_server_that_dies_is_told(world: World) -> None:
    world.host.want(a=share(1000))
    await world.settle()
    server = world.host.connect()
    await world.clock.advance(11)
    await world.settle()
    assert world.status().servers == (server,)
    world.host.die(server)
    await world.settle()
    assert (world.status().state, world.status().servers) == ("ready", ())
    assert world.incident().kind == "server_died"
    assert str(server) in world.incident().cause


async def test_p38_limits_that_are_not_taken_are_refused(world: World) -> None:
    world.host.ignores_limits = True
    world.host.want(a=share(1000, 100))
    await world.step()
    assert world.status().state == "failing"
    assert "set to 1000 MiB of memory, MPS reports '100.0\\n0M'" in world.status().cause
    assert world.status().limits is None
    world.host.ignores_limits = False
    await world.settle()
    assert world.status().state == "ready"


async def test_a_driver_without_mps_is_named_and_waited_for(world: World) -> None:
    world.host.absent = True
    world.host.want(a=share(1000))
    await world.settle(steps=5)
    assert world.status().state == "failing"
    assert "no nvidia-cuda-mps-control" in world.status().cause
    world.host.absent = False
    await world.settle(steps=300)
    assert world.status().state == "ready"


async def test_a_daemon_that_does_not_come_up_is_tried_less_and_less_often(world: World) -> None:
    world.host.dies_at_once = True
    world.host.want(a=share(1000))
    tries = 0
    for _ in range(600):
        tries += await world.step() == "start"
        await world.clock.advance(1)
    assert 8 <= tries <= 20
    assert "no CUDA device is available" in world.status().cause


async def test_a_daemon_that_starts_slowly_is_ended_once_nobody_wants_it(world: World) -> None:
    world.host.hangs = True
    world.host.want(a=share(1000))
    starting = asyncio.ensure_future(world.daemon.step())
    await world.clock.until_sleeping()
    assert world.status().state == "starting"
    world.host.want()
    await world.clock.advance(0.1)
    await starting
    assert await world.settle() == ["stop", "rest"]
    assert world.host.running == {}


async def test_failures_do_not_delay_the_end(world: World) -> None:
    world.host.dies_at_once = True
    world.host.want(a=share(1000))
    for _ in range(20):
        await world.step()
        await world.clock.advance(5)
    world.host.want()
    assert await world.settle() == ["stop", "rest"]


async def test_a_daemon_that_does_not_quit_is_killed(world: World) -> None:
    world.host.want(a=share(1000))
    await world.settle()
    (pid,) = world.host.controls
    server = world.host.connect()
    world.host.ignores_quit = True
    world.host.want()
    await world.settle()
    assert sorted(world.host.killed) == [pid, server]
    assert world.status().state == "stopped"


async def test_a_process_that_cannot_be_killed_is_told_and_waited_for(world: World) -> None:
    world.host.want(a=share(1000))
    await world.settle()
    world.host.stubborn = world.host.hangs = True
    world.host.want()
    await world.step()
    assert world.status().state == "stopping"
    assert "hang in the GPU driver" in world.status().cause
    world.host.stubborn = world.host.hangs = False
    await world.settle()
    assert world.status().state == "stopped"


async def test_no_second_daemon_beside_one_that_cannot_be_killed(world: World) -> None:
    world.host.want(a=share(1000))
    await world.settle()
    await world.clock.advance(11)
    world.host.stubborn = world.host.hangs = True
    await world.settle(steps=30)
    assert len(world.host.controls) == 1
    assert world.status().state == "failing"


async def test_a_restarted_supervisor_adopts_the_daemon(world: World) -> None:
    world.host.want(a=share(1000))
    await world.settle()
    before = dict(world.host.running)
    world.start().adopt()
    assert world.status().state == "starting", "claims wait until its limits are known"
    await world.settle()
    assert world.host.running == before
    assert (world.status().state, world.status().incidents) == ("ready", 0)


async def test_a_restarted_supervisor_tells_that_the_daemon_has_died_meanwhile(world: World) -> None:
    world.host.want(a=share(1000))
    await world.settle()
    world.host.running.clear()
    world.start("keeper-2").adopt()
    await world.settle()
    assert (world.status().state, world.status().incidents, world.status().keeper) == ("ready", 1, "keeper-2")
    assert world.incident().kind == "died"


async def test_a_restarted_supervisor_ends_what_nobody_wants_any_more(world: World) -> None:
    world.host.want(a=share(1000))
    await world.settle()
    world.host.want()
    world.start().adopt()
    await world.settle()
    assert world.host.running == {}
    assert (world.status().state, world.status().incidents) == ("stopped", 0)


async def test_claims_of_another_gpu_do_not_count(world: World) -> None:
    world.host.claims = {"a": MpsMember(uuid="GPU-0", share=share(1000))}
    assert await world.settle() == ["stop", "rest"]


async def test_commands_that_fail_count_as_silence(world: World) -> None:
    world.host.want(a=share(1000))
    await world.settle()
    await world.clock.advance(11)

    async def refuses(_: str) -> str:
        raise HardwareError("refused")

    world.host.ask = refuses  # type: ignore[method-assign,assignment]
    assert [await world.step() for _ in range(4)] == ["probe", "probe", "probe", "replace"]


@pytest.mark.parametrize("end", ["the server ends", "the server recovers"])
async def test_p41_a_fatal_exception_of_the_gpu_is_told_until_it_is_over(world: World, end: str) -> None:
    """The server lives, its clients have failed, and it refuses new ones until the last of them has ended."""
    world.host.want(a=share(1000), b=share(1000))
    await world.settle()
    server = world.host.connect()
    await world.clock.advance(PROBE_S)
    await world.settle()
    world.host.faulted = {server}
    await world.clock.advance(PROBE_S)
    await world.settle()
    assert (world.status().state, world.incident().kind) == ("failing", "server_faulted")
    assert str(server) in world.status().cause
    assert not world.status().serves(share(1000))
    await world.clock.advance(PROBE_S)
    world.host.want(a=share(2000), b=share(1000))  # limits are set, and change nothing of it
    await world.settle()
    assert (world.status().state, world.status().incidents) == ("failing", 1)
    if end == "the server ends":
        world.host.die(server)
    world.host.faulted = set()
    await world.clock.advance(PROBE_S)
    await world.settle()
    assert (world.status().state, world.status().cause) == ("ready", "")
    assert world.status().serves(share(2000))
    assert len(world.host.controls) == 1
