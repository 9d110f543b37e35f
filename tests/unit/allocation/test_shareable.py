"""What a server without shares has dropped of slices and allocations is put back, and nothing else."""

import json
from typing import Any

import msgspec
import pytest
from tests import fleet

from tangram import DRIVER_NAME
from tangram.allocation.shareable import given_to, with_shares
from tangram.api.grants import with_grants
from tangram.model.kubernetes import ResourceClaim, ResourceSlice

Json = dict[str, Any]
SHARE = "5a1d76ea-0000-4000-8000-000000000000"


def published() -> Json:
    (item,) = fleet.slices("n", fleet.machine(count=1), kinds=("gpu", "mps", "timeslice"), replicas=4)
    return item


def dropped(item: Json) -> Json:
    """As servers before 1.36 keep it."""
    for device in item["spec"]["devices"]:
        device.pop("allowMultipleAllocations", None)
        for capacity in device["capacity"].values():
            capacity.pop("requestPolicy", None)
    return item


def decoded(item: Json) -> ResourceSlice:
    return msgspec.convert(item, ResourceSlice)


def test_shared_devices_are_as_they_were_published() -> None:
    made, different = with_shares(decoded(dropped(published())))
    assert different
    assert made == decoded(published())


def test_a_slice_that_is_whole_is_left_as_it_is() -> None:
    for item in (published(), fleet.slices("n", fleet.machine(count=1))[0]):
        whole = decoded(item)
        assert with_shares(whole) == (whole, False)
    empty = decoded(published() | {"spec": published()["spec"] | {"devices": None}})
    assert with_shares(empty) == (empty, False)


@pytest.mark.parametrize(
    "change",
    [
        {"attributes": {"type": {"string": "mps"}}},
        {"attributes": {"replicas": {"int": 4}}},
        {"attributes": {"type": {"string": "gpu"}, "replicas": {"int": 4}}},
        {"attributes": {"type": {"int": 1}, "replicas": {"int": 4}}},
        {"attributes": {"type": {"string": "mps"}, "replicas": {"int": 0}}},
        {"attributes": {"type": {"string": "mps"}, "replicas": {"string": "4"}}},
        {"attributes": None},
        {"capacity": {"memory": {"value": "lots"}}},
        {"allowMultipleAllocations": False},
    ],
    ids=repr,
)
def test_devices_of_which_too_little_is_known_are_left_for_one_claim(change: Json) -> None:
    item = dropped(published())
    mps = item["spec"]["devices"][1]
    item["spec"]["devices"] = [mps | change]
    whole = decoded(item)
    assert with_shares(whole) == (whole, False)


def test_a_shared_device_without_capacities_is_shared_all_the_same() -> None:
    item = dropped(published())
    item["spec"]["devices"] = [item["spec"]["devices"][1] | {"capacity": None}]
    made, different = with_shares(decoded(item))
    found = [(device.allow_multiple_allocations, device.capacity) for device in made.spec.devices or ()]
    assert (different, found) == (True, [(True, {})])


# --- what claims were given ---


def result(**fields: Any) -> Json:
    return {"request": "r", "driver": DRIVER_NAME, "pool": "p", "device": "d", **fields}


def allocated(*results: Json, config: Any = None) -> ResourceClaim:
    devices = {"results": list(results), "config": config}
    made = fleet.claim("c") | {"status": {"allocation": {"devices": devices}}}
    return msgspec.json.decode(json.dumps(made), type=ResourceClaim)


def forgotten(*results: Json) -> ResourceClaim:
    """An allocation with what our controller writes beside, as a server without shares keeps it."""
    claim = allocated(*results)
    assert claim.allocation is not None
    kept = json.loads(msgspec.json.encode(with_grants(claim.allocation)))["devices"]
    for one in kept["results"]:
        one.pop("shareID", None)
        one.pop("consumedCapacity", None)
    return allocated(*kept["results"], config=kept["config"])


def shares(claim: ResourceClaim) -> list[tuple[str | None, dict[str, Any] | None]]:
    return [(one.share_id, one.consumed_capacity) for one in given_to(claim).results]


SIZED = result(shareID=SHARE, consumedCapacity={"memory": "20Gi"})


def test_a_share_that_the_server_forgot_is_read_from_what_stands_beside() -> None:
    claim = forgotten(SIZED, result(device="e"))
    assert shares(claim) == [(SHARE, {"memory": "20Gi"}), (None, None)]
    assert not given_to(claim).unread


def test_what_the_server_has_kept_counts() -> None:
    assert shares(allocated(SIZED)) == [(SHARE, {"memory": "20Gi"})]
    assert not given_to(allocated(SIZED)).unread
    assert given_to(msgspec.convert(fleet.claim("c"), ResourceClaim)).results == ()


def test_devices_of_other_drivers_are_none_of_ours() -> None:
    other = result(driver="gpu.example.com", shareID=SHARE, consumedCapacity={"memory": "lots"})
    assert shares(allocated(other)) == [(SHARE, {"memory": "lots"})]
    assert not given_to(allocated(other)).unread


@pytest.mark.parametrize("amount", ["lots", "-1", "-20Gi", ""])
def test_a_share_of_no_size_is_the_whole_device(amount: str) -> None:
    claim = allocated(result(shareID=SHARE, consumedCapacity={"cores": "1", "memory": amount}), SIZED)
    assert shares(claim) == [(None, None), (SHARE, {"memory": "20Gi"})]
    assert given_to(claim).unread


def test_nothing_is_a_size() -> None:
    claim = allocated(result(shareID=SHARE, consumedCapacity={"multiprocessors": "0"}))
    assert shares(claim) == [(SHARE, {"multiprocessors": "0"})]
    assert not given_to(claim).unread


def test_what_stands_beside_and_cannot_be_read_is_said() -> None:
    parameters = {"apiVersion": f"{DRIVER_NAME}/v1alpha1", "kind": "GPUShares", "results": 7}
    entry = {"source": "FromClass", "opaque": {"driver": DRIVER_NAME, "parameters": parameters}}
    claim = allocated(result(), config=[entry])
    assert shares(claim) == [(None, None)]
    assert given_to(claim).unread
