"""The allocation that is written: configurations, node selectors, copies, share ids."""

from typing import Any
from uuid import UUID

import msgspec
import pytest
from tests.unit.allocation.structured.world import (
    ANY,
    DRIVER,
    claim,
    device,
    devices,
    either,
    request,
    slice_,
    solve,
    sub,
)

from tangram.allocation.structured import Outcome
from tangram.allocation.structured.nodes import NodeFacts, NodeSelectorError, selects
from tangram.model.kubernetes import AllocationResult, NodeSelector

Json = dict[str, Any]


def allocation(outcome: Outcome) -> AllocationResult:
    assert outcome.allocations is not None, outcome
    return outcome.allocations[0]


def wire(outcome: Outcome) -> Json:
    """As JSON has it."""
    decoded: Json = msgspec.json.decode(msgspec.json.encode(allocation(outcome)))
    return decoded


def opaque(value: int) -> Json:
    return {"opaque": {"driver": DRIVER, "parameters": {"k": value}}}


def test_configurations_of_classes_once_in_order_of_use_then_those_of_the_claim() -> None:
    classes = [
        {"metadata": {"name": name}, "spec": {"config": [opaque(i), opaque(i + 1)]}}
        for i, name in ((1, "x"), (5, "y"))
    ]
    wants = claim(
        request("a", cls="y"),
        either("b", sub("no", cls="x", count=9), sub("yes", cls="x")),
        request("c", cls="y"),
        config=[opaque(8), {"requests": ["b/yes"], **opaque(9)}, {"requests": ["b/no"], **opaque(10)}],
    )
    made = wire(solve([slice_("d1", "d2", "d3")], [wants], classes=classes))["devices"]["config"]
    assert [(c["source"], c.get("requests"), c["opaque"]["parameters"]["k"]) for c in made] == [
        ("FromClass", ["a", "c"], 5),
        ("FromClass", ["a", "c"], 6),
        ("FromClass", ["b/yes"], 1),
        ("FromClass", ["b/yes"], 2),
        ("FromClaim", None, 8),
        ("FromClaim", ["b/yes"], 9),
    ]


def test_results_repeat_what_drivers_and_the_scheduler_need() -> None:
    item = device("a", bindingConditions=["x"], bindingFailureConditions=["y"])
    wants = claim(request(tolerations=[{"key": "k"}]))
    (result,) = wire(solve([slice_(item)], [wants]))["devices"]["results"]
    assert result == {
        "request": "r",
        "driver": DRIVER,
        "pool": "p",
        "device": "a",
        "tolerations": [{"key": "k", "operator": "Equal"}],
        "bindingConditions": ["x"],
        "bindingFailureConditions": ["y"],
    }


def test_operations_that_may_be_skipped_need_a_node_that_knows_them() -> None:
    slices = [slice_("a", skipNodeOperations=["*"])]
    able = NodeFacts(name="n", declared_features=frozenset({"DRAOptionalNodeOperations"}))
    (result,) = wire(solve(slices, [claim(request())], node=able))["devices"]["results"]
    assert result["skipNodeOperations"] == ["*"]
    assert devices(solve(slices, [claim(request())])) == "no"
    assert devices(solve(slices, [claim(request())], features="k8s-1.37")) == [["a"]]
    assert devices(solve(slices, [claim(request())], features="k8s-1.37,ListTypeAttributes")) == "no"


def test_share_ids_are_derived() -> None:
    slices = [slice_(device("a", allowMultipleAllocations=True))]
    wants = claim(request("x"), request("y"))
    first, second = (r["shareID"] for r in wire(solve(slices, [wants]))["devices"]["results"])
    assert UUID(first).version == 5
    assert first != second
    assert [r["shareID"] for r in wire(solve(slices, [wants]))["devices"]["results"]] == [first, second]
    other = wire(solve(slices, [claim(request("x"), name="other")]))["devices"]["results"]
    assert other[0]["shareID"] != first


# --- node selectors ---

BY_NAME = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]


def requirement(key: str, operator: str, *values: str) -> Json:
    return {"key": key, "operator": operator} | ({"values": list(values)} if values else {})


def term(*requirements: Json, fields: tuple[Json, ...] = ()) -> Json:
    made: Json = {}
    if requirements:
        made["matchExpressions"] = list(requirements)
    if fields:
        made["matchFields"] = list(fields)
    return made


def test_one_node_by_name_if_any_device_is_local_or_binds() -> None:
    network = slice_(device("net", bindsToNode=True), name="s2", pool="q", allNodes=True)
    for slices in ([slice_("a")], [network]):
        assert wire(solve(slices, [claim(request())]))["nodeSelector"] == {"nodeSelectorTerms": BY_NAME}
    anywhere = [slice_("a", allNodes=True)]
    assert "nodeSelector" not in wire(solve(anywhere, [claim(request())]))


