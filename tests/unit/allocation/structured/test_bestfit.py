"""Best fit: linked sets, small devices first, few things opened; earlier subrequests before everything."""

from typing import Any

from tests.unit.allocation.structured.world import (
    DRIVER,
    claim,
    device,
    devices,
    distinct,
    either,
    held,
    request,
    slice_,
    solve,
    sub,
)

from tangram import DRIVER_NAME
from tangram.allocation.structured import Outcome, Policy, Score

Json = dict[str, Any]
SHARE = "5a1d76ea-0000-4000-8000-000000000000"


def best(slices: list[Json], claims: list[Json], **options: Any) -> Outcome:
    return solve(slices, claims, policy=Policy.TANGRAM, **options)


def gpu(ordinal: int, links: str, *, gigabytes: int = 80, allocator: str = "controller") -> Json:
    attributes = {"type": "gpu", "ordinal": ordinal, "nvlinkLinks": links, "allocator": allocator}
    return device(f"gpu-{ordinal}", attributes=attributes, capacity={"memory": f"{gigabytes}Gi"})


def gpus(*rows: str, sizes: tuple[int, ...] = ()) -> list[Json]:
    items = [gpu(i, row, gigabytes=sizes[i] if sizes else 80) for i, row in enumerate(rows)]
    return [slice_(*items, driver=DRIVER_NAME)]


PAIRS = ("2:4", "3:4", "0:4", "1:4")
"""GPU 0 with 2, GPU 1 with 3."""


def test_a_linked_pair_before_the_first_two() -> None:
    assert devices(best(gpus(*PAIRS), [claim(request(count=2))])) == [["gpu-0", "gpu-2"]]
    assert devices(solve(gpus(*PAIRS), [claim(request(count=2))])) == [["gpu-0", "gpu-1"]]


def test_links_are_those_of_the_ordinals_in_whatever_order_gpus_are_published() -> None:
    (item,) = gpus(*PAIRS)
    item["spec"]["devices"] = [item["spec"]["devices"][i] for i in (3, 2, 0, 1)]
    found = devices(best([item], [claim(request(count=2))]))
    assert isinstance(found, list)
    assert set(found[0]) in ({"gpu-0", "gpu-2"}, {"gpu-1", "gpu-3"})


def test_one_gpu_leaves_the_whole_pair() -> None:
    slices, old = gpus(*PAIRS), held("gpu-1", driver=DRIVER_NAME)
    assert devices(best(slices, [old, claim(request())])) == [["gpu-3"]]


def test_small_gpus_before_big_ones() -> None:
    slices = gpus("none", "none", "none", sizes=(80, 40, 80))
    assert devices(best(slices, [claim(request())])) == [["gpu-1"]]


def test_pools_that_do_not_say_how_their_gpus_are_linked_are_used_all_the_same() -> None:
    slices = [slice_(gpu(0, "none"), gpu(0, "none") | {"name": "gpu-x"}, driver=DRIVER_NAME)]
    assert devices(best(slices, [claim(request(count=2))])) == [["gpu-0", "gpu-x"]]


def test_few_pools_and_counter_sets_are_opened() -> None:
    sets = {f"s{i}": {"c": 4} for i in range(3)}
    items = [device(f"d{i}{j}", counters={f"s{i}": {"c": 1}}) for i in range(3) for j in range(4)]
    slices = [slice_(name="sets", count=2, sets=sets), slice_(*items, name="s2", count=2)]
    assert devices(best(slices, [held("d10"), claim(request(count=3))])) == [["d11", "d12", "d13"]]
    two_pools = [slice_("a", pool="p"), slice_("x", "b", name="s2", pool="q")]
    assert devices(best(two_pools, [held("x", pool="q"), claim(request())])) == [["b"]]


