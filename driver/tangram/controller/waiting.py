"""When a waiting pod is told why: soon, when the reason changes, and seldom.

With a thousand pods waiting, each GPU that is taken or freed changes a thousand reasons. A pod is told at
ever longer intervals, and all pods together at a bounded rate; what they are told is current when they are.
"""

from dataclasses import dataclass

from tangram.allocation import PodKey
from tangram.kube.decoding import ObjectKey

_QUIET_S = 1.0
"""A wait shorter than this is not worth an event: slices being replaced, a claim being freed."""
_REPEAT_S = 30.0
"""At least so long between two events; later, half the time waited so far."""
_BETWEEN_PODS_S = 0.05


@dataclass(slots=True, kw_only=True)
class _Told:
    """`due_s`: when the pod may be told next; `turn_s`: when it is its turn, once that has come."""

    uid: str
    since_s: float
    due_s: float
    turn_s: float | None = None
    why: str = ""


class Waiting:
    """What each waiting pod was told."""

    def __init__(self) -> None:
        self._told: dict[ObjectKey, _Told] = {}
        self._next_turn_s = 0.0

    def delay_s(self, pod: PodKey, why: str, *, now_s: float) -> float | None:
        """After how many seconds this pod is to be told why it waits: 0 for now (then it counts as told),
        None if it knows.
        """
        key = ObjectKey(pod.namespace, pod.name)
        told = self._told.get(key)
        if told is None or told.uid != pod.uid:
            told = self._told[key] = _Told(uid=pod.uid, since_s=now_s, due_s=now_s + _QUIET_S)
        if told.why == why:
            return None
        if now_s < told.due_s:
            return told.due_s - now_s
        if told.turn_s is None:
            told.turn_s = max(now_s, self._next_turn_s)
            self._next_turn_s = told.turn_s + _BETWEEN_PODS_S
        if now_s < told.turn_s:
            return told.turn_s - now_s
        told.why, told.turn_s = why, None
        told.due_s = now_s + max(_REPEAT_S, (now_s - told.since_s) / 2)
        return 0.0

    def forget(self, key: ObjectKey) -> None:
        """The pod waits no more."""
        self._told.pop(key, None)
