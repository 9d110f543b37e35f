"""The rules of ResourceClaims that the fake API server enforces, as a real one does."""

import contextlib
import copy
from typing import Any

import pytest

from tangram.base.errors import ConflictError, InvalidError
from tangram.kube.resources import RESOURCE_CLAIMS
from tangram.testing.apiserver import RESOURCE_CLAIM_TEMPLATES, FakeApiServer

SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "c"}}]}}
RESULT = {"request": "gpu", "driver": "gpu.resource.admin", "pool": "gpu.resource.admin/n", "device": "gpu-1"}
SELECTOR = {
    "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]
}
ALLOCATION = {
    "devices": {"results": [RESULT]},
    "nodeSelector": SELECTOR,
    "allocationTimestamp": "2026-01-01T00:00:00Z",
}
CONSUMER = {"resource": "pods", "name": "p", "uid": "u1"}


def claim(spec: Any = SPEC, **status: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"metadata": {"name": "c", "namespace": "default"}, "spec": copy.deepcopy(spec)}
    return body | ({"status": status} if status else {})


def write(server: FakeApiServer, status: dict[str, Any], **options: Any) -> dict[str, Any]:
    patch = {"status": status, **options}
    return server.patch(RESOURCE_CLAIMS, patch, name="c", namespace="default", subresource="status")


def allocated(**options: Any) -> FakeApiServer:
    server = FakeApiServer(**options)
    server.create(RESOURCE_CLAIMS, claim(allocation=ALLOCATION))
    return server


def test_defaults_of_requests() -> None:
    server = FakeApiServer()
    spec = {
        "devices": {
            "requests": [
                {"name": "a", "exactly": {"deviceClassName": "c", "tolerations": [{"key": "k"}]}},
                {"name": "b", "exactly": {"deviceClassName": "c", "allocationMode": "All"}},
                {"name": "d", "firstAvailable": [{"name": "x", "deviceClassName": "c"}]},
            ]
        }
    }
    made = server.create(RESOURCE_CLAIMS, claim(spec))
    first, second, third = made["spec"]["devices"]["requests"]
    assert (first["exactly"]["allocationMode"], first["exactly"]["count"]) == ("ExactCount", 1)
    assert first["exactly"]["tolerations"] == [{"key": "k", "operator": "Equal"}]
    assert "count" not in second["exactly"]
    assert third["firstAvailable"][0]["count"] == 1
    template = {"metadata": {"name": "t"}, "spec": {"spec": copy.deepcopy(SPEC)}}
    made = server.create(RESOURCE_CLAIM_TEMPLATES, template)
    assert made["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1


def request(**fields: Any) -> dict[str, Any]:
    return {"devices": {"requests": [{"name": "gpu", **fields}]}}


def test_spec_is_immutable_and_metadata_is_not() -> None:
    server = allocated()
    server.patch(
        RESOURCE_CLAIMS, {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}},
        name="c", namespace="default",
    )  # fmt: skip
    with pytest.raises(InvalidError, match=r"spec: Invalid value: .*: field is immutable"):
        server.patch(RESOURCE_CLAIMS, {"spec": {"devices": {"requests": []}}}, name="c", namespace="default")


def test_allocation_is_immutable_until_it_is_cleared() -> None:
    server = allocated()
    other = {**ALLOCATION, "devices": {"results": [{**RESULT, "device": "gpu-2"}]}}
    with pytest.raises(InvalidError, match=r"status\.allocation: Invalid value: .*: field is immutable"):
        write(server, {"allocation": other})
    # Neither can the time stamp be added or changed later.
    with pytest.raises(InvalidError, match="field is immutable"):
        write(server, {"allocation": {"allocationTimestamp": "2027-01-01T00:00:00Z"}})
    write(server, {"allocation": None})
    write(server, {"allocation": other})


def test_reservations_need_an_allocation() -> None:
    server = FakeApiServer()
    server.create(RESOURCE_CLAIMS, claim())
    with pytest.raises(InvalidError, match=r"reservedFor: Forbidden: may not be specified when `allocated`"):
        write(server, {"reservedFor": [CONSUMER]})
    write(server, {"allocation": ALLOCATION, "reservedFor": [CONSUMER]})
    with pytest.raises(InvalidError, match="reservedFor: Forbidden"):
        write(server, {"allocation": None})
    assert write(server, {"allocation": None, "reservedFor": None})["status"] == {}


