"""Which pod must not be placed on which node for a while, because the scheduler took an allocation back.

The wait doubles with each veto of the same pair and ends early when the node or the pod's specification
changes: the veto may then no longer hold.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Exclusion:
    vetoes: int
    until_s: float


@dataclass(slots=True, kw_only=True)
class Exclusions:
    """Pairs of pod uid and node; times are of the monotonic clock, in seconds."""

    initial_s: float = 30.0
    maximum_s: float = 600.0
    _pairs: dict[str, dict[str, _Exclusion]] = field(default_factory=dict)

    def veto(self, pod_uid: str, node: str, *, now_s: float) -> float:
        """Excludes the node for this pod; returns for how many seconds."""
        nodes = self._pairs.setdefault(pod_uid, {})
        vetoes = nodes[node].vetoes + 1 if node in nodes else 1
        wait_s = min(self.maximum_s, self.initial_s * 2.0 ** min(vetoes - 1, 32))
        nodes[node] = _Exclusion(vetoes, now_s + wait_s)
        return wait_s

    def of(self, pod_uid: str, *, now_s: float) -> Mapping[str, float]:
        """Nodes excluded for this pod now → seconds left."""
        return {
            node: exclusion.until_s - now_s
            for node, exclusion in self._pairs.get(pod_uid, {}).items()
            if exclusion.until_s > now_s
        }

    def forget_pod(self, pod_uid: str) -> None:
        """The pod is bound, gone or changed."""
        self._pairs.pop(pod_uid, None)

    def forget_node(self, node: str) -> None:
        """The node changed in a way that may make room."""
        for uid in [uid for uid, nodes in self._pairs.items() if nodes.pop(node, None) and not nodes]:
            del self._pairs[uid]
