"""Problems of a node, for measuring: eight GPUs, whole, linked, or cut by MIG; and one without a solution."""

from typing import Any

from conformance.draw import Json
from conformance.problems import Problem
from conformance.versions import Version

_DRIVER = "gpu.example.com"
_NODE = "node-1"
_GPUS = 8
_PROFILES = {
    "gpu": (8, 1), "mps": (8, 1), "timeslice": (8, 1), "1g": (1, 7), "1g-me": (1, 7), "1g-2": (2, 4),
    "2g": (2, 3), "3g": (4, 2), "4g": (4, 1), "7g": (8, 1),
}  # fmt: skip
"""What a GPU is published as: memory slices, and how many places there are, side by side. 28 devices."""


def problems(version: Version) -> dict[str, Problem]:
    """By name. Feature gates are those that are on by default in the version."""
    whole = [_slice(f"gpu-{gpu}", [_gpu(gpu)], count=_GPUS) for gpu in range(_GPUS)]
    linked = [_selected("linked", count=4)]
    together = [{"matchAttribute": f"{_DRIVER}/group", "requests": ["linked"]}]
    short = [_selected(f"r{number}", count=3) for number in range(3)]
    cut = [_selected("big", count=6, profile="3g"), _selected("small", count=8, profile="1g")]

    def made(*items: Json) -> Problem:
        return Problem(items=(*_COMMON, *items), features=version.default_features)

    return {
        "plain": made(*whole, _claim([_selected("gpu")])),
        "counters": made(*_mig_slices(), _claim(cut)),
        "linked": made(*whole, _held("gpu-1"), _claim(linked, constraints=together)),
        "infeasible": made(*whole, _claim(short)),
    }


_COMMON: tuple[Json, ...] = (
    {"kind": "Node", "metadata": {"name": _NODE}},
    {
        "kind": "DeviceClass",
        "metadata": {"name": "gpu"},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{_DRIVER}"'}}]},
    },
)


def _gpu(number: int) -> Json:
    attributes: Json = {
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA A100-SXM4-80GB"},
        "group": {"string": f"group-{number // 4}"},
        "index": {"int": number},
        "driverVersion": {"version": "570.86.15"},
    }
    return {"name": f"gpu-{number}", "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}


def _mig_slices() -> list[Json]:
    slices = [
        _slice(f"mig-{gpu}", [*_mig_devices(gpu)], count=_GPUS + 1, name_first="d") for gpu in range(_GPUS)
    ]
    sets = [
        {
            "name": f"gpu-{gpu}",
            "counters": {f"memory-slice-{i}": {"value": "1"} for i in range(8)}
            | {"compute-slices": {"value": "7"}},
        }
        for gpu in range(_GPUS)
    ]
    counters = _slice("counters", [], count=_GPUS + 1)
    del counters["spec"]["devices"]
    counters["spec"]["sharedCounters"] = sets
    return [*slices, counters]


def _mig_devices(gpu: int) -> list[Json]:
    devices = []
    for profile, (size, places) in _PROFILES.items():
        for place in range(places):
            start = place * size
            counters: Json = {f"memory-slice-{i}": {"value": "1"} for i in range(start, start + size)}
            counters["compute-slices"] = {"value": profile[0] if profile[0].isdigit() else "7"}
            devices.append(
                {
                    "name": f"gpu-{gpu}-{profile}-{start}",
                    "attributes": {
                        "type": {"string": "mig"},
                        "profile": {"string": profile},
                        "index": {"int": gpu},
                    },
                    "capacity": {"memory": {"value": f"{10 * size}Gi"}},
                    "consumesCounters": [{"counterSet": f"gpu-{gpu}", "counters": counters}],
                }
            )
    return devices


def _slice(name: str, devices: list[Json], *, count: int, name_first: str = "s") -> Json:
    return {
        "kind": "ResourceSlice",
        "metadata": {"name": f"{name_first}-{name}"},
        "spec": {
            "driver": _DRIVER,
            "nodeName": _NODE,
            "pool": {"name": _NODE, "generation": 1, "resourceSliceCount": count},
            "devices": devices,
        },
    }


def _selected(name: str, *, count: int = 1, profile: str = "") -> Json:
    own = f'device.attributes["{_DRIVER}"]'
    text = f'{own}.profile == "{profile}"' if profile else f'{own}.productName.startsWith("NVIDIA A100")'
    selectors = [{"cel": {"expression": text}}]
    return {"name": name, "exactly": {"deviceClassName": "gpu", "count": count, "selectors": selectors}}


def _claim(requests: list[Json], *, constraints: list[Json] | None = None) -> Json:
    devices: dict[str, Any] = {"requests": requests}
    if constraints:
        devices["constraints"] = constraints
    return {
        "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": "claim", "uid": "00000000-0000-4000-8000-000000000001"},
        "spec": {"devices": devices},
    }


def _held(device: str) -> Json:
    claim = _claim([_selected("gpu")])
    claim["metadata"] = {
        "namespace": "default",
        "name": "held",
        "uid": "00000000-0000-4000-8000-000000000002",
    }
    result = {"request": "gpu", "driver": _DRIVER, "pool": _NODE, "device": device}
    claim["status"] = {"allocation": {"devices": {"results": [result]}}}
    return claim
