"""The engine: which node, which devices, and the reasons where there are none."""

import json
import random
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import fleet
from tests.fleet import CUBE_MESH, machine, node, parameters

from tangram import DRIVER_NAME
from tangram.allocation import (
    Batch,
    ClaimKey,
    Group,
    Holdings,
    PodDecision,
    PodKey,
    PodRequest,
    Remembered,
    Settings,
    Snapshot,
    Statistics,
    allocate,
    summarize,
)
from tangram.allocation.structured import Cluster, DeviceId
from tangram.model.devices import pool_name
from tangram.model.gpu import Machine
from tangram.model.kubernetes import DeviceAllocationResult, ResourceClaim

A100 = machine(switch_links=12)
DGX1 = machine("Tesla V100-SXM2-32GB", memory_gib=32, mesh=CUBE_MESH)
T4 = machine("Tesla T4", count=4, memory_gib=15)


def request(count: int = 1, *, name: str = "gpu", selector: str = "") -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": DRIVER_NAME, "count": count}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    return {"name": name, "exactly": exactly}


def claim(
    name: str,
    *requests: dict[str, Any],
    match: str = "",
    linked: int = 1,
    constraints: Sequence[dict[str, Any]] = (),
) -> ResourceClaim:
    """`linked`: the devices of each request must split into linked sets of that size."""
    config = [parameters(nvLinkPeers=linked)] if linked > 1 else []
    item = fleet.claim(name, *requests, match=match, config=config)
    item["metadata"]["uid"] = name
    item["spec"]["devices"]["constraints"] += constraints
    return msgspec.json.decode(json.dumps(item), type=ResourceClaim)


def pod(name: str, *claims: ResourceClaim, **more: Any) -> PodRequest:
    return PodRequest(key=PodKey("default", name, name), claims=claims, **more)


def named(*nodes: Cluster) -> dict[str, Cluster]:
    return {n.slices[0].node_name or "": n for n in nodes}


def devices(on: Cluster) -> list[DeviceId]:
    """In order of ordinals."""
    own = [device for item in on.slices for device in item.devices]
    ordered = sorted(own, key=lambda d: int(d.cel.attributes[DRIVER_NAME]["ordinal"]))  # type: ignore[call-overload]
    return [device.id for device in ordered]


def snapshot(*nodes: Cluster, held: dict[str, tuple[int, ...]] | None = None, **more: Any) -> Snapshot:
    """`held`: node → positions of devices that others hold."""
    by_name = named(*nodes)
    holder = ClaimKey("other", "claim", "uid")
    holdings = {
        name: Holdings().with_(
            holder,
            [
                DeviceAllocationResult(
                    request="r", driver=DRIVER_NAME, pool=pool_name(DRIVER_NAME, name), device=id_.device
                )
                for id_ in (devices(by_name[name])[i] for i in positions)
            ],
        )
        for name, positions in (held or {}).items()
    }
    return Snapshot(nodes=by_name, held=holdings, **more)


def decide(
    state: Snapshot, *pods: PodRequest, atomic: bool = False, remembered: Remembered | None = None
) -> tuple[PodDecision, ...]:
    batch: Batch = (Group(pods=pods, atomic=atomic),)
    return allocate(state, batch, Settings(), Statistics(), remembered=remembered).pods


def chosen(state: Snapshot, decision: PodDecision) -> tuple[str, tuple[int, ...]]:
    """Node and positions of the devices given."""
    assert decision.placement is not None, summarize(decision.reasons)
    on = devices(state.nodes[decision.placement.node])
    results = [result for c in decision.placement.claims for result in c.results]
    names = [id_.device for id_ in on]
    return decision.placement.node, tuple(sorted(names.index(result.device) for result in results))


def place(state: Snapshot, *claims: ResourceClaim, **more: Any) -> tuple[str, tuple[int, ...]]:
    return chosen(state, decide(state, pod("p", *claims, **more))[0])


