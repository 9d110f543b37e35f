"""What overlaps a device that is held and published no more is held with it."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.unit.allocation.structured.world import device, slice_

from tangram import DRIVER_NAME
from tangram.allocation.structured import Allocated, Cluster, DeviceId, parse_features
from tangram.allocation.withdrawn import with_withdrawn
from tangram.model.kubernetes import DeviceAllocationResult, ResourceSlice

Json = dict[str, Any]
GPU, OTHER = "gpu-aaaaaaaaaaaa", "gpu-bbbbbbbbbbbb"
LONG = "gpu-aaaaaaaaaaaa" + "0" * 20
MADE = {"type": "mig", "uuid": "MIG-1"}


def held(
    *lost: str, published: Sequence[Json | str], driver: str = DRIVER_NAME, pool: str = "p", share: str = ""
) -> dict[str, str]:
    """Of each device that is held: by whom."""
    item = msgspec.convert(slice_(*published, driver=DRIVER_NAME), ResourceSlice)
    share_id = f"5a1d76ea-0000-4000-8000-00000000000{share}" if share else None
    results = [
        DeviceAllocationResult(request="r", driver=driver, pool=pool, device=name, share_id=share_id)
        for name in lost
    ]
    allocated = Allocated.of_results({"ns/c": results}, parse_features("latest"))
    found = with_withdrawn(Cluster(slices=[item], classes=[]), allocated).held
    return {id_.device: holder for id_, holder in found.items() if id_.pool == "p"}


def test_a_lost_instance_holds_its_gpu_and_all_that_is_cut_from_it() -> None:
    lost = f"{GPU}-mig-1g10gb-0"
    parts = [GPU, f"{GPU}-mps", f"{GPU}-mig-3g40gb-4", OTHER]
    assert held(lost, published=parts) == dict.fromkeys((lost, *parts[:3]), "ns/c")


def test_a_lost_share_holds_as_well() -> None:
    assert held(f"{GPU}-mps", published=[GPU, OTHER], share="1") == {GPU: "ns/c"}


def test_what_is_published_holds_itself_alone() -> None:
    assert held(GPU, published=[GPU, f"{GPU}-mps"]) == {GPU: "ns/c"}


def test_who_has_a_device_keeps_it() -> None:
    found = held(f"{GPU}-mig-1g10gb-0", f"{GPU}-mps", published=[f"{GPU}-mps"])
    assert found == {f"{GPU}-mig-1g10gb-0": "ns/c", f"{GPU}-mps": "ns/c"}


def test_an_instance_that_others_made_lies_beside_a_lost_one_but_not_in_a_whole_gpu() -> None:
    made = device(f"{GPU}-mig-2g20gb-2", attributes=MADE)
    lost = f"{GPU}-mig-1g10gb-0"
    assert held(lost, published=[made]) == {lost: "ns/c"}
    assert held(GPU, published=[made]) == {GPU: "ns/c", f"{GPU}-mig-2g20gb-2": "ns/c"}


def test_a_gpu_is_known_by_its_short_and_by_its_long_id() -> None:
    assert held(f"{GPU}-mps", published=[LONG]) == {f"{GPU}-mps": "ns/c", LONG: "ns/c"}
    assert held(f"{LONG}-mps", published=[GPU]) == {f"{LONG}-mps": "ns/c", GPU: "ns/c"}


@pytest.mark.parametrize("lost", ["", "gpu-", "gpu", "gpu-xyz", "GPU-aaaaaaaaaaaa", "x" * 300])
def test_names_that_are_not_of_ours_hold_themselves_alone(lost: str) -> None:
    assert held(lost, published=[GPU]) == {lost: "ns/c"}


def test_other_pools_and_drivers_are_left_alone() -> None:
    assert held(f"{GPU}-mps", published=[GPU], pool="q") == {}
    assert held(f"{GPU}-mps", published=[GPU], driver="gpu.example.com") == {f"{GPU}-mps": "ns/c"}


def test_only_the_newest_slices_publish() -> None:
    items = [
        slice_(f"{GPU}-mps", name="old", driver=DRIVER_NAME, generation=1),
        slice_(GPU, name="new", driver=DRIVER_NAME, generation=2),
        slice_("x", name="other", driver="gpu.example.com", pool="o"),
    ]
    cluster = Cluster(slices=[msgspec.convert(item, ResourceSlice) for item in items], classes=[])
    lost = DeviceAllocationResult(request="r", driver=DRIVER_NAME, pool="p", device=f"{GPU}-mps")
    allocated = Allocated.of_results({"ns/c": [lost]}, parse_features("latest"))
    assert DeviceId(DRIVER_NAME, "p", GPU) in with_withdrawn(cluster, allocated).held
