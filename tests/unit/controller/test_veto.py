"""What the scheduler taking an allocation back means for a pod: a veto, or none."""

from typing import Any

import pytest
from tests.fleet import claim, kube_node, pod
from tests.unit.controller.test_decide import A100, NAMES, allocated, fill, node_of
from tests.unit.controller.world import World

from tangram.allocation import claim_key
from tangram.controller.decide import Placed, Wait
from tangram.kube.decoding import ObjectKey


class TestVeto:
    def vetoed(self, **more: Any) -> World:
        world = World(n1=A100, n2=A100)
        fill(world, "n1", 1)
        world.put({**pod("p", "a"), "status": {"phase": "Pending", **more}})
        world.put(claim("a"))
        assert node_of(world.decide("p")) == "n1"
        world.put(allocated(claim("a"), "n1", NAMES[1]))
        assert world.decide("p") == Placed("n1")
        world.put(claim("a"))
        return world

    async def test_the_node_is_excluded_for_a_while(self) -> None:
        world = self.vetoed()
        assert node_of(world.decide("p")) == "n2"
        world.put(kube_node("n2", unschedulable=True))
        action = world.decide("p")
        assert isinstance(action, Wait)
        assert "8 on nodes that kube-scheduler refused for this pod lately" in action.why
        assert action.retry_s == pytest.approx(30)
        await world.clock.advance(30)
        assert node_of(world.decide("p")) == "n1"

    def test_a_change_of_the_node_ends_the_exclusion(self) -> None:
        world = self.vetoed()
        world.put(kube_node("n1", cpu="16"))
        assert node_of(world.decide("p")) == "n1"

    def test_a_heartbeat_does_not(self) -> None:
        world = self.vetoed()
        world.put(kube_node("n1"))
        assert node_of(world.decide("p")) == "n2"

    def test_a_nomination_is_no_veto(self) -> None:
        world = self.vetoed(nominatedNodeName="n1")
        assert node_of(world.decide("p")) == "n1"

    def test_a_nomination_elsewhere_is_a_veto(self) -> None:
        """The scheduler makes room on n2: offering n1 again and again would never end."""
        world = World(n1=A100, n2=A100)
        fill(world, "n2", 8)
        world.put({**pod("p", "a"), "status": {"phase": "Pending", "nominatedNodeName": "n2"}})
        world.put(claim("a"))
        assert node_of(world.decide("p")) == "n1"
        world.put(allocated(claim("a"), "n1", NAMES[1]))
        world.put(claim("a"))
        assert isinstance(world.decide("p"), Wait)

    def test_the_nominated_node_has_room_for_what_the_pod_itself_was_counted_for(self) -> None:
        world = World(n1=A100, n2=A100)
        container = {"name": "c", "resources": {"requests": {"cpu": "5"}}}
        item = {**pod("p", "a", containers=[container]), "status": {"phase": "Pending"}}
        world.put(item)
        world.put(allocated(claim("a"), "n1", NAMES[1]))
        world.state.place(ObjectKey("default", "p"), "n1")
        world.put({**item, "status": {"phase": "Pending", "nominatedNodeName": "n1"}})
        world.put(claim("a"))
        assert node_of(world.decide("p")) == "n1"

    def test_the_end_of_another_pod_of_the_claim_is_no_veto(self) -> None:
        """The resource-claim controller frees a claim when its last user is gone."""
        world = World(n1=A100, n2=A100)
        fill(world, "n1", 1)
        world.put(pod("p", "a"))
        user = {"resource": "pods", "name": "q", "uid": "uid-of-q"}
        world.put(allocated(claim("a"), "n1", NAMES[1], reservedFor=[user]))
        world.put(claim("a"))
        assert node_of(world.decide("p")) == "n1"

    def test_a_change_of_the_pod_ends_the_exclusion(self) -> None:
        world = self.vetoed()
        world.put(pod("p", "a", tolerations=[{"operator": "Exists"}]))
        assert node_of(world.decide("p")) == "n1"

    def test_a_change_of_its_conditions_does_not(self) -> None:
        world = self.vetoed()
        condition = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}
        world.queued.clear()
        world.put({**pod("p", "a"), "status": {"phase": "Pending", "conditions": [condition]}})
        assert node_of(world.decide("p")) == "n2"
        assert world.queued == []

    def test_exclusions_of_pods_that_are_gone_are_forgotten(self) -> None:
        world = self.vetoed()
        world.delete(pod("p", "a"))
        assert not world.state.exclusions._pairs

    def test_our_own_deallocation_is_no_veto(self) -> None:
        world = World(n1=A100)
        world.put(pod("p", "a"))
        held = world.put(allocated(claim("a"), "n1", NAMES[0]))
        current = world.state.claims[ObjectKey("default", "a")]
        world.state.freeing[claim_key(current)] = current.metadata.resource_version
        world.put({**held, "status": {}})
        assert node_of(world.decide("p")) == "n1"

    def test_other_pods_may_still_use_the_node(self) -> None:
        world = self.vetoed()
        world.put(claim("b"))
        world.put(pod("q", "b"))
        assert node_of(world.decide("q")) == "n1"