def refused(state: Snapshot, *claims: ResourceClaim, **more: Any) -> str:
    decision = decide(state, pod("p", *claims, **more))[0]
    assert decision.placement is None
    return summarize(decision.reasons)


class TestNodeChoice:
    def test_the_fullest_node_that_fits_wins(self) -> None:
        state = snapshot(node("a", A100), node("b", A100), held={"b": (0, 1, 2)})
        assert place(state, claim("c", request()))[0] == "b"

    def test_equal_nodes_are_taken_by_name(self) -> None:
        assert place(snapshot(node("b", A100), node("a", A100)), claim("c", request()))[0] == "a"

    def test_a_small_demand_spares_the_big_gpus(self) -> None:
        state = snapshot(node("a", A100), node("t", T4), held={"a": (0, 1, 2, 3, 4, 5, 6)})
        assert place(state, claim("c", request()))[0] == "t"

    def test_a_small_demand_spares_the_big_gpus_of_a_mixed_node(self) -> None:
        a100, t4 = A100.gpus[:2], T4.gpus[2:]
        mixed = Machine(gpus=(*a100, *t4), driver_version="570.86.15", cuda_driver_version="12.8")
        assert place(snapshot(node("m", mixed)), claim("c", request()))[1] == (2,)

    def test_broken_gpus_do_not_make_a_node_look_empty(self) -> None:
        broken = node("a", A100, unhealthy=(2, 3, 4, 5, 6, 7))
        state = snapshot(broken, node("b", A100), held={"b": (0, 1, 2)})
        assert place(state, claim("c", request()))[0] == "a"

    def test_linked_gpus_are_preferred_across_nodes(self) -> None:
        state = snapshot(node("a", A100), node("t", T4))
        assert place(state, claim("c", request(2)))[0] == "a"

    def test_a_nomination_beats_every_score(self) -> None:
        state = snapshot(node("a", A100), node("b", A100), held={"a": (0,)})
        assert place(state, claim("c", request()), preferred_node="b")[0] == "b"

    def test_refused_nodes_are_left_out(self) -> None:
        state = snapshot(node("a", A100), node("b", A100))
        no = {"a": "on cordoned nodes"}
        assert place(state, claim("c", request()), refused_nodes=no)[0] == "b"

    def test_other_resources_of_the_node_count_down_within_a_batch(self) -> None:
        free = {"a": {"cpu": 1500}, "b": {"cpu": 4000}}
        state = snapshot(node("a", A100), node("b", A100), free_resources=free)
        pods = [pod(str(i), claim(str(i), request()), resources={"cpu": 1000}) for i in range(3)]
        decisions = decide(state, *pods)
        assert [chosen(state, d)[0] for d in decisions] == ["a", "b", "b"]

    def test_the_runner_up_is_named(self) -> None:
        state = snapshot(node("a", A100), node("b", A100), held={"b": (0,)})
        placement = decide(state, pod("p", claim("c", request())))[0].placement
        assert placement is not None
        assert placement.runner_up is not None
        assert placement.runner_up[0] == "a"
        assert placement.runner_up[1] < placement.terms


