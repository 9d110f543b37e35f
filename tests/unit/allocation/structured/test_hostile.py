"""Whatever is asked, the search ends soon: by refuting, by finding, or by its budget. Counted in steps."""

from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from tests.unit.allocation.structured.world import (
    ANY,
    DRIVER,
    NODE,
    claim,
    device,
    devices,
    distinct,
    either,
    match,
    request,
    slice_,
    solve,
    sub,
)

from tangram.allocation.structured import Allocated, Cluster, NodeFacts, Options, Policy, decide
from tangram.allocation.structured.candidates import Taker
from tangram.allocation.structured.constraints import MatchAttribute
from tangram.allocation.structured.engine import cluster_view
from tangram.allocation.structured.features import LATEST
from tangram.allocation.structured.matching import can_be_served
from tangram.allocation.structured.pruning import Pruning
from tangram.allocation.structured.quantities import Quantity
from tangram.model.kubernetes import DeviceClass, ResourceClaim, ResourceSlice

Json = dict[str, Any]
FEW_STEPS = 40_000

both = pytest.mark.parametrize("policy", list(Policy))


def numbered(count: int, **groups: int) -> Json:
    """Devices with an index, and for each group which one they are in."""
    return slice_(
        *[
            device(f"d{i:03}", attributes={"i": i} | {name: i // size for name, size in groups.items()})
            for i in range(count)
        ]
    )


def index(expression: str) -> str:
    return f'device.attributes["{DRIVER}"].i {expression}'


def partitions() -> list[Json]:
    """Eight GPUs with 28 partitions each, of 1 to 7 of 8 parts."""
    sets = {f"s{gpu}": {"memory": 8, "compute": 7} for gpu in range(8)}
    slices = [slice_(name="counters", count=9, sets=sets)]
    for gpu in range(8):
        sizes = [1] * 12 + [2] * 6 + [3] * 5 + [4] * 4 + [7]
        items = [
            device(
                f"g{gpu}-{i}",
                attributes={"size": size, "parent": gpu},
                counters={f"s{gpu}": {"memory": size, "compute": size}},
            )
            for i, size in enumerate(sizes)
        ]
        slices.append(slice_(*items, name=f"gpu{gpu}", count=9))
    return slices


def size(value: int) -> str:
    return f'device.attributes["{DRIVER}"].size == {value}'


def shared(count: int, **groups: int) -> Json:
    """Devices that claims may share, but which a share without a size takes whole."""
    made = numbered(count, **groups)
    for item in made["spec"]["devices"]:
        item |= {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "8Gi"}}}
    return made


