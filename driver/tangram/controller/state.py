"""What the controller knows, kept current by watch events, and which pods an event makes worth a look."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tangram import DRIVER_NAME
from tangram.allocation import ClaimKey, DeviceId, Snapshot
from tangram.base.clock import Clock
from tangram.base.logs import get_logger
from tangram.controller import metrics
from tangram.controller.claims import ClassRecord, claim_key
from tangram.controller.exclusions import Exclusions
from tangram.controller.inventory import Inventory, SliceRecord
from tangram.controller.ledger import Ledger
from tangram.controller.nodefit import HostPort, NodeRecord
from tangram.controller.pods import PodRecord, claim_names
from tangram.kube.decoding import ObjectKey
from tangram.kube.objects import AllocationResult, ResourceClaim
from tangram.kube.reflector import Change
from tangram.model.devices import pool_name

log = get_logger("controller")


@dataclass(slots=True)
class NodeUse:
    """What the live pods of a node take, in milli-units, and their host ports."""

    resources: Counter[str] = field(default_factory=Counter)
    ports: Counter[HostPort] = field(default_factory=Counter)


class State:
    """Stores, indexes and ledger. `requeue` is called with every pod that should be decided (again)."""

    def __init__(self, *, clock: Clock, exclusions: Exclusions, requeue: Callable[[ObjectKey], None]) -> None:
        self._clock = clock
        self._requeue = requeue
        self.inventory = Inventory()
        self.ledger = Ledger()
        self.exclusions = exclusions
        self.classes: dict[str, ClassRecord] = {}
        self.claims: dict[ObjectKey, ResourceClaim] = {}
        self.pods: dict[ObjectKey, PodRecord] = {}
        self.nodes: dict[str, NodeRecord] = {}
        self.waiting: set[ObjectKey] = set()
        self.deallocating: set[ClaimKey] = set()
        self._pods_by_claim: dict[ObjectKey, set[ObjectKey]] = {}
        self._use: dict[str, NodeUse] = {}
        self._counted: dict[ObjectKey, tuple[str, PodRecord]] = {}

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
        key, new = change.key, change.new
        for name in self._claim_keys(change.old):
            users = self._pods_by_claim.get(name, set())
            users.discard(key)
            if not users:
                self._pods_by_claim.pop(name, None)
        if new is None:
            self.pods.pop(key, None)
        else:
            self.pods[key] = new
            for name in self._claim_keys(new):
                self._pods_by_claim.setdefault(name, set()).add(key)
        if change.old is not None and (new is None or new.key.uid != change.old.key.uid or new.bound):
            self.exclusions.forget_pod(change.old.key.uid)
        if new is None or not new.waits:
            self.waiting.discard(key)
        if self._count(key, new):
            self.requeue_waiting()
        if (new is not None and new.waits and new.pod.spec.resource_claims) or (
            change.old is not None and change.old.pod.spec.resource_claims
        ):
            self._requeue(key)

    def on_claim(self, change: Change[ResourceClaim]) -> None:
        """Keeps the ledger; tells a veto of the scheduler; wakes the pods concerned."""
        key, old, new = change.key, change.old, change.new
        if new is None:
            self.claims.pop(key, None)
        else:
            self.claims[key] = new
        if old is not None and new is not None and old.allocation is not None and new.allocation is None:
            self._deallocated(old, old.allocation)
        freed = self.ledger.observe(old, new)
        if new is not None:
            self._report_double_use(new)
        for pod in self.pods_of(key):
            self._requeue(pod)
        if freed:
            self.requeue_waiting()

    def requeue_waiting(self) -> None:
        """Something was freed or appeared: every waiting pod gets another look."""
        for pod in self.waiting:
            self._requeue(pod)

    def _deallocated(self, old: ResourceClaim, allocation: AllocationResult) -> None:
        """Somebody cleared an allocation. If it was not us and a pod still waits, it is the scheduler's veto.

        `DynamicResources.PostFilter` of kube-scheduler frees a claim when no node fits a pod that needs it.
        """
        key = claim_key(old)
        if key in self.deallocating:
            self.deallocating.discard(key)
            return
        node = allocated_node(allocation)
        if not node:
            return
        for pod_key in self.pods_of(ObjectKey(key.namespace, key.name)):
            record = self.pods[pod_key]
            if not record.waits or record.bound:
                continue
            if record.pod.status.nominated_node_name:
                continue  # the scheduler makes room there: no veto
            wait_s = self.exclusions.veto(record.key.uid, node, now_s=self._clock.monotonic_s())
            metrics.VETOES.inc()
            log.info("scheduler_veto", pod=str(record.key), node=node, claim=str(key), excluded_s=wait_s)

    def _report_double_use(self, claim: ResourceClaim) -> None:
        key = claim_key(claim)
        for result in (claim.allocation.devices.results or ()) if claim.allocation else ():
            if result.driver != DRIVER_NAME or result.admin_access:
                continue
            holders = self.ledger.holders(DeviceId(result.pool, result.device))
            if len(holders) > 1:
                metrics.DOUBLE_USE.inc()
                log.error(
                    "device_in_two_claims",
                    device=result.device,
                    pool=result.pool,
                    claims=[str(holder) for holder in holders],
                    claim=str(key),
                    next_step="somebody allocates around the guard; the node refuses to prepare the second",
                )

    # --- questions ------------------------------------------------------------------------------------

    def pods_of(self, claim: ObjectKey) -> tuple[ObjectKey, ...]:
        """Pods that name this claim, in a stable order."""
        return tuple(sorted(self._pods_by_claim.get(claim, ())))

    def snapshot(self) -> Snapshot:
        """The state a decision is made on."""
        return Snapshot(
            nodes=self.inventory.nodes,
            held=self.ledger.held(),
            free_resources={name: self._free(name) for name in self.inventory.nodes if name in self.nodes},
        )

    def used_ports(self, node: str) -> Iterable[HostPort]:
        """Host ports taken on a node."""
        return self._use[node].ports if node in self._use else ()

    def _free(self, node: str) -> Mapping[str, int]:
        used = self._use.get(node)
        allocatable = self.nodes[node].allocatable
        if used is None:
            return allocatable
        return {name: amount - used.resources.get(name, 0) for name, amount in allocatable.items()}

    # --- node use -------------------------------------------------------------------------------------

    def place(self, key: ObjectKey, node: str) -> None:
        """Counts an unbound pod on the node its claims were allocated on."""
        record = self.pods.get(key)
        if record is not None and not record.bound:
            self._move(key, node, record)

    def unplace(self, key: ObjectKey) -> None:
        """The pod has no allocation any more: it counts nowhere until it is bound."""
        record = self.pods.get(key)
        if record is not None and not record.bound:
            self._move(key, "", None)

    def _count(self, key: ObjectKey, record: PodRecord | None) -> bool:
        """Counts a pod where it is now; returns True if that freed something."""
        if record is None or record.finished:
            return self._move(key, "", None)
        if record.bound:
            return self._move(key, record.pod.spec.node_name, record)
        counted = self._counted.get(key)
        if counted is not None and counted[1].key.uid != record.key.uid:
            return self._move(key, "", None)
        return False

    def _move(self, key: ObjectKey, node: str, record: PodRecord | None) -> bool:
        counted = self._counted.pop(key, None)
        if counted is not None:
            use = self._use[counted[0]]
            use.resources.subtract(counted[1].resources)
            use.ports.subtract(counted[1].ports)
            use.ports = +use.ports
            if not +use.resources:
                del self._use[counted[0]]
        if record is not None:
            use = self._use.setdefault(node, NodeUse())
            use.resources.update(record.resources)
            use.ports.update(record.ports)
            self._counted[key] = (node, record)
        return counted is not None and counted[0] != node

    @staticmethod
    def _claim_keys(record: PodRecord | None) -> tuple[ObjectKey, ...]:
        if record is None:
            return ()
        names, _ = claim_names(record.pod)
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
