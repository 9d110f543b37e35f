"""What to do about a pod, for each situation of the allocation protocol."""

from typing import Any

import pytest
from tests.fleet import claim, device_class, kube_node, machine, pod, slices
from tests.unit.controller.world import World

from tangram import DRIVER_NAME
from tangram.allocation import claim_key
from tangram.controller.decide import Action, Allocate, Free, Nothing, Placed, Wait
from tangram.controller.ledger import Assumption
from tangram.kube.decoding import ObjectKey
from tangram.model.devices import gpu_devices

A100 = machine(switch_links=12)
NAMES = [device.name for device in gpu_devices(A100, allocator="controller")]


def allocated(item: dict[str, Any], node: str, *devices: str, **status: Any) -> dict[str, Any]:
    results = [
        {"request": "gpu", "driver": DRIVER_NAME, "pool": f"{DRIVER_NAME}/{node}", "device": name}
        for name in devices
    ]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    return {**item, "status": {"allocation": allocation, **status}}


def fill(world: World, node: str, count: int) -> None:
    """Takes GPUs of a node for somebody else."""
    world.put(allocated(claim(f"filler-{node}"), node, *NAMES[:count]))


def node_of(action: Action) -> str:
    assert isinstance(action, Allocate), action
    return action.placement.node


class TestNothing:
    def test_a_pod_without_claims_or_with_none_of_ours(self) -> None:
        world = World(n1=A100)
        world.put(pod("plain"))
        assert world.decide("plain") == Nothing()
        world.put(device_class("nic", 'device.driver == "nic.example.com"'))
        world.put(claim("nic", class_name="nic"))
        world.put(pod("nic", "nic"))
        assert world.decide("nic") == Nothing()
        assert world.decide("unknown") == Nothing()

    def test_a_pod_whose_claims_are_not_all_there(self) -> None:
        world = World(n1=A100)
        world.put(claim("a"))
        world.put(pod("p", "a", "b"))
        assert world.decide("p") == Nothing()
        world.put(claim("b"))
        assert isinstance(world.decide("p"), Allocate)

    def test_a_template_claim_not_generated_yet(self) -> None:
        world = World(n1=A100)
        item = pod("p")
        item["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
        world.put(item)
        assert world.decide("p") == Nothing()
        generated = claim("p-gpu-x7", owner=item)
        world.put(generated)
        statuses = [{"name": "gpu", "resourceClaimName": "p-gpu-x7"}]
        world.put({**item, "status": {"phase": "Pending", "resourceClaimStatuses": statuses}})
        assert isinstance(world.decide("p"), Allocate)

    def test_a_generated_claim_of_an_earlier_pod_of_that_name(self) -> None:
        world = World(n1=A100)
        item = pod("p")
        item["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
        item["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": "p-gpu-x7"}]
        world.put(claim("p-gpu-x7", owner={"metadata": {"name": "p", "uid": "earlier"}}))
        world.put(item)
        assert world.decide("p") == Nothing()

    @pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed"])
    def test_a_pod_that_has_started_or_ended(self, phase: str) -> None:
        world = World(n1=A100)
        world.put(claim("a"))
        world.put({**pod("p", "a"), "status": {"phase": phase}})
        assert world.decide("p") == Nothing()

    def test_a_pod_or_claim_that_is_being_deleted(self) -> None:
        world = World(n1=A100)
        going = claim("a")
        going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        world.put(going)
        world.put(pod("p", "a"))
        assert world.decide("p") == Nothing()

    def test_a_gated_pod_holds_no_devices(self) -> None:
        world = World(n1=A100)
        world.put(claim("a"))
        world.put(pod("p", "a", schedulingGates=[{"name": "queue"}]))
        assert world.decide("p") == Nothing()


class TestAllocate:
    def test_all_claims_of_the_pod_on_one_node(self) -> None:
        world = World(n1=A100, n2=A100)
        fill(world, "n1", 6)
        world.put(claim("a", count=2))
        world.put(claim("b", count=2))
        world.put(pod("p", "a", "b"))
        action = world.decide("p")
        assert node_of(action) == "n2"
        assert isinstance(action, Allocate)
        assert [c.metadata.name for c in action.claims] == ["a", "b"]

    def test_taints_cpu_and_cordons_are_respected(self) -> None:
        world = World(n1=A100, n2=A100, n3=A100)
        fill(world, "n1", 4)
        fill(world, "n2", 2)
        world.put(kube_node("n1", taints=[{"key": "x", "effect": "NoSchedule"}]))
        world.put(kube_node("n2", cpu="1"))
        world.put(claim("a"))
        container = {"name": "c", "resources": {"requests": {"cpu": "2"}}}
        world.put(pod("p", "a", containers=[container]))
        assert node_of(world.decide("p")) == "n3"
        world.put(kube_node("n3", unschedulable=True))
        action = world.decide("p")
        assert isinstance(action, Wait)
        assert "8 on cordoned nodes" in action.why
        assert "8 on nodes with too little cpu left" in action.why
        assert "8 on nodes with the untolerated taint x:NoSchedule" in action.why

    def test_pods_of_the_node_and_placed_ones_count(self) -> None:
        world = World(n1=A100)
        container = {"name": "c", "resources": {"requests": {"cpu": "5"}}}
        world.put(pod("other", nodeName="n1", containers=[container]))
        world.put(claim("a"))
        world.put(pod("p", "a", containers=[container]))
        assert isinstance(world.decide("p"), Wait)
        world.put({**pod("other", nodeName="n1", containers=[container]), "status": {"phase": "Succeeded"}})
        assert node_of(world.decide("p")) == "n1"
        world.put(pod("q", containers=[container]))
        world.state.place(ObjectKey("default", "q"), "n1")
        assert isinstance(world.decide("p"), Wait)
        world.state.unplace(ObjectKey("default", "q"))
        assert node_of(world.decide("p")) == "n1"

    def test_a_pod_that_names_its_node_has_no_other(self) -> None:
        world = World(n1=A100, n2=A100)
        fill(world, "n1", 1)
        world.put(claim("a"))
        world.put(pod("p", "a", nodeName="n2"))
        assert node_of(world.decide("p")) == "n2"
        fill(world, "n2", 8)
        action = world.decide("p")
        assert isinstance(action, Wait)
        assert "8 on other nodes than n2, which the pod names" in action.why

    def test_a_claim_of_another_driver_pins_the_node(self) -> None:
        world = World(n1=A100, n2=A100)
        fill(world, "n1", 1)
        world.put(device_class("nic", 'device.driver == "nic.example.com"'))
        world.put(allocated(claim("nic", class_name="nic"), "n2"))
        world.put(claim("a"))
        world.put(pod("p", "a", "nic"))
        assert node_of(world.decide("p")) == "n2"

    def test_an_incomplete_pool_is_not_allocated_from(self) -> None:
        world = World(n1=A100)
        world.put(claim("a"))
        world.put(pod("p", "a"))
        last = slices("n1", A100)[-1]
        world.delete(last)
        action = world.decide("p")
        assert isinstance(action, Wait)
        assert "whose slices cannot be used (7 of its 8 slices are there)" in action.why
        world.put(last)
        assert node_of(world.decide("p")) == "n1"

    def test_devices_of_scheduler_nodes_are_not_ours(self) -> None:
        world = World()
        world.put(kube_node("n1"))
        for item in slices("n1", A100, allocator="scheduler"):
            world.put(item)
        world.put(claim("a"))
        world.put(pod("p", "a"))
        action = world.decide("p")
        assert isinstance(action, Wait)
        left_out = "8 GPUs on 1 node that kube-scheduler allocates not counted"
        assert action.why == f"no node offers a GPU that this driver allocates; {left_out}"
        for item in slices("n2", A100):
            world.put(item)
        world.put(kube_node("n2"))
        fill(world, "n2", 8)
        action = world.decide("p")
        assert isinstance(action, Wait)
        assert action.why == f"8 GPUs on 1 node: 8 in use by other claims; {left_out}"
        for item in slices("n1", A100, allocator="scheduler"):
            world.delete(item)
        action = world.decide("p")
        assert isinstance(action, Wait)
        assert action.why == "8 GPUs on 1 node: 8 in use by other claims"

    def test_an_assumed_allocation_counts_before_it_is_seen(self) -> None:
        world = World(n1=A100)
        world.put(claim("a"))
        world.put(pod("p", "a"))
        first = world.decide("p")
        assert isinstance(first, Allocate)
        devices = first.placement.claims[0].results
        world.state.ledger.assume(claim_key(first.claims[0]), Assumption(node="n1", devices=devices))
        assert world.decide("p") == Placed("n1")
        world.put(claim("b"))
        world.put(pod("q", "b"))
        second = world.decide("q")
        assert isinstance(second, Allocate)
        given = {r.device for r in second.placement.claims[0].results}
        assert not given & {r.device for r in devices}


class TestSiblings:
    def test_an_allocated_sibling_pins_the_node(self) -> None:
        world = World(n1=A100, n2=A100)
        fill(world, "n1", 1)
        world.put(allocated(claim("a"), "n2", NAMES[0]))
        world.put(claim("b"))
        world.put(pod("p", "a", "b"))
        assert node_of(world.decide("p")) == "n2"

    def test_a_sibling_in_the_wrong_place_is_freed(self) -> None:
        world = World(n1=A100, n2=A100)
        fill(world, "n1", 6)
        world.put(allocated(claim("a"), "n1", NAMES[7]))
        world.put(claim("b", count=2))
        item = world.put(pod("p", "a", "b"))
        action = world.decide("p")
        assert isinstance(action, Free)
        assert [c.metadata.name for c in action.claims] == ["a"]
        # Reserved for this pod alone it may still be taken back; for another pod it may not.
        mine = {"resource": "pods", "name": "p", "uid": item["metadata"]["uid"]}
        world.put(allocated(claim("a"), "n1", NAMES[7], reservedFor=[mine]))
        assert isinstance(world.decide("p"), Free)
        world.put(allocated(claim("a"), "n1", NAMES[7], reservedFor=[{**mine, "uid": "other"}]))
        action = world.decide("p")
        assert isinstance(action, Wait)
        assert "where claim a is allocated" in action.why

    def test_freeing_a_sibling_that_would_not_help_is_not_done(self) -> None:
        world = World(n1=A100)
        fill(world, "n1", 6)
        world.put(allocated(claim("a"), "n1", NAMES[7]))
        world.put(claim("b", count=2))
        world.put(pod("p", "a", "b"))
        assert isinstance(world.decide("p"), Wait)

    def shared(self, *, others_claims: tuple[str, ...] = ("a",), **spec: Any) -> World:
        """Claim a on n1 keeps pod p from n2, where its claim b would fit; pod q uses a as well."""
        world = World(n1=A100, n2=A100)
        fill(world, "n1", 6)
        world.put(allocated(claim("a"), "n1", NAMES[7]))
        world.put(claim("b", count=2))
        world.put(claim("c", count=8))
        world.put(pod("p", "a", "b"))
        world.put(pod("q", *others_claims, **spec))
        return world

    def test_a_sibling_that_another_pod_may_be_bound_with_stays(self) -> None:
        """`bindClaim` does not look at the node again: q would run on n1 with a claim for n2."""
        assert isinstance(self.shared().decide("p"), Wait)
        assert isinstance(self.shared(nodeName="n1").decide("p"), Wait)

    def test_a_sibling_of_pods_that_cannot_be_bound_yet_may_go(self) -> None:
        assert isinstance(self.shared(others_claims=("a", "c")).decide("p"), Free)
        assert isinstance(self.shared(schedulingGates=[{"name": "queue"}]).decide("p"), Free)
        world = self.shared()
        world.put({**pod("q", "a"), "status": {"phase": "Succeeded"}})
        assert isinstance(world.decide("p"), Free)

    def test_a_pod_waits_until_what_it_freed_is_seen_to_be_free(self) -> None:
        world = World(n1=A100, n2=A100)
        fill(world, "n1", 6)
        world.put(allocated(claim("a"), "n1", NAMES[7]))
        world.put(claim("b", count=2))
        world.put(pod("p", "a", "b"))
        assert isinstance(world.decide("p"), Free)
        current = world.state.claims[ObjectKey("default", "a")]
        world.state.freeing[claim_key(current)] = current.metadata.resource_version
        assert world.decide("p") == Nothing()
        world.put(claim("a"))
        assert not world.state.freeing
        assert node_of(world.decide("p")) == "n2"

    def test_an_allocation_for_no_single_node_does_not_pin(self) -> None:
        world = World(n1=A100)
        foreign = allocated(claim("a"), "n1", NAMES[7])
        foreign["status"]["allocation"] = {"devices": {"results": []}}
        world.put(foreign)
        world.put(claim("b"))
        world.put(pod("p", "a", "b"))
        assert node_of(world.decide("p")) == "n1"

    def test_a_pod_bound_away_from_its_claim_is_told(self) -> None:
        world = World(n1=A100, n2=A100)
        world.put(allocated(claim("a"), "n1", NAMES[0]))
        world.put(pod("p", "a", nodeName="n2"))
        action = world.decide("p")
        assert isinstance(action, Wait)
        assert "allocated on node n1, but the pod is bound to n2" in action.why


class TestWaking:
    def test_freed_devices_wake_waiting_pods(self) -> None:
        world = World(n1=A100)
        filler = allocated(claim("filler"), "n1", *NAMES)
        world.put(filler)
        world.put(claim("a"))
        world.put(pod("p", "a"))
        assert isinstance(world.decide("p"), Wait)
        world.state.waiting.add(ObjectKey("default", "p"))
        world.queued.clear()
        world.put(claim("filler"))
        assert ObjectKey("default", "p") in world.queued

    def test_a_claim_appearing_wakes_its_pod(self) -> None:
        world = World(n1=A100)
        world.put(pod("p", "a"))
        world.queued.clear()
        world.put(claim("a"))
        assert world.queued == [ObjectKey("default", "p")]


class TestOrder:
    def test_higher_priority_first_then_the_older_pod(self) -> None:
        world = World(n1=A100)
        for name, created, priority in (("a", "3", 0), ("b", "2", None), ("c", "4", 100), ("d", "1", 0)):
            item = pod(name, "x", priority=priority)
            item["metadata"]["creationTimestamp"] = f"2026-01-0{created}T00:00:00Z"
            world.put(item)
        keys = [ObjectKey("default", name) for name in "abcd"]
        assert [key.name for key in sorted(keys, key=world.state.order)] == ["c", "d", "b", "a"]


class TestKinds:
    """A thousand pods of one kind that wait are one decision, not a thousand."""

    def full(self) -> World:
        world = World(n1=A100)
        fill(world, "n1", 8)
        for name in ("p", "q"):
            world.put(claim(name))
            world.put(pod(name, name))
        return world

    def refuse(self, world: World, name: str) -> Wait:
        action = world.decide(name)
        assert isinstance(action, Wait)
        if action.kind is not None:
            world.state.refused[action.kind] = action.why
        return action

    def test_pods_of_one_kind_have_one_reason(self) -> None:
        world = self.full()
        first, second = self.refuse(world, "p"), self.refuse(world, "q")
        assert first.kind == second.kind
        assert first.why == second.why
        assert len(world.state.refused) == 1

    @pytest.mark.parametrize(
        "spec",
        [
            {"nodeSelector": {"a": "b"}},
            {"tolerations": [{"operator": "Exists"}]},
            {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
            {"nodeName": "n1"},
        ],
    )
    def test_what_makes_another_kind(self, spec: dict[str, Any]) -> None:
        world = self.full()
        world.put(claim("r"))
        world.put(pod("r", "r", **spec))
        world.put(claim("s", count=2))
        world.put(pod("s", "s"))
        assert len({self.refuse(world, name).kind for name in "prs"}) == 3

    def test_whatever_becomes_free_ends_it(self) -> None:
        for event in ("claim", "slice", "node", "pod"):
            world = self.full()
            other = world.put(pod("other", nodeName="n1"))
            self.refuse(world, "p")
            match event:
                case "claim":
                    world.put(claim("filler-n1"))
                case "slice":
                    world.put(slices("n1", A100)[0])
                case "node":
                    world.put(kube_node("n1", cpu="16"))
                case "pod":
                    world.delete(other)
            assert not world.state.refused, event

    def test_a_pod_with_an_allocated_claim_is_of_no_kind(self) -> None:
        world = self.full()
        world.put(allocated(claim("r"), "n1", NAMES[0]))
        world.put(pod("r", "r", "p"))
        assert self.refuse(world, "r").kind is None


class TestDoubleUse:
    def test_both_hold_and_the_second_is_told_once(self) -> None:
        world = World(n1=A100)
        world.put(allocated(claim("a"), "n1", NAMES[0]))
        assert world.reports == []
        foreign = world.put(allocated(claim("b"), "n1", NAMES[0]))
        user = {"resource": "pods", "name": "q", "uid": "uid-of-q"}
        world.put(allocated(claim("b"), "n1", NAMES[0], reservedFor=[user]))
        ((name, note),) = world.reports
        assert name == "b"
        assert f"device {NAMES[0]} of {DRIVER_NAME}/n1 is allocated to default/a as well" in note
        world.delete(foreign)
        world.put(claim("c", count=8))
        world.put(pod("p", "c"))
        assert isinstance(world.decide("p"), Wait)
