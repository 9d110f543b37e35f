"""What expectations find in a state."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from tangram import DRIVER_NAME
from tangram.playground.scenarios.checks import remembered, unmet, wanted_logs
from tangram.playground.scenarios.schema import EXPECTATIONS, Expectation
from tangram.playground.scenarios.world import Event, State


def expectation(**fields: Any) -> Expectation:
    kind = next(kind for key, kind in EXPECTATIONS.items() if key in fields)
    return msgspec.convert(fields, kind)


def pod(name: str, *, claims: Mapping[str, str] | None = None, phase: str = "Running", **spec: Any) -> Any:
    claims = claims or {}
    container = {"name": "main", "resources": {"claims": [{"name": entry} for entry in claims]}}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {"app": name[0]}},
        "spec": {
            "nodeName": "n",
            "containers": [container],
            "resourceClaims": [{"name": k, "resourceClaimName": v} for k, v in claims.items()],
            **spec,
        },
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": "main", "containerID": f"id-{name}", "restartCount": 0}],
        },
    }


def claim(name: str, *devices: str, users: tuple[str, ...] = (), ready: str = "True") -> Any:
    results = [{"driver": DRIVER_NAME, "pool": "p", "device": device} for device in devices]
    conditions = [{"type": "Ready", "status": ready, "message": "fine"}]
    return {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "status": {
            "allocation": {"devices": {"results": results}} if devices else None,
            "reservedFor": [{"name": user} for user in users],
            "devices": [{"device": device, "conditions": conditions} for device in devices],
        },
    }


def device(name: str, ordinal: int, links: str, **attributes: Any) -> Any:
    values = {
        "uuid": {"string": f"GPU-{name}"},
        "ordinal": {"int": ordinal},
        "nvlinkLinks": {"string": links},
        "healthy": {"bool": True},
        **attributes,
    }
    return {"name": name, "attributes": values}


# a and b are linked; c is alone.
DEVICES = [
    device("a", 0, "1:2", group={"string": "x"}),
    device("b", 1, "0:2", group={"string": "x"}),
    device("c", 2, "none", healthy={"bool": False}),
]
SLICE = {"spec": {"driver": DRIVER_NAME, "nodeName": "n", "pool": {"name": "p"}, "devices": DEVICES}}


def state(pods: list[Any], claims: list[Any], **more: Any) -> State:
    objects = {"Pod": pods, "ResourceClaim": claims, "ResourceSlice": [SLICE], "Job": [], "Deployment": []}
    return State(objects=objects, events=more.pop("events", ()), **more)


PAIR = state([pod("p1", claims={"g": "c1"})], [claim("c1", "a", "b", users=("p1",))])
APART = state(
    [pod("p1", claims={"g": "c1"}), pod("p2", claims={"g": "c2"})],
    [claim("c1", "a", users=("p1",)), claim("c2", "c", users=("p2",), ready="False")],
)


@pytest.mark.parametrize(
    ("fields", "seen", "message"),
    [
        (
            {"pods": ["p1"], "phase": "Running", "node": "n", "gpus": 2, "linked": True, "same": ["group"]},
            PAIR,
            "",
        ),
        ({"pods": ["p9"]}, PAIR, "there is no pod p9"),
        ({"pods": ["p1"], "phase": "Failed"}, PAIR, "pod p1 is Running, not Failed"),
        ({"pods": ["p1"], "node": "m"}, PAIR, "pod p1 is on n, not m"),
        ({"pods": ["p1"], "gpus": 1}, PAIR, "pod p1 has 2 GPUs, not 1"),
        ({"pods": ["p2"], "same": ["group"]}, APART, "differ in group: None"),
        ({"pods": ["p2"], "attributes": {"healthy": True}}, APART, "whose healthy is False, not True"),
        ({"pods": {"app": "p"}, "count": 2, "between": "apart"}, APART, ""),
        ({"pods": {"app": "p"}, "count": 3}, APART, "2 pods have app=p, not 3"),
        ({"pods": ["p1", "p2"], "between": "shared"}, APART, "do not have the same devices"),
        ({"pods": ["p1"], "unchanged": True}, PAIR, "pod p1 was not remembered"),
        ({"claim": "c1", "allocated": True, "reservedFor": ["p1"], "ready": True}, PAIR, ""),
        ({"claim": "c1", "allocated": False}, PAIR, "claim c1 is allocated"),
        ({"claim": "c9"}, PAIR, "there is no claim c9"),
        ({"claimsOf": "p2", "ready": False, "message": "fine"}, APART, ""),
        ({"claimsOf": "p2", "ready": True}, APART, "conditions Ready are False (fine)"),
        ({"claimsOf": "p2", "message": "lost"}, APART, "no condition that says 'lost'"),
        ({"object": {"kind": "Pod", "name": "p1"}, "has": {"status": {"phase": "Running"}}}, PAIR, ""),
        (
            {"object": {"kind": "Pod", "name": "p1"}, "has": {"spec": {"nodeName": "m"}}},
            PAIR,
            "is 'n', not 'm'",
        ),
        ({"object": {"kind": "Job", "name": "j"}, "gone": True}, PAIR, ""),
        ({"object": {"kind": "Job", "name": "j"}, "has": {"a": 1}}, PAIR, "there is no Job j"),
        ({"held": 1}, PAIR, "no node holds the state of claim c1"),
        ({"published": {"n": 3}, "healthy": 2}, PAIR, ""),
        ({"published": {"n": 2}}, PAIR, "n publishes 3 GPUs, not 2"),
        ({"published": {"n": 3}, "healthy": 3}, PAIR, "2 of these are healthy, not 3"),
    ],
)
def test_expectations(fields: dict[str, Any], seen: State, message: str) -> None:
    problems = unmet(expectation(**fields), seen, {})
    assert message in "; ".join(problems)
    assert bool(problems) == bool(message)


def test_links_are_between_all_or_it_is_not_linked() -> None:
    three = state([pod("p1", claims={"g": "c1"})], [claim("c1", "a", "b", "c")])
    assert unmet(expectation(pods=["p1"], linked=True), three, {})
    assert not unmet(expectation(pods=["p1"], linked=True), PAIR, {})


def test_held_state_is_that_of_live_claims_exactly() -> None:
    uids = frozenset({"uid-c1"})
    pods, claims = PAIR.objects["Pod"], PAIR.objects["ResourceClaim"]
    good = state(list(pods), list(claims), held=uids, cdi=uids)
    assert not unmet(expectation(held=1), good, {})
    more = state(list(pods), list(claims), held=uids | {"uid-x"}, cdi=frozenset())
    assert unmet(expectation(held=1), more, {}) == [
        "a node holds the state of uid-x",
        "no node holds a CDI file of claim c1",
    ]


def test_events_are_those_of_this_very_object() -> None:
    events = [
        Event(kind="Pod", name="p1", uid="uid-p1", reason="Told", text="16 GPUs"),
        Event(kind="Pod", name="p1", uid="uid-earlier", reason="Other", text="of a pod of the same name"),
        Event(kind="ResourceClaim", name="c1", uid="uid-c1", reason="Allocated", text="on n"),
    ]
    seen = state([pod("p1", claims={"g": "c1"})], [claim("c1", "a")], events=events)
    assert not unmet(expectation(event="Told", pod="p1", text=["16"]), seen, {})
    assert not unmet(expectation(event="Allocated", claimsOf="p1"), seen, {})
    assert not unmet(expectation(event="Other", pod="p1", absent=True), seen, {})
    assert "only: 16 GPUs" in unmet(expectation(event="Told", pod="p1", text=["17"]), seen, {})[0]
    assert unmet(expectation(event="Told", pod="p1", absent=True), seen, {})
    assert unmet(expectation(event="Told", pod="p9", absent=True), seen, {}) == ["there is no pod p9"]


LOG = "TANGRAM_CLAIM_UID=uid-c1\nTANGRAM_GPU_UUIDS=GPU-a,GPU-b\n/dev/nvidia0\n/dev/nvidia1\n/dev/nvidiactl\n"


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (LOG, ""),
        (LOG.replace(",GPU-b", ""), "reads the UUIDs ['GPU-a']"),
        (LOG.replace("/dev/nvidia1\n", ""), "sees ['/dev/nvidia0'] for 2 GPUs"),
        (LOG.replace("uid-c1", "uid-c2"), "reads TANGRAM_CLAIM_UID=uid-c2"),
        ("", "reads the UUIDs []"),
    ],
)
def test_a_container_sees_exactly_its_devices(log: str, message: str) -> None:
    sees = expectation(pods=["p1"], sees=True)
    assert wanted_logs(sees, PAIR) == [("p1", "main")]
    seen = with_logs(PAIR, {("p1", "main"): log})
    problems = unmet(sees, seen, {})
    assert message in "; ".join(problems)
    assert bool(problems) == bool(message)


def with_logs(seen: State, logs: dict[tuple[str, str], str]) -> State:
    return State(objects=seen.objects, events=seen.events, logs=logs)


def test_a_container_without_a_claim_sees_none() -> None:
    seen = state([pod("p1")], [], logs={("p1", "main"): LOG})
    assert "has no claim, but reads" in "; ".join(unmet(expectation(pods=["p1"], sees=True), seen, {}))


def test_a_log_that_does_not_say_it_is_shown() -> None:
    seen = state([pod("p1")], [], logs={("p1", "main"): "hello"})
    assert not unmet(expectation(log="p1", text=["hell"]), seen, {})
    assert "ends with: hello" in unmet(expectation(log="p1", text=["heaven"]), seen, {})[0]


def test_unchanged_compares_containers_and_devices() -> None:
    (item,) = PAIR.objects["Pod"]
    memory = {"p1": remembered(item, PAIR)}
    unchanged = expectation(pods=["p1"], unchanged=True)
    assert not unmet(unchanged, PAIR, memory)
    moved = state([item], [claim("c1", "a", "c")])
    assert "pod p1 has changed" in unmet(unchanged, moved, memory)[0]
