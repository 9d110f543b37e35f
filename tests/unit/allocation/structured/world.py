"""Small clusters for tests of the structured engine: objects in few words, and one call that decides."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tangram.allocation.structured import (
    Allocated,
    Cluster,
    NodeFacts,
    Options,
    Outcome,
    Policy,
    decide,
    parse_features,
)
from tangram.model.kubernetes import DeviceClass, ResourceClaim, ResourceSlice

DRIVER = "gpu.example.com"
VERSIONS = ("k8s-1.34", "k8s-1.35", "k8s-1.36", "k8s-1.36.6", "k8s-1.37", "latest")
ALL = "AdminAccess,PrioritizedList,PartitionableDevices,DeviceTaints,DeviceBindingAndStatus"

Json = dict[str, Any]


def device(name: str, /, **fields: Any) -> Json:
    """Attributes may be given plainly: `device("a", attributes={"numa": 1})`."""
    attributes = {key: _attribute(value) for key, value in fields.pop("attributes", {}).items()}
    capacity = {
        key: value if isinstance(value, dict) else {"value": value}
        for key, value in fields.pop("capacity", {}).items()
    }
    counters = [
        {"counterSet": key, "counters": {name: {"value": str(v)} for name, v in amounts.items()}}
        for key, amounts in fields.pop("counters", {}).items()
    ]
    made: Json = {"name": name, **fields}
    if attributes:
        made["attributes"] = attributes
    if capacity:
        made["capacity"] = capacity
    if counters:
        made["consumesCounters"] = counters
    return made


def _attribute(value: Any) -> Json:
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        kind = "ints" if isinstance(value[0], int) else "strings"
        return {kind: value}
    return {"bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string": value}


def slice_(
    *devices: Json | str,
    name: str = "s1",
    pool: str = "p",
    driver: str = DRIVER,
    count: int = 1,
    generation: int = 1,
    sets: Mapping[str, Mapping[str, Any]] | None = None,
    **fields: Any,
) -> Json:
    """On node `n` unless fields say otherwise."""
    spec: Json = {
        "driver": driver,
        "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
        "devices": [device(item) if isinstance(item, str) else item for item in devices],
    }
    where = ("nodeName", "allNodes", "nodeSelector", "perDeviceNodeSelection")
    spec |= fields if any(key in fields for key in where) else {"nodeName": "n", **fields}
    if sets:
        spec["sharedCounters"] = [
            {"name": key, "counters": {name: {"value": str(v)} for name, v in amounts.items()}}
            for key, amounts in sets.items()
        ]
    return {"metadata": {"name": name}, "spec": spec}


def request(name: str = "r", /, **fields: Any) -> Json:
    """An exact request; `when` is one selector."""
    return {"name": name, "exactly": _body(fields)}


def either(name: str, /, *alternatives: Json) -> Json:
    """A prioritized list; alternatives as `sub` makes them."""
    return {"name": name, "firstAvailable": list(alternatives)}


def sub(name: str, /, **fields: Any) -> Json:
    return {"name": name, **_body(fields)}


def _body(fields: Json) -> Json:
    body: Json = {"deviceClassName": fields.pop("cls", "any")}
    if "when" in fields:
        body["selectors"] = [{"cel": {"expression": fields.pop("when")}}]
    if "capacity" in fields:
        body["capacity"] = {"requests": fields.pop("capacity")}
    return body | fields


def claim(*requests: Json, name: str = "c", constraints: Sequence[Json] = (), **fields: Any) -> Json:
    devices: Json = {"requests": list(requests), "constraints": list(constraints), **fields}
    return {"metadata": {"namespace": "ns", "name": name, "uid": f"uid-{name}"}, "spec": {"devices": devices}}


def held(*devices: str | Json, name: str = "old", pool: str = "p", driver: str = DRIVER) -> Json:
    """A claim that has these devices."""
    results = [
        {"request": "r", "driver": driver, "pool": pool}
        | ({"device": item} if isinstance(item, str) else item)
        for item in devices
    ]
    made = claim(request(), name=name)
    return made | {"status": {"allocation": {"devices": {"results": results}}}}


def match(attribute: str, *requests: str) -> Json:
    return {"matchAttribute": f"{DRIVER}/{attribute}", "requests": list(requests)}


def distinct(attribute: str, *requests: str) -> Json:
    return {"distinctAttribute": f"{DRIVER}/{attribute}", "requests": list(requests)}


ANY: Json = {"metadata": {"name": "any"}, "spec": {}}
NODE = NodeFacts(name="n", labels={"zone": "a"})


def solve(
    slices: Sequence[Json],
    claims: Sequence[Json],
    *,
    classes: Sequence[Json] = (ANY,),
    features: str = "latest",
    policy: Policy = Policy.FIRST_FIT,
    node: NodeFacts = NODE,
    **options: Any,
) -> Outcome:
    """Decides for the claims that are not allocated; the others hold what they have."""
    chosen = parse_features(features)
    cluster = Cluster(
        slices=[_convert(item, ResourceSlice) for item in slices],
        classes=[_convert(item, DeviceClass) for item in classes],
    )
    decoded = [_convert(item, ResourceClaim) for item in claims]
    return decide(
        cluster,
        node,
        [item for item in decoded if item.allocation is None],
        allocated=Allocated.of(decoded, chosen),
        options=Options(features=chosen, policy=policy, **options),
    )


def _convert(value: Json, kind: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value), type=kind)


def devices(outcome: Outcome) -> list[list[str]] | str:
    """The names of the devices of each claim; else `fatal`, `no`, or `node` (an invalid pool)."""
    if outcome.error:
        return "fatal"
    if outcome.allocations is None:
        return "node" if outcome.node_error else "no"
    return [[r.device for r in allocation.devices.results or ()] for allocation in outcome.allocations]


def full(version: str) -> str:
    """The version with all features that it may have on; 1.34 without shares, which do not work there."""
    if version == "k8s-1.34":
        return f"{version},{ALL}"
    lists = ",ListTypeAttributes" if version in ("k8s-1.36", "k8s-1.36.6", "k8s-1.37") else ""
    return version if version == "latest" else f"{version},{ALL},ConsumableCapacity{lists}"
