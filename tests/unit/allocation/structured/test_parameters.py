"""GPUClaimParameters: what our controller honours, the engine honours on its behalf."""

import random
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import fleet
from tests.unit.allocation.structured.world import DRIVER, devices, solve
from tests.unit.allocation.structured.world import claim as any_claim
from tests.unit.allocation.structured.world import device as any_device
from tests.unit.allocation.structured.world import request as any_request
from tests.unit.allocation.structured.world import slice_ as any_slice

from tangram import DRIVER_NAME
from tangram.allocation.structured import Code, Outcome, Policy, Score
from tangram.model.devices import DRAINED_TAINT, STANDARD_DOMAIN, Kind
from tangram.model.gpu import Machine

Json = dict[str, Any]
PAIRS: Mapping[int, Mapping[int, int]] = {i: {i ^ 1: 4} for i in range(8)}
"""Bridges: 0 with 1, 2 with 3, …"""

NUMA = f"{STANDARD_DOMAIN}/numaNode"
SWITCHED = fleet.machine(switch_links=12)
DGX_1V = fleet.machine("Tesla V100-SXM2-32GB", memory_gib=32, mesh=fleet.CUBE_MESH)
BRIDGED = fleet.machine("NVIDIA A100-PCIE-40GB", memory_gib=40, mesh=PAIRS)


def names(of: Machine) -> list[str]:
    """Device names in order of ordinal."""
    found = [item["spec"]["devices"][0] for item in fleet.slices("n", of)]
    return [d["name"] for d in sorted(found, key=lambda d: d["attributes"]["ordinal"]["int"])]


def holding(of: Machine, ordinals: Iterable[int]) -> Json:
    """A claim that has these GPUs."""
    pool, known = fleet.slices("n", of)[0]["spec"]["pool"]["name"], names(of)
    results = [{"request": "gpu", "driver": DRIVER_NAME, "pool": pool, "device": known[i]} for i in ordinals]
    made = fleet.claim("old") | {"status": {"allocation": {"devices": {"results": results}}}}
    made["metadata"]["uid"] = "uid-old"
    return made


def ask(
    of: Machine,
    *claims: Json,
    held: Iterable[int] = (),
    unhealthy: Iterable[int] = (),
    **options: Any,
) -> Outcome:
    held = tuple(held)
    for number, item in enumerate(claims):
        item["metadata"]["uid"] = f"uid-{number}"
    return solve(
        fleet.slices("n", of, unhealthy=unhealthy),
        [*([holding(of, held)] if held else []), *claims],
        classes=options.pop("classes", [fleet.device_class()]),
        policy=options.pop("policy", Policy.TANGRAM),
        **options,
    )


def wants(count: int = 1, **parameters: Any) -> Json:
    return fleet.claim("c", count=count, config=[fleet.parameters(**parameters)])


def ordinals(of: Machine, outcome: Outcome) -> list[list[int]]:
    found = devices(outcome)
    assert isinstance(found, list), outcome
    return [sorted(names(of).index(name) for name in one) for one in found]


def linked(mesh: Mapping[int, Mapping[int, int]], chosen: Iterable[int]) -> bool:
    return all(b in mesh[a] for a, b in combinations(sorted(chosen), 2))


def splits(mesh: Mapping[int, Mapping[int, int]], chosen: frozenset[int], size: int) -> bool:
    if not chosen:
        return True
    first = min(chosen)
    return any(
        linked(mesh, {first, *rest}) and splits(mesh, chosen - {first, *rest}, size)
        for rest in combinations(sorted(chosen - {first}), size - 1)
    )


# --- each device ---


@pytest.mark.parametrize(
    ("parameters", "refused"),
    [
        ({"gpuType": "A100"}, ""),
        ({"gpuType": "A100-80GB", "memoryGB": 80}, ""),
        ({"gpuType": "H100"}, "of type A100, not H100"),
        ({"gpuType": "A100-40GB"}, "of type A100 80GB, not A100-40GB"),
        ({"memoryGB": 96}, "with 80Gi memory, less than 96 GB"),
    ],
)
@pytest.mark.parametrize("policy", list(Policy))
def test_a_device_must_be_of_the_type_and_size(parameters: Json, refused: str, policy: Policy) -> None:
    outcome = ask(SWITCHED, wants(**parameters), policy=policy)
    assert [(r.code, r.text) for r in outcome.reasons.refusals] == [(Code.PARAMETERS, refused)] * 8 * bool(
        refused
    )
    assert (outcome.allocations is None) == bool(refused)
    if refused:
        assert outcome.reasons.summary == (
            f"request gpu: 1 device wanted, of 8 devices 0 can be used: 8 {refused}"
        )


