"""What holds for every cluster and every claim, whatever is drawn."""

from collections import Counter
from typing import Any
from unittest.mock import patch

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.unit.allocation.structured.world import (
    DRIVER,
    VERSIONS,
    claim,
    device,
    devices,
    distinct,
    either,
    full,
    held,
    match,
    request,
    slice_,
    solve,
    sub,
)

from tangram.allocation.structured import Allocated, Code, DeviceId, Outcome, Policy, Refusal, parse_features
from tangram.model.kubernetes import ResourceClaim

Json = dict[str, Any]
SHARE = "5a1d76ea-0000-4000-8000-000000000000"
ATTRIBUTES = st.fixed_dictionaries({"x": st.integers(0, 2)}, optional={"y": st.integers(0, 1)})


@st.composite
def a_device(draw: st.DrawFn, name: str) -> Json:
    fields: Json = {"attributes": draw(ATTRIBUTES)}
    kind = draw(st.sampled_from(("plain", "plain", "counters", "shared", "tainted")))
    if kind == "counters":
        fields["counters"] = {draw(st.sampled_from(("s", "t"))): {"c": draw(st.integers(1, 3))}}
    elif kind == "shared":
        fields["allowMultipleAllocations"] = True
        fields["capacity"] = {"m": {"value": str(draw(st.integers(1, 4))), "requestPolicy": {"default": "1"}}}
    elif kind == "tainted":
        fields["taints"] = [{"key": "k", "effect": "NoSchedule"}]
    return device(name, **fields)


@st.composite
def supply(draw: st.DrawFn) -> list[Json]:
    """A pool with counters and up to two slices of devices, and a pool of another driver."""
    count = draw(st.integers(1, 7))
    items = [draw(a_device(f"d{i}")) for i in range(count)]
    cut = draw(st.integers(0, count))
    amount = draw(st.integers(1, 5))
    slices = [
        slice_(name="counters", count=3, sets={"s": {"c": amount}, "t": {"c": 3}}),
        slice_(*items[:cut], name="s1", count=3),
        slice_(*items[cut:], name="s2", count=3),
    ]
    if draw(st.booleans()):
        other = device("e0", attributes={f"{DRIVER}/x": 1})
        slices.append(slice_(other, name="s3", pool="q", driver="other.example.com"))
    return slices


@st.composite
def body(draw: st.DrawFn) -> Json:
    fields: Json = {}
    if draw(st.booleans()):
        domain = f'device.attributes["{DRIVER}"]'
        fields["when"] = f"has({domain}.x) && {domain}.x {draw(st.sampled_from(('== 1', '>= 1', '!= 2')))}"
    if draw(st.integers(0, 4)) == 0:
        fields["allocationMode"] = "All"
    else:
        fields["count"] = draw(st.integers(1, 3))
    if draw(st.booleans()):
        fields["tolerations"] = [{"operator": "Exists"}]
    return fields


@st.composite
def demand(draw: st.DrawFn) -> list[Json]:
    claims = []
    for number in range(draw(st.integers(1, 2))):
        requests = []
        for index in range(draw(st.integers(1, 2))):
            if draw(st.integers(0, 3)) == 0:
                requests.append(either(f"r{index}", sub("a", **draw(body())), sub("b", **draw(body()))))
            else:
                requests.append(request(f"r{index}", **draw(body())))
        constraint = draw(st.sampled_from((None, None, match("x"), distinct("x"), match("y"))))
        claims.append(claim(*requests, name=f"c{number}", constraints=[constraint] if constraint else []))
    return claims


holders = st.lists(st.sampled_from([f"d{i}" for i in range(7)]), unique=True, max_size=3)
policies = st.sampled_from(list(Policy))


def results(outcome: Outcome) -> list[tuple[DeviceId, str | None]]:
    return [
        (DeviceId(r.driver, r.pool, r.device), r.share_id)
        for allocation in outcome.allocations or ()
        for r in allocation.devices.results or ()
    ]


@given(supply(), demand(), holders, policies)
def test_nothing_is_given_twice_and_no_counter_or_capacity_is_overdrawn(
    slices: list[Json], claims: list[Json], taken: list[str], policy: Policy
) -> None:
    outcome = solve(slices, [held(*taken), *claims], policy=policy)
    given_ = results(outcome)
    alone = [item for item, share in given_ if share is None]
    assert len(alone) == len(set(alone))
    assert not {item.device for item in alone if item.pool == "p"} & set(taken)
    published = {d["name"]: d for s in slices for d in s["spec"]["devices"]}
    shares = Counter(item.device for item, share in given_ if share is not None)
    for name, count in shares.items():
        assert count <= int(published[name]["capacity"]["m"]["value"])
    used = Counter[str]()
    for name in {item.device for item in alone}:
        for consumed in published[name].get("consumesCounters", ()):
            used[consumed["counterSet"]] += int(consumed["counters"]["c"]["value"])
    before = Counter[str]()
    for name in set(taken) & set(published):
        for consumed in published[name].get("consumesCounters", ()):
            before[consumed["counterSet"]] += int(consumed["counters"]["c"]["value"])
    for counter_set in slices[0]["spec"]["sharedCounters"]:
        name = counter_set["name"]
        total = int(counter_set["counters"]["c"]["value"])
        assert not used[name] or used[name] + before[name] <= total