def test_the_union_of_what_the_devices_require() -> None:
    zone, other = requirement("zone", "In", "b", "a"), requirement("zone", "Exists")
    slices = [
        slice_("a", name="s1", pool="p1", nodeSelector={"nodeSelectorTerms": [term(zone)]}),
        slice_("b", name="s2", pool="p2", nodeSelector={"nodeSelectorTerms": [term(zone, other)]}),
        slice_(
            device("c", nodeSelector={"nodeSelectorTerms": [term(requirement("zone", "In", "a", "b"))]}),
            name="s3",
            pool="p3",
            perDeviceNodeSelection=True,
        ),
    ]
    made = wire(solve(slices, [claim(request(count=3))]))["nodeSelector"]["nodeSelectorTerms"]
    assert made == [{"matchExpressions": [zone, other]}]


def test_several_terms_in_a_slice_are_refused() -> None:
    two = {"nodeSelectorTerms": [term(requirement("zone", "Exists"))] * 2}
    assert devices(solve([slice_("a", nodeSelector=two)], [claim(request())])) == "fatal"


@pytest.mark.parametrize(
    ("terms", "answer"),
    [
        ([term(requirement("zone", "In", "a"))], True),
        ([term(requirement("zone", "In", "b"))], False),
        ([term(requirement("zone", "NotIn", "b"))], True),
        ([term(requirement("none", "NotIn", "b"))], True),
        ([term(requirement("zone", "Exists"))], True),
        ([term(requirement("none", "Exists"))], False),
        ([term(requirement("none", "DoesNotExist"))], True),
        ([term(requirement("size", "Gt", "3"))], True),
        ([term(requirement("size", "Lt", "3"))], False),
        ([term(requirement("zone", "Gt", "3"))], False),
        ([term(requirement("none", "Lt", "3"))], False),
        ([term(requirement("zone", "In", "a"), requirement("size", "Lt", "3"))], False),
        ([term(requirement("zone", "In", "b")), term(requirement("size", "Gt", "3"))], True),
        ([term()], False),
        ([], False),
        ([term(fields=(requirement("metadata.name", "In", "n"),))], True),
        ([term(fields=(requirement("metadata.name", "NotIn", "n"),))], False),
        ([term(fields=(requirement("metadata.uid", "In", "n"),))], False),
        ([term(requirement("zone", "Like", "a"))], None),
        ([term(requirement("zone", "In"))], None),
        ([term(requirement("size", "Gt", "many"))], None),
        ([term(requirement("size", "Gt", "٣"))], None),
        ([term(fields=(requirement("metadata.name", "Exists"),))], None),
    ],
)
def test_node_selectors(terms: list[Json], answer: bool | None) -> None:
    node = NodeFacts(name="n", labels={"zone": "a", "size": "4"})
    selector = msgspec.convert({"nodeSelectorTerms": terms}, NodeSelector)
    if answer is None:
        with pytest.raises(NodeSelectorError):
            selects(selector, node)
    else:
        assert selects(selector, node) is answer


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            requirement("zone", "In", *["a"] * 99, "a b"),
            "slice s1: 'zone' with the value 'a b' is no label",
        ),
        (requirement("zone", "In", "b" * 64), f"slice s1: 'zone' with the value '{'b' * 63}…' is no label"),
        (requirement("c" * 900, "Exists"), f"slice s1: '{'c' * 63}…' is no label"),
        (
            requirement("zone", "Gt", "many"),
            "slice s1: 'Gt' with the value 'many' is not valid for 'zone' in a node selector",
        ),
        (
            requirement("zone", "Like", *["a"] * 5_000),
            "slice s1: 'Like' with 5000 values is not valid for 'zone' in a node selector",
        ),
    ],
)
def test_what_is_wrong_with_a_node_selector_is_said_in_one_line(wrong: Json, text: str) -> None:
    outcome = solve([slice_("a", nodeSelector={"nodeSelectorTerms": [term(wrong)]})], [claim(request())])
    assert outcome.error == text


def test_fields_of_a_node_are_chosen_by_one_value() -> None:
    wrong = term(fields=(requirement("metadata.name", "In", *["n"] * 5_000),))
    outcome = solve([slice_("a", nodeSelector={"nodeSelectorTerms": [wrong]})], [claim(request())])
    assert outcome.error == (
        "slice s1: 'In' with 5000 values is not valid for the field 'metadata.name' in a node selector"
    )


def test_allocations_say_nothing_more_than_they_must() -> None:
    assert wire(solve([slice_("a")], [claim(request())], classes=[ANY])) == {
        "devices": {"results": [{"request": "r", "driver": DRIVER, "pool": "p", "device": "a"}]},
        "nodeSelector": {"nodeSelectorTerms": BY_NAME},
    }
