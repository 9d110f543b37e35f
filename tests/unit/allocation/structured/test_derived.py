"""Derived attributes in constraints. Generated ones are compared with Kubernetes: hack/bench conformance."""

import copy
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.unit.allocation.structured.test_invariants import demand, holders, policies, supply
from tests.unit.allocation.structured.world import (
    DRIVER,
    claim,
    device,
    devices,
    either,
    held,
    match,
    request,
    slice_,
    solve,
    sub,
)

from tangram.allocation.structured import Policy
from tangram.allocation.structured import derived as deriving

Json = dict[str, Any]
OWN = f'device.attributes["{DRIVER}"]'
NIC = "nic.example.com"
every_policy = pytest.mark.parametrize("policy", list(Policy))


def derived(**expressions: str) -> list[Json]:
    """`a="…"` is derived/a."""
    return [{"name": f"derived/{name}", "expression": text} for name, text in expressions.items()]


def agree(name: str = "a", **fields: Any) -> Json:
    return {"matchAttribute": f"derived/{name}", **fields}


def differ(name: str = "a", **fields: Any) -> Json:
    return {"distinctAttribute": f"derived/{name}", **fields}


def numbered(count: int, **attributes: Any) -> Json:
    return slice_(*(device(f"d{i}", attributes={"i": i, **attributes}) for i in range(count)))


# --- what they are for ---


@every_policy
def test_devices_of_two_drivers_meet_on_what_each_publishes_in_its_own_way(policy: Policy) -> None:
    gpus = slice_(*(device(f"gpu{i}", attributes={"topology": f"numa-{i}/bus-7"}) for i in range(4)))
    nics = slice_(device("nic2", attributes={"node": 2}), name="s2", pool="q", driver=NIC)
    node = f'"numa-%d".format([device.attributes["{NIC}"].node])'
    one = claim(
        request("gpu", cls="gpu", derivedAttributes=derived(a=f'{OWN}.topology.split("/")[0]')),
        request("nic", cls="nic", derivedAttributes=derived(a=node)),
        constraints=[agree()],
    )
    classes = [
        {
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
        }
        for name, driver in (("gpu", DRIVER), ("nic", NIC))
    ]
    assert devices(solve([gpus, nics], [one], classes=classes, policy=policy)) == [["gpu2", "nic2"]]


@every_policy
def test_all_of_a_request_agree_or_differ(policy: Policy) -> None:
    half = derived(a=f"{OWN}.i / 2")
    together = claim(request(count=2, derivedAttributes=half), constraints=[agree()])
    apart = claim(request(count=3, derivedAttributes=half), constraints=[differ()])
    assert devices(solve([numbered(6)], [together], policy=policy)) == [["d0", "d1"]]
    assert devices(solve([numbered(6)], [apart], policy=policy)) == [["d0", "d2", "d4"]]
    too_many = claim(request(count=4, derivedAttributes=half), constraints=[differ()])
    assert devices(solve([numbered(6)], [too_many], policy=policy)) == "no"


@every_policy
def test_it_hides_what_is_published_for_the_requests_that_derive_it(policy: Policy) -> None:
    hiding = [{"name": f"{DRIVER}/i", "expression": f"{OWN}.i - 1"}]
    one = claim(request("x", derivedAttributes=hiding), request("y"), constraints=[match("i", "x", "y")])
    found = devices(solve([numbered(3)], [one], policy=policy))
    assert isinstance(found, list)
    ((first, second),) = found
    assert int(first[1:]) - 1 == int(second[1:])


@every_policy
def test_subrequests_derive_each_in_its_own_way(policy: Policy) -> None:
    never = sub("odd", derivedAttributes=derived(a=f"{OWN}.i + 100"))
    as_others = sub("even", derivedAttributes=derived(a=f"{OWN}.i % 2"))
    one = claim(
        either("x", never, as_others),
        request("y", when=f"{OWN}.i == 3", derivedAttributes=derived(a="1")),
        constraints=[agree()],
    )
    outcome = solve([numbered(4)], [one], policy=policy)
    assert devices(outcome) == [["d1", "d3"]]
    assert outcome.allocations is not None
    assert [r.request for r in outcome.allocations[0].devices.results or ()] == ["x/even", "y"]


def test_lists_agree_where_they_have_something_in_common() -> None:
    neighbours = derived(a=f"[{OWN}.i, dyn({OWN}.i + 1)]")
    one = claim(request(count=2, derivedAttributes=neighbours), constraints=[agree()])
    assert devices(solve([numbered(3)], [one])) == [["d0", "d1"]]
    one = claim(request(count=2, derivedAttributes=neighbours), constraints=[differ()])
    assert devices(solve([numbered(3)], [one])) == [["d0", "d2"]]


def test_nothing_is_derived_of_a_value_of_an_unknown_kind() -> None:
    odd = device("b", attributes={"i": {"matrix": 1}})
    wants = claim(request(count=2, derivedAttributes=derived(a="1")), constraints=[agree()])
    outcome = solve([slice_("a", odd)], [wants])
    assert outcome.error.endswith("attribute i: unsupported attribute value")