def test_the_fullest_shared_device_that_still_has_room() -> None:
    items = [
        device(
            n,
            capacity={"m": {"value": "8", "requestPolicy": {"default": "1"}}},
            allowMultipleAllocations=True,
        )
        for n in ("a", "b", "c")
    ]
    old = [
        held({"device": n, "shareID": SHARE, "consumedCapacity": {"m": amount}}, name=n)
        for n, amount in (("b", "4"), ("c", "6"))
    ]
    assert devices(best([slice_(*items)], [*old, claim(request(capacity={"m": "2"}))])) == [["c"]]
    assert devices(best([slice_(*items)], [*old, claim(request(capacity={"m": "3"}))])) == [["b"]]
    assert devices(best([slice_(*items)], [*old, claim(request(capacity={"m": "5"}))])) == [["a"]]


def test_the_smallest_device_that_will_do() -> None:
    items = [device(n, capacity={"m": size}) for n, size in (("a", "16"), ("b", "8"), ("c", "4"))]
    assert devices(best([slice_(*items)], [claim(request(capacity={"m": "6"}))])) == [["b"]]


def test_a_small_device_of_a_new_pool_before_a_big_one_of_a_pool_in_use() -> None:
    items = [slice_("used", device("big", capacity={"m": "16"}), pool="p")]
    items += [slice_(device("small", capacity={"m": "4"}), name="s2", pool="q")]
    assert devices(best(items, [held("used"), claim(request())])) == [["small"]]


def test_earlier_subrequests_before_a_better_fit() -> None:
    big = f'device.attributes["{DRIVER}"].size == 2'
    slices = [slice_(*[device(f"d{i}", attributes={"size": i}, capacity={"m": str(i)}) for i in (1, 2, 3)])]
    outcome = best(slices, [claim(either("r", sub("big", when=big), sub("any")))])
    assert devices(outcome) == [["d2"]]
    assert outcome.score is not None
    assert best(slices, [claim(either("r", sub("none", count=4), sub("any")))]).score < outcome.score  # type: ignore[operator]


def test_where_an_error_may_hide_the_first_fit_is_taken() -> None:
    slices = [slice_(device("a", attributes={"x": 1}, capacity={"m": "2"}), device("b", capacity={"m": "1"}))]
    wants = claim(request(when=f'device.attributes["{DRIVER}"].x == 1'))
    outcome = best(slices, [wants])
    assert devices(outcome) == [["a"]]
    assert outcome.score is None


def last_three(**fields: list[Any]) -> list[Json]:
    """Forty devices that are all different, each in a pool of its own; only the last three are good."""
    given = {key: values[0:1] * 37 + values[1:2] * 3 for key, values in fields.items()}
    return [
        slice_(
            device(f"d{i:02}", attributes={"i": i}, **{key: value[i] for key, value in given.items()}),
            name=f"s{i:02}",
            pool=f"p{i:02}",
        )
        for i in range(40)
    ]


THREE = claim(request(count=3), constraints=[distinct("i")])
LAST = [["d37", "d38", "d39"]]


def test_on_a_big_node_small_devices_are_tried_first() -> None:
    """More sets of three than are looked at: the best one is found because it is among the first."""
    slices = last_three(capacity=[{"m": "10"}, {"m": "5"}])
    assert devices(best(slices, [THREE])) == LAST


def test_on_a_big_node_small_gpus_are_tried_first() -> None:
    slices = gpus(*["none"] * 40, sizes=(80,) * 37 + (40,) * 3)
    wants = claim(request(count=3), constraints=[{"distinctAttribute": f"{DRIVER_NAME}/ordinal"}])
    assert devices(best(slices, [wants])) == [["gpu-37", "gpu-38", "gpu-39"]]


def test_on_a_big_node_pools_and_counters_in_use_are_tried_first() -> None:
    pools = last_three()
    for i in (37, 38, 39):
        pools[i]["spec"]["devices"].append(device("used"))
    old = [held("used", name=f"h{i}", pool=f"p{i}") for i in (37, 38, 39)]
    assert devices(best(pools, [*old, THREE])) == LAST
    sets = {f"s{i:02}": {"c": 2} for i in range(40)}
    items = [
        device(f"{name}{i:02}", attributes={"i": i}, counters={f"s{i:02}": {"c": 1}})
        for i in range(40)
        for name in ("d", "used")
    ]
    slices = [slice_(name="sets", count=2, sets=sets), slice_(*items, name="s2", count=2)]
    old = [held(*[f"used{i}" for i in (37, 38, 39)])]
    assert devices(best(slices, [*old, THREE])) == LAST


