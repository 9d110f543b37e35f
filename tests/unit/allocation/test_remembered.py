"""What is remembered of nodes, and taken over from nodes that are alike, changes no answer."""

import gc
import pickle
from collections.abc import Sequence
from typing import Any
from weakref import ref

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import fleet
from tests.fleet import CUBE_MESH, machine, node
from tests.unit.allocation.test_engine import claim, decide, pod, request, snapshot

from tangram import DRIVER_NAME
from tangram.allocation import PodDecision, Remembered, Snapshot, summarize
from tangram.allocation.remembered import kind_of
from tangram.allocation.shapes import looks_at_identities, shape_of
from tangram.allocation.structured import Cluster
from tangram.model.kubernetes import DeviceClass, ResourceClaim

DGX1 = machine("Tesla V100-SXM2-32GB", memory_gib=32, mesh=CUBE_MESH)
MACHINES = [
    machine(switch_links=12, seed="a"),
    machine(switch_links=12, seed="b"),
    DGX1,
    machine("Tesla V100-SXM2-32GB", memory_gib=32, mesh=CUBE_MESH, seed="c"),
    machine("Tesla T4", count=4, memory_gib=15),
]
CLASSES = {DRIVER_NAME: msgspec.convert(fleet.device_class(), DeviceClass)}
"""One object for all nodes, as in a controller: else nothing is taken over from a node that is alike."""
NODES = [Cluster.of(node(f"n{i}", of).slices, CLASSES) for i, of in enumerate([*MACHINES, *MACHINES])]
UUID = 'device.attributes["gpu.resource.admin"].uuid.startsWith("GPU-00000002")'
SELECTORS = [
    "",
    'device.capacity["gpu.resource.admin"].memory.compareTo(quantity("20Gi")) >= 0',
    'device.attributes["gpu.resource.admin"].ordinal != 1',
    UUID,
    'device.attributes["resource.kubernetes.io"].pciBusID != "0000:03:00.0"',
]
MATCHES = [
    "",
    "gpu.resource.admin/nvlinkGroup4",
    "resource.kubernetes.io/numaNode",
    "gpu.resource.admin/uuid",
]
CLAIMS = st.builds(
    lambda count, selector, match, linked: claim(
        "c", request(count * linked, selector=selector), match=match, linked=linked
    ),
    st.integers(1, 3),
    st.sampled_from(SELECTORS),
    st.sampled_from(MATCHES),
    st.sampled_from([1, 1, 2, 4]),
)


def answers(state: Snapshot, wanted: ResourceClaim, remembered: Remembered | None = None) -> list[Any]:
    return [facts(decision) for decision in decide(state, pod("p", wanted), remembered=remembered)]


def facts(decision: PodDecision) -> Any:
    if decision.placement is None:
        return summarize(decision.reasons)
    return decision.placement.node, decision.placement.terms, decision.placement.claims


def alone(state: Snapshot, wanted: ResourceClaim) -> Any:
    """Each node asked by itself, as if there were no other; the best of them."""
    best: Any = None
    for name in sorted(state.nodes):
        one = Snapshot(nodes={name: state.nodes[name]}, held=state.held)
        (answer,) = answers(one, wanted)
        if isinstance(answer, tuple) and (best is None or answer[1] > best[1]):
            best = answer
    return best


