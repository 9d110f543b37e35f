"""When a pod is told why it waits."""

import itertools

import pytest

from tangram.allocation import PodKey
from tangram.controller.waiting import Waiting, cause_of
from tangram.kube.decoding import ObjectKey

POD = PodKey("default", "p", "uid-1")
HOUR_S = 3600.0


def told(waiting: Waiting, pod: PodKey, whys: dict[float, str], *, until_s: float) -> list[tuple[float, str]]:
    """Asks whenever the reason changes, and when it is told to ask again, as the loop does."""
    heard: list[tuple[float, str]] = []
    changes = sorted(whys)
    ask_s, why = changes[0], ""
    while ask_s <= until_s:
        while changes and changes[0] <= ask_s:
            why = whys[changes.pop(0)]
        now, again_s = waiting.tell(pod, why, now_s=ask_s)
        if now:
            heard.append((ask_s, why))
        assert again_s > 0
        ask_s = min([*changes[:1], ask_s + again_s])
    return heard


def test_a_short_wait_is_no_news() -> None:
    waiting = Waiting()
    assert not waiting.tell(POD, "full", now_s=0.5)[0]
    waiting.forget(ObjectKey("default", "p"))
    assert waiting.tell(POD, "full", now_s=5.0) == (False, 1)


def test_a_lasting_wait_is_told_again_before_the_event_is_forgotten() -> None:
    heard = told(Waiting(), POD, {0: "full"}, until_s=10 * HOUR_S)
    assert heard[:2] == [(1, "full"), (1801, "full")]
    pauses = [later[0] - earlier[0] for earlier, later in itertools.pairwise(heard)]
    assert set(pauses) == {1800}


def test_counts_that_change_all_the_time_are_told_seldom_and_as_they_are() -> None:
    whys = {float(s): f"9 GPUs on 2 nodes: {s % 7} unhealthy; {s % 5} in use" for s in range(3600)}
    heard = told(Waiting(), POD, whys, until_s=HOUR_S)
    assert [why for at_s, why in heard if at_s == 1] == [whys[1]]
    assert len(heard) in range(5, 13)
    assert all(why == whys[at_s // 1] for at_s, why in heard)
    pauses = [later[0] - earlier[0] for earlier, later in itertools.pairwise(heard)]
    assert min(pauses) >= 300
    assert max(pauses) <= 1800


def test_slices_that_are_published_anew_are_no_news() -> None:
    """Every pool in turn is incomplete for a moment; in the end all is as it was."""
    steady, whys = "8 GPUs on 2 nodes: 8 in use by other claims", {}
    for round_ in range(1, 60):
        for step in range(8):
            whys[round_ * 60 + step / 4] = (
                f"8 GPUs on 2 nodes: {8 - step} in use by other claims; "
                f"{step} on nodes whose slices cannot be used ({step} of 8 are there)"
            )
        whys[round_ * 60 + 2.0] = steady
    heard = told(Waiting(), POD, {0.0: steady, **whys}, until_s=HOUR_S)
    assert [why for _, why in heard] == [steady, steady]


def test_another_cause_is_told_once_it_has_lasted() -> None:
    heard = told(Waiting(), POD, {0: "full", 100: "cordoned"}, until_s=200)
    assert heard == [(1, "full"), (105, "cordoned")]
    heard = told(Waiting(), POD, {0: "full", 5: "cordoned", 20: "tainted"}, until_s=200)
    assert heard == [(1, "full"), (31, "tainted")]


def test_causes_that_take_turns_are_told_seldom() -> None:
    whys = {float(second): f"cause {'ab'[second // 10 % 2]}" for second in range(0, 3600, 10)}
    heard = told(Waiting(), POD, whys, until_s=HOUR_S)
    assert 5 <= len(heard) <= 15
    pauses = [later[0] - earlier[0] for earlier, later in itertools.pairwise(heard)]
    assert min(pauses) >= 30


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("16 GPUs on 2 nodes: 9 in use; 7 unhealthy", "1 GPU on 1 node: 12 unhealthy; 1 in use"),
        ("8 GPUs on 1 node: 1 on n fits, but no 4 of them", "8 GPUs on 1 node: 3 on n fit, but no 2 of them"),
        ("8 GPUs on 1 node: 8 a; 2 further causes", "8 GPUs on 1 node: 8 a; 1 further cause"),
    ],
)
def test_counts_and_order_are_no_cause(one: str, other: str) -> None:
    assert cause_of(one) == cause_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("8 GPUs on 1 node: 8 of type A100, not H100", "8 GPUs on 1 node: 8 of type A10, not H100"),
        ("8 GPUs on 1 node: 8 in use", "8 GPUs on 1 node: 7 in use; 1 unhealthy"),
        ("claim a is allocated on node x", "claim b is allocated on node x"),
    ],
)
def test_other_words_are_another_cause(one: str, other: str) -> None:
    assert cause_of(one) != cause_of(other)


def test_a_pod_of_the_same_name_is_another_pod() -> None:
    """A StatefulSet makes its pod anew while it waits: the new one must hear the reason, too."""
    waiting = Waiting()
    assert told(waiting, POD, {0: "full"}, until_s=5) == [(1, "full")]
    again = PodKey("default", "p", "uid-2")
    assert waiting.tell(again, "full", now_s=10.0) == (False, 1)
    assert waiting.tell(again, "full", now_s=11.0)[0]


def test_a_thousand_pods_take_turns() -> None:
    waiting = Waiting()
    pods = [PodKey("default", f"p{i}", f"uid-{i}") for i in range(1000)]
    assert {waiting.tell(pod, "full", now_s=0.0) for pod in pods} == {(False, 1.0)}
    turns = [waiting.tell(pod, "full", now_s=1.0) for pod in pods]
    assert [now for now, _ in turns] == [True] + [False] * 999
    times = sorted(again_s for now, again_s in turns if not now)
    assert all(later - earlier > 0.04 for earlier, later in itertools.pairwise(times))
    # Its turn is its own: it does not move while others ask.
    assert waiting.tell(pods[10], "full", now_s=1.6)[0]
    assert not waiting.tell(pods[999], "full", now_s=20.0)[0]
    assert waiting.tell(pods[999], "full", now_s=51.0)[0]
    # What ended before its turn leaves no gap that others wait for.
    late = PodKey("default", "late", "uid-late")
    assert waiting.tell(late, "full", now_s=60.0) == (False, 1)
    assert waiting.tell(late, "full", now_s=61.0)[0]
