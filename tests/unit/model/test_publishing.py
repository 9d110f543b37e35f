"""All four kinds of devices as published: which there are, their names, and the limits of the API."""

import itertools
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.model.boards import ALL, board, instance, machine

from tangram.hardware.machines import shipped_machines
from tangram.hardware.machines.migtables import mig_tables
from tangram.model.devices import Kind, PublishedDevice
from tangram.model.gpu import Gpu, Machine, MigMode
from tangram.model.mig import MigPlacement, MigProfile
from tangram.model.offers import Offer, mig_device_name, offers
from tangram.model.publishing import MEBIBYTE, counter_set, published

STANDARD = {f"resource.kubernetes.io/{name}" for name in ("pcieRoot", "pciBusID", "numaNode")}
GROUPS = {f"nvlinkGroup{size}" for size in (2, 4, 8)}
COMMON = {
    *("type", "uuid", "productName", "gpuType", "architecture", "driverVersion", "cudaDriverVersion"),
    *("cudaComputeCapability", "ordinal", "migMode", "isolation", "healthy", "allocator"),
}
ON_GPUS = COMMON | {
    *("brand", "index", "nvlinkDomain", "nvlinkPeers", "nvlinkLinks", "fabricClique", "migCapable"),
}
ON_MIG = COMMON | {
    *("parentUUID", "profile", "placementStart", "placementSize", "computeSlices", "maxInstances"),
}
ENGINES = {"copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines"}
CAPACITIES: dict[str, set[str]] = {
    "gpu": {"memory", "multiprocessors", "memorySlices", "computeSlices"},
    "mps": {"memory", "multiprocessors", "cores"},
    "timeslice": {"memory", "multiprocessors", "replicas"},
    "mig": {"memory", "multiprocessors"} | ENGINES,
}
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def publish(
    of: Machine, *, kinds: tuple[Kind, ...] = ALL, dynamic: bool = True, counters: bool = False
) -> tuple[PublishedDevice, ...]:
    return published(
        offers(of, kinds=kinds, dynamic=dynamic), of, allocator="controller", replicas=4, counters=counters
    )


def check(devices: tuple[PublishedDevice, ...]) -> None:
    """What the API refuses, and what the design promises of every device of a kind."""
    assert len({device.name for device in devices}) == len(devices)
    for device in devices:
        kind = str(device.attributes["type"])
        always, sometimes = (ON_MIG, STANDARD) if kind == "mig" else (ON_GPUS, STANDARD | GROUPS)
        if device.shared:
            always = always | {"replicas"}
        assert LABEL.fullmatch(device.name)
        assert len(device.attributes) + len(device.capacity) <= 32
        assert always <= set(device.attributes) <= always | sometimes
        assert set(device.capacity) <= CAPACITIES[kind]
        assert set(device.capacity) >= CAPACITIES[kind] - {"memory", "multiprocessors"}
        assert device.shared is (kind in ("mps", "timeslice"))
        for name, policy in device.policies.items():
            value = device.capacity[name]
            assert device.shared
            assert policy.minimum <= policy.default <= policy.maximum <= value
            assert policy.minimum + policy.step <= value
            assert (policy.default - policy.minimum) % policy.step == 0
            assert (policy.maximum - policy.minimum) % policy.step == 0
        if device.shared:
            assert set(device.policies) == set(device.capacity)


@pytest.mark.parametrize("mode", ["enabled", "disabled"])
@pytest.mark.parametrize("name", shipped_machines())
def test_all_kinds_of_the_shipped_machines_keep_the_limits(name: str, mode: MigMode) -> None:
    check(publish(machine(name, mode=mode)))
    check(publish(machine(name, mode=mode, hopper=True), counters=True))


def kinds_of(of: Machine, *, dynamic: bool) -> set[str]:
    return {offer.kind for offer in offers(of, kinds=ALL, dynamic=dynamic)}


def test_only_kinds_that_the_mig_mode_reaches() -> None:
    for dynamic in (False, True):
        assert kinds_of(machine("t4-x4"), dynamic=dynamic) == {"gpu", "mps", "timeslice"}
        a100 = "a100-sxm4-80gb-x8"
        assert kinds_of(machine(a100, mode="disabled"), dynamic=dynamic) == {"gpu", "mps", "timeslice"}
        assert kinds_of(machine(a100, mode="enabled"), dynamic=dynamic) == {"mig"}
    h100 = "h100-sxm5-80gb-x8"
    assert kinds_of(machine(h100, mode="disabled"), dynamic=False) == {"gpu", "mps", "timeslice"}
    assert kinds_of(machine(h100, mode="enabled"), dynamic=False) == {"mig"}
    assert kinds_of(machine(h100, mode="disabled"), dynamic=True) == set(ALL)
    assert kinds_of(machine(h100, mode="enabled"), dynamic=True) == set(ALL)