CASES: list[tuple[str, list[Json], list[Json], bool]] = [
    (
        "one more than any group has",
        [numbered(124, group=31)],
        [claim(request(count=32), constraints=[match("group")])],
        False,
    ),
    (
        "two requests share a group that is too small",
        [numbered(124, group=31)],
        [
            claim(
                request("a", count=16),
                request("b", count=16),
                constraints=[match("group"), distinct("i")],
            )
        ],
        False,
    ),
    (
        "the last group only",
        [numbered(124, group=31)],
        [
            claim(
                request("a", count=15),
                request("b", count=16, when=index(">= 93")),
                constraints=[match("group"), distinct("i")],
            )
        ],
        True,
    ),
    (
        "more different values than there are",
        [slice_(*[device(f"d{i}", attributes={"v": i % 31, "i": i}) for i in range(124)])],
        [claim(request(count=32), constraints=[distinct("v"), distinct("i")])],
        False,
    ),
    (
        "three requests for nine of eight",
        [numbered(8)],
        [claim(*[request(f"r{i}", count=3) for i in range(3)], constraints=[distinct("i")])],
        False,
    ),
    (
        "a greedy first request takes what the others need",
        [numbered(60)],
        [
            claim(
                request("a", count=10),
                request("b", count=10, when=index("< 10")),
                request("c", count=10, when=index("< 20")),
                constraints=[distinct("i")],
            )
        ],
        True,
    ),
    (
        "32 requests with 8 alternatives",
        [numbered(128)],
        [
            claim(
                *[
                    either(
                        f"r{i}", *[sub(f"s{j}", when=index(f"% {j + 2} == {i % (j + 2)}")) for j in range(8)]
                    )
                    for i in range(32)
                ]
            )
        ],
        True,
    ),
    (
        "32 requests with 8 alternatives and 31 devices",
        [numbered(31)],
        [
            claim(
                *[
                    either(
                        f"r{i}",
                        *[sub(f"s{j}", count=1 + j % 2, when=index(f"% {j + 2} >= 0")) for j in range(8)],
                    )
                    for i in range(32)
                ]
            )
        ],
        False,
    ),
    ("one partition", partitions(), [claim(request(when=size(3)))], True),
    ("16 partitions of which two go on a GPU", partitions(), [claim(request(count=16, when=size(3)))], True),
    ("17 of them", partitions(), [claim(request(count=17, when=size(3)))], False),
    (
        "nine requests for what goes once on a GPU",
        partitions(),
        [claim(*[request(f"r{i}", when=size(4)) for i in range(9)])],
        False,
    ),
    (
        "three on one GPU where two go",
        partitions(),
        [claim(request(count=3, when=size(3)), constraints=[match("parent")])],
        False,
    ),
    (
        "shared devices of which too few agree",
        [shared(48, group=4)],
        [
            claim(request("a", count=4), request("b"), name="first"),
            claim(request("c"), request("d", count=4), constraints=[match("group")]),
        ],
        False,
    ),
    (
        "shared devices of which enough agree in the end",
        [shared(20, group=4)],
        [
            claim(*[request(f"r{i}", when=index("< 13")) for i in range(13)], name="first"),
            claim(request("d"), request("e", count=3), constraints=[match("group")]),
        ],
        True,
    ),
    (
        "shares of which each leaves no room for one that is served later",
        [shared(24)],
        [
            claim(
                *[request(f"a{i}") for i in range(12)],
                *[request(f"b{i}", when=index(f"== {i}")) for i in range(12)],
            )
        ],
        True,
    ),
    (
        "a subrequest that leaves less than the claim may have to those behind it",
        [numbered(60)],
        [
            claim(
                either("a", sub("x", count=17), sub("y")), request("b", count=16), constraints=[distinct("i")]
            )
        ],
        True,
    ),
    (
        "more shares than shared devices have room for",
        [shared(12)],
        [claim(*[request(f"r{i}") for i in range(13)])],
        False,
    ),
]


