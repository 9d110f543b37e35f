"""From parameters to a demand: defaults, contradictions, and what this version refuses by name."""

from dataclasses import replace
from typing import Any

import pytest

from tangram.api import Demand, GPUClaimParameters, GpuType, MpsParameters, lower
from tangram.base.errors import InvalidObjectError
from tangram.model.shares import WantedShare

OURS = "gpu.resource.admin"
OWN = "big-gpu"


def demand(class_name: str = OURS, **fields: Any) -> Demand:
    return lower(GPUClaimParameters(**fields), class_name=class_name, object_name="ResourceClaim default/c")


def refused(class_name: str = OURS, **fields: Any) -> InvalidObjectError:
    with pytest.raises(InvalidObjectError) as caught:
        demand(class_name, **fields)
    assert str(caught.value).startswith("ResourceClaim default/c: ")
    return caught.value


def test_nothing_stated_asks_for_any_gpu_alone() -> None:
    assert demand() == Demand(kinds=frozenset({"gpu"}), sharing="exclusive")
    assert demand(OWN) == Demand(kinds=None, sharing="exclusive")


def test_what_is_stated_is_asked() -> None:
    assert demand(memory_gb=80, gpu_type="H100-80GB", nv_link_peers=8, sh_policy="exclusive") == Demand(
        memory_gb=80, gpu_type=GpuType.parse("H100-80GB"), linked_set_size=8, sharing="exclusive",
        kinds=frozenset({"gpu"}), share=WantedShare(memory_bytes=80 * 10**9),
    )  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"mig_profile": None},
        {"mps": None},
        {"mps": MpsParameters()},
        {"mps": MpsParameters(thread_percent=None)},
        {"replicas": None},
        {"replicas": 1},
        {"alternatives": {}},
        {"latency_sensitive": False},
        {"long_kernels": False},
        {"nv_link_peers": 1},
        {"sh_policy": None},
        {"sh_policy": "exclusive"},
    ],
)
def test_values_that_change_nothing_are_welcome(fields: dict[str, Any]) -> None:
    assert replace(demand(**fields), share=WantedShare()) == demand()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"alternatives": {"a": 1.0}}, "alternatives"),
        ({"latency_sensitive": True}, "latencySensitive"),
        ({"long_kernels": True}, "longKernels"),
    ],
)
@pytest.mark.parametrize("class_name", [OURS, OWN])
def test_what_has_no_effect_yet_is_refused_by_name(
    class_name: str, fields: dict[str, Any], field: str
) -> None:
    error = refused(class_name, **fields)
    assert error.field == field
    assert error.problem == "is not supported yet by this version"


@pytest.mark.parametrize(
    ("class_name", "fields", "kinds"),
    [
        (OURS, {}, {"gpu"}),
        (f"mig.{OURS}", {}, {"mig"}),
        (f"mig.{OURS}", {"sh_policy": "exclusive"}, {"mig"}),
        (f"mps.{OURS}", {"sh_policy": "mps"}, {"mps"}),
        (f"timeslice.{OURS}", {}, {"timeslice"}),
        (OWN, {"sh_policy": "mps"}, {"mps"}),
        (OWN, {"sh_policy": "timeSlice"}, {"timeslice"}),
        (OWN, {"sh_policy": "exclusive"}, {"gpu", "mig"}),
        (OWN, {"mig_profile": "3g.40gb"}, {"mig"}),
        (OWN, {"memory_gb": 10}, None),
    ],
)
def test_the_kinds_that_will_do(class_name: str, fields: dict[str, Any], kinds: set[str] | None) -> None:
    assert demand(class_name, **fields).kinds == (kinds and frozenset(kinds))


def test_the_share_that_is_wanted() -> None:
    mps = MpsParameters(thread_percent=40, pinned_memory="8Gi")
    assert demand(f"mps.{OURS}", mps=mps).share == WantedShare(memory_bytes=8 * 2**30, cores=40)
    both = demand(f"mps.{OURS}", mps=MpsParameters(pinned_memory="8Gi"), memory_gb=10)
    assert (both.share.memory_bytes, both.memory_gb) == (8 * 2**30, 10)
    assert demand(f"timeslice.{OURS}", replicas=2, memory_gb=4).share == WantedShare(
        memory_bytes=4 * 10**9, replicas=2
    )
    assert refused(f"mps.{OURS}", mps=MpsParameters(pinned_memory="0")).field == "mps.pinnedMemory"


@pytest.mark.parametrize(
    ("class_name", "fields", "field"),
    [
        (OURS, {"mig_profile": "3g.40gb"}, "migProfile"),
        (f"mps.{OURS}", {"mig_profile": "3g.40gb"}, "migProfile"),
        (OWN, {"mig_profile": "3g.40gb", "sh_policy": "mps"}, "migProfile"),
        (OURS, {"mps": MpsParameters(thread_percent=50)}, "mps.threadPercent"),
        (f"timeslice.{OURS}", {"mps": MpsParameters(pinned_memory="8Gi")}, "mps.pinnedMemory"),
        (f"mps.{OURS}", {"replicas": 4}, "replicas"),
        (OWN, {"replicas": 4}, "replicas"),
    ],
)
def test_p47_settings_of_another_kind_are_refused(
    class_name: str, fields: dict[str, Any], field: str
) -> None:
    error = refused(class_name, **fields)
    assert error.field == field
    assert "leave" in error.next_step


@pytest.mark.parametrize(
    ("class_name", "policy", "fitting"),
    [
        (OURS, "mps", "mps.gpu.resource.admin"),
        (OURS, "timeSlice", "timeslice.gpu.resource.admin"),
        ("mps.gpu.resource.admin", "exclusive", "gpu.resource.admin"),
        ("mps.gpu.resource.admin", "timeSlice", "timeslice.gpu.resource.admin"),
        ("timeslice.gpu.resource.admin", "exclusive", "gpu.resource.admin"),
        ("mig.gpu.resource.admin", "mps", "mps.gpu.resource.admin"),
    ],
)
def test_a_policy_that_contradicts_the_class_names_both(class_name: str, policy: str, fitting: str) -> None:
    error = refused(class_name, sh_policy=policy)
    assert error.field == "shPolicy"
    assert f"{policy} contradicts device class {class_name}," in error.problem
    assert f"ask for device class {fitting}," in error.next_step


@pytest.mark.parametrize("class_name", [OURS, "mig.gpu.resource.admin", OWN])
def test_mig_with_nvlink_names_both(class_name: str) -> None:
    error = refused(class_name, mig_profile="3g.40gb", nv_link_peers=8)
    assert error.field == "migProfile"
    assert "3g.40gb contradicts nvLinkPeers 8" in error.problem


@pytest.mark.parametrize("text", ["80GB", " ", "NVIDIA", "nvidia 80GB", "--"])
def test_a_type_without_a_model(text: str) -> None:
    error = refused(gpu_type=text)
    assert error.field == "gpuType"
    assert "names no GPU model" in error.problem
