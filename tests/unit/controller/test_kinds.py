"""All kinds of devices on one GPU: whole, MIG instances, shares by MPS and by time-slicing."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fleet import KIND_CLASSES, claim, kube_node, pod, slices
from tests.unit.controller.kinds import BOARDS, KINDS, Node

from tangram import DRIVER_NAME
from tangram.base.errors import NoRoomError
from tangram.controller.decide import Allocate, Wait
from tangram.hardware.machines import load_machine
from tangram.hardware.simulated import SimulatedBackend
from tangram.model.devices import Kind
from tangram.model.gpu import Gpu


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_p21_kinds_of_one_gpu_exclude_each_other(first: Kind, second: Kind) -> None:
    node = Node()
    taken = node.take(first)
    action = node.ask(second)
    shares = first == second and first != "gpu"
    assert isinstance(action, Allocate) == shares
    if not shares:
        assert isinstance(action, Wait)
        assert "on hardware that other devices in use share" in action.why or "in use by other" in action.why
    node.free(taken)
    assert isinstance(node.ask(second), Allocate)


def test_a_second_gpu_is_opened_only_when_needed() -> None:
    node = Node(count=3)
    used: Counter[str] = Counter()
    for kind in ("mps", "mps", "timeslice", "timeslice", "mig", "mig"):
        used[node.offers[node.take(kind)["device"]].gpu.uuid] += 1
    assert list(used.values()) == [2, 2, 2]
    assert "3 on hardware that other devices in use share" in node.why("gpu")


@pytest.mark.parametrize("kind", ["mps", "timeslice", "mig"])
def test_a_share_opens_the_smaller_gpu(kind: Kind) -> None:
    node = Node("h100")
    big = SimulatedBackend(load_machine(BOARDS["b200"]), node_name="a1").discover()
    node.world.put(kube_node("a1", cpu="1000"))
    for item in slices("a1", replace(big, gpus=big.gpus[:1]), kinds=KINDS, dynamic=True):
        node.world.put(item)
    assert node.take(kind)["pool"] == f"{DRIVER_NAME}/n1"


@pytest.mark.parametrize("kind", ["mps", "timeslice"])
def test_a_share_for_administrators_opens_no_gpu_for_others(kind: Kind) -> None:
    node = Node()
    node.take("gpu")
    exactly = {"deviceClassName": KIND_CLASSES[kind]}
    admin = {"name": "a", "exactly": {**exactly, "adminAccess": True}}
    for name, requests in (("both", [admin, {"name": "b", "exactly": exactly}]), ("admin", [admin])):
        node.world.put(claim(name, *requests))
        node.world.put(pod(name, name))
        assert isinstance(node.world.decide(name), Allocate) == (name == "admin")


def test_shares_of_mps_by_capacity() -> None:
    node = Node()
    first = node.take("mps", capacity={"cores": "40", "memory": "30Gi"})
    assert first["consumedCapacity"]["cores"] == "40"
    assert first["shareID"]
    second = node.take("mps", capacity={"cores": "60", "memory": "20Gi"})
    assert second["device"] == first["device"]
    assert second["shareID"] != first["shareID"]
    assert node.why("mps", capacity={"cores": "1"}) == "1 MPS GPU on 1 node: 1 without enough capacity left"
    node.free(first)
    assert node.take("mps", capacity={"cores": "40", "memory": "30Gi"})
    assert "unfit" in node.why("mps", capacity={"cores": "101"})


def test_sharers_are_not_reported_as_two_claims_on_one_device() -> None:
    node = Node()
    first = node.take("timeslice")
    node.take("timeslice")
    assert not node.world.reports
    body = {key: value for key, value in first.items() if key not in ("shareID", "claim")}
    stolen = claim("stolen", class_name=KIND_CLASSES["timeslice"])
    node.world.put({**stolen, "status": {"allocation": {"devices": {"results": [body]}}}})
    ((name, note),) = node.world.reports
    assert name == "stolen"
    assert "is allocated to default/c1, default/c2 as well" in note


def test_shares_of_mps_by_parameters() -> None:
    node = Node()
    taken = node.take("mps", mps={"threadPercent": 40, "pinnedMemory": "30Gi"}, shPolicy="mps")
    assert taken["consumedCapacity"]["cores"] == "40"
    assert taken["consumedCapacity"]["memory"] == "30Gi"
    assert node.take("mps", memoryGB=20, mps={"threadPercent": 60})["consumedCapacity"]["cores"] == "60"
    assert "without enough capacity left" in node.why("mps", mps={"threadPercent": 1})


def test_what_the_claim_states_beats_the_parameters() -> None:
    taken = Node().take("mps", capacity={"cores": "50"}, mps={"threadPercent": 40, "pinnedMemory": "8Gi"})
    assert (taken["consumedCapacity"]["cores"], taken["consumedCapacity"]["memory"]) == ("50", "8Gi")


def test_four_claims_share_a_gpu_in_turns() -> None:
    node = Node()
    devices = {node.take("timeslice")["device"] for _ in range(4)}
    assert len(devices) == 1
    assert node.why("timeslice") == "1 time-sliced GPU on 1 node: 1 without enough capacity left"


def test_claims_that_want_few_sharers_take_more_replicas() -> None:
    node = Node()
    assert [node.take("timeslice", replicas=2)["consumedCapacity"]["replicas"] for _ in range(2)] == [
        "2",
        "2",
    ]
    assert "without enough capacity left" in node.why("timeslice")


def test_mig_by_profile_and_by_size() -> None:
    node = Node("a100", mig=True)
    assert profile_of(node, node.take("mig", migProfile="3g.40gb")) == "3g.40gb"
    own = f'device.attributes["{DRIVER_NAME}"]'
    size = f'device.capacity["{DRIVER_NAME}"].memory.compareTo(quantity("18Gi")) >= 0'
    size += f" && {own}.computeSlices >= 2"
    assert profile_of(node, node.take("mig", selector=size)) == "2g.20gb"
    text = node.why("mig", migProfile="7g.80gb")
    assert "not 7g.80gb" in text
    assert "1 on hardware that other devices in use share" in text


def test_a_gpu_in_mig_mode_is_not_given_whole() -> None:
    node = Node("a100", mig=True, dynamic=False)
    assert "no node has a device of the class" in node.why("gpu")
    assert "MIG device" in node.why("mig", gpuType="H100")


def test_without_mig_mode_there_are_no_instances() -> None:
    node = Node("a100", dynamic=False)
    assert "no node has a device of the class" in node.why("mig")
    assert node.take("gpu")


def profile_of(node: Node, result: dict[str, Any]) -> str:
    profile = node.offers[result["device"]].profile
    assert profile is not None
    return profile.name


def profiles(gpu: Gpu) -> list[str]:
    return [profile.name for profile in gpu.mig_profiles]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(BOARDS)), st.data())
def test_p25_what_fits_is_what_the_driver_creates(board: str, data: st.DataObject) -> None:
    """Any sequence of instances coming and going, on the controller's books and on a simulated GPU."""
    node = Node(board, mig=True)
    (gpu,) = node.machine.gpus
    made: list[tuple[dict[str, Any], int]] = []
    for _ in range(data.draw(st.integers(1, 10))):
        if made and data.draw(st.integers(0, 3)) == 0:
            taken, instance = made.pop(data.draw(st.integers(0, len(made) - 1)))
            node.free(taken)
            node.backend.destroy_gpu_instance(gpu.uuid, gpu_instance_id=instance)
            continue
        profile = data.draw(st.sampled_from(profiles(gpu)))
        action = node.ask("mig", selector=_is_profile(profile))
        if isinstance(action, Wait):
            assert not list(_creatable(node, gpu, profile)), action.why
            continue
        taken = node.take("mig", selector=_is_profile(profile))
        offer = node.offers[taken["device"]]
        assert offer.profile is not None
        assert offer.placement is not None
        instance = node.backend.create_gpu_instance(
            gpu.uuid, profile_id=offer.profile.profile_id, placement=offer.placement
        )
        made.append((taken, instance))


def _is_profile(name: str) -> str:
    return f'device.attributes["{DRIVER_NAME}"].profile == "{name}"'


def _creatable(node: Node, gpu: Gpu, name: str) -> Iterable[int]:
    """Placements at which the driver would make one more instance of the profile."""
    profile = next(each for each in gpu.mig_profiles if each.name == name)
    for placement in profile.placements:
        try:
            instance = node.backend.create_gpu_instance(
                gpu.uuid, profile_id=profile.profile_id, placement=placement
            )
        except NoRoomError:
            continue
        node.backend.destroy_gpu_instance(gpu.uuid, gpu_instance_id=instance)
        yield placement.start
