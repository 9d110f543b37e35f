"""What is to be done about one GPU's MPS daemon: a pure function of what is wanted and what is seen."""

from dataclasses import dataclass
from typing import Literal

from tangram.hardware.mps.values import MpsDaemon, MpsShare

SILENCE = 3
"""Commands in a row without an answer after which a daemon counts as hung."""

Action = Literal["start", "set_limits", "probe", "replace", "stop", "wait", "rest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One GPU as it is now.

    `wanted` is the largest share of its claims, `daemon` the control daemon that lives, `limits` what was
    last read back from it, `silent` how many commands in a row it has not answered. `may_try`: the back-off
    after a failure is over. `settled`: nothing of an earlier daemon is left, and the status says so.
    """

    wanted: MpsShare | None = None
    daemon: MpsDaemon | None = None
    limits: MpsShare | None = None
    silent: int = 0
    may_try: bool = True
    probe_due: bool = False
    settled: bool = True


def decide(seen: Seen) -> Action:
    """The one next thing to do.

    `wait`: something is to be done, once the back-off is over. `rest`: all is as it should be.
    """
    if seen.wanted is None:
        if seen.daemon is None and seen.settled:
            return "rest"
        return "stop" if seen.may_try else "wait"
    if seen.daemon is None:
        return "start" if seen.may_try else "wait"
    if seen.silent >= SILENCE:
        return "replace" if seen.may_try else "wait"
    if seen.limits != seen.wanted:
        return "set_limits" if seen.may_try else "wait"
    return "probe" if seen.probe_due or seen.silent else "rest"
