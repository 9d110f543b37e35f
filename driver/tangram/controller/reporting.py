"""What the controller tells the owners of pods and claims: events, and the same facts as log lines."""

from collections.abc import Collection, Iterable

from tangram.allocation import ClaimAllocation, ClaimKey, Placement, PodKey, claim_key
from tangram.base.errors import ForbiddenError, TangramError
from tangram.base.logs import get_logger
from tangram.controller import metrics
from tangram.controller.claims import unstated_shares
from tangram.controller.ledger import held_devices
from tangram.kube.events import EventRecorder, ObjectReference
from tangram.kube.objects import ResourceClaim
from tangram.kube.resources import PODS, RESOURCE_CLAIMS, Resource

log = get_logger("controller")

_ACTION = "Allocating"
_NAMED_DEVICES = 4
"""So many a note names; more would leave no room for the cause."""
_RBAC_NEXT_STEP = (
    "grant the controller patch on resourceclaims, resourceclaims/status and (Kubernetes 1.36 and later) "
    "resourceclaims/binding by a ClusterRoleBinding"
)


class Reporter:
    """Emits events; never waits and never raises."""

    def __init__(self, events: EventRecorder) -> None:
        self._events = events

    def waits(self, pod: PodKey, claims: Iterable[ResourceClaim], why: str, *, held: bool = False) -> None:
        """The pod and those of its claims that are not allocated; `held`: free devices would not help it."""
        metrics.ALLOCATIONS.labels(outcome="held" if held else "waiting").inc()
        log.info("pod_held" if held else "pod_waits", pod=str(pod), why=why)
        reason = "WaitingForScheduler" if held else "WaitingForDevices"
        for regarding in (_reference(PODS, pod), *map(_claim, claims)):
            self._events.emit(regarding, reason=reason, note=why, action=_ACTION, kind="Warning")

    def allocated(self, claim: ResourceClaim, allocation: ClaimAllocation, placement: Placement) -> None:
        """What a claim got."""
        names = [result.device for result in allocation.results]
        terms = placement.terms.fit
        note = f"allocated {', '.join(names)} on node {placement.node}"
        if terms.set_links and len(names) > len({result.request for result in allocation.results}):
            note += f" ({'fully linked, ' if terms.linked else ''}{terms.set_links} links wide)"
        left = -terms.fullness
        note += f"; {left} {'GPU' if left == 1 else 'GPUs'} left free there"
        if unstated := unstated_shares(allocation.allocation):
            note += f"; {unstated}"
        log.info(
            "claim_allocated",
            claim=str(claim_key(claim)),
            node=placement.node,
            devices=names,
            terms=terms._asdict(),
            runner_up=placement.runner_up[0] if placement.runner_up else None,
        )
        self._events.emit(_claim(claim), reason="Allocated", note=note, action=_ACTION)

    def deallocated(self, claim: ResourceClaim, pods: Collection[PodKey], why: str) -> None:
        """A claim, and the pods that name it, lost devices that they did not use."""
        names = [device.device for device in held_devices(claim)]
        metrics.DEALLOCATIONS.labels(cause="unbound" if pods else "idle").inc()
        log.info("claim_deallocated", claim=str(claim_key(claim)), devices=names, why=why)
        note = (
            f"{', '.join(names) if len(names) <= _NAMED_DEVICES else f'{len(names)} GPUs'} given back: {why}"
        )
        for regarding in (_claim(claim), *(_reference(PODS, pod) for pod in pods)):
            self._events.emit(
                regarding,
                reason="Deallocated",
                note=note,
                action="Deallocating",
                kind="Warning" if pods else "Normal",
            )

    def failed(self, claim: ResourceClaim, error: TangramError) -> None:
        """An allocation could not be written."""
        metrics.ALLOCATIONS.labels(outcome="failed").inc()
        next_step = _RBAC_NEXT_STEP if isinstance(error, ForbiddenError) else error.next_step
        log.error("claim_not_written", claim=str(claim_key(claim)), error=error.cause, next_step=next_step)
        note = f"{error.cause}; {next_step}" if next_step else error.cause
        self._warn(claim, "AllocationFailed", note)

    def in_two_claims(self, claim: ResourceClaim, note: str) -> None:
        """A device of the claim is another claim's as well."""
        self._warn(claim, "DeviceInTwoClaims", note)

    def _warn(self, claim: ResourceClaim, reason: str, note: str) -> None:
        self._events.emit(_claim(claim), reason=reason, note=note, action=_ACTION, kind="Warning")


def _claim(claim: ResourceClaim) -> ObjectReference:
    return _reference(RESOURCE_CLAIMS, claim_key(claim))


def _reference(resource: Resource, key: ClaimKey | PodKey) -> ObjectReference:
    return ObjectReference(
        api_version=resource.api_version,
        kind=resource.kind,
        name=key.name,
        namespace=key.namespace,
        uid=key.uid,
    )