@given(supply(), demand(), holders, policies, st.randoms())
def test_the_answer_does_not_depend_on_the_order_of_the_input(
    slices: list[Json], claims: list[Json], taken: list[str], policy: Policy, random: Any
) -> None:
    first = solve(slices, [held(*taken), *claims], policy=policy)
    shuffled = list(slices)
    random.shuffle(shuffled)
    assert solve(shuffled, [*claims, held(*taken)], policy=policy) == first


@given(supply(), demand(), holders)
def test_both_policies_agree_on_what_fits(slices: list[Json], claims: list[Json], taken: list[str]) -> None:
    kinds = {policy: devices(solve(slices, [held(*taken), *claims], policy=policy)) for policy in Policy}
    fits = {isinstance(answer, list) for answer in kinds.values()}
    assert len(fits) == 1
    if fits == {False}:
        assert len(set(map(str, kinds.values()))) == 1


@given(supply(), demand(), holders, policies)
def test_freeing_a_device_never_makes_what_fits_unfit(
    slices: list[Json], claims: list[Json], taken: list[str], policy: Policy
) -> None:
    assume(taken)
    if solve(slices, [held(*taken), *claims], policy=policy).allocations is not None:
        assert solve(slices, [held(*taken[1:]), *claims], policy=policy).allocations is not None


FAULTY = ("k8s-1.34", "k8s-1.35", "k8s-1.36", "k8s-1.36.6", "k8s-1.37", *map(full, VERSIONS))


@given(supply(), demand(), holders, st.sampled_from(("latest", *FAULTY, "k8s-1.34,ConsumableCapacity")))
def test_what_is_left_out_of_the_search_changes_nothing(
    slices: list[Json], claims: list[Json], taken: list[str], version: str
) -> None:
    plain = solve(slices, [held(*taken), *claims], features=version)
    assume(not plain.exhausted)
    with (
        patch("tangram.allocation.structured.engine._PLAIN_STEPS", 0),
        patch("tangram.allocation.structured.search._LONG_STEPS", 0),
    ):
        pruned = solve(slices, [held(*taken), *claims], features=version)
    assert pruned.allocations == plain.allocations
    assert pruned.error == plain.error


@given(supply(), demand(), holders)
def test_release_restores_the_state(slices: list[Json], claims: list[Json], taken: list[str]) -> None:
    features = parse_features("latest")
    outcome = solve(slices, [held(*taken), *claims])
    assume(outcome.allocations is not None)
    decoded = [msgspec.convert(item, ResourceClaim) for item in (held(*taken), *claims)]
    before = Allocated.of(decoded, features)
    after = before
    for item, allocation in zip(decoded[1:], outcome.allocations or (), strict=True):
        after = after.with_allocation(item, allocation, features)
    given_ = {item for item, _ in results(outcome)}
    assert set(after.held) | set(after.shared) == set(before.held) | given_
    assert Allocated.of(decoded, features) == before


@given(supply(), demand(), holders, policies)
def test_larger_counters_and_capacities_never_make_what_fits_unfit(
    slices: list[Json], claims: list[Json], taken: list[str], policy: Policy
) -> None:
    if solve(slices, [held(*taken), *claims], policy=policy).allocations is None:
        return
    larger = copied(slices)
    for item in larger:
        for counter_set in item["spec"].get("sharedCounters", ()):
            counter_set["counters"]["c"]["value"] = "99"
        for published in item["spec"]["devices"]:
            for capacity in published.get("capacity", {}).values():
                capacity["value"] = "99"
    assert solve(larger, [held(*taken), *claims], policy=policy).allocations is not None


def copied(value: list[Json]) -> list[Json]:
    made: list[Json] = msgspec.json.decode(msgspec.json.encode(value))
    return made


@given(supply(), demand(), holders)
def test_each_reason_is_true(slices: list[Json], claims: list[Json], taken: list[str]) -> None:
    """Without the named cause, the device is no longer refused for it."""
    outcome = solve(slices, [held(*taken), *claims])
    for refusal in outcome.reasons.refusals[:6]:
        mended = _without_cause(copied(slices), copied(claims), taken, refusal)
        again = solve(mended[0], [held(*mended[2]), *mended[1]])
        assert refusal not in again.reasons.refusals


def _without_cause(
    slices: list[Json], claims: list[Json], taken: list[str], refusal: Refusal
) -> tuple[list[Json], list[Json], list[str]]:
    name = refusal.device.device
    published = [d for item in slices for d in item["spec"]["devices"] if d["name"] == name]
    match refusal.code:
        case Code.HELD:
            taken = [item for item in taken if item != name]
        case Code.COUNTER:
            slices[0] = slice_(name="counters", count=3, sets={"s": {"c": 99}, "t": {"c": 99}})
        case Code.TAINT:
            published[0].pop("taints")
        case Code.CONSTRAINT:
            for wants in claims:
                wants["spec"]["devices"]["constraints"] = []
        case Code.SELECTOR:
            for wants in claims:
                for item in wants["spec"]["devices"]["requests"]:
                    for part in [item.get("exactly", {}), *item.get("firstAvailable", ())]:
                        part.pop("selectors", None)
        case code:
            raise AssertionError(f"{code} is not expected")
    return slices, claims, taken