class TestSetChoice:
    def test_two_gpus_get_the_widest_pair(self) -> None:
        _, pair = place(snapshot(node("d", DGX1)), claim("c", request(2)))
        assert CUBE_MESH[pair[0]][pair[1]] == 2

    def test_four_gpus_get_a_clique_of_the_cube_mesh(self) -> None:
        _, quad = place(snapshot(node("d", DGX1)), claim("c", request(4)))
        assert all(b in CUBE_MESH[a] for a, b in combinations(quad, 2))

    def test_one_gpu_comes_from_the_broken_quad(self) -> None:
        for taken in range(8):
            state = snapshot(node("d", DGX1), held={"d": (taken,)})
            _, (got,) = place(state, claim("c", request()))
            free = [i for i in range(8) if i not in (taken, got)]
            assert any(
                all(b in CUBE_MESH[a] for a, b in combinations(quad, 2)) for quad in combinations(free, 4)
            ), f"{taken} was taken, {got} broke the last quad"

    def test_on_a_switch_single_gpus_keep_published_groups_whole(self) -> None:
        state = snapshot(node("a", A100), held={"a": (5,)})
        assert place(state, claim("c", request()))[1] == (4,)

    def test_soft_preference_takes_unlinked_gpus_rather_than_none(self) -> None:
        state = snapshot(node("d", DGX1), held={"d": (0, 1, 2, 4, 6, 7)})
        assert place(state, claim("c", request(2)))[1] == (3, 5)

    def test_all_claims_of_a_pod_land_on_one_node_disjoint(self) -> None:
        state = snapshot(node("a", A100), node("b", A100), held={"a": (0, 1, 2, 3, 4)})
        where, devices = place(state, claim("x", request(2)), claim("y", request(2)))
        assert where == "b"
        assert len(set(devices)) == 4

    def test_a_request_with_few_candidates_is_not_starved_by_one_before_it(self) -> None:
        only_first = 'device.attributes["gpu.resource.admin"].ordinal == 0'
        _, devices = place(
            snapshot(node("a", A100)),
            claim("c", request(name="any"), request(name="first", selector=only_first)),
        )
        assert devices == (0, 1)

    def test_a_linked_set_that_a_demand_asks_for_is_strict(self) -> None:
        state = snapshot(node("d", DGX1), held={"d": (0, 4)})
        assert "no 4 of those are linked (largest free linked set: 3)" in refused(
            state, claim("c", request(4), linked=4)
        )

    def test_eight_gpus_in_linked_sets_of_four(self) -> None:
        assert place(snapshot(node("d", DGX1)), claim("c", request(8), linked=4))[1] == tuple(range(8))
        state = snapshot(node("d", DGX1), held={"d": (7,)})
        assert place(state, claim("c", request(4), linked=2))[1] is not None


