"""Whose a claim is, what is refused before anything is decided, and what is written."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.fleet import claim as claim_object
from tests.fleet import device_class, parameters

from tangram import DRIVER_NAME
from tangram.allocation import ClaimAllocation, ClaimKey
from tangram.base.errors import UsageError
from tangram.controller.claims import ClassRecord, Refused, allocation_body, decode_class, refused_or_ours
from tangram.kube.client import decode
from tangram.kube.objects import AllocationResult, ResourceClaim

OTHER = device_class("nic.example.com", 'device.driver == "nic.example.com"')


def classes(*objects: dict[str, Any]) -> dict[str, ClassRecord]:
    found = (decode_class(json.dumps(item).encode()) for item in objects)
    return {record.name: record for record in found}


CLASSES = classes(device_class(), OTHER)


def claim(item: dict[str, Any]) -> ResourceClaim:
    return decode(json.dumps(item).encode(), ResourceClaim)


def whose(item: dict[str, Any], known: dict[str, ClassRecord] = CLASSES) -> Refused | bool:
    return refused_or_ours(claim(item), known)


def refused(item: dict[str, Any], known: dict[str, ClassRecord] = CLASSES) -> str:
    found = whose(item, known)
    assert isinstance(found, Refused), found
    return found.cause


def one(**request: Any) -> dict[str, Any]:
    return claim_object("c", {"name": "gpu", **request})


class TestWhose:
    def test_a_guarded_class_makes_a_claim_ours(self) -> None:
        assert whose(claim_object("c", count=2)) is True
        assert whose(one(firstAvailable=[{"name": "a", "deviceClassName": DRIVER_NAME}])) is True

    def test_other_drivers_claims_are_not_ours(self) -> None:
        assert whose(claim_object("c", class_name="nic.example.com")) is False
        assert whose(claim_object("c", class_name="unknown")) is False

    def test_a_class_without_guard_is_kube_schedulers(self) -> None:
        open_class = device_class("open", f'device.driver == "{DRIVER_NAME}"')
        assert whose(claim_object("c", class_name="open"), classes(open_class)) is False

    def test_a_claim_without_requests_is_not_ours(self) -> None:
        item = claim_object("c")
        item["spec"]["devices"] = {"requests": None}
        assert whose(item) is False

    def test_a_mixture_of_drivers_is_refused(self) -> None:
        item = one(exactly={"deviceClassName": DRIVER_NAME})
        item["spec"]["devices"]["requests"].append(
            {"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}}
        )
        assert "request nic: device class nic.example.com belongs to another driver" in refused(item)
        item["spec"]["devices"]["requests"][1]["exactly"]["deviceClassName"] = "gone"
        assert "device class gone does not exist" in refused(item)

    def test_a_mixture_of_drivers_in_alternatives_is_refused(self) -> None:
        names = {"a": DRIVER_NAME, "b": "nic.example.com"}
        item = one(firstAvailable=[{"name": n, "deviceClassName": c} for n, c in names.items()])
        assert "device class nic.example.com belongs to another driver" in refused(item)

    def test_a_guarded_class_that_does_not_compile_is_ours(self) -> None:
        broken = device_class(DRIVER_NAME, f'device.attributes["{DRIVER_NAME}"].allocator == == "scheduler"')
        assert whose(claim_object("c"), classes(broken)) is True


def test_very_long_selectors_are_not_compiled() -> None:
    """A megabyte of selectors would hold up all other pods for ten seconds."""
    selectors = [{"cel": {"expression": f"{i} == {i} || " + "true || " * 1200 + "true"}} for i in range(32)]
    requests = [
        {"name": f"r{i}", "exactly": {"deviceClassName": DRIVER_NAME, "selectors": selectors}}
        for i in range(4)
    ]
    assert "characters together, where 65536 are allowed" in refused(claim_object("c", *requests))


def test_what_is_written_carries_opaque_parameters_and_the_time() -> None:
    item = {
        "devices": {
            "results": [{"request": "gpu", "driver": DRIVER_NAME, "pool": "p", "device": "d"}],
            "config": [{"source": "FromClaim", "requests": ["gpu"], **parameters(memoryGB=40)}],
        },
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "a", "operator": "Exists"}]}]},
    }
    allocation = decode(json.dumps(item).encode(), AllocationResult)
    given_ = ClaimAllocation(claim=ClaimKey("default", "c", "u"), allocation=allocation)
    stamp = {"allocationTimestamp": "2026-01-01T00:00:00Z"}
    assert allocation_body(given_, timestamp="2026-01-01T00:00:00Z") == item | stamp


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3)
    ),
    max_leaves=8,
)


@given(data=st.data())
def test_no_mutated_claim_raises_anything_but_a_usage_error(data: st.DataObject) -> None:
    """One field of a rich claim replaced by anything: decoded and judged, or refused with a cause."""
    item = claim_object("c", count=2, selectors=["true"], match="a/b", config=[parameters(memoryGB=40)])
    place: Any = item["spec"]
    while True:
        keys = list(range(len(place))) if isinstance(place, list) else sorted(place)
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(JSON)
        break
    try:
        found = whose(item)
    except UsageError:
        return
    assert isinstance(found, bool | Refused)