def test_the_claim_overrides_its_class_for_the_requests_it_names() -> None:
    cls = fleet.device_class(config=[fleet.parameters(gpuType="H100")])
    exactly = {"deviceClassName": DRIVER_NAME}
    requests = ({"name": "a", "exactly": exactly}, {"name": "b", "exactly": exactly})
    assert devices(ask(SWITCHED, fleet.claim("c"), classes=[cls])) == "no"
    entry = fleet.parameters(gpuType="A100")
    assert ask(SWITCHED, fleet.claim("c", *requests, config=[entry]), classes=[cls]).allocations
    named = entry | {"requests": ["a"]}
    outcome = ask(SWITCHED, fleet.claim("c", *requests, config=[named]), classes=[cls])
    assert {r.request for r in outcome.reasons.refusals} == {"b"}


def test_each_subrequest_has_its_parameters() -> None:
    subs = [{"name": n, "deviceClassName": DRIVER_NAME} for n in ("x", "y")]
    entries = [
        fleet.parameters(gpuType="H100") | {"requests": ["r/x"]},
        fleet.parameters(nvLinkPeers=4) | {"requests": ["r/y"]},
    ]
    outcome = ask(SWITCHED, fleet.claim("c", {"name": "r", "firstAvailable": subs}, config=entries))
    assert len(ordinals(SWITCHED, outcome)[0]) == 4


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"memoryGB": "many"}, "ResourceClaim default/c: spec.devices.config[0].opaque.parameters"),
        ({"gpuType": "80GB"}, "gpuType"),
        ({"replicas": 2}, "replicas"),
    ],
)
def test_invalid_parameters_are_fatal_and_named(parameters: Json, text: str) -> None:
    outcome = ask(SWITCHED, wants(**parameters))
    assert "ResourceClaim default/c" in outcome.error
    assert text.rpartition(": ")[2] in outcome.error


def test_kube_scheduler_reads_no_parameters() -> None:
    plain = fleet.slices("n", SWITCHED, allocator="scheduler")
    for parameters in ({"gpuType": "H100"}, {"nvLinkPeers": 4}, {"memoryGB": "many"}):
        item = wants(**parameters)
        outcome = solve(plain, [item], classes=[fleet.device_class()], controller=False)
        assert len(devices(outcome)[0]) == 1


def test_parameters_say_nothing_of_classes_of_other_drivers() -> None:
    item = any_claim(any_request(), config=[fleet.parameters(nvLinkPeers=4, gpuType="H100")])
    assert devices(solve([any_slice(any_device("a"))], [item])) == [["a"]]
    assert DRIVER != DRIVER_NAME


def test_gpus_that_do_not_work_are_not_given() -> None:
    outcome = ask(BRIDGED, wants(4, nvLinkPeers=2), unhealthy=(0, 3), held=(4,))
    assert [r.code for r in outcome.reasons.refusals].count(Code.UNHEALTHY) == 2
    assert outcome.reasons.summary == (
        "request gpu: 4 devices wanted, of 8 devices 5 can be used, but there are no 2 linked sets of 2 "
        "among those: 2 unhealthy, 1 held by claim default/old"
    )