# --- the terms of the score ---


def score(slices: list[Json], claims: list[Json]) -> Score:
    found = best(slices, claims).score
    assert isinstance(found, Score)
    return found


def test_gpus_that_nobody_used_before_are_spared_by_their_memory() -> None:
    slices = gpus("none", "none", "none", sizes=(80, 40, 80))
    assert score(slices, [claim(request())]).spared_gb == -40
    assert score(slices, [claim(request(count=2))]).spared_gb == -120
    old = held("gpu-1", driver=DRIVER_NAME)
    assert score(slices, [old, claim(request())]).spared_gb == -80
    admin = claim(request(adminAccess=True, count=3))
    assert score(slices, [admin]).spared_gb == 0
    beside = claim(request("a", adminAccess=True), request("b", count=2))
    assert score(slices, [beside]).spared_gb == -120


def test_parts_of_one_gpu_spare_it_once() -> None:
    """And nothing if somebody has a part of it already: devices that draw on the same counters are parts. The
    largest of them tells how large it is."""
    items = [
        device(
            f"g{gpu}-{i}",
            attributes={"type": "mig"},
            capacity={"memory": "40Gi" if i == 2 else "10Gi"},
            counters={f"s{gpu}": {"c": 1}},
        )
        for gpu in range(2)
        for i in range(3)
    ]
    sets = {f"s{gpu}": {"c": 3} for gpu in range(2)}
    slices = [
        slice_(name="sets", count=2, sets=sets, driver=DRIVER_NAME),
        slice_(*items, name="s2", count=2, driver=DRIVER_NAME),
    ]
    two = score(slices, [claim(request(count=2))])
    assert (two.spared_gb, two.opened, two.size, two.fullness) == (-40, -1, -2, -1)
    four = score(slices, [claim(request(count=4))])
    assert (four.spared_gb, four.opened, four.size, four.fullness) == (-80, -2, -4, 0)
    more = score(slices, [held("g1-0", driver=DRIVER_NAME), claim(request(count=2))])
    assert (more.spared_gb, more.opened, more.fullness) == (0, 0, -1)


def test_the_bandwidth_of_sets_is_in_links_of_the_narrowest_hop() -> None:
    found = score(gpus(*PAIRS), [claim(request(count=2))])
    assert (found.linked, found.set_links, found.ring_links) == (True, 4, 4)
    apart = score(gpus(*PAIRS), [claim(request("a"), request("b"))])
    assert (apart.linked, apart.set_links, apart.ring_links) == (True, 0, 4)
    old = held("gpu-2", driver=DRIVER_NAME)
    beside = score(gpus(*PAIRS), [old, claim(request("a", count=2), request("b"))])
    assert (beside.linked, beside.set_links, beside.ring_links) == (True, 4, 0)
    alone = slice_(gpu(0, "none"), name="s2", pool="q", driver=DRIVER_NAME)
    old = held("gpu-1", "gpu-3", driver=DRIVER_NAME)
    other_pool = score([*gpus(*PAIRS), alone], [old, claim(request("a", count=2), request("b"))])
    assert (other_pool.set_links, other_pool.ring_links) == (4, 4)
    three = score(gpus(*PAIRS), [claim(request(count=3))])
    assert (three.linked, three.set_links) == (False, 0)
    assert score(gpus(*PAIRS), [claim(request())]).ring_links == 0


