"""What nodes answered to claims of a kind: asked again only of nodes whose state has changed since.

The claims of a thousand pods of one Job are of one kind, and placing one of them changes one node.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import msgspec

from tangram.allocation.snapshot import Holdings
from tangram.allocation.structured import Cluster, Outcome, Score, Shortage
from tangram.model.kubernetes import ResourceClaim

_MAXIMUM_ANSWERS = 100_000
"""Some hundred bytes each."""
_NONE = Shortage()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a node can do for claims of a kind: they `fit`, as well as `score` says (if that can be said), or
    `error` says why they are wrong on every node; else `shortage` says what is missing, or `whole` why
    nothing of the node can be used."""

    fit: bool = False
    score: Score | None = None
    error: str = ""
    whole: str = ""
    shortage: Shortage = _NONE
    steps: int = 0

    @classmethod
    def of(cls, outcome: Outcome, cluster: Cluster) -> "Answer":
        """The answer of the node that `cluster` is about."""
        if outcome.allocations is not None or outcome.error:
            fit = outcome.allocations is not None
            return cls(fit=fit, score=outcome.score, error=outcome.error, steps=outcome.steps)
        shortage = outcome.reasons.shortage
        if shortage.unusable and not shortage.devices and not shortage.others:
            whole = f"on nodes whose slices cannot be used ({shortage.unusable})"
            count = sum(len(item.devices) for item in cluster.slices)
            kinds = frozenset(
                str(own.get("type", ""))
                for item in cluster.slices
                for device in item.devices
                for own in (device.cel.attributes.get(device.id.driver, {}),)
            )
            return cls(whole=whole, shortage=Shortage(left=count, kinds=kinds), steps=outcome.steps)
        return cls(shortage=shortage, steps=outcome.steps)


def kind_of(claims: Sequence[ResourceClaim]) -> Hashable:
    """Equal for claims that get the same answers: those with equal specifications."""
    return tuple([msgspec.json.encode(claim.spec) for claim in claims])


@dataclass(slots=True)
class _Known:
    cluster: Cluster
    holdings: Holdings
    answer: Answer


class Remembered:
    """Answers by kind and node, each with the state it was given in; the kinds used last are kept."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, dict[str, _Known]] = {}
        self._count = 0

    def get(self, kind: Hashable, node: str, cluster: Cluster, holdings: Holdings) -> Answer | None:
        """The answer of the node in this very state, if it is known."""
        known = self._kinds.get(kind, {}).get(node)
        if known is None or known.cluster is not cluster or known.holdings is not holdings:
            return None
        return known.answer

    def put(self, kind: Hashable, node: str, cluster: Cluster, holdings: Holdings, answer: Answer) -> None:
        """Keeps the answer until the state of the node changes, or others need the room."""
        nodes = self._kinds.pop(kind, {})
        self._kinds[kind] = nodes  # the last used
        self._count += node not in nodes
        nodes[node] = _Known(cluster, holdings, answer)
        while self._count > _MAXIMUM_ANSWERS and len(self._kinds) > 1:
            oldest = next(iter(self._kinds))
            self.forget(oldest)

    def forget(self, kind: Hashable) -> None:
        """Drops all answers to claims of this kind."""
        self._count -= len(self._kinds.pop(kind, {}))
