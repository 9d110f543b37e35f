"""A device that a claim holds and that is published no more still keeps others off its GPU."""

from typing import Any

import msgspec
import pytest
from tests.fleet import claim, kind_class, slices
from tests.unit.controller.kinds import KINDS, Node
from tests.unit.controller.world import World

from tangram import DRIVER_NAME
from tangram.controller.decide import Allocate
from tangram.controller.unused import UnusedClaims
from tangram.hardware.machines import load_machine
from tangram.hardware.simulated import SimulatedBackend
from tangram.model.devices import Kind, short_id_of
from tangram.model.kubernetes import Device
from tangram.model.offers import Offer, offers
from tangram.model.publishing import published
from tangram.node.pools import wire_device

RESET: dict[bool, tuple[Kind, ...]] = {False: ("gpu", "mps", "timeslice"), True: ("mig",)}
"""What an A100 offers with MIG mode off and on."""


def publish(node: Node, devices: list[dict[str, Any]], *, generation: int = 2) -> None:
    """The node's GPU, with these devices alone."""
    (item,) = slices("n1", node.machine, generation=generation, kinds=KINDS, dynamic=True)
    item["spec"]["devices"] = devices
    node.world.put(item)


def wire(node: Node, found: tuple[Offer, ...]) -> list[dict[str, Any]]:
    devices = published(found, node.machine, allocator="controller", replicas=4)
    return [wire_device(device) for device in devices]


@pytest.mark.parametrize("first", KINDS)
def test_in_another_mig_mode_the_gpu_is_still_held(first: Kind) -> None:
    mig = first != "mig"
    node = Node("a100", mig=not mig, dynamic=False)
    taken = node.take(first)
    after = Node("a100", mig=mig, dynamic=False)
    publish(node, wire(after, tuple(after.offers.values())))
    for kind in RESET[mig]:
        assert "in use by other claims" in node.why(kind)
    node.free(taken)
    for kind in RESET[mig]:
        assert isinstance(node.ask(kind), Allocate)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_instance_keeps_its_whole_gpu(kind: Kind) -> None:
    node = Node()
    taken = node.take("mig", migProfile="3g.40gb")
    left = tuple(offer for name, offer in node.offers.items() if name != taken["device"])
    publish(node, wire(node, left))
    assert "in use by other claims" in node.why(kind)
    publish(node, wire(node, tuple(node.offers.values())), generation=3)
    assert isinstance(node.ask(kind), Allocate) == (kind == "mig")


def test_other_gpus_are_free() -> None:
    node = Node(count=2)
    lost = node.offers[node.take("mig")["device"]].gpu.uuid
    for item in slices("n1", node.machine, generation=2):
        node.world.put(item)
    taken = node.offers[node.take("gpu")["device"]]
    assert taken.gpu.uuid != lost
    assert "2 in use by other claims" in node.why("gpu")


def test_instances_that_others_made_lie_beside_a_lost_one() -> None:
    node = Node("h100", mig=True)
    (gpu,) = node.machine.gpus
    node.take("mig", migProfile="3g.40gb")
    profile = next(each for each in gpu.mig_profiles if each.name == "1g.10gb")
    placement = max(profile.placements, key=lambda each: each.start)
    instance = node.backend.create_gpu_instance(gpu.uuid, profile_id=profile.profile_id, placement=placement)
    node.backend.create_compute_instance(gpu.uuid, gpu_instance_id=instance)
    foreign = {gpu.uuid: node.backend.gpu_instances(gpu.uuid)}
    publish(node, wire(node, offers(node.machine, kinds=KINDS, foreign=foreign)))
    assert isinstance(node.ask("mig"), Allocate)


def test_a_whole_gpu_that_was_lost_keeps_off_instances_that_others_made() -> None:
    node = Node("h100", mig=True)
    node.take("gpu")
    device = wire(node, tuple(o for o in node.offers.values() if o.kind == "mig"))[0]
    device["attributes"]["uuid"] = {"string": "MIG-1"}
    publish(node, [device])
    assert "in use by other claims" in node.why("mig")


def test_an_old_slice_that_lingers_publishes_nothing() -> None:
    node = Node()
    taken = node.take("mig")
    (item,) = slices("n1", node.machine, kinds=("gpu", "mps"), generation=2)
    item["metadata"]["name"] = "new"  # beside the old one
    node.world.put(item)
    assert taken["device"] not in {device["name"] for device in item["spec"]["devices"]}
    assert "in use by other claims" in node.why("gpu")


def test_names_that_are_not_of_ours_hold_nothing() -> None:
    node = Node()
    for number, name in enumerate(["", "gpu-", "gpu", "gpu-xyz", "gpu-0", "GPU-190703ba4ecd", "x" * 300]):
        result = {"request": "gpu", "driver": DRIVER_NAME, "pool": f"{DRIVER_NAME}/n1", "device": name}
        item = claim(f"odd-{number}")
        node.world.put({**item, "status": {"allocation": {"devices": {"results": [result]}}}})
    assert isinstance(node.ask("gpu"), Allocate)


def test_a_lost_device_is_given_back_when_nobody_uses_its_claim() -> None:
    node = Node("a100", dynamic=False)
    node.take("gpu")
    node.world.delete({"kind": "Pod", "metadata": {"name": "p1", "namespace": "default"}})
    after = Node("a100", mig=True, dynamic=False)
    publish(node, wire(after, tuple(after.offers.values())))
    unused = UnusedClaims(idle_ttl_s=60, unbound_timeout_s=60)
    assert unused.due(node.world.state, now_s=0) == ()
    (found,) = unused.due(node.world.state, now_s=10_000)
    assert found.claim.metadata.name == "c1"


def test_devices_of_kube_scheduler_are_not_given_back() -> None:
    """Neither while a node changes hands."""
    world = World()
    world.put(kind_class("gpu"))
    machine = SimulatedBackend(load_machine("a100-sxm4-80gb-x8"), node_name="n1").discover()
    ours, theirs = (slices("n1", machine, allocator=who) for who in ("controller", "scheduler"))
    for item in (*ours[:4], *theirs[4:]):
        world.put(item)
    for number, device in enumerate(["gpu-00000000dead", theirs[4]["spec"]["devices"][0]["name"]]):
        result = {"request": "gpu", "driver": DRIVER_NAME, "pool": f"{DRIVER_NAME}/n1", "device": device}
        item = claim(f"c{number}")
        world.put({**item, "status": {"allocation": {"devices": {"results": [result]}}}})
    unused = UnusedClaims(idle_ttl_s=60, unbound_timeout_s=60)
    unused.due(world.state, now_s=0)
    assert unused.due(world.state, now_s=10_000) == ()


@pytest.mark.parametrize("board", ["a100", "h100"])
def test_every_name_tells_its_gpu(board: str) -> None:
    node = Node(board, mig=True)
    ids = {short_id_of(name) for name in node.offers}
    assert ids == {node.machine.gpus[0].uuid.removeprefix("GPU-").replace("-", "")[:12]}
    assert short_id_of("gpu-" + "0" * 32 + "-mig-1g10gb-0") == "0" * 32
    assert short_id_of("gpu-" + "0" * 13) == ""
    assert msgspec.convert(wire(node, tuple(node.offers.values()))[0], Device).name in node.offers
