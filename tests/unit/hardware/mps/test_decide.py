"""What is to be done about a daemon, for everything that can be seen."""

import itertools

import pytest
from tests.unit.hardware.mps.support import BOOT, share

from tangram.hardware.mps.decide import SILENCE, Seen, decide
from tangram.hardware.mps.values import MpsDaemon, largest

DAEMON = MpsDaemon(pid=7, start_ticks=1, boot_id=BOOT)
SMALL, LARGE = share(1000), share(2000)


@pytest.mark.parametrize(
    ("seen", "action"),
    [
        (Seen(), "rest"),
        (Seen(settled=False), "stop"),
        (Seen(daemon=DAEMON, limits=SMALL, settled=False), "stop"),
        (Seen(daemon=DAEMON, may_try=False), "wait"),
        (Seen(wanted=SMALL), "start"),
        (Seen(wanted=SMALL, may_try=False), "wait"),
        (Seen(wanted=SMALL, daemon=DAEMON), "set_limits"),
        (Seen(wanted=LARGE, daemon=DAEMON, limits=SMALL), "set_limits"),
        (Seen(wanted=SMALL, daemon=DAEMON, limits=LARGE), "set_limits"),
        (Seen(wanted=SMALL, daemon=DAEMON, limits=LARGE, may_try=False), "wait"),
        (Seen(wanted=SMALL, daemon=DAEMON, limits=SMALL), "rest"),
        (Seen(wanted=SMALL, daemon=DAEMON, limits=SMALL, probe_due=True), "probe"),
        (Seen(wanted=SMALL, daemon=DAEMON, limits=SMALL, silent=1), "probe"),
        (Seen(wanted=SMALL, daemon=DAEMON, limits=SMALL, silent=SILENCE), "replace"),
        (Seen(wanted=SMALL, daemon=DAEMON, silent=SILENCE, may_try=False), "wait"),
    ],
)
def test_table(seen: Seen, action: str) -> None:
    assert decide(seen) == action


def test_a_daemon_that_serves_and_answers_is_never_ended() -> None:
    for silent, probe_due, may_try, settled in itertools.product(
        range(SILENCE), (False, True), (False, True), (False, True)
    ):
        seen = Seen(
            wanted=SMALL, daemon=DAEMON, limits=SMALL, silent=silent, probe_due=probe_due,
            may_try=may_try, settled=settled,
        )  # fmt: skip
        assert decide(seen) in ("rest", "probe")


def test_the_limits_of_a_daemon_are_the_largest_of_each_kind() -> None:
    assert largest([]) is None
    assert largest([share(100, 60), share(300, 20)]) == share(300, 60)
    assert share(300, 60).covers(share(300, 20))
    assert not share(300, 60).covers(share(301, 20))
    assert not share(300, 60).covers(share(100, 61))
