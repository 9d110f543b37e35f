"""Devices of one GPU as counters: what each takes of it, and what there is."""

from typing import Any

import msgspec
import pytest
from tests.unit.allocation.structured.world import device, slice_

from tangram import DRIVER_NAME
from tangram.allocation.exclusion import prepare_excluding
from tangram.allocation.structured import Slice
from tangram.base.errors import InvalidObjectError
from tangram.model.kubernetes import ResourceSlice

Json = dict[str, Any]
GPU = "GPU-1"


def prepared(*devices: Json) -> Slice:
    return prepare_excluding(msgspec.convert(slice_(*devices, driver=DRIVER_NAME), ResourceSlice))


def whole(kind: str = "gpu", **attributes: Any) -> Json:
    return device(f"{kind}-1", attributes={"type": kind, "uuid": GPU} | attributes)


def mig(start: int, size: int, *, profile: str = "1g", most: int = 7, **more: Any) -> Json:
    attributes = {
        "type": "mig",
        "uuid": more.pop("uuid", ""),
        "parentUUID": GPU,
        "profile": profile,
        "placementStart": start,
        "placementSize": size,
        "computeSlices": more.pop("compute", 1),
        "maxInstances": most,
    }
    return device(f"mig-{profile}-{start}", attributes=attributes, capacity=more.pop("capacity", {}), **more)


def consumed(item: Slice) -> dict[str, dict[str, int]]:
    """By device, in whole units."""
    found = {}
    for one in item.devices:
        (consumption,) = one.consumes
        assert consumption.counter_set == GPU
        found[one.id.device] = {name: nano // 10**9 for name, nano in consumption.counters}
    return found


def there(item: Slice) -> dict[str, int]:
    ((name, counters),) = item.derived_sets
    assert name == GPU
    return {name: nano // 10**9 for name, nano in counters.items()}


def test_the_whole_gpu_and_shares_of_it_take_everything() -> None:
    found = prepared(whole(), whole("mps"), mig(0, 2, compute=1), mig(2, 2, compute=1))
    everything = there(found)
    assert everything == {
        "gpu": 1,
        **{f"memory-slice-{number}": 1 for number in range(4)},
        "compute-slices": 7,
        "profile-1g": 7,
    }
    assert consumed(found)["gpu-1"] == consumed(found)["mps-1"] == everything


def test_an_instance_takes_its_slices_one_of_its_profile_and_its_engines() -> None:
    capacity = {"memory": "10Gi", "multiprocessors": "14", "copy": "2", "jpeg": "0"}
    found = prepared(mig(0, 1, capacity=capacity), mig(4, 4, profile="4g", compute=4, most=1))
    assert consumed(found) == {
        "mig-1g-0": {"memory-slice-0": 1, "compute-slices": 1, "profile-1g": 1, "engine-copy": 2},
        "mig-4g-4": {**{f"memory-slice-{n}": 1 for n in range(4, 8)}, "compute-slices": 4, "profile-4g": 1},
    }
    # What instances of one profile take at most, of each counter the most.
    assert there(found) == {
        "gpu": 1,
        **{f"memory-slice-{n}": 1 for n in (0, 4, 5, 6, 7)},
        "compute-slices": 7,
        "profile-1g": 7,
        "profile-4g": 1,
        "engine-copy": 14,
    }


@pytest.mark.parametrize(("start", "size"), [(-1, 2), (0, 0), (0, -1), (63, 2), (0, 1_000_000_000)], ids=repr)
def test_a_placement_that_is_none_takes_the_whole_gpu(start: int, size: int) -> None:
    found = prepared(mig(start, size), mig(0, 1, profile="x"))
    assert consumed(found)[f"mig-1g-{start}"] == there(found)
    assert "memory-slice-0" in there(found)


def test_the_last_slice_there_can_be() -> None:
    found = prepared(mig(63, 1), whole())
    assert "memory-slice-63" in there(found)


@pytest.mark.parametrize(
    "devices",
    [
        (whole(),),
        (whole(), mig(0, 1, uuid="MIG-somebody-made-it")),
        (device("a", attributes={"type": "gpu"}), device("b", attributes={"type": "gpu"})),
        (device("a"), device("b", attributes={"uuid": 7})),
        (),
    ],
    ids=["alone", "instances of others", "of no GPU", "without attributes", "none"],
)
def test_what_is_left_as_it_is(devices: tuple[Json, ...]) -> None:
    found = prepared(*devices)
    assert found.derived_sets == ()
    assert all(not one.consumes for one in found.devices)


def test_gpus_of_one_slice_exclude_nothing_of_each_other() -> None:
    other = [device(f"{kind}-2", attributes={"type": kind, "uuid": "GPU-2"}) for kind in ("gpu", "mps")]
    found = prepared(whole(), whole("timeslice"), *other, device("alone", attributes={"uuid": "GPU-3"}))
    assert [name for name, _ in found.derived_sets] == [GPU, "GPU-2"]
    assert [[c.counter_set for c in one.consumes] for one in found.devices] == [
        [GPU],
        [GPU],
        ["GPU-2"],
        ["GPU-2"],
        [],
    ]


def test_an_engine_that_is_no_quantity_is_named() -> None:
    with pytest.raises(InvalidObjectError, match=r"spec.devices\[0\].capacity\[copy\]"):
        prepared(mig(0, 1, capacity={"copy": "lots"}), whole())
