"""What the controller knows, kept current by watch events, and which pods an event makes worth a look."""

from collections.abc import Callable, Collection, Hashable

from tangram import DRIVER_NAME
from tangram.allocation import ClaimKey, Remembered, Snapshot, claim_key
from tangram.base.clock import Clock
from tangram.base.logs import get_logger
from tangram.controller import metrics
from tangram.controller.claims import ClassRecord, Refused, refused_or_ours
from tangram.controller.exclusions import Exclusions
from tangram.controller.generated import GeneratedClaims
from tangram.controller.inventory import Inventory, SliceRecord
from tangram.controller.ledger import Ledger, device_id, held_results
from tangram.controller.nodefit import HostPort, NodeRecord
from tangram.controller.nodeuse import NodeUse
from tangram.controller.pods import PodRecord, claim_names
from tangram.controller.returned import Returned
from tangram.kube.decoding import ObjectKey
from tangram.kube.objects import AllocationResult, ResourceClaim
from tangram.kube.reflector import Change
from tangram.model.devices import pool_name

log = get_logger("controller")

_REFUSED_KINDS = 10_000
"""Reasons kept, of some hundred bytes each."""


class State:
    """Stores, indexes and ledger.

    `requeue` is called with every pod that should be decided (again), `report` with what the owner of a claim
    should know. `waiting`: pods that were refused devices. `refused`: the reasons that kinds of pods were
    given since something became free last. `dear`: the same of kinds about which a decision takes too long,
    and until when they are not looked at again, whatever becomes free. `freeing`: claims whose allocation
    this controller takes back, with the version at which it does. `returned`: claims that it took from pods
    that could not use them. `remembered`: what nodes answered. `generated`: claims made for pods whose status
    may not name them yet.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        exclusions: Exclusions,
        requeue: Callable[[ObjectKey], None],
        report: Callable[[ResourceClaim, str], None] = lambda _claim, _note: None,
    ) -> None:
        self._clock = clock
        self._requeue = requeue
        self._report = report
        self.inventory = Inventory()
        self.ledger = Ledger()
        self.exclusions = exclusions
        self.classes: dict[str, ClassRecord] = {}
        self.claims: dict[ObjectKey, ResourceClaim] = {}
        self.pods: dict[ObjectKey, PodRecord] = {}
        self.nodes: dict[str, NodeRecord] = {}
        self.waiting: set[ObjectKey] = set()
        self.refused: dict[Hashable, str] = {}
        self.dear: dict[Hashable, tuple[str, float]] = {}
        self.freeing: dict[ClaimKey, str] = {}
        self.returned = Returned()
        self.remembered = Remembered()
        self.generated = GeneratedClaims()
        self._pods_by_claim: dict[ObjectKey, set[ObjectKey]] = {}
        self._ours: dict[ObjectKey, Refused | bool] = {}
        self._use = NodeUse()

    # --- watch events ---------------------------------------------------------------------------------

    def on_slice(self, change: Change[SliceRecord]) -> None:
        """Devices appeared, changed or went."""
        self.inventory.update(change.key.name, change.old, change.new)
        self.requeue_waiting()

    def on_class(self, change: Change[ClassRecord]) -> None:
        """A class changed: any pod with claims may now be ours, fit, or have another reason."""
        if change.new is None:
            self.classes.pop(change.key.name, None)
        else:
            self.classes[change.key.name] = change.new
        self._ours.clear()
        self.refused.clear()
        self.dear.clear()
        self.inventory.set_classes({name: record.item for name, record in self.classes.items()})
        for key, record in self.pods.items():
            if record.waits and record.pod.spec.resource_claims:
                self._requeue(key)

    def on_node(self, change: Change[NodeRecord]) -> None:
        """Only what placing a pod depends on is in the record: heartbeats change nothing."""
        name = change.key.name
        if change.new == self.nodes.get(name):
            return
        if change.new is None:
            self.nodes.pop(name, None)
        else:
            self.nodes[name] = change.new
        self.exclusions.forget_node(name)
        self.requeue_waiting()

    def on_pod(self, change: Change[PodRecord]) -> None:
        """Keeps the index from claims to pods and the use of nodes; decides the pod, or frees room."""
        key, old, new = change.key, change.old, change.new
        self._index(key, old, new)
        if new is None or not new.waits:
            self.waiting.discard(key)
        if old is not None and (new is None or new.bound or not new.asks_as(old)):
            self.exclusions.forget_pod(old.key.uid)
        if self._count(key, new):
            self.requeue_waiting()
        if any(record is not None and record.pod.spec.resource_claims for record in (old, new)) and (
            old is None or new is None or not new.decides_as(old)
        ):
            self._requeue(key)

    def on_claim(self, change: Change[ResourceClaim]) -> None:
        """Keeps the ledger; tells a veto of the scheduler; wakes the pods concerned."""
        key, old, new = change.key, change.old, change.new
        if new is None:
            self.claims.pop(key, None)
        else:
            self.claims[key] = new
        self.generated.update(key, new)
        if old is None or new is None or old.metadata.uid != new.metadata.uid:
            self._ours.pop(key, None)
        if old is not None and (new is None or new.consumers or old.metadata.uid != new.metadata.uid):
            self.returned.forget(claim_key(old))
        if old is not None and old.allocation is not None and (new is None or new.allocation is None):
            self._deallocated(key, old, old.allocation, gone=new is None)
        freed = self.ledger.observe(old, new)
        if new is not None and new.allocation is not None and (old is None or old.allocation is None):
            self._report_double_use(new)
        self._wake(key, freed=freed)
        if old is not None and self.freeing.get(claim_key(old)) == old.metadata.resource_version:
            del self.freeing[claim_key(old)]

    def _index(self, key: ObjectKey, old: PodRecord | None, new: PodRecord | None) -> None:
        for claim in _claim_keys(old):
            users = self._pods_by_claim.get(claim, set())
            users.discard(key)
            if not users:
                self._pods_by_claim.pop(claim, None)
        if new is None:
            self.pods.pop(key, None)
            return
        self.pods[key] = new
        for claim in _claim_keys(new):
            self._pods_by_claim.setdefault(claim, set()).add(key)

    def refuse(self, kind: Hashable, why: str) -> None:
        """Pods of this kind are refused for this reason until something becomes free."""
        if len(self.refused) >= _REFUSED_KINDS:
            self.refused.clear()
        self.refused[kind] = why

    def put_off(self, kind: Hashable, why: str, *, until_s: float) -> None:
        """Pods of this kind are refused for this reason until then."""
        if len(self.dear) >= _REFUSED_KINDS:
            self.dear.clear()
        self.dear[kind] = why, until_s

    def requeue_waiting(self) -> None:
        """Something was freed or appeared: every waiting pod gets another look."""
        self.refused.clear()
        for pod in self.waiting:
            self._requeue(pod)

    def _wake(self, claim: ObjectKey, *, freed: bool) -> None:
        for pod in self.pods_of(claim):
            self._requeue(pod)
        if freed:
            self.requeue_waiting()

    def _deallocated(
        self, key: ObjectKey, old: ResourceClaim, allocation: AllocationResult, *, gone: bool
    ) -> None:
        """A claim lost its allocation. If it was not us and a pod still waits, it is the scheduler's veto.

        `DynamicResources.PostFilter` of kube-scheduler frees a claim when no node fits a pod that needs it,
        provided that nobody else has reserved it.
        """
        node = allocated_node(allocation)
        ours = self.freeing.get(claim_key(old)) == old.metadata.resource_version
        for pod_key in self.pods_of(key):
            record = self.pods[pod_key]
            if record.bound or not record.waits:
                continue
            if ours or gone or not node or not {c.uid for c in old.consumers} <= {record.key.uid}:
                continue
            if record.pod.status.nominated_node_name == node:
                continue  # the scheduler makes room there: no veto
            wait_s = self.exclusions.veto(record.key.uid, node, now_s=self._clock.monotonic_s())
            metrics.VETOES.inc()
            log.info("scheduler_veto", pod=str(record.key), node=node, claim=str(key), excluded_s=wait_s)

    def _report_double_use(self, claim: ResourceClaim) -> None:
        """We never fight over a device; both holders count, and the node prepares the first only. Shares of a
        device are no fight."""
        for result in held_results(claim):
            device = device_id(result)
            holders = self.ledger.holders(device, but_shares=result.share_id is not None)
            others = [holder for holder in holders if holder != claim_key(claim)]
            if others:
                metrics.DOUBLE_USE.inc()
                names = ", ".join(map(str, others))
                log.error("device_in_two_claims", device=device, claim=str(claim_key(claim)), others=names)
                self._report(
                    claim,
                    f"device {device.device} of {device.pool} is allocated to {names} as well; somebody "
                    "allocates around the guard of the device classes: delete the pod that started last",
                )

    # --- our own writes -------------------------------------------------------------------------------

    def landed(self, claim: ClaimKey) -> None:
        """An allocation was written, and all versions of the claim that this made are noted."""
        key = ObjectKey(claim.namespace, claim.name)
        if self.ledger.land(claim, self.claims.get(key)):
            self.requeue_waiting()

    def release(self, claim: ClaimKey) -> None:
        """An assumed allocation was not written: its devices are free, and all its pods without."""
        freed = self.ledger.drop_assumption(claim)
        self._wake(ObjectKey(claim.namespace, claim.name), freed=freed)

    def place(self, key: ObjectKey, node: str) -> None:
        """Counts an unbound pod on the node its claims are allocated on."""
        record = self.pods.get(key)
        if record is not None and not record.bound and self._use.place(key, node, record):
            self.requeue_waiting()

    def unplace(self, key: ObjectKey) -> None:
        """The pod has no allocation any more: it counts nowhere until it is bound."""
        record = self.pods.get(key)
        if record is not None and not record.bound and self._use.remove(key):
            self.requeue_waiting()

    def _count(self, key: ObjectKey, record: PodRecord | None) -> bool:
        """Counts a pod where it is now; returns True if that freed something."""
        if record is None or record.finished:
            return self._use.remove(key)
        if record.bound:
            return self._use.place(key, record.pod.spec.node_name, record)
        counted = self._use.pod(key)
        return counted is not None and counted.key.uid != record.key.uid and self._use.remove(key)

    # --- questions ------------------------------------------------------------------------------------

    def pods_of(self, claim: ObjectKey) -> tuple[ObjectKey, ...]:
        """Pods that name this claim, and the one it was made for and is about to, in a stable order."""
        found = self._pods_by_claim.get(claim, set())
        if (owner := self.generated.owner(claim)) is not None:
            key, uid, entry = owner
            record = self.pods.get(key)
            if record is not None and record.key.uid == uid and not record.names(entry):
                found = found | {key}
        return tuple(sorted(found))

    def is_ours(self, claim: ResourceClaim) -> Refused | bool:
        """Whether a claim is ours to allocate (`refused_or_ours`), remembered: its specification cannot
        change."""
        key = ObjectKey(claim.metadata.namespace, claim.metadata.name)
        if key not in self._ours:
            self._ours[key] = refused_or_ours(claim, self.classes)
        return self._ours[key]

    def node_of(self, claim: ResourceClaim) -> str | None:
        """Where a claim is allocated, or about to be ("" if that is not one node); None if it is not."""
        assumed = self.ledger.assumption(claim_key(claim))
        if assumed is not None:
            return assumed.node
        return allocated_node(claim.allocation) if claim.allocation is not None else None

    def order(self, key: ObjectKey) -> tuple[int, bool, str, ObjectKey]:
        """Whose turn it is, smallest first: as in kube-scheduler the higher priority, then the older pod.

        Whoever could not be bound even with devices stands behind its equals in priority.
        """
        record = self.pods.get(key)
        if record is None:
            return (0, False, "", key)
        meta = record.pod.metadata
        return (-(record.pod.spec.priority or 0), bool(record.objection), meta.creation_timestamp or "", key)

    def snapshot(self, pod: ObjectKey) -> Snapshot:
        """The state a decision on this pod is made on: what it may count for itself already is left out."""
        return Snapshot(
            nodes=self.inventory.nodes,
            held=self.ledger.held(),
            free_resources={
                name: self._use.free(name, self.nodes[name].allocatable, but=pod)
                for name in self.inventory.nodes
                if name in self.nodes
            },
        )

    def used_ports(self, node: str, pod: ObjectKey) -> Collection[HostPort]:
        """Host ports taken on a node by other pods."""
        return self._use.ports(node, but=pod)


def _claim_keys(record: PodRecord | None) -> tuple[ObjectKey, ...]:
    if record is None:
        return ()
    names, _ = claim_names(record.pod, {})
    return tuple(ObjectKey(record.key.namespace, claim.name) for claim in names)


def allocated_node(allocation: AllocationResult) -> str:
    """The node an allocation is for, by its one-node selector or our pool's name; empty if neither says."""
    selector = allocation.node_selector
    for term in (selector.node_selector_terms or ()) if selector else ():
        for requirement in term.match_fields or ():
            if requirement.key == "metadata.name" and requirement.operator == "In":
                values = requirement.values or []
                if len(values) == 1:
                    return values[0]
    for result in allocation.devices.results or ():
        prefix = pool_name(DRIVER_NAME, "")
        if result.driver == DRIVER_NAME and result.pool.startswith(prefix):
            return result.pool.removeprefix(prefix)
    return ""