def test_types_tell_values_apart_and_versions_go_by_their_text() -> None:
    texts = ("1", '"1"', "true", 'semver("1.0.0")', 'semver("1.0.0+build")')
    for first in texts:
        for second in texts:
            one = claim(
                request("x", derivedAttributes=derived(a=first)),
                request("y", derivedAttributes=derived(a=second)),
                constraints=[agree()],
            )
            fits = isinstance(devices(solve([slice_("a", "b")], [one])), list)
            assert fits == (first == second), (first, second)


@every_policy
@pytest.mark.parametrize("constraint", [agree(), differ()])
def test_an_empty_list_is_no_attribute_where_lists_are_compared(constraint: Json, policy: Policy) -> None:
    one = claim(request(derivedAttributes=derived(a="[]")), constraints=[constraint])
    assert devices(solve([slice_("a")], [one], policy=policy)) == "no"
    scalars = "AdminAccess,DerivedAttributes"
    assert devices(solve([slice_("a")], [one], policy=policy, features=scalars)) == [["a"]]
    two = claim(request(count=2, derivedAttributes=derived(a="[]")), constraints=[constraint])
    assert devices(solve([slice_("a", "b")], [two], policy=policy, features=scalars)) == "no"


@every_policy
def test_where_lists_are_not_compared_one_device_may_have_one(policy: Policy) -> None:
    one = claim(request(derivedAttributes=derived(a="[1, 2]")), constraints=[agree()])
    with patch("tangram.allocation.structured.engine._PLAIN_STEPS", 0):
        outcome = solve([slice_("a")], [one], policy=policy, features="AdminAccess,DerivedAttributes")
    assert devices(outcome) == [["a"]]


def test_selectors_do_not_see_them() -> None:
    when = 'has(device.attributes["derived"].a)'
    one = claim(request(when=when, derivedAttributes=derived(a="1")), constraints=[agree()])
    assert devices(solve([slice_("a")], [one])) == "no"


# --- what goes wrong ---

FATAL = [
    (
        "1.0",
        "must evaluate to a string, an integer, a bool, a version, or a list of one of these, not double",
    ),
    ("device.nonsense", "CEL compile error"),
    ("1 +", "CEL compile error"),
    (f"{OWN}.nope", f"on device {DRIVER}/p/d0: CEL runtime error: no such key"),
    ("dyn(1u)", "evaluates to uint"),
    ("lists.range(2000).map(x, lists.range(2000)).size()", "costs too much to evaluate"),
]


@every_policy
@pytest.mark.parametrize(("text", "cause"), FATAL)
def test_an_expression_that_fails_is_fatal_and_named_by_its_field(
    text: str, cause: str, policy: Policy
) -> None:
    direct = claim(request(derivedAttributes=derived(b="1", a=text)), constraints=[agree()])
    outcome = solve([numbered(2)], [direct], policy=policy)
    assert "claim ns/c: spec.devices.requests[0].exactly.derivedAttributes[1].expression" in outcome.error
    assert cause in outcome.error


def test_what_no_constraint_asks_for_is_not_evaluated() -> None:
    broken = derived(a="1 +")
    assert devices(solve([slice_("a")], [claim(request(derivedAttributes=broken))])) == [["a"]]
    elsewhere = claim(request("x", derivedAttributes=broken), request("y"), constraints=[match("i", "y")])
    assert devices(solve([numbered(2)], [elsewhere])) == [["d0", "d1"]]


def test_devices_that_are_refused_before_may_fail() -> None:
    """First-fit meets no error on devices behind the solution, nor on those that other tests refuse."""
    published = slice_(
        device("other", attributes={"kind": 1}),
        device("dirty", attributes={"kind": 2}, taints=[{"key": "k", "effect": "NoSchedule"}]),
        device("fine", attributes={"kind": 2, "i": 1}),
        device("behind", attributes={"kind": 2}),
    )
    wanted = request(when=f"{OWN}.kind == 2", derivedAttributes=derived(a=f"{OWN}.i"))
    one = claim(wanted, constraints=[agree()])
    assert devices(solve([published], [one])) == [["fine"]]
    assert devices(solve([published], [one, held("fine")])) == "fatal"


@pytest.mark.parametrize("features", ["k8s-1.37", "k8s-1.36", "latest,-DerivedAttributes"])
def test_where_the_gate_is_off_they_are_refused_by_name(features: str) -> None:
    one = claim(request(derivedAttributes=derived(a="1")), constraints=[agree()])
    outcome = solve([slice_("a")], [one], features=features)
    assert "claim ns/c, request r: has derived attributes, but the DRADerivedAttributes" in outcome.error
    for on in ("k8s-1.37,DerivedAttributes", "k8s-1.37,DRADerivedAttributes", "DerivedAttributes", "latest"):
        assert devices(solve([slice_("a")], [one], features=on)) == [["a"]]