def test_claim_that_is_being_deleted_takes_no_new_reservation() -> None:
    server = FakeApiServer()
    body = claim(allocation=ALLOCATION, reservedFor=[CONSUMER])
    body["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
    server.create(RESOURCE_CLAIMS, body)
    server.delete(RESOURCE_CLAIMS, name="c", namespace="default")
    with pytest.raises(InvalidError, match="new entries may not be added"):
        write(server, {"reservedFor": [CONSUMER, {**CONSUMER, "uid": "u2"}]})
    write(server, {"reservedFor": []})


def test_scheduler_reserves_with_a_strategic_patch() -> None:
    server = allocated()
    for patch in ([CONSUMER], [{**CONSUMER, "uid": "u2"}], [{"$patch": "delete", "uid": "u1"}]):
        server.patch(
            RESOURCE_CLAIMS, {"status": {"reservedFor": patch}}, name="c", namespace="default",
            subresource="status", kind="strategic",
        )  # fmt: skip
    found = server.get(RESOURCE_CLAIMS, name="c", namespace="default")
    assert [entry["uid"] for entry in found["status"]["reservedFor"]] == ["u2"]


def test_stale_version_in_a_status_patch_is_a_conflict() -> None:
    server = FakeApiServer()
    version = server.create(RESOURCE_CLAIMS, claim())["metadata"]["resourceVersion"]
    write(server, {"allocation": ALLOCATION}, metadata={"resourceVersion": version})
    with pytest.raises(ConflictError):
        write(server, {"allocation": None}, metadata={"resourceVersion": version})


def result(**fields: Any) -> dict[str, Any]:
    return {"devices": {"results": [{**RESULT, **fields}]}}


def test_result_names_the_chosen_alternative() -> None:
    spec = request(firstAvailable=[{"name": "big", "deviceClassName": "c"}])
    for name, accepted in (("gpu/big", True), ("gpu", True), ("gpu/small", False), ("big", False)):
        server = FakeApiServer()
        server.create(RESOURCE_CLAIMS, claim(spec))
        with contextlib.nullcontext() if accepted else pytest.raises(InvalidError):
            write(server, {"allocation": result(request=name)})


def test_opaque_parameters_are_kept_as_they_are() -> None:
    parameters: dict[str, Any] = {"a": None, "b": [], "c": {}}
    spec = {"devices": {"config": [{"opaque": {"driver": "d", "parameters": parameters}}], "requests": []}}
    made = FakeApiServer().create(RESOURCE_CLAIMS, claim(spec))
    assert made["spec"]["devices"]["config"][0]["opaque"]["parameters"] == parameters
    assert made["spec"]["devices"]["requests"] is None


DEVICE = {"driver": RESULT["driver"], "pool": RESULT["pool"], "device": RESULT["device"]}
CONDITION = {
    "type": "Ready",
    "status": "True",
    "reason": "Prepared",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def test_device_status_and_its_end_with_the_allocation() -> None:
    server = allocated()
    written = write(server, {"devices": [{**DEVICE, "conditions": [CONDITION], "data": {"uuid": "x"}}]})
    assert written["status"]["devices"][0]["data"] == {"uuid": "x"}
    assert write(server, {"allocation": None})["status"] == {}


def test_what_older_servers_drop() -> None:
    share = "11111111-1111-1111-1111-111111111111"
    spec = request(
        exactly={
            "deviceClassName": "c",
            "capacity": {"requests": {"m": "1"}},
            "tolerations": [{"operator": "Exists"}],
        }
    )
    extended = {
        **ALLOCATION,
        "devices": {"results": [{**RESULT, "shareID": share, "consumedCapacity": {"m": "1"}}]},
    }
    found = {}
    for version in ("1.34", "1.35", "1.36"):
        server = FakeApiServer(version=version)
        found[version] = server.create(RESOURCE_CLAIMS, claim(spec, allocation=extended))
    allocations = [each["status"]["allocation"] for each in found.values()]
    plain = {"devices": {"results": [RESULT]}, "nodeSelector": SELECTOR}
    moment = {"allocationTimestamp": ALLOCATION["allocationTimestamp"]}
    assert allocations == [plain, plain | moment, extended]
    asked = [each["spec"]["devices"]["requests"][0]["exactly"].keys() for each in found.values()]
    always = {"deviceClassName", "allocationMode", "count"}
    assert asked == [always | {"tolerations"}, always, always | {"tolerations", "capacity"}]


def test_device_status_needs_its_gate() -> None:
    server = allocated(features=())
    assert "devices" not in write(server, {"devices": [DEVICE]})["status"]