class TestConstraints:
    def test_match_attribute_takes_devices_of_one_group(self) -> None:
        state = snapshot(node("a", A100), held={"a": (1,)})
        _, quad = place(state, claim("c", request(4), match="gpu.resource.admin/nvlinkGroup4"))
        assert quad == (4, 5, 6, 7)

    def test_devices_without_the_attribute_do_not_match(self) -> None:
        text = refused(
            snapshot(node("t", T4)), claim("c", request(2), match="gpu.resource.admin/nvlinkGroup2")
        )
        assert text == "4 GPUs on 1 node: 4 without the attribute gpu.resource.admin/nvlinkGroup2"

    def test_a_constraint_binds_the_requests_it_names_only(self) -> None:
        numa = "resource.kubernetes.io/numaNode"
        requests = (request(2, name="x"), request(2, name="y"), request(4, name="z"))
        c = claim("c", *requests, constraints=[{"matchAttribute": numa, "requests": ["x", "y"]}])
        decision = decide(snapshot(node("a", A100)), pod("p", c))[0]
        assert decision.placement is not None
        names = [id_.device for id_ in devices(node("a", A100))]
        got = {r.request: set() for r in decision.placement.claims[0].results}  # type: dict[str, set[int]]
        for result in decision.placement.claims[0].results:
            got[result.request].add(names.index(result.device) // 4)
        assert len(got["x"] | got["y"]) == 1


class TestReasons:
    def test_every_gpu_is_counted_once(self) -> None:
        state = snapshot(node("a", A100), node("t", T4), held={"a": (0, 1, 2)})
        selector = 'device.capacity["gpu.resource.admin"].memory.compareTo(quantity("40Gi")) >= 0'
        text = refused(state, claim("c", request(6, selector=selector)))
        assert text.startswith("12 GPUs on 2 nodes: ")
        assert "3 in use by other claims" in text
        assert "4 not selected by" in text
        assert "5 on a fit, but request gpu needs 6" in text

    def test_a_linked_set_that_is_there_is_not_denied(self) -> None:
        spoilt = machine(mesh={**CUBE_MESH, 7: {}})
        text = refused(snapshot(node("d", spoilt)), claim("c", request(8), linked=4))
        assert text == "8 GPUs on 1 node: 8 on d fit, but there are no 2 linked sets of 4 among those"

    def test_more_than_a_node_has_is_said_without_a_search(self) -> None:
        one_by_one = [request(name=f"r{i}") for i in range(32)]
        text = refused(snapshot(node("a", A100)), claim("c", *one_by_one))
        assert text == "8 GPUs on 1 node: 8 on a fit, but the pod needs 32"

    def test_requests_that_fit_alone_but_not_together(self) -> None:
        two = 'device.attributes["gpu.resource.admin"].ordinal < 2'
        x, y = claim("x", request(2, name="x", selector=two)), claim("y", request(name="y", selector=two))
        text = refused(snapshot(node("a", A100)), x, y)
        assert "2 on a fit, but the pod needs 3" in text
        z = claim("z", request(name="z", selector='device.attributes["gpu.resource.admin"].ordinal > 1'))
        text = refused(snapshot(node("a", A100)), x, y, z)
        assert "8 on a fit, but no way to give each request of the pod its devices" in text

    def test_linking_is_not_blamed_for_another_request(self) -> None:
        """Four linked GPUs are there, but the other request takes one of them."""
        first = 'device.attributes["gpu.resource.admin"].ordinal == 0'
        state = snapshot(node("d", DGX1), held={"d": (4,)})
        text = refused(
            state,
            claim("x", request(4, name="quad"), linked=4),
            claim("y", request(name="one", selector=first)),
        )
        assert "7 on d fit, but no way to give each request of the pod its devices" in text

    def test_a_constraint_is_named_only_for_the_requests_it_covers(self) -> None:
        numa = {"matchAttribute": "resource.kubernetes.io/numaNode", "requests": ["x"]}
        pcie = {"matchAttribute": "resource.kubernetes.io/pcieRoot", "requests": ["y"]}
        c = claim("c", request(2, name="x"), request(2, name="y"), constraints=[numa, pcie])
        text = refused(snapshot(node("a", A100)), c)
        assert "8 on a fit, but no 2 of those agree in resource.kubernetes.io/pcieRoot" in text

    def test_a_constraint_across_requests(self) -> None:
        state = snapshot(node("a", A100), held={"a": (3, 7)})
        c = claim("c", request(2, name="x"), request(2, name="y"), match="resource.kubernetes.io/numaNode")
        text = refused(state, c)
        assert "2 in use by other claims" in text
        assert "6 on a fit, but no set for all requests of a claim agrees in resource.kubernetes.io" in text

    def test_of_several_requests_each_refusal_names_its_own(self) -> None:
        big = 'device.capacity["gpu.resource.admin"].memory.compareTo(quantity("40Gi")) >= 0'
        state = snapshot(node("t", T4), node("a", A100), held={"a": (0, 1, 2, 3, 4, 5, 6, 7)})
        text = refused(state, claim("c", request(name="small"), request(name="big", selector=big)))
        assert "8 in use by other claims" in text
        assert '4 not selected by device.capacity["gpu.resource.admin"].memory' in text
        assert ">= 0 (request big)" in text

    def test_many_nodes_make_one_part(self) -> None:
        nodes = [node(f"n{i}", A100) for i in range(9)]
        held = {f"n{i}": tuple(range(6)) for i in range(9)}
        text = refused(snapshot(*nodes, held=held), claim("c", request(4)))
        assert text == (
            "72 GPUs on 9 nodes: 54 in use by other claims; "
            "18 on 9 nodes fit, but request gpu needs 4 on one node"
        )

    def test_one_gpu_in_good_grammar(self) -> None:
        state = snapshot(node("a", A100), held={"a": tuple(range(7))})
        text = refused(state, claim("c", request(2)))
        assert "1 on a fits, but request gpu needs 2" in text

    def test_an_event_has_room_for_it(self) -> None:
        unsuitable = {
            f"n{i}": f"on nodes with the untolerated taint {i}{'x' * 300}:NoExecute" for i in range(9)
        }
        state = snapshot(*(node(name, A100) for name in unsuitable))
        text = refused(state, claim("c", request()), refused_nodes=unsuitable)
        assert len(text.encode()) <= 1000
        assert text.endswith("; 7 further causes")

    def test_no_gpu_at_all(self) -> None:
        assert refused(Snapshot(nodes={}), claim("c", request())) == (
            "no node offers a GPU that this driver allocates"
        )

    def test_nodes_short_of_cpu(self) -> None:
        state = snapshot(node("a", A100), free_resources={"a": {"cpu": 100}})
        text = refused(state, claim("c", request()), resources={"cpu": 200})
        assert text == "8 GPUs on 1 node: 8 on nodes with too little cpu left"

    def test_a_selector_that_fails_is_fatal_and_names_device_and_cause(self) -> None:
        selector = 'device.attributes["gpu.resource.admin"].noSuchThing == 1'
        text = refused(snapshot(node("a", A100)), claim("c", request(selector=selector)))
        assert "noSuchThing" in text
        assert "no such key" in text
        assert "has(" in text


class TestEffort:
    """Anybody may write a claim; what it costs to decide is bounded, and the bound ends in a reason."""

    DEAR = "[" + ", ".join(["1"] * 150) + "].all(x, [" + ", ".join(["1"] * 200) + "].all(y, x == y))"

    def test_a_dear_selector_on_equal_devices_is_evaluated_once(self) -> None:
        state = snapshot(*(node(f"n{i}", A100) for i in range(50)))
        assert place(state, claim("c", request(selector=self.DEAR)))[0] == "n0"

    def test_a_dear_selector_on_different_devices_ends(self) -> None:
        selector = f'{self.DEAR} && device.attributes["gpu.resource.admin"].ordinal >= 0'
        text = refused(snapshot(node("a", A100)), claim("c", request(selector=selector)))
        assert text.startswith("the selectors cost too much to evaluate on so many different")

    def test_many_cheap_selectors_end_as_well(self) -> None:
        requests = [
            {
                "name": f"r{i}",
                "exactly": {
                    "deviceClassName": DRIVER_NAME,
                    "selectors": [{"cel": {"expression": f"{i} >= 0 && {j} >= 0"}} for j in range(32)],
                },
            }
            for i in range(8)
        ]
        state = snapshot(node("a", A100), node("b", A100))
        batch = (Group(pods=(pod("p", claim("c", *requests)),)),)
        assert allocate(state, batch, Settings(), Statistics()).pods[0].placement is not None
        (decision,) = allocate(state, batch, Settings(selector_units=3_000), Statistics()).pods
        assert decision.placement is None
        assert "cost too much to evaluate" in summarize(decision.reasons)

    def test_many_alternatives_on_many_nodes_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tangram.allocation.structured.account._PAIRS", 100)
        state = snapshot(*(node(f"n{i}", A100) for i in range(4)))

        def many(count: int) -> ResourceClaim:
            text = 'device.attributes["resource.kubernetes.io"].pciBusID == "{}"'
            subs = [
                {
                    "name": f"s{i}",
                    "deviceClassName": DRIVER_NAME,
                    "selectors": [{"cel": {"expression": text.format(i)}}],
                }
                for i in range(count)
            ]
            return claim("c", {"name": "r", "firstAvailable": subs})

        assert "4 nodes: 32 not selected by" in refused(state, many(4))
        assert refused(state, many(8)).startswith("there are too many requests to look at so many devices")
        outside = dict.fromkeys(state.nodes, "on cordoned nodes")
        assert refused(state, many(8), refused_nodes=outside) == "32 GPUs on 4 nodes: 32 on cordoned nodes"

    def test_what_nobody_reads_is_not_put_into_words(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """To say which term of a selector is false, its terms are evaluated, which no account pays for."""
        monkeypatch.delattr("tangram.allocation.structured.view.false_part")
        selector = 'device.driver != "" && device.attributes["gpu.resource.admin"].uuid == "x"'
        assert "8 not selected by" in refused(
            snapshot(node("a", A100)), claim("c", request(selector=selector))
        )

    def test_what_caches_know_does_not_matter(self) -> None:
        selector = f'{self.DEAR} && device.attributes["gpu.resource.admin"].ordinal >= 0'
        warm = node("a", A100)
        first = refused(snapshot(warm), claim("c", request(selector=selector)))
        again = refused(snapshot(warm), claim("c", request(selector=selector)))
        assert first == again == refused(snapshot(node("a", A100)), claim("c", request(selector=selector)))

    def test_irregular_links_and_many_nodes_end(self) -> None:
        rng = random.Random(1)
        nodes = []
        for i in range(8):
            mesh: dict[int, dict[int, int]] = {g: {} for g in range(16)}
            for a, b in combinations(range(16), 2):
                if rng.random() < 0.5:
                    mesh[a][b] = mesh[b][a] = rng.randint(1, 4)
            nodes.append(node(f"n{i}", machine(count=16, mesh=mesh, seed=str(i))))
        assert len(place(snapshot(*nodes), claim("c", request(8)))[1]) == 8

    def test_linked_sets_where_nothing_is_linked_end(self) -> None:
        state = snapshot(*(node(f"n{i}", machine("Tesla T4", count=16, memory_gib=15)) for i in range(50)))
        assert "no 4 of those are linked (largest free linked set: 1)" in refused(
            state, claim("c", request(4), linked=4)
        )


class TestGroups:
    def test_atomic_all_or_none(self) -> None:
        state = snapshot(node("a", A100), held={"a": (0, 1)})
        pods = [pod(str(i), claim(str(i), request(4))) for i in range(2)]
        assert [d.placement is not None for d in decide(state, *pods)] == [True, False]
        decisions = decide(state, *pods, atomic=True)
        assert [d.placement for d in decisions] == [None, None]
        assert "request gpu needs 4" in summarize(decisions[0].reasons)


@given(data=st.data())
def test_nothing_is_given_twice_and_order_of_input_does_not_matter(data: st.DataObject) -> None:
    fleet = [node("a", A100), node("d", DGX1), node("t", T4)]
    held = {
        name: tuple(data.draw(st.sets(st.integers(0, len(devices(n)) - 1)), label=name))
        for name, n in named(*fleet).items()
    }
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    pods = [pod(str(i), claim(str(i), request(size))) for i, size in enumerate(sizes)]
    state = snapshot(*fleet, held=held)
    decisions = decide(state, *pods)
    given_ = [
        (r.pool, r.device) for d in decisions if d.placement for c in d.placement.claims for r in c.results
    ]
    assert len(given_) == len(set(given_))
    taken = {(r.pool, r.device) for h in state.held.values() for rs in h.by_claim.values() for r in rs}
    assert not set(given_) & taken
    for size, decision in zip(sizes, decisions, strict=True):
        if decision.placement:
            assert sum(len(c.results) for c in decision.placement.claims) == size
    shuffled = fleet[:]
    random.Random(len(sizes)).shuffle(shuffled)
    again = decide(snapshot(*shuffled, held=dict(reversed(held.items()))), *pods)
    assert [d.placement for d in again] == [d.placement for d in decisions]


@given(data=st.data())
def test_feasible_exactly_when_brute_force_finds_a_set(data: st.DataObject) -> None:
    dgx = node("d", DGX1)
    held = data.draw(st.sets(st.integers(0, 7)))
    size = data.draw(st.sampled_from([1, 2, 3, 4]))
    state = snapshot(dgx, held={"d": tuple(held)})
    free = [i for i in range(8) if i not in held]
    exists = any(
        all(b in CUBE_MESH[a] for a, b in combinations(group, 2)) for group in combinations(free, size)
    )
    decision = decide(state, pod("p", claim("c", request(size), linked=size)))[0]
    assert (decision.placement is not None) == exists
    # What is freed stays feasible: more room never hurts.
    if decision.placement is not None:
        assert decide(snapshot(dgx), pod("p", claim("c", request(size), linked=size)))[0].placement