def test_p20_each_gpu_of_a_mixed_node_in_its_form() -> None:
    """A GPU without MIG, one in MIG mode and one that is not: each publishes what it can."""
    t4 = machine("t4-x4").gpus[0]
    on, off = machine("a100-sxm4-80gb-x8", mode="enabled").gpus[0], machine("a100-pcie-80gb-x4").gpus[0]
    mixed = Machine(gpus=tuple(sorted((t4, on, off), key=lambda gpu: gpu.uuid)))
    found = {
        gpu.uuid: {offer.kind for offer in offers(mixed, kinds=ALL) if offer.gpu is gpu} for gpu in mixed.gpus
    }
    whole = {"gpu", "mps", "timeslice"}
    assert found == {t4.uuid: whole, off.uuid: whole, on.uuid: {"mig"}}


@given(kinds=st.sets(st.sampled_from(ALL), min_size=1), table=st.sampled_from(mig_tables()))
def test_p21_a_gpu_in_mig_mode_is_not_published_whole(kinds: set[Kind], table: str) -> None:
    for mode in ("enabled", "disabled"):
        found = offers(board(table, gpus=2, mode=mode), kinds=kinds, dynamic=False)
        assert {offer.kind for offer in found} == kinds & ({"mig"} if mode == "enabled" else {*ALL} - {"mig"})


@pytest.mark.parametrize("dynamic", [False, True])
def test_p22_a_gpu_with_foreign_instances_offers_these_alone(dynamic: bool) -> None:
    of = machine("h100-sxm5-80gb-x8", mode="enabled")
    first = of.gpus[0]
    foreign = {first.uuid: (instance(9, 4), instance(99, 0, number=2), instance(9, 0, number=3, computes=2))}
    found = [offer for offer in offers(of, kinds=ALL, dynamic=dynamic, foreign=foreign) if offer.gpu is first]
    assert [offer.name.split("-mig-")[1] for offer in found] == ["3g40gb-4", "profile-99-0"]
    devices = published(found, of, allocator="controller", replicas=4)
    check(devices)
    assert [device.attributes["uuid"] for device in devices] == ["MIG-1-0", "MIG-2-0"]
    assert devices[0].attributes["parentUUID"] == first.uuid
    assert "memory" not in devices[1].capacity
    whole = offers(of, kinds=["gpu"], foreign=foreign)
    assert first not in [offer.gpu for offer in whole]


def test_a_mig_device_in_full() -> None:
    of = machine("h100-sxm5-80gb-x8", mode="enabled")
    found = {device.name: device for device in publish(of, kinds=("mig",))}
    assert len(found) == 8 * 25
    short = of.gpus[0].uuid.removeprefix("GPU-").replace("-", "")[:12]
    device = found[f"gpu-{short}-mig-3g40gb-4"]
    assert {name: device.attributes[name] for name in ON_MIG - COMMON} == {
        "parentUUID": of.gpus[0].uuid,
        "profile": "3g.40gb",
        "placementStart": 4,
        "placementSize": 4,
        "computeSlices": 3,
        "maxInstances": 2,
    }
    assert device.attributes["uuid"] == "none"
    assert device.attributes["isolation"] == "hardware"
    profile = next(each for each in of.gpus[0].mig_profiles if each.name == "3g.40gb")
    assert device.capacity["memory"] == profile.memory_bytes
    assert device.capacity["multiprocessors"] == 60


def test_shares_in_full() -> None:
    of = machine("t4-x4")
    mps, timeslice = publish(of, kinds=("mps",))[0], publish(of, kinds=("timeslice",))[0]
    total = of.gpus[0].memory_bytes
    assert total is not None
    assert mps.capacity == {"memory": total, "multiprocessors": 40, "cores": 100}
    assert timeslice.capacity == {"memory": total, "multiprocessors": 40, "replicas": 4}
    assert mps.policies["cores"].default == 25
    assert timeslice.policies["replicas"].default == 1
    for device in (mps, timeslice):
        assert device.attributes["isolation"] == "none"
        assert device.policies["memory"].default == total // 4 // MEBIBYTE * MEBIBYTE
        # Published for selectors; nobody takes any of them.
        assert device.policies["multiprocessors"].maximum == 0


def test_p53_a_gpu_without_memory_of_its_own_has_bounded_shares() -> None:
    """By time-slicing alone: what MPS would limit is not known."""
    (device,) = publish(machine("gb10"), kinds=("mps", "timeslice"))
    assert device.attributes["type"] == "timeslice"
    assert set(device.capacity) == {"multiprocessors", "replicas"}
    assert device.policies["replicas"].maximum == 4


