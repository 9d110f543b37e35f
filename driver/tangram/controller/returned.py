"""Claims that were given back because their pods could not use them, and when they may be allocated again.

A pod that was given devices and is not bound may be on its way to its node at any moment (`PreBind`, which
may take minutes where volumes are bound). If its claim is freed, it is turned back. But if the claim is then
allocated on another node, nothing turns it back: kube-scheduler reserves the claim without comparing nodes
and binds the pod where the claim is not. So a returned claim rests for longer than any such way takes, unless
a new verdict of the scheduler shows that the way has ended.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tangram.allocation import ClaimKey
from tangram.controller.pods import PodRecord

BINDING_S = 660.0
"""Longer than any pod is on its way: kube-scheduler gives up volumes and binding conditions after 600 s."""
_MAXIMUM_S = 3600.0


class _Verdict(NamedTuple):
    verdict: str
    objected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Return:
    """`pods`: uid of each pod that might have used the claim → what the scheduler said of it then."""

    times: int
    until_s: float
    pods: Mapping[str, _Verdict]


@dataclass(slots=True)
class Returned:
    """Times are of the monotonic clock, in seconds. A claim that is reserved, or gone, is forgotten.

    A new leader knows nothing of this. Pods that kube-scheduler objects to it holds back all the same; of the
    others hardly any is under way for as long as it takes to become leader.
    """

    _claims: dict[ClaimKey, _Return] = field(default_factory=dict)

    def add(self, claim: ClaimKey, pods: Iterable[PodRecord], *, now_s: float) -> float:
        """The claim rests, each time twice as long; returns for how many seconds."""
        before = self._claims.get(claim)
        times = before.times + 1 if before else 1
        rest_s = min(_MAXIMUM_S, BINDING_S * 2.0 ** min(times - 1, 32))
        seen = {record.key.uid: _Verdict(record.verdict, bool(record.objection)) for record in pods}
        self._claims[claim] = _Return(times=times, until_s=now_s + rest_s, pods=seen)
        return rest_s

    def forget(self, claim: ClaimKey) -> None:
        """The claim is used, or gone."""
        self._claims.pop(claim, None)

    def knows(self, claim: ClaimKey, pod_uid: str) -> bool:
        """Whether the claim was given back because of this pod, among others."""
        found = self._claims.get(claim)
        return found is not None and pod_uid in found.pods

    def on_its_way(self, claim: ClaimKey, record: PodRecord, *, now_s: float) -> bool:
        """Whether the pod may still be bound to where the claim was: the scheduler has said nothing new."""
        found = self._claims.get(claim)
        then = found.pods.get(record.key.uid) if found and now_s < found.until_s else None
        return then is not None and then.verdict == record.verdict and not record.finished

    def rests_s(
        self, claim: ClaimKey, pod: PodRecord, others: Iterable[PodRecord], *, now_s: float
    ) -> float | None:
        """For how many seconds the claim must not be allocated for this pod; None if it may be.

        Not while one of the `others` that share the claim may be on its way; nor for a pod that it was given
        back because of, unless all that the scheduler had against it is gone.
        """
        found = self._claims.get(claim)
        if found is None or now_s >= found.until_s:
            return None
        then = found.pods.get(pod.key.uid)
        cleared = then is None or (
            then.objected and not pod.objection and not self.on_its_way(claim, pod, now_s=now_s)
        )
        if cleared and not any(self.on_its_way(claim, other, now_s=now_s) for other in others):
            return None
        return found.until_s - now_s