def test_what_stays_free_of_shared_devices_counts_against_them() -> None:
    shared = device("a", capacity={"m": "8", "n": "4"}, allowMultipleAllocations=True)
    found = score([slice_(shared)], [claim(request(capacity={"m": "2", "n": "4"}))])
    assert (found.left, found.opened, found.pools) == (-750, -1, -1)
    old = held({"device": "a", "shareID": SHARE, "consumedCapacity": {"m": "4", "n": "0"}})
    found = score([slice_(shared)], [old, claim(request(capacity={"m": "2", "n": "1"}))])
    assert (found.left, found.opened, found.pools) == (-250 - 750, 0, 0)


def test_size_counts_in_units_of_the_smallest_and_hardware_that_stays_unused() -> None:
    items = [device(n, capacity={"m": m, "zero": "0"}) for n, m in (("a", "4"), ("b", "12"), ("c", "8"))]
    found = score([slice_(*items)], [claim(request(capacity={"m": "9"}))])
    assert (found.size, found.fullness, found.spared_gb) == (-3, -2, 0)
    assert score([slice_(*items)], [held("a"), claim(request(count=2))]).size == -5
    assert score([slice_(*items)], [held("a"), claim(request())]).fullness == -1


def test_earlier_subrequests_are_better() -> None:
    wants = claim(either("x", sub("a", count=3), sub("b")), either("y", sub("a"), sub("b")))
    assert score([slice_("d", "e")], [wants]).chosen == (-1, 0)


def test_pools_that_nobody_used_before() -> None:
    slices = [slice_("a", pool="p"), slice_("b", "c", name="s2", pool="q")]
    assert score(slices, [claim(request(count=3))]).pools == -2
    assert score(slices, [held("b", pool="q"), claim(request(count=2))]).pools == -1


# --- on whose behalf ---

GUARDED: Json = {
    "metadata": {"name": "guarded"},
    "spec": {
        "selectors": [{"cel": {"expression": f'device.attributes["{DRIVER_NAME}"].allocator == "scheduler"'}}]
    },
}


def test_the_guard_of_our_classes_is_satisfied_for_the_controller_only() -> None:
    ours, theirs = gpu(0, "none"), gpu(1, "none", allocator="scheduler")
    slices = [slice_(ours, theirs, driver=DRIVER_NAME)]
    for controller, name in ((True, "gpu-0"), (False, "gpu-1")):
        for policy in Policy:
            outcome = solve(
                slices,
                [claim(request(cls="guarded"))],
                classes=[GUARDED],
                policy=policy,
                controller=controller,
            )
            assert devices(outcome) == [[name]]
    both = solve(slices, [claim(request(cls="guarded", count=2))], classes=[GUARDED])
    assert [r.text for r in both.reasons.refusals] == ["is allocated by kube-scheduler"]


# --- compatibility groups ---


def grouped(name: str, *groups: str) -> Json:
    made = device(name, counters={"s": {"c": 1}})
    if groups:
        made["consumesCounters"][0]["compatibilityGroups"] = list(groups)
    return made


def test_devices_on_one_counter_set_must_have_a_group_in_common() -> None:
    items = [
        grouped("a", "mig", "vgpu"),
        grouped("b", "ts"),
        grouped("c", "vgpu"),
        grouped("d"),
        grouped("e"),
    ]
    slices = [slice_(name="sets", count=2, sets={"s": {"c": 9}}), slice_(*items, name="s2", count=2)]
    assert devices(solve(slices, [claim(request(count=2))])) == [["a", "c"]]
    assert devices(solve(slices, [held("b"), claim(request())])) == "no"
    assert devices(solve(slices, [held("d"), claim(request(count=1))])) == [["e"]]
    assert devices(solve(slices, [claim(request(count=3))])) == "no"
    # 1.37 without the feature sees no slice that uses them: the pool is incomplete.
    assert devices(solve(slices, [claim(request())], features="k8s-1.37")) == "no"
    assert devices(solve(slices, [claim(request())], features="k8s-1.36")) == [["a"]]
    assert devices(solve(slices, [claim(request(count=2))], features="k8s-1.37,CompatibilityGroups")) == [
        ["a", "c"]
    ]