@both
@pytest.mark.parametrize(
    ("slices", "claims", "fits"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_soon_found_or_refuted(slices: list[Json], claims: list[Json], fits: bool, policy: Policy) -> None:
    outcome = solve(slices, claims, policy=policy)
    assert not outcome.exhausted
    assert (outcome.allocations is not None) is fits
    assert outcome.steps < FEW_STEPS


def test_counting_takes_steps_for_each_alternative_and_device() -> None:
    def steps(alternatives: int, count: int) -> int:
        wants = claim(either("r", *[sub(f"s{j}") for j in range(alternatives)]))
        return solve([numbered(count)], [wants], policy=Policy.TANGRAM).steps

    assert steps(8, 128) - steps(8, 64) >= 8
    assert steps(8, 128) - steps(4, 128) >= 8


def test_what_is_worked_out_about_nodes_is_bounded() -> None:
    cluster = Cluster(slices=[], classes=[])
    with patch.object(Cluster, "REMEMBERED", 3):
        for number in range(10):
            cluster_view(cluster, NodeFacts(name=f"n{number}"), LATEST)
            assert len(cluster.views) <= 3
        assert cluster_view(cluster, NodeFacts(name="n9"), LATEST) is cluster_view(
            cluster, NodeFacts(name="n9"), LATEST
        )


def test_groups_that_are_too_small_are_passed_over() -> None:
    """Upstream tries every set of their devices; first fit finds the same devices at once."""
    wanted = claim(request(count=4), constraints=[match("group")])
    of_three = [device(f"a{i}", attributes={"group": i // 3}) for i in range(30)]
    of_four = [device(f"b{i}", attributes={"group": 10 + i // 4}) for i in range(8)]
    outcome = solve([slice_(*of_three, *of_four)], [wanted], policy=Policy.FIRST_FIT)
    assert devices(outcome) == [["b0", "b1", "b2", "b3"]]
    assert outcome.steps < 120


@pytest.mark.parametrize(
    ("features", "slices", "claims"),
    [
        ("k8s-1.34", numbered(8), claim(*[request(f"r{i}", count=3) for i in range(3)])),
        ("k8s-1.35", numbered(8), claim(*[request(f"r{i}", count=3) for i in range(3)])),
        ("k8s-1.35,ConsumableCapacity", numbered(8), claim(*[request(f"r{i}", count=3) for i in range(3)])),
        ("k8s-1.34,ConsumableCapacity", numbered(8), claim(*[request(f"r{i}", count=3) for i in range(3)])),
        (
            "k8s-1.36,ListTypeAttributes",
            numbered(120, group=31),
            claim(
                request("a", count=16), request("b", count=16), constraints=[match("group"), match("group")]
            ),
        ),
        (
            "k8s-1.36",
            slice_(*[device(f"d{i}", attributes={"v": i % 12}) for i in range(60)]),
            claim(*[request(f"r{i}") for i in range(13)], constraints=[distinct("v")]),
        ),
    ],
)
def test_versions_with_faults_count_too_where_the_faults_do_not_show(
    features: str, slices: Json, claims: Json
) -> None:
    outcome = solve([slices], [claims], policy=Policy.FIRST_FIT, features=features)
    assert outcome.allocations is None
    assert not outcome.error
    assert not outcome.exhausted
    assert outcome.steps < FEW_STEPS


@both
def test_a_search_ends_with_its_budget_and_says_so(policy: Policy) -> None:
    """A hard puzzle: 3-partition by counters, which no counting refutes."""
    sets = {f"s{i}": {"c": 100} for i in range(5)}
    sizes = (26, 27, 29, 31, 33, 34, 35, 36, 37, 38, 39, 41, 43, 46)
    items = [
        device(f"d{s}-{i}", attributes={"size": i}, counters={f"s{s}": {"c": amount}})
        for s in range(5)
        for i, amount in enumerate(sizes)
    ]
    slices = [slice_(name="counters", count=2, sets=sets), slice_(*items, name="s2", count=2)]
    wants = claim(*[request(f"r{i}", when=size(i)) for i in range(14)], request("x", when=size(13)))
    outcome = solve(slices, [wants], policy=policy, steps=3_000)
    if outcome.allocations is None:
        assert outcome.exhausted
        assert "the search was ended" in outcome.reasons.summary
    assert outcome.steps < 7_000


def test_a_hundred_claims_at_once() -> None:
    claims = [claim(request(), name=f"c{i}") for i in range(100)]
    got = devices(solve([numbered(100)], claims))
    assert isinstance(got, list)
    assert sorted(name for (name,) in got) == [f"d{i:03}" for i in range(100)]
    assert devices(solve([numbered(99)], claims)) == "no"


def test_matching_moves_devices_where_need_be() -> None:
    assert can_be_served([(0b1111, 2), (0b0011, 2)])
    assert can_be_served([(0b0110, 1), (0b0011, 1), (0b0001, 1)])
    assert not can_be_served([(0b0111, 2), (0b0011, 2)])
    assert not can_be_served([(0b0011, 1), (0b0011, 1), (0b0011, 1), (0b1000, 1)])
    assert can_be_served([])


def test_too_many_requests_on_too_many_devices_end_in_a_reason() -> None:
    def wants(name: str) -> Json:
        return claim(
            *[either(f"r{i}", *[sub(f"s{j}", when=index(f">= {j}")) for j in range(8)]) for i in range(32)],
            name=name,
        )

    assert not solve([numbered(128)], [wants("a")], policy=Policy.TANGRAM).exhausted
    more = solve([numbered(128)], [wants("a"), wants("b")], policy=Policy.TANGRAM)
    assert more.exhausted
    assert more.reasons.summary == ("there are too many requests to look at so many devices for each of them")


def test_dear_selectors_end_a_decision_in_a_reason_the_same_way_each_time() -> None:
    dear = "[0, 1, 2].all(a, [0, 1, 2].all(b, a + b < 9))"
    wants = [claim(*[request(f"r{i}", when=f"{dear} && {index(f'>= {56 + i}')}") for i in range(8)])]
    for policy in Policy:
        first = solve([numbered(64)], wants, policy=policy, selector_units=15_000)
        assert first.exhausted
        assert first.reasons.summary == "the selectors cost too much to evaluate on so many different devices"
        assert solve([numbered(64)], wants, policy=policy, selector_units=15_000) == first
        assert solve([numbered(64)], wants, policy=policy).allocations is not None


def test_looking_ahead_for_devices_that_agree_takes_steps() -> None:
    """Each device has a value of its own, and a request that is never reached keeps the search on upstream's
    way: for each device of the first request each of the second is compared with all behind it."""
    looks = 0
    agrees = MatchAttribute.agrees

    def counted(*arguments: Any) -> bool:
        nonlocal looks
        looks += 1
        return agrees(*arguments)

    own = [device(f"d{i:03}", attributes={"u": i} | ({"ok": True} if i else {})) for i in range(100)]
    wants = claim(
        request("a"),
        request("b", count=2),
        request("z", when=f'device.attributes["{DRIVER}"].ok'),
        constraints=[match("u", "b")],
    )
    with patch.object(MatchAttribute, "agrees", counted):
        for policy in Policy:
            looks = 0
            assert solve([slice_(*own)], [wants], policy=policy, steps=10_000).exhausted
            assert looks < 60_000


def test_what_is_remembered_of_a_node_does_not_grow_with_the_selectors_of_one_user() -> None:
    """Selectors that tell each device from all others, one kind of claim after the other."""
    cluster = Cluster(
        slices=[msgspec.convert(numbered(200), ResourceSlice)], classes=[msgspec.convert(ANY, DeviceClass)]
    )
    view = cluster_view(cluster, NODE, LATEST)
    for number in range(40):
        asked = claim(request(when=index(f"== {1000 + number}")), name=f"c{number}")
        wants = [msgspec.convert(asked, ResourceClaim)]
        assert decide(cluster, NODE, wants, allocated=Allocated(), options=Options()).allocations is None
        assert 200 <= view.answers <= 1_200
    assert cluster_view(cluster, NODE, LATEST) is view


@both
def test_counting_very_many_counters_takes_steps(policy: Policy) -> None:
    sets = {f"s{i}": {f"c{j}": 100 for j in range(32)} for i in range(8)}
    amounts = [{f"c{j}": (i * 7 + j * 3) % 23 + 1 for j in range(32)} for i in range(64)]
    items = [
        device(
            f"d{i}",
            attributes={"i": i},
            counters={f"s{i % 8}": amounts[i], f"s{(i + 1) % 8}": amounts[i]},
        )
        for i in range(64)
    ]
    slices = [slice_(name="sets", count=2, sets=sets), slice_(*items, name="s2", count=2)]
    wants = claim(*[request(f"r{i}", when=index(f"!= {i}")) for i in range(32)])
    looks = 0
    real = Pruning._room

    def room(self: Pruning, mask: int, taker: Taker) -> int:
        nonlocal looks
        looks += 32 * mask.bit_count()
        return real(self, mask, taker)

    with patch.object(Pruning, "_room", room):
        outcome = solve(slices, [wants], policy=policy)
    assert outcome.exhausted
    assert outcome.reasons.summary == (
        "the search was ended before all possibilities were tried; each of 32 requests could be served "
        "alone, but no way was found for all 32 devices together"
    )
    assert 0 < looks < 2_000_000


@both
def test_shares_of_a_device_are_added_up_once(policy: Policy) -> None:
    """Sixty shares of 32 capacities each were added up again for every look at each device."""
    capacity = {f"c{j}": 100 for j in range(32)}
    items = [device(f"d{i}", capacity=capacity, allowMultipleAllocations=True) for i in range(14)]
    wants = claim(
        *[request(f"r{i}", capacity={f"c{j}": 10 * (i * j % 9) + 1 for j in range(32)}) for i in range(32)]
    )
    looks = 0
    real = Quantity.__str__

    def text(self: Quantity) -> str:
        nonlocal looks
        looks += 1
        return real(self)

    with patch.object(Quantity, "__str__", text):
        assert solve([slice_(*items)], [wants], policy=policy).allocations is None
    assert looks < 1_000