def test_what_they_may_cost_in_one_decision_is_bounded() -> None:
    dear = derived(a=f"lists.range(500 + {OWN}.i).map(x, x).size()")
    one = claim(request(count=2, derivedAttributes=dear), constraints=[agree()])
    outcome = solve([numbered(30)], [one], selector_units=20_000)
    assert outcome.exhausted
    assert "selectors cost too much" in outcome.reasons.summary
    assert devices(solve([numbered(30)], [one])) == "no"


@pytest.mark.parametrize(("members", "refused"), [(300, False), (100_000, True)])
@every_policy
def test_long_lists_are_paid_for_and_made_once(members: int, refused: bool, policy: Policy) -> None:
    """Constraints take longer than evaluating: devices are compared by each member."""
    asked = request(count=2, derivedAttributes=derived(a=f"lists.range({members})"))
    with patch.object(deriving, "_attribute", wraps=deriving._attribute) as made:
        outcome = solve([numbered(64)], [claim(asked, constraints=[agree()])], policy=policy)
    assert outcome.exhausted is refused
    assert made.call_count == (0 if refused else 1)
    assert ("cost too much" in outcome.reasons.summary) is refused


def test_reasons_name_the_derived_attribute() -> None:
    one = claim(request(count=2, derivedAttributes=derived(a=f"{OWN}.i")), constraints=[agree()])
    outcome = solve([numbered(3)], [one])
    assert outcome.reasons.summary == (
        "request r: 2 devices with one derived/a wanted, at most 1 of 3 free ones agree (2)"
    )


def test_reasons_survive_an_expression_that_fails_on_a_device_that_the_search_did_not_reach() -> None:
    published = slice_(device("a", attributes={"i": 1, "x": 1}), device("b", attributes={"x": 2}))
    asked = request("r", derivedAttributes=derived(b=f"{OWN}.x", a=f"{OWN}.i"))
    one = claim(request("none", when="false"), asked, constraints=[agree("b"), agree("a")])
    outcome = solve([published], [one])
    assert devices(outcome) == "no"
    assert any("CEL runtime error" in refusal.text for refusal in outcome.reasons.refusals)


# --- whatever is drawn ---


def hidden(claims: list[Json]) -> list[Json]:
    """The same claims with derived attributes in place of published ones, and the same values."""
    made = copy.deepcopy(claims)
    for each in made:
        spec = each["spec"]["devices"]
        for constraint in spec["constraints"]:
            kind = next(key for key in constraint if key != "requests")
            name = constraint[kind].partition("/")[2]
            constraint[kind] = f"derived/{name}"
            expression = f"has({OWN}.{name}) ? [{OWN}.{name}] : []"
            for item in spec["requests"]:
                for body in item.get("firstAvailable") or [item["exactly"]]:
                    body["derivedAttributes"] = derived(**{name: expression})
    return made


@given(supply(), demand(), holders, policies)
def test_a_derived_attribute_constrains_as_a_published_one(
    slices: list[Json], claims: list[Json], taken: list[str], policy: Policy
) -> None:
    published = solve(slices, [held(*taken), *claims], policy=policy)
    outcome = solve(slices, [held(*taken), *hidden(claims)], policy=policy)
    assume(not published.exhausted)
    assert outcome.allocations == published.allocations
    assert bool(outcome.error) == bool(published.error)


EXPRESSIONS = st.sampled_from(
    (
        *(f"{OWN}.x", f"{OWN}.x % 2", f"{OWN}.y", f"{OWN}.?y.orValue(7)", f"[{OWN}.x, dyn({OWN}.x + 1)]"),
        *("[]", "1", '"1"'),
    )
)


@given(supply(), demand(), holders, st.lists(EXPRESSIONS, min_size=12, max_size=12), st.booleans())
def test_what_is_left_out_of_the_search_changes_nothing(
    slices: list[Json], claims: list[Json], taken: list[str], texts: list[str], scalars: bool
) -> None:
    """Whatever each (sub)request derives, and also where it fails on some devices."""
    features = "latest,-ListTypeAttributes" if scalars else "latest"
    asked, fresh = hidden(claims), iter(texts)
    for each in asked:
        for item in each["spec"]["devices"]["requests"]:
            for body in item.get("firstAvailable") or [item["exactly"]]:
                for attribute in body.get("derivedAttributes", ()):
                    attribute["expression"] = next(fresh)
    plain = solve(slices, [held(*taken), *asked], features=features)
    assume(not plain.exhausted)
    with (
        patch("tangram.allocation.structured.engine._PLAIN_STEPS", 0),
        patch("tangram.allocation.structured.search._LONG_STEPS", 0),
    ):
        pruned = solve(slices, [held(*taken), *asked], features=features)
    assert pruned.allocations == plain.allocations
    assert pruned.error == plain.error
    best = solve(slices, [held(*taken), *asked], features=features, policy=Policy.TANGRAM)
    assert (best.allocations is None) == (plain.allocations is None)
