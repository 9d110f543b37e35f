"""Claims whose devices are to be given back: no pod uses them, or none can be bound while others wait.

Kubernetes frees a claim when the last pod that reserved it is gone, and a generated claim with its pod. A
user's own claim whose pod went before it was bound was never reserved: it would hold its devices for ever. So
would the claim of a pod that only kube-scheduler refuses, because of a volume claim that does not exist for
example. A claim that anybody has reserved is never touched: the reservation comes before the binding, so a
write that carries the version of a claim without reservations cannot hit a pod that is bound.
"""

from dataclasses import dataclass, field

from tangram import DRIVER_NAME
from tangram.allocation import ClaimKey, claim_key
from tangram.allocation.structured import DeviceId
from tangram.controller.ledger import held_devices
from tangram.controller.podclaims import may_be_in_flight
from tangram.controller.pods import PodRecord
from tangram.controller.returned import BINDING_S
from tangram.controller.state import State
from tangram.kube.decoding import ObjectKey
from tangram.kube.objects import ResourceClaim
from tangram.model.devices import pool_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Unused:
    """A claim that holds devices of ours, reserved for nobody: after `patience_s` they go to others.

    `pods`: live pods that name it, none of which is bound; `on_their_way`: those that might be about to.
    """

    claim: ResourceClaim
    pods: tuple[PodRecord, ...]
    on_their_way: tuple[PodRecord, ...]
    patience_s: float

    @property
    def why(self) -> str:
        """For the owner: the cause, and what to do."""
        if not self.pods:
            return (
                f"no pod has used this claim for {self.patience_s:g} s; it is allocated anew for the next one"
            )
        pod = self.pods[0]
        text = f"others wait, and pod {pod.key.name} was not bound for {self.patience_s:g} s"
        if pod.objection:
            return f"{text}, for kube-scheduler says: {pod.objection}; it gets devices once that has changed"
        if pod.gated:
            return f"{text}, for it has scheduling gates; it gets devices once they are gone"
        if not self.on_their_way:
            return f"{text}, for it waits for the devices of another claim; it gets all of them together"
        return (
            f"{text}, and no scheduler says why; see whether anything serves its schedulerName"
            f" {pod.pod.spec.scheduler_name!r}; it gets devices again after a while"
        )


@dataclass(slots=True, kw_only=True)
class UnusedClaims:
    """Finds claims whose devices are to be given back, by how long they have been unused.

    A pod that cannot be scheduled as it stands has `unbound_timeout_s`; one that may be on its way to a node
    has at least `BINDING_S`.
    """

    idle_ttl_s: float
    unbound_timeout_s: float
    _since: dict[ClaimKey, tuple[object, float]] = field(default_factory=dict)

    def due(self, state: State, *, now_s: float) -> tuple[Unused, ...]:
        """Those whose time is up, if anybody waits for devices (claims without pods: even if nobody does)."""
        unused = {claim_key(item.claim): item for item in self._find(state, now_s=now_s)}
        since: dict[ClaimKey, tuple[object, float]] = {}
        for key, item in unused.items():
            # Another pod, or another verdict on one, begins another wait.
            phase = (item.patience_s, frozenset(pod.key.uid for pod in item.pods))
            before = self._since.get(key)
            since[key] = before if before is not None and before[0] == phase else (phase, now_s)
        self._since = since
        return tuple(
            item
            for key, item in sorted(unused.items())
            if now_s - since[key][1] >= item.patience_s and (not item.pods or _contended(state, item))
        )

    def _find(self, state: State, *, now_s: float) -> list[Unused]:
        candidates = [
            (key, claim)
            for key, claim in state.claims.items()
            if claim.allocation is not None
            and not claim.consumers
            and state.ledger.assumption(claim_key(claim)) is None
            and claim_key(claim) not in state.freeing
        ]
        if not candidates:
            return []
        ours: set[DeviceId] = {
            device.id
            for cluster in state.inventory.nodes.values()
            for item in cluster.slices
            for device in item.devices
        }
        pools = {
            pool_name(DRIVER_NAME, node)
            for node in state.inventory.nodes
            if node not in state.inventory.foreign
        }
        found = []
        for key, claim in candidates:
            pods = tuple(pod for k in state.pods_of(key) if not (pod := state.pods[k]).finished)
            # A device that is published no more is ours where all that is published is.
            own = any(device in ours or device.pool in pools for device in held_devices(claim))
            if not own or any(pod.bound for pod in pods):
                continue
            on_their_way = tuple(pod for pod in pods if may_be_in_flight(state, pod, now_s=now_s))
            patience_s = self.unbound_timeout_s if pods else self.idle_ttl_s
            if not all(pod.objection for pod in on_their_way):
                patience_s = max(patience_s, BINDING_S)
            found.append(Unused(claim=claim, pods=pods, on_their_way=on_their_way, patience_s=patience_s))
        return found


def _contended(state: State, item: Unused) -> bool:
    """Whether others than the claim's own pods wait for devices."""
    meta = item.claim.metadata
    return not state.waiting <= set(state.pods_of(ObjectKey(meta.namespace, meta.name)))
