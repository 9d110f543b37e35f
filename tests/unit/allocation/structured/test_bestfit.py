"""Best fit: linked sets, small devices first, few things opened; earlier subrequests before everything."""

from typing import Any

from tests.unit.allocation.structured.world import (
    DRIVER,
    claim,
    device,
    devices,
    either,
    held,
    request,
    slice_,
    solve,
    sub,
)

from tangram import DRIVER_NAME
from tangram.allocation.structured import Outcome, Policy

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
