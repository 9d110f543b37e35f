"""Taking allocations back: of siblings that pin a pod to the wrong node, and of claims that are not used."""

from enum import Enum, auto

from tangram.allocation import claim_key
from tangram.base.clock import Clock
from tangram.base.errors import ConflictError, TangramError
from tangram.base.logs import get_logger
from tangram.controller.reporting import Reporter
from tangram.controller.state import State
from tangram.controller.unused import UnusedClaims
from tangram.controller.writer import Patcher, certainly, write_status
from tangram.kube.decoding import ObjectKey
from tangram.kube.objects import ResourceClaim

log = get_logger("controller")

_PERIOD_S = 5.0
_FREE = {"allocation": None, "reservedFor": None, "devices": None}
"""All three in one write: validation demands it."""


class Outcome(Enum):
    """What became of taking an allocation back."""

    FREED = auto()
    CHANGED = auto()
    """The claim is not what it was: it shows in a watch event."""
    FAILED = auto()


async def take_back(client: Patcher, state: State, claim: ResourceClaim, *, clock: Clock) -> Outcome:
    """Frees a claim, unless it has changed since.

    What changed shows in the claim's next watch event; until then no pod of the claim is decided.
    """
    key, version = claim_key(claim), claim.metadata.resource_version
    state.freeing[key] = version
    outcome = Outcome.FREED
    try:
        freed = await certainly(lambda: write_status(client, claim, _FREE), clock=clock)
        log.info("claim_freed", claim=str(key), certain=freed is not None)
    except ConflictError:
        outcome = Outcome.CHANGED
        log.info("claim_not_freed", claim=str(key), error="it changed")
    except TangramError as error:
        state.freeing.pop(key, None)
        log.warning("claim_not_freed", claim=str(key), error=str(error))
        return Outcome.FAILED
    current = state.claims.get(ObjectKey(key.namespace, key.name))
    if current is None or current.metadata.resource_version != version:
        state.freeing.pop(key, None)  # its event was here before the answer
    return outcome


async def give_back(
    client: Patcher, state: State, reporter: Reporter, finder: UnusedClaims, *, clock: Clock
) -> None:
    """Until cancelled: takes back what has been unused for long enough."""
    while True:
        await clock.sleep(_PERIOD_S)
        now_s = clock.monotonic_s()
        due = finder.due(state, now_s=now_s)
        for item in due:  # before the writes: the events of these may come before their answers
            if item.on_their_way:
                state.returned.add(claim_key(item.claim), item.on_their_way, now_s=now_s)
        for item in due:
            if await take_back(client, state, item.claim, clock=clock) is Outcome.FREED:
                reporter.deallocated(item.claim, [pod.key for pod in item.pods], item.why)
            else:
                state.returned.forget(claim_key(item.claim))
