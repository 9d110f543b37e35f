"""From API objects to requests of the engine, and from its answer to `status.allocation`."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fleet import claim as claim_object
from tests.fleet import device_class, parameters

from tangram import DRIVER_NAME
from tangram.allocation import ClaimAllocation, ClaimKey, ClaimRequest, DeviceId, DeviceResult
from tangram.controller.claims import ClassRecord, Refused, allocation_body, decode_class, lower_claim
from tangram.kube.client import decode
from tangram.kube.objects import ResourceClaim

OTHER = device_class("nic.example.com", 'device.driver == "nic.example.com"')


def classes(*objects: dict[str, Any]) -> dict[str, ClassRecord]:
    found = (decode_class(json.dumps(item).encode()) for item in objects)
    return {record.name: record for record in found}


CLASSES = classes(device_class(), OTHER)


def claim(item: dict[str, Any]) -> ResourceClaim:
    return decode(json.dumps(item).encode(), ResourceClaim)


def lower(item: dict[str, Any], known: dict[str, ClassRecord] = CLASSES) -> ClaimRequest | Refused | None:
    return lower_claim(claim(item), known)


def refused(item: dict[str, Any], known: dict[str, ClassRecord] = CLASSES) -> str:
    lowered = lower(item, known)
    assert isinstance(lowered, Refused), lowered
    return lowered.cause


def one(exactly: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    request: dict[str, Any] = {"name": "gpu", **more}
    if exactly is not None:
        request["exactly"] = {"deviceClassName": DRIVER_NAME, **exactly}
    return claim_object("c", request)


class TestWhose:
    def test_a_guarded_class_makes_a_claim_ours(self) -> None:
        lowered = lower(claim_object("c", count=2))
        assert isinstance(lowered, ClaimRequest)
        assert lowered.requests[0].count == 2

    def test_other_drivers_claims_are_not_ours(self) -> None:
        assert lower(claim_object("c", class_name="nic.example.com")) is None
        assert lower(claim_object("c", class_name="unknown")) is None

    def test_a_class_without_guard_is_kube_schedulers(self) -> None:
        open_class = device_class("open", f'device.driver == "{DRIVER_NAME}"')
        assert lower(claim_object("c", class_name="open"), classes(open_class)) is None

    def test_a_claim_without_requests_is_not_ours(self) -> None:
        item = claim_object("c")
        item["spec"]["devices"] = {"requests": None}
        assert lower(item) is None

    def test_a_mixture_of_drivers_is_refused(self) -> None:
        item = one({})
        item["spec"]["devices"]["requests"].append(
            {"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}}
        )
        assert "request nic: device class nic.example.com belongs to another driver" in refused(item)
        item["spec"]["devices"]["requests"][1]["exactly"]["deviceClassName"] = "gone"
        assert "device class gone does not exist" in refused(item)

    def test_a_guarded_class_that_does_not_compile_gives_a_reason(self) -> None:
        broken = device_class(DRIVER_NAME, f'device.attributes["{DRIVER_NAME}"].allocator == == "scheduler"')
        assert "DeviceClass gpu.resource.admin" in refused(claim_object("c"), classes(broken))


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (one({"adminAccess": True}), ["adminAccess", "not supported yet"]),
        (one({"allocationMode": "All"}), ["allocationMode All", "not supported yet"]),
        (one({"allocationMode": "Some"}), ["'Some' is unknown"]),
        (one({"capacity": {"requests": {"memory": "1Gi"}}}), ["capacity", "not supported yet"]),
        (one({"count": -1}), ["count", "negative"]),
        (one({"count": 33}), ["more than 32 devices"]),
        (one(firstAvailable=[{"name": "a", "deviceClassName": DRIVER_NAME}]), ["firstAvailable"]),
        (one({"selectors": [{}]}), ["selectors[0]", "unknown kind"]),
        (one({"selectors": [{"cel": {"expression": "device.driver =="}}]}), ["selectors[0].cel.expression"]),
    ],
)
def test_what_cannot_be_allocated_is_refused_by_field(item: dict[str, Any], words: list[str]) -> None:
    text = refused(item)
    assert all(word in text for word in words), text


def test_very_long_selectors_are_not_compiled() -> None:
    """A megabyte of selectors would hold up all other pods for ten seconds."""
    selectors = [{"cel": {"expression": f"{i} == {i} || " + "true || " * 1200 + "true"}} for i in range(32)]
    item = claim_object(
        "c",
        *(
            {"name": f"r{i}", "exactly": {"deviceClassName": DRIVER_NAME, "selectors": selectors}}
            for i in range(4)
        ),
    )
    assert "characters together, where 65536 are allowed" in refused(item)


def test_constraints() -> None:
    item = claim_object("c", count=2, match="gpu.resource.admin/nvlinkDomain")
    lowered = lower(item)
    assert isinstance(lowered, ClaimRequest)
    assert lowered.constraints[0].covers("anything")
    item["spec"]["devices"]["constraints"] = [{"distinctAttribute": "a/b"}]
    assert "distinctAttribute: is not supported yet" in refused(item)
    item["spec"]["devices"]["constraints"] = [{"matchAttribute": "a/b", "requests": ["nobody"]}]
    assert "names 'nobody'" in refused(item)
    item["spec"]["devices"]["constraints"] = [{}]
    assert "unknown kind" in refused(item)


class TestParameters:
    def test_linked_peers_raise_the_count(self) -> None:
        lowered = lower(claim_object("c", config=[parameters(memoryGB=80, nvLinkPeers=8)]))
        assert isinstance(lowered, ClaimRequest)
        assert (lowered.requests[0].count, lowered.requests[0].linked_set_size) == (8, 8)
        assert lowered.requests[0].demand is not None

    def test_a_count_that_sets_do_not_add_up_to(self) -> None:
        text = refused(claim_object("c", count=6, config=[parameters(nvLinkPeers=4)]))
        assert "count" in text
        assert "multiple of 4" in text

    def test_claim_overrides_class(self) -> None:
        known = classes(device_class(config=[parameters(gpuType="A100", memoryGB=40)]))
        lowered = lower(claim_object("c", config=[parameters(gpuType="H100")]), known)
        only_class = lower(claim_object("c"), known)
        assert isinstance(lowered, ClaimRequest)
        assert isinstance(only_class, ClaimRequest)
        assert lowered.requests[0].demand != only_class.requests[0].demand

    def test_config_of_other_drivers_or_requests_is_left_alone(self) -> None:
        other = {"opaque": {"driver": "nic.example.com", "parameters": {"x": 1}}}
        elsewhere = {"requests": ["other"], **parameters(memoryGB=999)}
        lowered = lower(claim_object("c", config=[other, elsewhere]))
        assert isinstance(lowered, ClaimRequest)
        assert lowered.requests[0].demand is None

    def test_errors_name_claim_and_field(self) -> None:
        text = refused(claim_object("c", config=[parameters(memoryGB="80")]))
        assert "ResourceClaim default/c" in text
        assert "spec.devices.config[0].opaque.parameters" in text
        assert "memoryGB" in text


def test_allocation_body() -> None:
    class_config = parameters(gpuType="A100")
    known = classes(device_class(config=[class_config]))
    item = one({"count": 2, "tolerations": [{"key": "k", "operator": "Exists"}]})
    item["spec"]["devices"]["config"] = [{"requests": ["gpu"], **parameters(memoryGB=40)}]
    allocation = ClaimAllocation(
        claim=ClaimKey("default", "c", "u"),
        results=tuple(DeviceResult("gpu", DeviceId(f"{DRIVER_NAME}/n1", f"gpu-{i}")) for i in range(2)),
    )
    body = allocation_body(claim(item), allocation, known, node="n1", timestamp="2026-01-01T00:00:00Z")
    assert body["nodeSelector"] == {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    }
    assert body["allocationTimestamp"] == "2026-01-01T00:00:00Z"
    first = body["devices"]["results"][0]
    assert first == {
        "request": "gpu",
        "driver": DRIVER_NAME,
        "pool": f"{DRIVER_NAME}/n1",
        "device": "gpu-0",
        "tolerations": [{"key": "k", "operator": "Exists"}],
    }
    assert body["devices"]["config"] == [
        {"source": "FromClass", **class_config},
        {"source": "FromClaim", "requests": ["gpu"], **parameters(memoryGB=40)},
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3)
    ),
    max_leaves=8,
)


@given(data=st.data())
def test_no_mutated_claim_raises_anything_but_a_usage_error(data: st.DataObject) -> None:
    """One field of a rich claim replaced by anything: decoded and lowered, or refused with a cause."""
    from tangram.base.errors import UsageError  # noqa: PLC0415

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
        lowered = lower(item)
    except UsageError:
        return
    assert lowered is None or isinstance(lowered, ClaimRequest | Refused)
