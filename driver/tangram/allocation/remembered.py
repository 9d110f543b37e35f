"""What nodes answered to claims of a kind: asked again only of nodes whose state has changed since.

The claims of a thousand pods of one Job are of one kind, and placing one of them changes one node.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from weakref import ref

import msgspec

from tangram.allocation.reasons import of_unusable
from tangram.allocation.shapes import looks_at_identities, shape_of, taken_of
from tangram.allocation.snapshot import Holdings
from tangram.allocation.structured import Cluster, Outcome, Score, Shortage
from tangram.allocation.withdrawn import with_withdrawn
from tangram.model.kubernetes import DeviceClass, ResourceClaim

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
        whole, shortage = of_unusable(outcome.reasons.shortage, cluster.slices)
        return cls(whole=whole, shortage=shortage, steps=outcome.steps)


def kind_of(claims: Sequence[ResourceClaim]) -> Hashable:
    """Equal for claims that get the same answers: those with equal specifications. A digest of these, which
    may be large."""
    return blake2b(msgspec.json.encode([claim.spec for claim in claims]), digest_size=20).digest()


class Known:
    """An answer, and the state of the node in which it was given, which it does not keep alive."""

    __slots__ = ("_cluster", "_holdings", "answer")

    def __init__(self, cluster: Cluster, holdings: Holdings, answer: Answer) -> None:
        self._cluster = ref(cluster)
        self._holdings = ref(holdings)
        self.answer = answer

    def holds(self, cluster: Cluster, holdings: Holdings) -> bool:
        """Whether the node is in that very state."""
        return self._cluster() is cluster and self._holdings() is holdings


class _Kind:
    """What is known of claims of one kind: by node, and by what is the same on like nodes."""

    def __init__(self, claims: Sequence[ResourceClaim], classes: Mapping[str, DeviceClass]) -> None:
        self.classes = classes
        self.by_node: dict[str, Known] = {}
        self.by_shape: dict[Hashable, Answer] | None = None
        if not looks_at_identities(claims, classes):
            self.by_shape = {}

    def __len__(self) -> int:
        return len(self.by_node) + len(self.by_shape or ())


class Remembered:
    """Answers by kind and node, each with the state it was given in; the kinds used last are kept.

    Nodes that are alike give the same answer (`tangram.allocation.shapes`).
    """

    def __init__(self) -> None:
        self._kinds: dict[Hashable, _Kind] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many answers are kept."""
        return self._count

    def get(self, kind: Hashable, node: str, cluster: Cluster, holdings: Holdings) -> Answer | None:
        """The answer of the node in this very state, if it is known, be it from a node that is alike."""
        found = self._kinds.get(kind)
        if found is None or found.classes is not cluster.classes:
            return None
        known = found.by_node.get(node)
        if known is not None and known.holds(cluster, holdings):
            return known.answer
        if not found.by_shape:
            return None
        answer = found.by_shape.get(_state(cluster, holdings))
        if answer is not None:
            self._note(found, node, Known(cluster, holdings, answer))
        return answer

    def put(
        self,
        claims: Sequence[ResourceClaim],
        node: str,
        cluster: Cluster,
        holdings: Holdings,
        answer: Answer,
    ) -> None:
        """Keeps the answer until the state of the node changes, or others need the room."""
        kind = kind_of(claims)
        found = self._kinds.pop(kind, None)
        if found is None or found.classes is not cluster.classes:
            self._count -= len(found) if found else 0
            found = _Kind(claims, cluster.classes)
        self._kinds[kind] = found  # the last used
        self._note(found, node, Known(cluster, holdings, answer))
        if found.by_shape is not None and not answer.error:
            before = len(found.by_shape)
            found.by_shape[_state(cluster, holdings)] = answer
            self._count += len(found.by_shape) - before
        while self._count > _MAXIMUM_ANSWERS and len(self._kinds) > 1:
            self.forget(next(iter(self._kinds)))

    def _note(self, kind: _Kind, node: str, known: Known) -> None:
        self._count += node not in kind.by_node
        kind.by_node[node] = known

    def forget(self, kind: Hashable) -> None:
        """Drops all answers to claims of this kind."""
        found = self._kinds.pop(kind, None)
        self._count -= len(found) if found else 0


def _state(cluster: Cluster, holdings: Holdings) -> Hashable:
    shape = shape_of(cluster)
    return shape.slices, taken_of(shape, with_withdrawn(cluster, holdings.allocated))
