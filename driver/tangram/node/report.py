"""What users see of a claim's preparation: `status.devices` and events, written after the reply.

Writes are retried with back-off; nothing here can hold up or fail a preparation.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tangram import DRIVER_NAME
from tangram.base.clock import Clock, rfc3339
from tangram.base.errors import (
    ForbiddenError,
    InvalidError,
    InvalidObjectError,
    KubeError,
    NotFoundError,
    TangramError,
)
from tangram.base.logs import get_logger
from tangram.hardware.mps.values import MpsIncident
from tangram.kube.client import Client, decode
from tangram.kube.events import EventRecorder, ObjectReference
from tangram.kube.objects import ResourceClaim
from tangram.kube.resources import NODES, PODS, RESOURCE_CLAIMS
from tangram.kube.workqueue import WorkQueue
from tangram.kubeletplugin.driver import ClaimReference
from tangram.model.gpu import GpuUuid
from tangram.node.claimstatus import INSTANCE_GONE, Entry, failed_entries, merged, prepared_entries
from tangram.node.held import HeldClaim
from tangram.node.inventory import Inventory
from tangram.node.metrics import STATUS_WRITES

_log = get_logger("node")

_GPU_NEXT_STEP = (
    "look at nvidia-smi and the kernel log (Xid messages); the GPU may need a reset, or the node a reboot"
)

AFTER_ANSWER_S = 0.1
"""How long a report waits, so that the answer to the kubelet, and other claims of the same pod, go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Desired:
    """The entries a claim shall have. `claim`: as read when it was prepared, good for a first attempt."""

    claim: ResourceClaim
    entries: list[Entry]
    fresh: bool = True


