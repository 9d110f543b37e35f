"""When a waiting pod is told why: soon, when the cause changes, and seldom.

With a thousand pods waiting, each GPU that is taken or freed changes a thousand counts, and each pool that is
published anew changes causes for a moment. A pod is told of another cause once that has lasted, of other
counts now and then, and again before the API server forgets the event (after an hour, by default); all pods
together at a bounded rate. What they are told is current when they are.
"""

import re
from dataclasses import dataclass

from tangram.allocation import PodKey
from tangram.kube.decoding import ObjectKey

_QUIET_S = 1.0
"""A wait shorter than this is not worth an event: a claim being freed, a pod on its way out."""
_STEADY_S = 5.0
"""A cause that comes and goes within this is none: slices being replaced, for example."""
_OTHER_CAUSE_S = 30.0
_OTHER_COUNTS_S = 300.0
"""At least so long between two events; later, half the time waited so far."""
_REMINDER_S = 1800.0
_BETWEEN_PODS_S = 0.05

_NUMBER = re.compile(r"\b\d+\b")
_PLURAL = re.compile(r"\b(GPU|node|cause|fit)s\b")


@dataclass(slots=True, kw_only=True)
class _Told:
    """What a pod was told at `told_s`, and since when the cause is what it is now. `turn_s`: when it is the
    pod's turn, once that has come."""

    uid: str
    since_s: float
    told_s: float | None = None
    why: str = ""
    cause: frozenset[str] = frozenset()
    current: frozenset[str] = frozenset()
    current_since_s: float = 0.0
    turn_s: float | None = None

    def due_s(self, why: str) -> float:
        """When the pod may be told this."""
        if self.told_s is None:
            return self.since_s + _QUIET_S
        half_s = (self.told_s - self.since_s) / 2
        if self.current != self.cause:
            wait_s = min(_REMINDER_S, max(_OTHER_CAUSE_S, half_s))
            return max(self.told_s + wait_s, self.current_since_s + _STEADY_S)
        if self.why != why:
            return self.told_s + min(_REMINDER_S, max(_OTHER_COUNTS_S, half_s))
        return self.told_s + _REMINDER_S


class Waiting:
    """What each waiting pod was told."""

    def __init__(self) -> None:
        self._told: dict[ObjectKey, _Told] = {}
        self._next_turn_s = 0.0

    def tell(self, pod: PodKey, why: str, *, now_s: float) -> tuple[bool, float]:
        """Whether to tell this pod now why it waits (then it counts as told), and after how many seconds to
        ask again.
        """
        key = ObjectKey(pod.namespace, pod.name)
        told = self._told.get(key)
        if told is None or told.uid != pod.uid:
            told = self._told[key] = _Told(uid=pod.uid, since_s=now_s)
        cause = cause_of(why)
        if cause != told.current:
            told.current, told.current_since_s = cause, now_s
        if now_s < (due_s := told.due_s(why)):
            return False, due_s - now_s
        if told.turn_s is None:
            told.turn_s = max(now_s, self._next_turn_s)
            self._next_turn_s = told.turn_s + _BETWEEN_PODS_S
        if now_s < told.turn_s:
            return False, told.turn_s - now_s
        told.why, told.cause, told.told_s, told.turn_s = why, cause, now_s, None
        return True, _REMINDER_S

    def forget(self, key: ObjectKey) -> None:
        """The pod waits no more."""
        self._told.pop(key, None)


def cause_of(why: str) -> frozenset[str]:
    """A reason without its counts, and without the order that follows from them."""
    head, colon, parts = why.partition(": ")
    text = _PLURAL.sub(r"\1", _NUMBER.sub("#", parts if colon else head))
    return frozenset(text.split("; "))