@settings(max_examples=40, deadline=None)
@given(
    st.lists(CLAIMS, min_size=1, max_size=3),
    st.lists(
        st.dictionaries(
            st.sampled_from([f"n{i}" for i in range(len(NODES))]),
            st.sets(st.integers(0, 3)).map(lambda found: tuple(sorted(found))),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_remembering_changes_nothing(wanted: list[ResourceClaim], states: list[dict[str, Any]]) -> None:
    remembered = Remembered()
    for held in states:
        state = snapshot(*NODES, held=held)
        for each in wanted:
            once = answers(state, each, remembered)
            assert answers(state, each, remembered) == once == answers(state, each)
            (answer,) = once
            expected = alone(state, each)
            assert (answer if isinstance(answer, tuple) else None) == expected


def test_nodes_that_are_alike() -> None:
    shapes = [shape_of(each).slices for each in NODES]
    assert len(set(shapes)) == 3
    assert shapes[0] == shapes[1] == shapes[5]
    assert shape_of(node("n", DGX1, unhealthy=(3,))).slices not in shapes


def classes(*objects: dict[str, Any]) -> dict[str, DeviceClass]:
    made = [msgspec.convert(item, DeviceClass) for item in objects]
    return {item.metadata.name: item for item in made}


@pytest.mark.parametrize(
    ("selector", "looks"),
    [
        ("true", False),
        (SELECTORS[1], False),
        (SELECTORS[2], False),
        (UUID, True),
        (SELECTORS[4], True),
        ('device.attributes["gpu.resource.admin"].exists(name, name == "x")', True),
        ("device.attributes.size() > 0", True),
        ("device.attributes ==", False),
    ],
)
@pytest.mark.parametrize("where", ["claim", "class", "alternative"])
def test_claims_that_look_at_identities(selector: str, looks: bool, where: str) -> None:
    known = classes(fleet.device_class())
    wanted = claim("c", request(selector=selector))
    if where == "class":
        known = classes(fleet.device_class(DRIVER_NAME, selector))
        wanted = claim("c", request())
    elif where == "alternative":
        sub = {
            "name": "s",
            "deviceClassName": DRIVER_NAME,
            "selectors": [{"cel": {"expression": selector}}],
        }
        wanted = claim("c", {"name": "r", "firstAvailable": [sub]})
    assert looks_at_identities([wanted], known) is looks


def test_derived_attributes_may_tell_nodes_apart_that_are_alike() -> None:
    """Of a like node without such devices nothing is taken over."""
    state = snapshot(*NODES[:2])
    assert len({shape_of(each).slices for each in state.nodes.values()}) == 1
    for name, here in state.nodes.items():
        own = [str(device.cel.attributes[DRIVER_NAME]["uuid"]) for i in here.slices for device in i.devices]
        uuid = 'device.attributes["gpu.resource.admin"].uuid'
        expression = f'{uuid} in {own} ? "here" : {uuid}'.replace("'", '"')
        asked = request(2)
        asked["exactly"]["derivedAttributes"] = [{"name": "derived/place", "expression": expression}]
        wanted = claim("c", asked, constraints=[{"matchAttribute": "derived/place"}])
        (decision,) = decide(state, pod("p", wanted))
        assert decision.placement is not None, summarize(decision.reasons)
        assert (decision.placement.node, decision.placement.runner_up) == (name, None)


def test_room_is_made_for_the_kinds_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tangram.allocation.remembered._MAXIMUM_ANSWERS", 40)
    remembered = Remembered()
    state = snapshot(*NODES)
    kinds: Sequence[ResourceClaim] = [claim("c", request(count)) for count in range(1, 9)]
    for wanted in kinds:
        answers(state, wanted, remembered)
        assert len(remembered) <= 40
    assert len(remembered) > 0


def test_other_classes_give_other_answers() -> None:
    remembered = Remembered()
    wanted = claim("c", request())
    assert isinstance(answers(snapshot(NODES[0]), wanted, remembered)[0], tuple)
    nobody = fleet.device_class(DRIVER_NAME, fleet.GUARD, "false")
    changed: Cluster = node("n0", MACHINES[0], classes=[nobody])
    (answer,) = answers(snapshot(changed), wanted, remembered)
    assert "of the class" in answer


def test_a_kind_is_small_and_states_that_are_over_are_not_kept() -> None:
    remembered = Remembered()
    wanted = claim("c", request(selector=" || ".join([UUID] * 50)))
    assert len(pickle.dumps(kind_of([wanted]))) < 100
    state = snapshot(node("n0", MACHINES[0]), held={"n0": (1,)})
    answers(state, wanted, remembered)
    assert len(remembered) == 1
    old: list[Any] = [ref(state.nodes["n0"]), ref(state.held["n0"])]
    del state
    gc.collect()
    assert [each() for each in old] == [None, None]
