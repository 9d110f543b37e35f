"""Leader election against a server that hangs, conflicts and forgets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tangram.base.clock import rfc3339_micro
from tangram.base.errors import ConfigurationError, LeadershipLostError, NotFoundError
from tangram.kube.client import Client
from tangram.kube.election import LeaderElector
from tangram.kube.resources import LEASES
from tangram.testing.apiserver import FakeApiServer
from tangram.testing.apiserver.faults import Verb
from tangram.testing.clock import FakeClock


class Candidate:
    """An elector, what it leads, and when that began and ended on its clock."""

    def __init__(self, client: Client, identity: str, *, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.elector = LeaderElector(
            client, namespace="tangram-system", name="lease", identity=identity, clock=self.clock
        )
        self.began = asyncio.Event()
        self.finish = asyncio.Event()
        self.ended_at_s: float | None = None
        self.led_to_the_end = False
        self.task = asyncio.create_task(self.elector.run(self._lead))

    async def _lead(self) -> None:
        self.began.set()
        try:
            await self.finish.wait()
        finally:
            self.ended_at_s = self.clock.monotonic_s()
            self.led_to_the_end = self.elector.is_leader

    def leading(self) -> bool:
        return self.elector.is_leader

    async def leads(self) -> None:
        async with asyncio.timeout(10):
            await self.began.wait()
        assert self.elector.is_leader

    async def stop(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self.task


class Hall:
    """Makes candidates and stops them."""

    def __init__(self, server: FakeApiServer, client: Client) -> None:
        self.server = server
        self.client = client
        self.candidates: list[Candidate] = []

    def candidate(self, identity: str, **options: Any) -> Candidate:
        self.candidates.append(Candidate(self.client, identity, **options))
        return self.candidates[-1]

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.server.get(LEASES, name="lease", namespace="tangram-system")["spec"]
        return spec

    def requests(self, verb: str) -> int:
        return sum(request.verb == verb for request in self.server.requests)

    async def renewals(self, count: int) -> None:
        await self.server.until(lambda: self.requests("patch") >= count)

    def hold(self, holder: str, **spec: Any) -> None:
        """The lease as another process would have written it."""
        body = {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 3, **spec}
        try:
            self.server.patch(LEASES, {"spec": body}, name="lease", namespace="tangram-system")
        except NotFoundError:
            self.server.create(
                LEASES, {"metadata": {"name": "lease", "namespace": "tangram-system"}, "spec": body}
            )


@pytest.fixture
async def hall(server: FakeApiServer, client: Client) -> AsyncIterator[Hall]:
    made = Hall(server, client)
    yield made
    server.faults.clear()
    for candidate in made.candidates:
        await candidate.stop()


async def test_leads_and_gives_the_lease_back(hall: Hall) -> None:
    one = hall.candidate("one")
    await one.leads()
    assert hall.spec["holderIdentity"] == "one"
    assert hall.spec["leaseTransitions"] == 0
    assert hall.spec["leaseDurationSeconds"] == 15
    assert hall.spec["acquireTime"] == hall.spec["renewTime"] == rfc3339_micro(one.clock.now())
    one.finish.set()
    await one.task
    assert hall.spec["holderIdentity"] == ""
    assert not one.elector.is_leader


async def test_renews_every_period(hall: Hall) -> None:
    one = hall.candidate("one")
    await one.leads()
    for count in range(1, 20):  # far beyond the lease duration
        await one.clock.advance_to_next()
        await hall.renewals(count)
        await hall.server.until(lambda: hall.spec["renewTime"] == rfc3339_micro(one.clock.now()))
        await one.clock.until_sleeping()
    assert one.elector.is_leader
    assert one.clock.monotonic_s() == 38


async def test_released_lease_is_taken_at_the_next_look(hall: Hall) -> None:
    one, two = hall.candidate("one"), None
    await one.leads()
    two = hall.candidate("two")
    await two.clock.until_sleeping()
    one.finish.set()
    await one.task
    await two.clock.advance(1)
    await two.leads()
    assert hall.spec["leaseTransitions"] == 1


async def test_dead_holder_is_waited_for_on_the_own_clock(hall: Hall) -> None:
    # The times in the lease are nonsense: clocks of other machines are not trusted.
    hall.hold("dead", renewTime="1970-01-01T00:00:00.000000Z", leaseDurationSeconds=30)
    one = hall.candidate("one")
    while one.clock.monotonic_s() < 25:
        await one.clock.until_sleeping()
        gets = hall.requests("get")
        await one.clock.advance_to_next()
        await hall.server.until(lambda: hall.requests("get") > gets)  # noqa: B023
        assert not one.began.is_set()
    while not one.began.is_set():
        await one.clock.until_sleeping()
        await one.clock.advance(1)
    assert one.clock.monotonic_s() >= 30
    assert hall.spec["leaseTransitions"] == 4


async def test_living_holder_is_never_displaced(hall: Hall) -> None:
    hall.hold("alive")
    one = hall.candidate("one")
    for beat in range(40):
        await one.clock.until_sleeping()
        hall.hold("alive", renewTime=f"2026-01-01T00:00:{beat:02}.000000Z")
        gets = hall.requests("get")
        await one.clock.advance_to_next()
        await hall.server.until(lambda: hall.requests("get") > gets)  # noqa: B023
    assert one.clock.monotonic_s() > 20
    assert not one.began.is_set()


async def test_hung_server_ends_leadership_before_the_lease_runs_out(hall: Hall) -> None:
    one = hall.candidate("one")
    await one.leads()
    hall.server.faults.stall(resource=LEASES)
    await one.clock.advance(9.9)
    assert one.leading()
    assert one.ended_at_s is None
    await one.clock.advance(0.1)
    assert not one.leading()
    with pytest.raises(LeadershipLostError, match="not renewed for 10 s"):
        await one.task
    assert one.ended_at_s == 10  # another can take it from 15 s on


async def test_unreachable_server_ends_leadership_in_time_too(hall: Hall) -> None:
    one = hall.candidate("one")
    await one.leads()
    await hall.server.pause()
    for _ in range(100):
        if one.task.done():
            break
        await one.clock.advance(0.2)
        await asyncio.sleep(0.001)  # a refused connection takes turns of the event loop, not time
    assert one.ended_at_s is not None
    assert one.ended_at_s <= 10.2
    with pytest.raises(LeadershipLostError):
        await one.task
    await hall.server.resume()


async def test_one_hung_renewal_is_given_up_and_the_next_one_saves_the_lease(hall: Hall) -> None:
    one = hall.candidate("one")
    await one.leads()
    hall.server.faults.stall(resource=LEASES, times=1)
    await one.clock.advance(2)
    await hall.renewals(1)
    await one.clock.advance(5)  # the request's own limit
    await one.clock.advance(2)
    await hall.renewals(2)
    await hall.server.until(lambda: hall.spec["renewTime"] == rfc3339_micro(one.clock.now()))
    await one.clock.advance(2)
    assert one.elector.is_leader


async def test_lost_answers_do_not_cost_the_lease(hall: Hall) -> None:
    one = hall.candidate("one")
    await one.leads()
    for count in range(1, 8):
        hall.server.faults.drop(verb="patch", resource=LEASES, executed=True)
        await one.clock.advance(2)
        await hall.renewals(count * 2 - 1)
        await one.clock.advance(2)
        await hall.server.until(lambda: hall.spec["renewTime"] == rfc3339_micro(one.clock.now()))
        await one.clock.until_sleeping()
    assert one.elector.is_leader


async def test_lease_taken_by_another_ends_leadership(hall: Hall) -> None:
    one = hall.candidate("one")
    await one.leads()
    hall.hold("two")
    await one.clock.advance(2)
    with pytest.raises(LeadershipLostError, match="held by 'two'"):
        await asyncio.wait_for(one.task, 10)
    assert one.ended_at_s == 2
    assert not one.led_to_the_end
    assert hall.spec["holderIdentity"] == "two"  # not released by the loser


async def test_second_process_of_the_same_identity_is_noticed(hall: Hall) -> None:
    one = hall.candidate("same")
    await one.leads()
    await one.clock.advance(1)
    hall.hold("same", renewTime="2026-06-01T00:00:00.000000Z")
    await one.clock.advance(1)
    with pytest.raises(LeadershipLostError, match="another process of the same identity"):
        await asyncio.wait_for(one.task, 10)


async def test_deleted_lease_is_made_again(hall: Hall) -> None:
    one = hall.candidate("one")
    await one.leads()
    hall.server.delete(LEASES, name="lease", namespace="tangram-system")
    await one.clock.advance(2)
    await hall.server.until(lambda: hall.server.objects(LEASES))
    assert hall.spec["holderIdentity"] == "one"
    await one.clock.until_sleeping()
    assert one.elector.is_leader


async def test_own_lease_of_before_a_restart_is_taken_at_once(hall: Hall) -> None:
    hall.hold("one")
    one = hall.candidate("one")
    await one.leads()
    assert one.clock.monotonic_s() == 0
    assert hall.spec["leaseTransitions"] == 3


async def test_own_lease_that_was_lost_is_left_to_run_out(hall: Hall) -> None:
    """No restart lies between: what was cut off may still be on its way, as for any other candidate."""
    one = hall.candidate("one")
    await one.leads()
    await one.clock.advance(2)
    await hall.renewals(1)
    await one.clock.until_sleeping()
    hall.server.faults.stall(resource=LEASES)
    await one.clock.advance(10)
    with pytest.raises(LeadershipLostError):
        await one.task
    hall.server.faults.clear()
    one.began.clear()
    one.task = asyncio.create_task(one.elector.run(one._lead))
    await one.clock.until_sleeping()
    await one.clock.advance(4.9)
    assert not one.began.is_set()
    await one.clock.advance(0.1)
    await one.leads()
    assert one.clock.monotonic_s() == 17  # the last renewal began at 2
    assert hall.spec["leaseTransitions"] == 0


async def test_two_candidates_for_an_expired_lease(hall: Hall) -> None:
    hall.hold("dead", leaseDurationSeconds=1)
    clock = FakeClock()
    one, two = hall.candidate("one", clock=clock), hall.candidate("two", clock=clock)
    while not (one.began.is_set() or two.began.is_set()):
        await clock.until_sleeping(2)
        await clock.advance(1)
    for _ in range(20):
        await clock.until_sleeping(2)
        await clock.advance(1)
        assert one.began.is_set() != two.began.is_set()


async def test_error_of_the_leader_is_passed_on_and_the_lease_given_back(hall: Hall) -> None:
    async def fail() -> None:
        raise ValueError("mine")

    elector = LeaderElector(
        hall.client, namespace="tangram-system", name="lease", identity="one", clock=FakeClock()
    )
    with pytest.raises(ValueError, match="mine"):
        await elector.run(fail)
    assert hall.spec["holderIdentity"] == ""


async def test_cancelled_process_ends_its_work_before_it_gives_the_lease_back(hall: Hall) -> None:
    holders = []
    started = asyncio.Event()

    async def lead() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            holders.append(hall.spec["holderIdentity"])

    elector = LeaderElector(
        hall.client, namespace="tangram-system", name="lease", identity="one", clock=FakeClock()
    )
    task = asyncio.create_task(elector.run(lead))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert holders == ["one"]
    assert hall.spec["holderIdentity"] == ""


@pytest.mark.parametrize("executed", [True, False])
async def test_a_renewal_that_the_end_cuts_off_does_not_keep_the_lease(hall: Hall, executed: bool) -> None:
    one = hall.candidate("one")
    await one.leads()
    fault = hall.server.faults.stall(verb="patch", resource=LEASES, times=1, executed=executed)
    await one.clock.advance(2)
    await hall.server.until(lambda: fault.hits == 1)
    if executed:
        await hall.server.until(lambda: hall.spec["renewTime"] == rfc3339_micro(one.clock.now()))
    await one.stop()
    assert hall.spec["holderIdentity"] == ""
    fault.release()
    two = hall.candidate("two")
    await two.leads()


@pytest.mark.parametrize("verb", ["create", "patch"])
async def test_a_lease_that_is_got_while_the_process_ends_is_given_back(hall: Hall, verb: Verb) -> None:
    if verb == "patch":
        hall.hold("")
    fault = hall.server.faults.stall(verb=verb, resource=LEASES, times=1, executed=True)
    one = hall.candidate("one")
    await hall.server.until(lambda: fault.hits == 1 and hall.server.objects(LEASES))
    await hall.server.until(lambda: hall.spec["holderIdentity"] == "one")
    await one.stop()
    assert not one.began.is_set()
    assert hall.spec["holderIdentity"] == ""


async def test_candidate_survives_refusals_and_nonsense(hall: Hall) -> None:
    hall.server.faults.answer(500, resource=LEASES, times=2)
    hall.server.faults.answer(403, resource=LEASES)
    hall.hold("", leaseTransitions=None)
    lease = hall.server.get(LEASES, name="lease", namespace="tangram-system")
    hall.server.put_as_is(LEASES, {**lease, "spec": {**lease["spec"], "holderIdentity": 5}})
    one = hall.candidate("one")
    for count in range(1, 6):
        await hall.server.until(lambda: hall.requests("get") >= count)  # noqa: B023
        await one.clock.advance_to_next()
    hall.hold("")
    await one.clock.advance_to_next()
    await one.leads()


@pytest.mark.parametrize(
    "options",
    [{"retry_period_s": 0}, {"renew_deadline_s": 15}, {"lease_duration_s": 9}, {"identity": ""}],
)
def test_timings_that_allow_two_leaders_are_refused(client: Client, options: dict[str, Any]) -> None:
    arguments = {"namespace": "n", "name": "l", "identity": "i", "clock": FakeClock(), **options}
    with pytest.raises(ConfigurationError):
        LeaderElector(client, **arguments)
