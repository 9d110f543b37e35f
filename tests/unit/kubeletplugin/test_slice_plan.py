import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.kube.objects import Metadata, OwnerReference
from tangram.kubeletplugin.slice_plan import NodeIdentity, Plan, StoredSlice, Write, plan_pool
from tangram.kubeletplugin.slices import Pool, Slice, slice_name

NODE = NodeIdentity(name="node", uid="node-uid")
TAINT = {"key": "k", "effect": "NoSchedule"}


def pool(*values: int, **fields: Any) -> Pool:
    """One slice per value, with one device that has it as an attribute."""
    return Pool(
        slices=tuple(
            Slice(devices=({"name": f"gpu-{index}", "attributes": {"value": {"int": value}}, **fields},))
            for index, value in enumerate(values)
        )
    )


def name(index: int) -> str:
    return slice_name(index=index, driver_name="d", node_name="node", pool_name="p")


class Server:
    """Slices by name; each write makes a new version. It does not keep the fields `drops` of devices."""

    def __init__(self, drops: Sequence[str] = ()) -> None:
        self.slices: dict[str, StoredSlice] = {}
        self.drops = drops
        self.version = 0
        self.writes = 0

    def put(self, slice_name: str, spec: dict[str, Any], *, owner: str = NODE.uid) -> StoredSlice:
        self.version += 1
        kept = copy.deepcopy(spec)
        for device in kept.get("devices", []):
            for field in self.drops:
                device.pop(field, None)
        self.slices[slice_name] = StoredSlice(
            metadata=Metadata(
                name=slice_name,
                uid=f"uid-{self.version}",
                resource_version=str(self.version),
                owner_references=[OwnerReference(kind="Node", uid=owner)],
            ),
            spec=kept,
        )
        return self.slices[slice_name]

    def plan(self, desired: Pool, **changes: Any) -> Plan:
        arguments: dict[str, Any] = {
            "driver_name": "d",
            "node": NODE,
            "pool_name": "p",
            "pool": desired,
            "stored": list(self.slices.values()),
        }
        return plan_pool(**(arguments | changes))

    def apply(self, plan: Plan, order: random.Random) -> Iterator[None]:
        """Phase by phase, in any order within one; a stop after each write."""
        for phase in (plan.creates, plan.updates):
            for write in order.sample(phase, len(phase)):
                assert isinstance(write, Write)
                assert (write.replaces is None) == (write.name not in self.slices)
                self.put(write.name, write.spec)
                self.writes += 1
                yield
        for obsolete in order.sample(plan.deletes, len(plan.deletes)):
            del self.slices[obsolete.name]
            self.writes += 1
            yield

    def settle(self, desired: Pool, **changes: Any) -> int:
        """Plans and applies until nothing is left to do; how many writes that took."""
        before = self.writes
        for _ in range(4):
            plan = self.plan(desired, **changes)
            if not (plan.creates or plan.updates or plan.deletes):
                return self.writes - before
            for _ in self.apply(plan, random.Random(0)):
                pass
        raise AssertionError("it never ends")

    @property
    def generation(self) -> int:
        return max((each.generation for each in self.slices.values()), default=0)

    def view(self) -> tuple[int, ...] | None:
        """What a consumer takes for the pool's content, or None when it sees that the pool is incomplete."""
        newest = [each for _, each in sorted(self.slices.items()) if each.generation == self.generation]
        # It looks at the count of one of them, we do not know of which.
        if all(each.spec["pool"]["resourceSliceCount"] != len(newest) for each in newest):
            return None
        return tuple(
            device["attributes"]["value"]["int"] for each in newest for device in each.spec.get("devices", [])
        )


def test_from_nothing() -> None:
    server = Server()
    plan = server.plan(pool(1, 2))
    assert [write.name for write in plan.creates] == [name(0), name(1)]
    assert plan.generation == 1
    assert plan.creates[1].spec == {
        "driver": "d",
        "nodeName": "node",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 2},
        "devices": [{"name": "gpu-1", "attributes": {"value": {"int": 2}}}],
    }
    assert server.settle(pool(1, 2)) == 2
    assert server.settle(pool(1, 2)) == 0


@pytest.mark.parametrize(
    ("after", "writes", "generation"),
    [
        (pool(1, 9, 3), 1, 1),
        (pool(1, 9, 9), 3, 2),
        (pool(1, 2), 3, 2),
        (pool(1, 2, 3, 4), 4, 2),
        (pool(), 3, 2),
        (pool(3, 2, 1), 3, 2),
    ],
)
def test_generations(after: Pool, writes: int, generation: int) -> None:
    server = Server()
    server.settle(pool(1, 2, 3))
    assert server.settle(after) == writes
    assert server.generation == generation


def test_creates_come_first_and_deletes_last() -> None:
    server = Server()
    server.settle(pool(1, 2, 3))
    server.put("foreign", {**server.slices[name(0)].spec})
    plan = server.plan(pool(1, 2, 3, 4))
    assert [write.name for write in plan.creates] == [name(3)]
    assert [write.name for write in plan.updates] == [name(0), name(1), name(2)]
    assert [each.name for each in plan.deletes] == ["foreign"]


def test_lost_slices_come_back_without_a_new_generation() -> None:
    server = Server()
    server.settle(pool(1, 2, 3))
    del server.slices[name(0)], server.slices[name(2)]
    assert server.settle(pool(1, 2, 3)) == 2
    assert server.generation == 1
    server.settle(pool(4, 5, 6))
    server.slices.clear()
    assert server.settle(pool(4, 5, 6), floor_generation=2) == 3
    assert server.generation == 2, "not 1 again"


