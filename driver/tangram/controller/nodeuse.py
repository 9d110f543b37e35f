"""What pods take of a node besides devices: CPU, memory, … and host ports.

Kubernetes counts bound pods. A pod whose claims are allocated is bound for that node: it counts there from
the moment of the decision, so that two pods are not sent to the same last CPU.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tangram.controller.nodefit import HostPort
from tangram.controller.pods import PodRecord
from tangram.kube.decoding import ObjectKey


@dataclass(slots=True)
class _Use:
    """Of one node, in milli-units."""

    resources: Counter[str] = field(default_factory=Counter)
    ports: Counter[HostPort] = field(default_factory=Counter)


class NodeUse:
    """Each pod counts on one node at most."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Use] = {}
        self._counted: dict[ObjectKey, tuple[str, PodRecord]] = {}

    def place(self, key: ObjectKey, node: str, record: PodRecord) -> bool:
        """Counts a pod on this node, and nowhere else. True if another node got room by that."""
        freed = self.remove(key, but=node)
        use = self._nodes.setdefault(node, _Use())
        use.resources.update(record.resources)
        use.ports.update(record.ports)
        self._counted[key] = (node, record)
        return freed

    def remove(self, key: ObjectKey, *, but: str = "") -> bool:
        """The pod counts nowhere. True if a node other than `but` got room by that."""
        counted = self._counted.pop(key, None)
        if counted is None:
            return False
        node, record = counted
        use = self._nodes[node]
        use.resources.subtract(record.resources)
        use.ports = use.ports - Counter(record.ports)
        if not +use.resources:
            del self._nodes[node]
        return node != but

    def pod(self, key: ObjectKey) -> PodRecord | None:
        """The pod as it was counted, if it is."""
        counted = self._counted.get(key)
        return counted[1] if counted else None

    def free(
        self, node: str, allocatable: Mapping[str, int], *, but: ObjectKey | None = None
    ) -> Mapping[str, int]:
        """What is left of a node's resources, if the pod `but` were not there."""
        use = self._nodes.get(node)
        if use is None:
            return allocatable
        own = self._on(node, but)
        resources = own.resources if own else {}
        return {
            name: amount - use.resources[name] + resources.get(name, 0)
            for name, amount in allocatable.items()
        }

    def ports(self, node: str, *, but: ObjectKey | None = None) -> Collection[HostPort]:
        """Host ports taken on a node by other pods than `but`."""
        use = self._nodes.get(node)
        if use is None:
            return ()
        own = self._on(node, but)
        return use.ports - Counter(own.ports) if own else use.ports

    def _on(self, node: str, key: ObjectKey | None) -> PodRecord | None:
        counted = self._counted.get(key) if key is not None else None
        return counted[1] if counted and counted[0] == node else None
