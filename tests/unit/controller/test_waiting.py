"""When a pod is told why it waits."""

import itertools

from tangram.allocation import PodKey
from tangram.controller.waiting import Waiting
from tangram.kube.decoding import ObjectKey

POD = PodKey("default", "p", "uid-1")


def told(waiting: Waiting, pod: PodKey, whys: dict[float, str], *, until_s: float) -> list[tuple[float, str]]:
    """Asks whenever the reason changes, and when it is told to ask again, as the loop does."""
    heard: list[tuple[float, str]] = []
    ask_s, why = 0.0, ""
    changes = sorted(whys)
    while ask_s <= until_s:
        while changes and changes[0] <= ask_s:
            why = whys[changes.pop(0)]
        delay_s = waiting.delay_s(pod, why, now_s=ask_s)
        if delay_s == 0:
            heard.append((ask_s, why))
        following = [*changes[:1], *([ask_s + delay_s] if delay_s else [])]
        if not following:
            break
        ask_s = min(following)
    return heard


def test_a_short_wait_is_no_news() -> None:
    waiting = Waiting()
    assert waiting.delay_s(POD, "full", now_s=0.0) == 1
    waiting.forget(ObjectKey("default", "p"))
    assert waiting.delay_s(POD, "full", now_s=5.0) == 1


def test_a_lasting_wait_is_told_once() -> None:
    assert told(Waiting(), POD, {0: "full"}, until_s=1e6) == [(1, "full")]


def test_a_reason_that_flaps_is_told_seldom() -> None:
    flapping = {float(second): f"reason {second % 2}" for second in range(3600)}
    heard = told(Waiting(), POD, flapping, until_s=3600)
    assert 5 <= len(heard) <= 15
    pauses = [later[0] - earlier[0] for earlier, later in itertools.pairwise(heard)]
    assert min(pauses) >= 30


def test_a_new_reason_is_told_when_it_is_due_and_then_the_current_one() -> None:
    heard = told(Waiting(), POD, {0: "a", 5: "b", 20: "c"}, until_s=100)
    assert heard == [(1, "a"), (31, "c")]


def test_a_pod_of_the_same_name_is_another_pod() -> None:
    """A StatefulSet makes its pod anew while it waits: the new one must hear the reason, too."""
    waiting = Waiting()
    assert told(waiting, POD, {0: "full"}, until_s=5) == [(1, "full")]
    again = PodKey("default", "p", "uid-2")
    assert waiting.delay_s(again, "full", now_s=10.0) == 1
    assert waiting.delay_s(again, "full", now_s=11.0) == 0


def test_a_thousand_pods_take_turns() -> None:
    waiting = Waiting()
    pods = [PodKey("default", f"p{i}", f"uid-{i}") for i in range(1000)]
    assert {waiting.delay_s(pod, "full", now_s=0.0) for pod in pods} == {1.0}
    turns = [waiting.delay_s(pod, "full", now_s=1.0) for pod in pods]
    assert turns[0] == 0
    assert all(turn is not None for turn in turns)
    times = sorted(turn for turn in turns if turn is not None)
    assert all(later - earlier > 0.04 for earlier, later in itertools.pairwise(times))
    # Its turn is its own: it does not move while others ask.
    assert waiting.delay_s(pods[10], "full", now_s=1.6) == 0
    assert waiting.delay_s(pods[999], "full", now_s=20.0) is not None
    assert waiting.delay_s(pods[999], "full", now_s=51.0) == 0
    # What ended before its turn leaves no gap that others wait for.
    late = PodKey("default", "late", "uid-late")
    assert waiting.delay_s(late, "full", now_s=60.0) == 1
    assert waiting.delay_s(late, "full", now_s=61.0) == 0