def test_a_new_node_object_takes_the_slices_over() -> None:
    server = Server()
    server.settle(pool(1, 2))
    plan = server.plan(pool(1, 2), node=NodeIdentity(name="node", uid="another"))
    assert [write.name for write in plan.updates] == [name(0), name(1)]
    assert plan.generation == 1


def test_what_is_being_deleted_counts_as_gone() -> None:
    server = Server()
    server.settle(pool(1, 2))
    doomed = server.slices[name(0)]
    server.slices[name(0)] = StoredSlice(
        metadata=Metadata(name=doomed.name, uid="u", deletion_timestamp="2026-01-01T00:00:00Z"),
        spec=doomed.spec,
    )
    plan = server.plan(pool(1, 2))
    assert [write.name for write in plan.creates] == [name(0)]
    assert server.plan(pool(1)).deletes == (server.slices[name(1)],)


def test_taints_keep_their_time() -> None:
    server = Server()
    server.settle(pool(1, taints=[TAINT]))
    stored = server.slices[name(0)]
    stored.spec["devices"][0]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    assert server.settle(pool(1, taints=[TAINT])) == 0
    (update,) = server.plan(pool(2, taints=[TAINT, {**TAINT, "key": "new"}])).updates
    assert update.spec["devices"][0]["taints"] == [
        {**TAINT, "timeAdded": "2026-01-01T00:00:00Z"},
        {**TAINT, "key": "new"},
    ]
    (update,) = server.plan(pool(1, taints=[{**TAINT, "timeAdded": "2027-01-01T00:00:00Z"}])).updates
    assert update.spec["devices"][0]["taints"] == [{**TAINT, "timeAdded": "2027-01-01T00:00:00Z"}]


def test_fields_the_server_drops_are_probed_with_one_write() -> None:
    server = Server(drops=["taints"])
    desired = pool(1, 2, 3, taints=[TAINT])
    server.settle(desired, dropped_fields={"devices[].taints"})
    plan = server.plan(desired)
    assert [write.name for write in plan.updates] == [name(0)]
    assert plan.generation == 1
    assert server.settle(desired, dropped_fields={"devices[].taints"}) == 0
    # It keeps them after all (the gate was turned on, or they are new): now it is a change like any other.
    plan = server.plan(desired, known_fields={"devices[].taints"})
    assert len(plan.updates) == 3
    assert plan.generation == 2


values = st.lists(st.integers(0, 3), max_size=5)


@given(st.lists(st.tuples(values, st.integers(0, 8)), min_size=1, max_size=8), st.randoms())
def test_a_consumer_never_sees_a_mixture(steps: list[tuple[list[int], int]], order: random.Random) -> None:
    """Whenever the pool looks complete it is one of the states that were wanted, wherever writes stop."""
    server = Server()
    wanted: set[tuple[int, ...]] = {()}
    for wanted_values, stop_after in steps:
        wanted.add(tuple(wanted_values))
        desired = pool(*(wanted_values or [0]))
        wanted.add(tuple(wanted_values or [0]))
        before = server.generation
        for done, _ in enumerate(server.apply(server.plan(desired), order)):
            view = server.view()
            assert view is None or view in wanted
            if done == stop_after:
                break
        assert server.generation >= before


class Tampering:
    """What others may do to our slices."""

    def __init__(self, server: Server, order: random.Random) -> None:
        self.server = server
        self.order = order

    def act(self) -> None:
        action = self.order.choice(["delete", "edit", "count", "generation", "owner", "extra"])
        names = sorted(self.server.slices)
        if not names:
            return
        victim = self.server.slices[self.order.choice(names)]
        spec = copy.deepcopy(victim.spec)
        if action == "delete":
            del self.server.slices[victim.name]
            return
        if action == "edit":
            spec["devices"] = []
        elif action == "count":
            spec["pool"]["resourceSliceCount"] += self.order.choice([-1, 1])
        elif action == "generation":
            spec["pool"]["generation"] += self.order.choice([-1, 1, 5])
        if action == "extra":
            self.server.put("zz-foreign", spec)
        else:
            self.server.put(victim.name, spec, owner="stranger" if action == "owner" else NODE.uid)


@given(st.lists(st.tuples(values, st.integers(0, 6), st.integers(0, 4)), max_size=6), st.randoms())
def test_whatever_happened_it_converges(
    steps: list[tuple[list[int], int, int]], order: random.Random
) -> None:
    server = Server()
    tampering = Tampering(server, order)
    floor = 0
    desired = pool(0)
    for wanted_values, stop_after, tampers in steps:
        desired = pool(*(wanted_values or [0]))
        for done, _ in enumerate(server.apply(server.plan(desired, floor_generation=floor), order)):
            floor = max(floor, server.generation)
            if done == stop_after:
                break
        for _ in range(tampers):
            tampering.act()
    server.settle(desired, floor_generation=floor)
    assert server.generation >= floor
    assert server.view() == tuple(each.devices[0]["attributes"]["value"]["int"] for each in desired.slices)
    assert len(server.slices) == len(desired.slices)
    assert all(each.is_owned_by(NODE) for each in server.slices.values())
    assert server.settle(desired, floor_generation=floor) == 0