def test_drained_gpus_are_told_from_those_that_do_not_work() -> None:
    """By a taint, which a claim may tolerate and a server before 1.36 drops: neither gives the GPU away."""
    published = fleet.slices("n", BRIDGED, unhealthy=(0, 3))
    drained = published[3]["spec"]["devices"][0]
    drained["taints"] = [{"key": DRAINED_TAINT, "effect": "NoSchedule", "timeAdded": "2026-11-30T05:00:00Z"}]
    item = fleet.claim("c", count=7)
    item["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = [{"operator": "Exists"}]
    outcome = solve(published, [item], classes=[fleet.device_class()], policy=Policy.TANGRAM)
    assert outcome.reasons.summary.endswith(": 1 drained, 1 unhealthy"), outcome.reasons.summary


# --- shares ---

ONE_A100 = fleet.machine(count=1)


def share(kind: Kind, *, capacity: Json | None = None, **parameters: Any) -> Json | str:
    """What is consumed of the GPU with 80 GB, divided into four; or why nothing."""
    wanted: Json = {"deviceClassName": fleet.KIND_CLASSES[kind]}
    if capacity:
        wanted["capacity"] = {"requests": capacity}
    item = fleet.claim("c", {"name": "r", "exactly": wanted}, config=[fleet.parameters(**parameters)])
    outcome = solve(
        fleet.slices("n", ONE_A100, kinds=(kind,), replicas=4),
        [item],
        classes=[fleet.kind_class(kind)],
        policy=Policy.TANGRAM,
    )
    if outcome.allocations is None:
        return outcome.error or outcome.reasons.summary
    results = outcome.allocations[0].devices.results or []
    return {
        name: f"{amount}" for result in results for name, amount in (result.consumed_capacity or {}).items()
    }


def test_a_share_of_mps_is_as_large_as_the_parameters_say() -> None:
    default = {"memory": "20Gi", "cores": "25", "multiprocessors": "0"}
    assert share("mps") == default
    assert share("mps", mps={"threadPercent": 40}) == default | {"cores": "40"}
    assert share("mps", mps={"pinnedMemory": "30Gi"}) == default | {"memory": "30Gi"}
    assert share("mps", mps={"threadPercent": 40, "pinnedMemory": "30Gi"}) == default | {
        "cores": "40",
        "memory": "30Gi",
    }


def test_claims_that_want_few_sharers_get_several_replicas_with_their_memory() -> None:
    default = {"memory": "20Gi", "replicas": "1", "multiprocessors": "0"}
    assert share("timeslice") == default
    assert share("timeslice", replicas=2) == default | {"memory": "40Gi", "replicas": "2"}
    assert share("timeslice", replicas=3) == default | {"memory": "40Gi", "replicas": "2"}
    assert share("timeslice", replicas=1) == default | {"memory": "80Gi", "replicas": "4"}
    assert share("timeslice", replicas=8) == default


def test_what_the_claim_states_itself_beats_the_parameters() -> None:
    assert share("mps", capacity={"cores": "50"}, mps={"threadPercent": 40, "pinnedMemory": "8Gi"}) == {
        "memory": "8Gi",
        "cores": "50",
        "multiprocessors": "0",
    }
    assert share("mps", capacity={"cores": "50"}) == share("mps", mps={"threadPercent": 50})


def test_a_share_that_is_larger_than_the_gpu_is_refused() -> None:
    memory, cores = share("mps", mps={"pinnedMemory": "100Gi"}), share("mps", capacity={"cores": "101"})
    assert "capacity memory: 100Gi is above the maximum of 80Gi" in memory
    assert "capacity cores: 101 is above the maximum of 100" in cores


# --- linked sets ---


def test_a_gpu_that_is_linked_to_none_before_it_may_be_linked_to_one_behind_it() -> None:
    mesh = {0: {3: 1}, 1: {2: 1}, 2: {1: 1}, 3: {0: 1}}
    of = fleet.machine(count=4, mesh=mesh)
    for policy in Policy:
        assert ordinals(of, ask(of, wants(4, nvLinkPeers=2), policy=policy)) == [[0, 1, 2, 3]]
        assert devices(ask(of, wants(4, nvLinkPeers=4), policy=policy)) == "no"


def test_links_that_take_too_long_to_count_are_not_taken_for_missing() -> None:
    assert ask(DGX_1V, wants(4, nvLinkPeers=2)).allocations
    with patch("tangram.allocation.structured.links._STEPS", 0):
        for policy in Policy:
            outcome = ask(DGX_1V, wants(4, nvLinkPeers=2), policy=policy)
            assert outcome.exhausted
            assert "linked" not in outcome.reasons.summary


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("held", [(), (1, 3, 5, 6)])
def test_four_linked_behind_a_switch(policy: Policy, held: tuple[int, ...]) -> None:
    outcome = ask(SWITCHED, wants(nvLinkPeers=4), held=held, policy=policy)
    (chosen,) = ordinals(SWITCHED, outcome)
    assert len(chosen) == 4
    assert not set(held) & set(chosen)


@pytest.mark.parametrize("policy", list(Policy))
def test_four_linked_in_a_cube_mesh_with_some_held(policy: Policy) -> None:
    assert ordinals(DGX_1V, ask(DGX_1V, wants(nvLinkPeers=4), held=(1,), policy=policy)) == [[4, 5, 6, 7]]
    outcome = ask(DGX_1V, wants(nvLinkPeers=4), held=(1, 6), policy=policy)
    assert outcome.reasons.summary == (
        "request gpu: 4 devices wanted, of 8 devices 6 can be used, but no 4 of those are linked (largest "
        "free linked set: 3): 2 held by claim default/old"
    )
    assert not outcome.exhausted


@pytest.mark.parametrize("policy", list(Policy))
def test_two_pairs_for_four(policy: Policy) -> None:
    outcome = ask(BRIDGED, wants(4, nvLinkPeers=2), held=(1, 2, 6), policy=policy)
    assert devices(outcome) == "no"
    assert "but there are no 2 linked sets of 2 among those" in outcome.reasons.summary
    outcome = ask(BRIDGED, wants(4, nvLinkPeers=2), held=(1, 2), policy=policy)
    assert ordinals(BRIDGED, outcome) == [[4, 5, 6, 7]]


def test_three_linked_behind_bridges_are_none() -> None:
    outcome = ask(BRIDGED, wants(nvLinkPeers=3))
    assert "no 3 of those are linked (largest free linked set: 2)" in outcome.reasons.summary


def test_a_count_that_sets_do_not_add_up_to_is_refused() -> None:
    outcome = ask(SWITCHED, wants(6, nvLinkPeers=4))
    assert "multiple of 4" in outcome.error
    assert "spec.devices.requests[0].exactly.count" in outcome.error


def test_linked_sets_and_attributes_together() -> None:
    item = wants(2, nvLinkPeers=2)
    item["spec"]["devices"]["constraints"] = [{"matchAttribute": NUMA}]
    (chosen,) = ordinals(DGX_1V, ask(DGX_1V, item, held=(0, 1, 2, 4, 5)))
    assert chosen == [6, 7]


def test_all_gpus_in_linked_sets() -> None:
    item = wants(nvLinkPeers=4)
    item["spec"]["devices"]["requests"][0]["exactly"] = {
        "deviceClassName": DRIVER_NAME,
        "allocationMode": "All",
    }
    assert ordinals(DGX_1V, ask(DGX_1V, item)) == [list(range(8))]
    assert devices(ask(BRIDGED, item)) == "no"


@given(
    held=st.sets(st.integers(0, 7), max_size=6),
    size=st.integers(2, 4),
    sets=st.integers(1, 3),
    policy=st.sampled_from(list(Policy)),
)
@settings(max_examples=150, deadline=None)
def test_linked_sets_are_found_where_there_are_any(
    held: set[int], size: int, sets: int, policy: Policy
) -> None:
    free = sorted(set(range(8)) - held)
    exist = any(
        splits(fleet.CUBE_MESH, frozenset(chosen), size) for chosen in combinations(free, size * sets)
    )
    outcome = ask(DGX_1V, wants(size * sets, nvLinkPeers=size), held=held, policy=policy)
    assert not outcome.exhausted
    assert (outcome.allocations is not None) == exist
    if exist:
        (chosen,) = ordinals(DGX_1V, outcome)
        assert splits(fleet.CUBE_MESH, frozenset(chosen), size)
        assert not held & set(chosen)


@given(
    pairs=st.sets(st.sampled_from(list(combinations(range(9), 2))), min_size=8),
    size=st.integers(2, 4),
    policy=st.sampled_from(list(Policy)),
)
@settings(max_examples=100, deadline=None)
def test_linked_sets_are_found_whatever_the_links(
    pairs: set[tuple[int, int]], size: int, policy: Policy
) -> None:
    """Many of these searches go on with pruning, which must not take unlike devices as alike."""
    mesh: dict[int, dict[int, int]] = {i: {} for i in range(9)}
    for a, b in pairs:
        mesh[a][b] = mesh[b][a] = 1
    count = size * (9 // size)
    exist = any(splits(mesh, frozenset(chosen), size) for chosen in combinations(range(9), count))
    outcome = ask(fleet.machine(count=9, mesh=mesh), wants(count, nvLinkPeers=size), policy=policy)
    assert not outcome.exhausted
    assert (outcome.allocations is not None) == exist


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("seed", range(3))
def test_links_made_to_be_hard_end_soon(policy: Policy, seed: int) -> None:
    chance = random.Random(seed)
    mesh: dict[int, dict[int, int]] = {i: {} for i in range(32)}
    for a, b in combinations(range(32), 2):
        if chance.random() < 0.6:
            mesh[a][b] = mesh[b][a] = 1
    of = fleet.machine(count=32, mesh=mesh)
    outcome = ask(of, wants(30, nvLinkPeers=6), policy=policy)
    assert outcome.exhausted or outcome.allocations or "linked" in outcome.reasons.summary
    assert outcome.steps < 60_000


# --- which node ---


def test_full_nodes_come_first() -> None:
    fuller = ask(SWITCHED, wants(), held=(0, 1, 2)).score
    emptier = ask(SWITCHED, wants(), held=(0,)).score
    assert fuller is not None
    assert emptier is not None
    assert fuller > emptier
    assert isinstance(fuller, Score)
    assert (fuller.fullness, fuller[:-3]) == (-4, emptier[:-3])
    broken = ask(SWITCHED, wants(), held=(0,), unhealthy=(1, 2)).score
    assert isinstance(broken, Score)
    assert broken.fullness == -4
