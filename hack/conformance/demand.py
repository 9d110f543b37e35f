"""Generated claims: those to allocate, and those that hold devices already."""

from collections.abc import Sequence
from typing import Any

from conformance.draw import CAPACITIES, DERIVED, DRIVERS, OTHER_DOMAIN, TAINTS, Draw, Json
from conformance.expressions import derivation, expression
from conformance.supply import config

_UID = "00000000-0000-4000-8000-{:012x}"
_CONSTRAINED = ("model", "index", "numa", "healthy", "firmware")
_DERIVED = ("derived/a", "derived/b", f"{DRIVERS[0]}/model", f"{OTHER_DOMAIN}/root")
"""Names of derived attributes; some of them hide what is published."""


def waiting(draw: Draw) -> list[Json]:
    """The claims of one pod."""
    count = draw.one((1, 1, 1, 2, 2, 3))
    return [_claim(f"claim-{i}", i, _spec(draw)) for i in range(count)]


def _claim(name: str, number: int, spec: Json) -> Json:
    metadata = {"namespace": "default", "name": name, "uid": _UID.format(number + 1)}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {"devices": spec},
    }


def _spec(draw: Draw) -> Json:
    names = [f"r{i}" for i in range(draw.one((1, 1, 1, 1, 2, 2, 2, 3, 3, 0)))]
    if draw.about("limits", often=0.1, seldom=0.005):
        names = [f"r{i}" for i in range(draw.number(4, 20))]
    requests = [_request(draw, name) for name in names]
    devices: Json = {"requests": requests}
    referable = [
        reference
        for request in requests
        for reference in (
            request["name"],
            *(f"{request['name']}/{sub['name']}" for sub in request.get("firstAvailable", ())),
        )
    ]
    if draw.about("constraints", often=0.85, seldom=0.07) or draw.about("lists", often=0.6, seldom=0.0):
        devices["constraints"] = [_constraint(draw, referable) for _ in range(draw.one((1, 1, 2)))]
    devices = _with_derived(draw, devices, referable)
    if draw.about("configs", often=0.8):
        devices["config"] = [_claim_config(draw, referable, i) for i in range(draw.number(1, 3))]
    return devices


def _with_derived(draw: Draw, devices: Json, referable: list[str]) -> Json:
    """Sometimes with derived attributes, each named by a constraint as the API demands it."""
    if DERIVED not in draw.version.features:
        return devices
    used = draw.about("derived", often=0.95, seldom=0.05) if DERIVED in draw.features else draw.chance(0.004)
    bodies = [
        body
        for request in devices["requests"]
        for body in request.get("firstAvailable", (request.get("exactly"),))
        if used and draw.chance(0.85)
    ]
    if not bodies:
        return devices
    names = draw.some(_DERIVED, least=1, most=draw.one((1, 1, 1, 1, 2)))
    for body in bodies:
        chosen = names if draw.chance(0.8) else draw.some(names, least=1)
        body["derivedAttributes"] = [{"name": name, "expression": derivation(draw)} for name in chosen]
    constraints = [*devices.get("constraints", ()), *(_constraint(draw, referable, [name]) for name in names)]
    draw.random.shuffle(constraints)
    return {**devices, "constraints": constraints}


def _claim_config(draw: Draw, referable: list[str], number: int) -> Json:
    made = config(draw, f"claim-{number}")
    if draw.chance(0.7):
        made["requests"] = draw.some(referable, least=1, most=3)
    return made


def _constraint(draw: Draw, referable: list[str], names: Sequence[str] = ()) -> Json:
    """`names`: of the attributes that it may be about; by default published ones."""
    derived = bool(names)
    names = names or [f"{DRIVERS[0]}/{name}" for name in _CONSTRAINED] + [f"{OTHER_DOMAIN}/root"] * 2
    if not derived and draw.about("lists", often=0.8, seldom=0.0):
        names = [f"{DRIVERS[0]}/links", f"{OTHER_DOMAIN}/zones"]
    kind = "matchAttribute"
    if "ConsumableCapacity" in draw.features and draw.chance(0.2 if derived else 0.35):
        kind = "distinctAttribute"
    made: Json = {kind: draw.one(names)}
    if draw.chance(0.4):
        made["requests"] = draw.some(referable, least=1, most=3)
    if draw.chance(0.03):
        made["requests"] = ["unheard-of"]
    return made


def _request(draw: Draw, name: str) -> Json:
    if draw.about("prioritized", often=0.7):
        count = draw.one((1, 2, 2, 3, 4))
        return {
            "name": name,
            "firstAvailable": [{"name": f"s{i}", **_wanted(draw)} for i in range(count)],
        }
    exactly = _wanted(draw)
    if draw.about("admin", often=0.4, seldom=0.01):
        exactly["adminAccess"] = not draw.chance(0.1)
    return {"name": name, "exactly": exactly}


