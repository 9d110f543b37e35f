"""Leader election over a link to the server that fails at the worst moments."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.integration.kube.test_election import Candidate

from tangram.base.errors import LeadershipLostError, UnreachableError
from tangram.kube.client import Client
from tangram.kube.resources import LEASES, Resource
from tangram.testing.apiserver import FakeApiServer
from tangram.testing.clock import FakeClock


class Link(Client):
    """One process's way to the server, without HTTP: deterministic, and to be cut for this process alone."""

    def __init__(self, server: FakeApiServer) -> None:
        self._fake = server
        self.state = "up"

    async def _pass(self, act: Callable[[], dict[str, Any]]) -> bytes:
        if self.state == "down":
            raise UnreachableError("down")
        if self.state == "hung":
            await asyncio.Event().wait()
        answer = json.dumps(act()).encode()
        if self.state == "mute":  # it was done, but nobody hears of it
            raise UnreachableError("mute")
        return answer

    async def get(self, resource: Resource, *, name: str, namespace: str = "") -> bytes:
        return await self._pass(lambda: self._fake.get(resource, name=name, namespace=namespace))

    async def create(self, resource: Resource, body: Mapping[str, Any], *, namespace: str = "") -> bytes:
        return await self._pass(lambda: self._fake.create(resource, body))

    async def patch(self, resource: Resource, patch: Any, **options: Any) -> bytes:
        return await self._pass(lambda: self._fake.patch(resource, patch, **options))


class ToldToEnd(Link):
    """The process gets a signal together with the answer to its first write."""

    stop: Callable[[], object] | None = None

    async def _pass(self, act: Callable[[], dict[str, Any]]) -> bytes:
        answer = await super()._pass(act)
        if "renewTime" in json.loads(answer)["spec"] and self.stop is not None:
            self.stop()
            self.stop = None
        return answer


class Overtaken(Link):
    """Somebody else is faster, whatever the candidate does."""

    def __init__(self, server: FakeApiServer) -> None:
        super().__init__(server)
        self.reads = 0

    async def get(self, resource: Resource, *, name: str, namespace: str = "") -> bytes:
        self.reads += 1
        return await super().get(resource, name=name, namespace=namespace)

    async def create(self, resource: Resource, body: Mapping[str, Any], *, namespace: str = "") -> bytes:
        self._fake.create(resource, {**body, "spec": {**body["spec"], "holderIdentity": ""}})
        return await super().create(resource, body, namespace=namespace)

    async def patch(self, resource: Resource, patch: Any, **options: Any) -> bytes:
        self._fake.patch(resource, {"spec": {"holderIdentity": "two"}}, **options)
        return await super().patch(resource, patch, **options)


@pytest.mark.parametrize("verb", ["create", "patch"])
async def test_a_lease_that_is_got_as_the_process_is_told_to_end_is_given_back(verb: str) -> None:
    """The answer and the signal at the same moment: the candidate has not looked at either yet."""
    server = FakeApiServer()
    if verb == "patch":
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1}
        server.create(LEASES, {"metadata": {"name": "lease", "namespace": "tangram-system"}, "spec": spec})
    link = ToldToEnd(server)
    one = Candidate(link, "one")
    link.stop = one.task.cancel
    with pytest.raises(asyncio.CancelledError):
        await one.task
    assert not one.began.is_set()
    assert server.get(LEASES, name="lease", namespace="tangram-system")["spec"]["holderIdentity"] == ""


async def test_a_candidate_that_was_too_slow_has_nothing_to_give_back() -> None:
    server = FakeApiServer()
    link = Overtaken(server)
    one = Candidate(link, "one")
    await one.clock.advance(2)  # a look that finds no lease, one that finds a free one, and one that does not
    assert server.get(LEASES, name="lease", namespace="tangram-system")["spec"]["holderIdentity"] == "two"
    reads = link.reads
    await one.stop()
    assert not one.began.is_set()
    assert link.reads == reads


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.floats(min_value=0.5, max_value=8)),
        st.tuples(st.sampled_from(["up", "down", "hung", "mute"]), st.integers(min_value=0, max_value=2)),
    ),
    min_size=5,
    max_size=60,
)


@settings(max_examples=80)
@given(steps=STEPS)
async def test_never_two_leaders(steps: list[tuple[str, float]]) -> None:
    server = FakeApiServer()
    links = [Link(server) for _ in range(3)]
    clock = FakeClock()  # of all: machines' clocks differ in what they show, not in how fast they go
    candidates = [Candidate(link, f"c{index}", clock=clock) for index, link in enumerate(links)]
    tenures = 0
    try:
        for what, value in steps:
            if what == "pass":
                await clock.advance(value)
            else:
                links[int(value)].state = what
            leaders = [candidate for candidate in candidates if candidate.leading()]
            assert len(leaders) <= 1
            for candidate in candidates:
                if candidate.task.done():
                    assert isinstance(candidate.task.exception(), LeadershipLostError)
                    candidate.began.clear()
                    candidate.task = asyncio.create_task(candidate.elector.run(candidate._lead))
                    tenures += 1
    finally:
        event(f"tenures lost: {tenures}")
        for link in links:
            link.state = "down"  # a hung one would hold up the release, and no time passes any more
        for candidate in candidates:
            await candidate.stop()
