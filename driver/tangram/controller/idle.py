"""Allocated claims that no pod uses any more and nobody else frees.

Kubernetes frees a claim when the last pod that reserved it is gone, and a generated claim with its pod. A
user's own claim whose pod went before it was bound was never reserved: it would hold its devices for ever.
"""

from tangram.allocation import ClaimKey
from tangram.base.clock import Clock
from tangram.base.errors import KubeError
from tangram.base.logs import get_logger
from tangram.controller.claims import claim_key
from tangram.controller.ledger import held_devices
from tangram.controller.state import State
from tangram.controller.writer import Patcher, deallocation, write_status
from tangram.kube.decoding import ObjectKey
from tangram.kube.objects import ResourceClaim

log = get_logger("controller")

_PERIOD_S = 15.0


def idle_claims(state: State) -> tuple[ResourceClaim, ...]:
    """Claims that hold devices of ours, reserved for nobody, named by no live pod, and not in the making."""
    allocated_here = {device.id for node in state.inventory.nodes.values() for device in node.devices}
    return tuple(
        claim
        for key, claim in sorted(state.claims.items())
        if claim.allocation is not None
        and not claim.consumers
        and not allocated_here.isdisjoint(held_devices(claim))
        and state.ledger.assumption(claim_key(claim)) is None
        and not _has_live_pod(state, key)
    )


def _has_live_pod(state: State, key: ObjectKey) -> bool:
    return any(not state.pods[pod].finished for pod in state.pods_of(key))


async def free_idle_claims(client: Patcher, state: State, *, ttl_s: float, clock: Clock) -> None:
    """Until cancelled: takes back what has been idle for `ttl_s`."""
    idle_since: dict[ClaimKey, float] = {}
    while True:
        await clock.sleep(_PERIOD_S)
        now_s = clock.monotonic_s()
        idle = {claim_key(claim): claim for claim in idle_claims(state)}
        idle_since = {key: idle_since.get(key, now_s) for key in idle}
        for key, claim in idle.items():
            if now_s - idle_since[key] < ttl_s:
                continue
            state.deallocating.add(key)
            try:
                await write_status(client, claim, deallocation())
            except KubeError as error:
                state.deallocating.discard(key)
                log.info("idle_claim_not_freed", claim=str(key), error=str(error))
            else:
                log.info("idle_claim_freed", claim=str(key), idle_s=round(now_s - idle_since[key]))