def _wanted(draw: Draw) -> Json:
    """What an exact request and a subrequest have in common. Defaults are sometimes left out."""
    wanted: Json = {"deviceClassName": draw.one(("any", "any", "any", "any", "gpu", "gpu", "special"))}
    if draw.about("limits", often=0.03, seldom=0.002):
        wanted["deviceClassName"] = "nowhere"
    if draw.about("all", often=0.5):
        wanted["allocationMode"] = "All"
    else:
        count = draw.one((1, 1, 1, 1, 1, 2, 2, 3))
        if draw.about("limits", often=0.15, seldom=0.002):
            count = draw.number(4, 36)
        if count > 1 or draw.chance(0.2):
            wanted["count"] = count
            wanted["allocationMode"] = "ExactCount"
    if draw.about("selectors", often=0.8, seldom=0.12):
        wanted["selectors"] = [
            {"cel": {"expression": expression(draw)}} for _ in range(draw.one((1, 1, 1, 2)))
        ]
    if draw.about("taints", often=0.6):
        wanted["tolerations"] = [_toleration(draw) for _ in range(draw.number(1, 2))]
    if draw.about("shares", often=0.5, seldom=0.02):
        wanted["capacity"] = {"requests": _capacity_requests(draw)}
    return wanted


def _toleration(draw: Draw) -> Json:
    taint = draw.one(TAINTS)
    made: Json = {"key": taint["key"]}
    kind = draw.number(0, 3)
    if kind == 0:
        made["operator"] = "Exists"
    elif kind == 1:
        made = {"operator": "Exists"}
    else:
        made["value"] = taint.get("value", "")
        if draw.chance(0.5):
            made["operator"] = "Equal"
    if draw.chance(0.5):
        made["effect"] = draw.one(("NoSchedule", "NoExecute"))
        if made["effect"] == "NoExecute" and draw.chance(0.3):
            made["tolerationSeconds"] = 60
    return made


def _capacity_requests(draw: Draw) -> Json:
    requests: Json = {}
    for name, values in draw.some(list(CAPACITIES.items()), least=1, most=draw.one((1, 1, 2))):
        amounts = ("1", "2", "3", "5", "2Gi", "3Mi", "1500m", "4k", "0", "0.5", "300m", *values)
        if draw.chance(0.05):
            name = f"{DRIVERS[0]}/{name}" if "/" not in name else name.partition("/")[2]  # noqa: PLW2901
        requests[name] = draw.one(amounts)
    if draw.chance(0.03):
        requests["unheard-of"] = "1"
    return requests


def holding(draw: Draw, slices: list[Json]) -> list[Json]:
    """Claims whose allocation is written: some of the published devices, and seldom one that is gone."""
    if not draw.about("held", often=0.9, seldom=0.2):
        return []
    published = [(piece["spec"], device) for piece in slices for device in piece["spec"].get("devices", ())]
    if not published:
        return []
    made = []
    for number in range(draw.number(1, 3)):
        results = [
            _held_device(draw, spec, device, (number, i))
            for i, (spec, device) in enumerate(draw.random.choices(published, k=draw.number(1, 2)))
        ]
        claim = _claim(
            f"held-{number}",
            100 + number,
            {"requests": [{"name": "r", "exactly": {"deviceClassName": "any"}}]},
        )
        claim["status"] = {"allocation": {"devices": {"results": results}}}
        made.append(claim)
    return made


def _held_device(draw: Draw, spec: Json, device: Json, number: tuple[int, int]) -> Json:
    result: dict[str, Any] = {
        "request": "r",
        "driver": spec["driver"],
        "pool": spec["pool"]["name"],
        "device": device["name"] if not draw.about("held", often=0.04, seldom=0.0) else "gone",
    }
    if draw.about("admin", often=0.3, seldom=0.01):
        result["adminAccess"] = True
    # Now and then a driver has changed its mind since.
    if draw.chance(0.85 if device.get("allowMultipleAllocations") else 0.02):
        result["shareID"] = _UID.format(4096 * (number[0] + 1) + number[1])
        capacity = device.get("capacity", {})
        if capacity and draw.chance(0.9):
            result["consumedCapacity"] = {
                name: _part(draw, entry) for name, entry in capacity.items() if not draw.chance(0.05)
            }
    return result


def _part(draw: Draw, entry: Json) -> str:
    chosen = entry.get("requestPolicy", {})
    if "default" in chosen and draw.chance(0.6):
        return str(chosen["default"])
    return str(draw.one(("1", "1", "2", "0", entry["value"], chosen.get("default", "1"))))