def test_p58_names_do_not_change_when_a_gpu_goes() -> None:
    of = machine("h100-sxm5-80gb-x8", mode="disabled")
    fewer = replace(of, gpus=of.gpus[1:])
    assert {device.name for device in publish(fewer)} < {device.name for device in publish(of)}


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("1g.10gb", "gpu-x-mig-1g10gb-0"),
        ("1g.10gb+me", "gpu-x-mig-1g10gb-with-me-0"),
        ("1g.24gb-me", "gpu-x-mig-1g24gb-no-me-0"),
        ("1g.24gb+me.all", "gpu-x-mig-1g24gb-with-meall-0"),
        ("1c.3g.40gb", "gpu-x-mig-1c3g40gb-0"),
        ("", "gpu-x-mig-profile-7-0"),
        ("Grün", "gpu-x-mig-profile-7-0"),
    ],
)
def test_p30_every_profile_has_a_name(profile: str, name: str) -> None:
    assert mig_device_name("gpu-x", profile, 7, 0) == name


@pytest.mark.parametrize("table", mig_tables())
def test_p75_names_are_unique_on_every_board(table: str) -> None:
    check(publish(board(table, gpus=2)))


def _fits(profile: MigProfile, placement: MigPlacement, left: dict[str, int], gpu: Gpu) -> bool:
    return all(left[name] >= value for name, value in consumed(gpu, profile, placement).items())


def consumed(gpu: Gpu, profile: MigProfile, placement: MigPlacement) -> dict[str, int]:
    of = Machine(gpus=(gpu,))
    offer = Offer(name="x", kind="mig", gpu=gpu, profile=profile, placement=placement)
    (device,) = published([offer], of, allocator="scheduler", replicas=4, counters=True)
    return device.consumes


@pytest.mark.parametrize("table", mig_tables())
def test_counters_keep_two_overlapping_devices_apart(table: str) -> None:
    gpu = board(table, gpus=1).gpus[0]
    totals = counter_set(gpu)
    places = [(profile, placement) for profile in gpu.mig_profiles for placement in profile.placements]
    for (one, at), (other, there) in itertools.combinations(places, 2):
        both = [consumed(gpu, one, at), consumed(gpu, other, there)]
        fits = all(sum(each.get(name, 0) for each in both) <= total for name, total in totals.items())
        assert not (fits and at.mask & there.mask)
    assert all(_fits(profile, placement, totals, gpu) for profile, placement in places)


def test_p25_counters_leave_what_the_hardware_leaves() -> None:
    """3g + 3g take all memory slices, a 1g at slice 6 goes with the first 3g and not with the second."""
    gpu = machine("h100-sxm5-80gb-x8", mode="enabled").gpus[0]
    by_name = {profile.name: profile for profile in gpu.mig_profiles}

    def left(*taken: tuple[str, int]) -> set[tuple[str, int]]:
        counters = counter_set(gpu)
        for name, start in taken:
            placement = next(place for place in by_name[name].placements if place.start == start)
            for counter, value in consumed(gpu, by_name[name], placement).items():
                counters[counter] -= value
        return {
            (name, placement.start)
            for name, profile in by_name.items()
            for placement in profile.placements
            if _fits(profile, placement, counters, gpu)
        }

    assert left(("3g.40gb", 0), ("3g.40gb", 4)) == set()
    assert ("1g.10gb", 6) in left(("3g.40gb", 0))
    assert ("3g.40gb", 4) not in left(("1g.10gb", 6))
    assert {start for name, start in left(("4g.40gb", 0)) if name == "3g.40gb"} == {4}
    assert left(*(("1g.10gb", start) for start in range(7))) == set()


def test_every_kind_of_a_gpu_without_mig_takes_its_one_counter() -> None:
    devices = publish(machine("t4-x4"), counters=True)
    assert {frozenset(device.consumes.items()) for device in devices} == {frozenset({("gpu", 1)})}


@settings(max_examples=30)
@given(replicas=st.integers(2, 64), memory_mib=st.integers(1, 2**21))
def test_policies_are_valid_for_any_size(replicas: int, memory_mib: int) -> None:
    of = machine("t4-x4")
    of = replace(of, gpus=tuple(replace(gpu, memory_bytes=memory_mib * MEBIBYTE + 1) for gpu in of.gpus))
    for device in published(
        offers(of, kinds=("mps", "timeslice")), of, allocator="controller", replicas=replicas
    ):
        for name, policy in device.policies.items():
            assert policy.minimum <= policy.default <= policy.maximum <= device.capacity[name]
            assert (policy.default - policy.minimum) % policy.step == 0
            assert (policy.maximum - policy.minimum) % policy.step == 0
