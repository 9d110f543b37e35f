"""Taking allocations back: of siblings that pin a pod to the wrong node, and of claims that nobody uses.

Kubernetes frees a claim when the last pod that reserved it is gone, and a generated claim with its pod. A
user's own claim whose pod went before it was bound was never reserved: it would hold its devices for ever.
"""

from tangram.allocation import ClaimKey
from tangram.base.clock import Clock
from tangram.base.errors import ConflictError, TangramError
from tangram.base.logs import get_logger
from tangram.controller.claims import claim_key
from tangram.controller.ledger import held_devices
from tangram.controller.state import State
from tangram.controller.writer import Patcher, certainly, write_status
from tangram.kube.decoding import ObjectKey
from tangram.kube.objects import ResourceClaim

log = get_logger("controller")

_PERIOD_S = 15.0
_FREE = {"allocation": None, "reservedFor": None, "devices": None}
"""All three in one write: validation demands it."""


async def take_back(client: Patcher, state: State, claim: ResourceClaim, *, clock: Clock) -> bool:
    """Frees a claim, unless it has changed since. False if the API server refuses or fails.

    What changed shows in the claim's next watch event; until then no pod of the claim is decided.
    """
    key, version = claim_key(claim), claim.metadata.resource_version
    state.freeing[key] = version
    try:
        freed = await certainly(lambda: write_status(client, claim, _FREE), clock=clock)
        log.info("claim_freed", claim=str(key), certain=freed is not None)
    except ConflictError:
        log.info("claim_not_freed", claim=str(key), error="it changed")
    except TangramError as error:
        state.freeing.pop(key, None)
        log.warning("claim_not_freed", claim=str(key), error=str(error))
        return False
    current = state.claims.get(ObjectKey(key.namespace, key.name))
    if current is None or current.metadata.resource_version != version:
        state.freeing.pop(key, None)  # its event was here before the answer
    return True


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
        and not any(not state.pods[pod].finished for pod in state.pods_of(key))
    )


async def free_idle_claims(client: Patcher, state: State, *, ttl_s: float, clock: Clock) -> None:
    """Until cancelled: takes back what has been idle for `ttl_s`."""
    idle_since: dict[ClaimKey, float] = {}
    while True:
        await clock.sleep(_PERIOD_S)
        now_s = clock.monotonic_s()
        idle = {claim_key(claim): claim for claim in idle_claims(state)}
        idle_since = {key: idle_since.get(key, now_s) for key in idle}
        for key, claim in idle.items():
            if now_s - idle_since[key] >= ttl_s:
                await take_back(client, state, claim, clock=clock)