class Reporter:
    """Reports outcomes. `run` does the writing."""

    def __init__(self, *, client: Client, events: EventRecorder, clock: Clock, node_name: str) -> None:
        self._client = client
        self._events = events
        self._clock = clock
        self._node_name = node_name
        # `kubectl describe node` finds events by the name in place of the uid, as the kubelet does.
        self._node = ObjectReference(
            api_version=NODES.api_version, kind=NODES.kind, name=node_name, namespace="", uid=node_name
        )
        self._not_answering: dict[str, str] = {}
        self._warned: dict[GpuUuid, str] = {}
        self._queue: WorkQueue[str] = WorkQueue(clock=clock)
        self._desired: dict[str, _Desired] = {}
        self._ill: dict[str, str] = {}
        self._refusal_logged = False

    def prepared(
        self,
        claim: ResourceClaim,
        held: HeldClaim,
        inventory: Inventory | None,
        *,
        new: bool,
        gone: Collection[str] = (),
    ) -> None:
        """The claim is prepared. An event says so if that is `new`, another when a GPU of it falls ill or a
        MIG instance of it is `gone` (names of devices)."""
        self._want(claim, prepared_entries(held, inventory, node_name=self._node_name, gone=gone))
        if new:
            names = ", ".join(f"{device.device} ({device.uuid})" for device in held.devices)
            self._emit(claim, reason="Prepared", note=f"prepared on node {self._node_name}: {names}")
        unhealthy = inventory.unhealthy if inventory else {}
        ill = "; ".join(
            f"{device.device} ({device.uuid}): {cause}"
            for device in held.devices
            if (
                cause := unhealthy.get(GpuUuid(device.uuid))
                or (INSTANCE_GONE if device.device in gone else "")
            )
        )
        if ill and self._ill.get(held.uid) != ill:
            note = f"unhealthy on node {self._node_name}: {ill}; delete the pod to have it placed elsewhere"
            self._emit(claim, reason="GpuUnhealthy", note=note, kind="Warning")
        if ill:
            self._ill[held.uid] = ill
        else:
            self._ill.pop(held.uid, None)

    def failed(self, claim: ResourceClaim, error: TangramError) -> None:
        """The claim could not be prepared."""
        self._want(claim, failed_entries(claim, str(error)))
        self._emit(claim, reason="PrepareFailed", note=str(error), kind="Warning")

    def noteworthy(self, held: HeldClaim, reason: str, text: str) -> None:
        """What its user should hear of a claim that is being prepared."""
        self._warn(held, reason=reason, note=f"node {self._node_name}: {text}", action="Prepare")

    def mps_failed(self, held: HeldClaim, incident: MpsIncident) -> None:
        """The MPS daemon of a GPU of the claim, or its server, has failed."""
        note = f"node {self._node_name}: {incident.cause}; containers that used it must be restarted"
        self._warn(held, reason="MpsFailed", note=note, action="Watch")

    def _warn(self, held: HeldClaim, *, reason: str, note: str, action: str) -> None:
        claim = ClaimReference(namespace=held.namespace, name=held.name, uid=held.uid)
        self._events.emit(_claim_reference(claim), reason=reason, note=note, action=action, kind="Warning")

    def forget(self, uid: str) -> None:
        """The claim is unprepared: what is not written yet does not hold any more."""
        self._desired.pop(uid, None)
        self._ill.pop(uid, None)

    def state_set_aside(self, *, uid: str, cause: str, path: str, owner: ClaimReference | None) -> None:
        """A held file could not be used; `owner` is whose it was, if that is known."""
        self._events.emit(
            _claim_reference(owner) if owner else self._node,
            reason="HeldStateSetAside",
            note=f"held state of claim uid {uid} on node {self._node_name} was not usable ({cause}); it is"
            f" kept as {path}, and rebuilt if the claim is still allocated here",
            action="Reconcile",
            kind="Warning",
        )

    def gpus_not_answering(self, failures: Mapping[str, str]) -> None:
        """GPUs that the last look found no good and that are not published, by UUID or index. Told once."""
        for label, cause in failures.items():
            if self._not_answering.get(label) != cause:
                _log.error("gpu_not_answering", gpu=label, cause=cause, next_step=_GPU_NEXT_STEP)
                self._events.emit(
                    self._node,
                    reason="GpuNotAnswering",
                    note=f"a GPU of node {self._node_name} does not answer and is not published: {cause};"
                    f" {_GPU_NEXT_STEP}",
                    action="Discover",
                    kind="Warning",
                )
        self._not_answering = dict(failures)

    def gpus_warn(self, warnings: Mapping[GpuUuid, str]) -> None:
        """GPUs that work and should be looked at. Told once for each cause."""
        for uuid, cause in warnings.items():
            if self._warned.get(uuid) != cause:
                _log.warning("gpu_warning", gpu=uuid, cause=cause)
                self._events.emit(
                    self._node,
                    reason="GpuWarning",
                    note=f"GPU {uuid} of node {self._node_name} works, and should be looked at: {cause}",
                    action="Discover",
                    kind="Warning",
                )
        self._warned = dict(warnings)

    async def run(self) -> None:
        """Writes status until cancelled."""
        while True:
            uid = await self._queue.get()
            try:
                await self._write(uid)
            except Exception:  # noqa: BLE001 - logged with its traceback below
                # One claim must not end the reports of all others.
                _log.exception("claim_status_failed_internally", uid=uid)
                self._desired.pop(uid, None)
            finally:
                self._queue.done(uid)

    def _want(self, claim: ResourceClaim, entries: list[Entry]) -> None:
        self._desired[claim.metadata.uid] = _Desired(claim=claim, entries=entries)
        self._queue.add_after(claim.metadata.uid, delay_s=AFTER_ANSWER_S)

    def _emit(
        self, claim: ResourceClaim, *, reason: str, note: str, kind: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        metadata = claim.metadata
        reference = _claim_reference(
            ClaimReference(namespace=metadata.namespace, name=metadata.name, uid=metadata.uid)
        )
        self._events.emit(reference, reason=reason, note=note, action="Prepare", kind=kind)
        for pod in _pods(claim):
            self._events.emit(pod, reason=reason, note=note, action="Prepare", kind=kind, related=reference)

    async def _write(self, uid: str) -> None:
        desired = self._desired.get(uid)
        if desired is None:
            self._queue.forget(uid)
            return
        try:
            wrote = await self._attempt(desired)
        except (NotFoundError, InvalidError, InvalidObjectError) as error:
            # The claim is gone, or deallocated in the meantime: there is nothing left to tell.
            outcome = "dropped"
            _log.debug("claim_status_dropped", uid=uid, error=str(error))
        except ForbiddenError as error:
            outcome = "forbidden"
            if not self._refusal_logged:
                self._refusal_logged = True
                _log.error(
                    "claim_status_forbidden",
                    error=str(error),
                    next_step="grant the node plugin patch on resourceclaims/status and, from Kubernetes"
                    f" 1.36, associated-node:patch on resourceclaims/driver {DRIVER_NAME}",
                )
        except KubeError as error:
            STATUS_WRITES.labels("retried").inc()
            _log.debug("claim_status_retried", uid=uid, error=str(error))
            if self._desired.get(uid) is desired:
                self._desired[uid] = _Desired(claim=desired.claim, entries=desired.entries, fresh=False)
            self._queue.retry(uid)
            return
        else:
            outcome = "written" if wrote else "unchanged"
        STATUS_WRITES.labels(outcome).inc()
        if self._desired.get(uid) is desired:
            del self._desired[uid]
        self._queue.forget(uid)

    async def _attempt(self, desired: _Desired) -> bool:
        """Whether something had to be written."""
        metadata = desired.claim.metadata
        claim = desired.claim
        if not desired.fresh:
            data = await self._client.get(RESOURCE_CLAIMS, name=metadata.name, namespace=metadata.namespace)
            claim = decode(data, ResourceClaim)
        if claim.metadata.uid != metadata.uid or claim.allocation is None:
            return False
        current = (claim.status.devices or []) if claim.status else []
        devices = merged(current, desired.entries, now=rfc3339(self._clock.now()))
        if devices is None:
            return False
        await self._client.patch(
            RESOURCE_CLAIMS,
            {
                "metadata": {"resourceVersion": claim.metadata.resource_version},
                "status": {"devices": devices},
            },
            name=metadata.name,
            namespace=metadata.namespace,
            subresource="status",
        )
        return True


def _claim_reference(claim: ClaimReference) -> ObjectReference:
    """The claim as the object of an event."""
    return ObjectReference(
        api_version=RESOURCE_CLAIMS.api_version,
        kind=RESOURCE_CLAIMS.kind,
        name=claim.name,
        namespace=claim.namespace,
        uid=claim.uid,
    )


def _pods(claim: ResourceClaim) -> Iterable[ObjectReference]:
    """The pods that use the claim: with an allocation for this node they all run here."""
    for consumer in claim.consumers:
        if consumer.resource == PODS.plural and not consumer.api_group:
            yield ObjectReference(
                api_version=PODS.api_version,
                kind=PODS.kind,
                name=consumer.name,
                namespace=claim.metadata.namespace,
                uid=consumer.uid,
            )
