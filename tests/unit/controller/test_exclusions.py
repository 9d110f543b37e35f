"""Exclusions double, expire, and are forgotten when their ground may be gone."""

from tangram.controller.exclusions import Exclusions


def test_the_wait_doubles_up_to_the_maximum() -> None:
    exclusions = Exclusions(initial_s=30, maximum_s=100)
    assert [exclusions.veto("pod", "n1", now_s=0) for _ in range(4)] == [30, 60, 100, 100]


def test_pairs_are_independent_and_expire() -> None:
    exclusions = Exclusions(initial_s=30)
    exclusions.veto("pod", "n1", now_s=0)
    exclusions.veto("pod", "n2", now_s=10)
    assert exclusions.of("pod", now_s=29) == {"n1": 1, "n2": 11}
    assert exclusions.of("pod", now_s=30) == {"n2": 10}
    assert exclusions.of("other", now_s=0) == {}
    # An expired exclusion is remembered for the doubling.
    assert exclusions.veto("pod", "n1", now_s=50) == 60


def test_node_and_pod_events_clear() -> None:
    exclusions = Exclusions()
    exclusions.veto("a", "n1", now_s=0)
    exclusions.veto("a", "n2", now_s=0)
    exclusions.veto("b", "n1", now_s=0)
    exclusions.forget_node("n1")
    assert set(exclusions.of("a", now_s=1)) == {"n2"}
    assert not exclusions.of("b", now_s=1)
    exclusions.forget_pod("a")
    assert not exclusions.of("a", now_s=1)
    assert exclusions.veto("a", "n2", now_s=1) == 30


def test_very_many_vetoes_do_not_overflow() -> None:
    exclusions = Exclusions(maximum_s=600)
    assert [exclusions.veto("pod", "n", now_s=0) for _ in range(5000)][-1] == 600
