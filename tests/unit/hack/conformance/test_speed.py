"""The problems that are measured are what they are called."""

import pytest

from conformance.engine import answer
from conformance.speed import problems
from conformance.versions import VERSIONS, Version

DEFAULT = [version for version in VERSIONS.values() if not version.counters_beside_devices]


def _devices(name: str) -> list[str]:
    version = VERSIONS["1.37"]
    (node,) = answer(problems(version)[name], version)
    allocation = node["claims"][0]["allocation"]
    return [result["device"] for result in allocation["devices"]["results"]] if allocation else []


def test_the_plain_one_gets_the_first_gpu() -> None:
    assert _devices("plain") == ["gpu-0"]


def test_the_linked_set_is_not_where_a_gpu_is_held() -> None:
    assert _devices("linked") == ["gpu-4", "gpu-5", "gpu-6", "gpu-7"]


def test_three_times_three_do_not_fit() -> None:
    assert _devices("infeasible") == []


@pytest.mark.parametrize("version", DEFAULT, ids=lambda version: version.kubernetes)
def test_eight_times_28_devices_share_counters(version: Version) -> None:
    specs = [item["spec"] for item in problems(version)["counters"].items if item["kind"] == "ResourceSlice"]
    assert [len(spec["devices"]) for spec in specs if "devices" in spec] == [28] * 8
    assert sum(len(spec.get("sharedCounters", ())) for spec in specs) == 8
    assert len({device["name"] for spec in specs for device in spec.get("devices", ())}) == 224


def test_mig_devices_fill_gpus_one_after_the_other() -> None:
    devices = _devices("counters")
    assert devices[:6] == [f"gpu-{gpu}-3g-{start}" for gpu in range(3) for start in (0, 4)]
    assert devices[6:] == [*(f"gpu-3-1g-{start}" for start in range(7)), "gpu-4-1g-0"]
