"""The ledger: who holds which device. Rebuilt from claims only; slices say what exists, never what is free.

On top of what the API server shows lie assumptions: allocations this controller is writing or has written and
not yet seen back. An assumption outranks the observed claim until the API server has answered for it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tangram import DRIVER_NAME
from tangram.allocation import NOTHING, ClaimKey, Holdings, claim_key
from tangram.allocation.shareable import given_to
from tangram.allocation.structured import DeviceId
from tangram.kube.objects import DeviceAllocationResult, ResourceClaim
from tangram.model.devices import pool_name

_POOL_PREFIX = pool_name(DRIVER_NAME, "")


@dataclass(slots=True, kw_only=True)
class Assumption:
    """An allocation on its way. `versions` are resourceVersions of the claim before and during the write."""

    node: str
    devices: tuple[DeviceAllocationResult, ...]
    versions: set[str] = field(default_factory=set)
    in_flight: bool = True


def held_results(claim: ResourceClaim) -> tuple[DeviceAllocationResult, ...]:
    """What a claim's allocation takes of our driver's devices; administrative access takes nothing."""
    return held(given_to(claim).results)


def held(results: Iterable[DeviceAllocationResult]) -> tuple[DeviceAllocationResult, ...]:
    """Those of an allocation's results."""
    return tuple(result for result in results if result.driver == DRIVER_NAME and not result.admin_access)


def held_devices(claim: ResourceClaim) -> tuple[DeviceId, ...]:
    """The devices of these, each once."""
    return tuple(dict.fromkeys(map(device_id, held_results(claim))))


def device_id(result: DeviceAllocationResult) -> DeviceId:
    """The device of a result."""
    return DeviceId(result.driver, result.pool, result.device)


class Ledger:
    """Holdings by node, kept as claims come and go. Methods that may free devices say whether they did."""

    def __init__(self) -> None:
        self._observed: dict[ClaimKey, tuple[DeviceAllocationResult, ...]] = {}
        self._assumed: dict[ClaimKey, Assumption] = {}
        self._holdings: dict[str, Holdings] = {}

    def held(self) -> Mapping[str, Holdings]:
        """By node, for a snapshot."""
        return dict(self._holdings)

    def holders(self, device: DeviceId, *, but_shares: bool = False) -> tuple[ClaimKey, ...]:
        """The claims on this device; `but_shares`: that have it as a whole. More than one on a device that is
        not shared means that somebody bypassed the guard."""
        holdings = self._holdings.get(device.pool.removeprefix(_POOL_PREFIX), NOTHING)
        return tuple(
            claim
            for claim, results in holdings.by_claim.items()
            if any(device_id(result) == device and not (but_shares and result.share_id) for result in results)
        )

    def assumption(self, claim: ClaimKey) -> Assumption | None:
        """The allocation assumed for a claim, if any."""
        return self._assumed.get(claim)

    def observe(self, old: ResourceClaim | None, new: ResourceClaim | None) -> bool:
        """Takes a claim as the API server shows it now."""
        freed = False
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            freed = self._set(claim_key(old), observed=(), assumed=None)
        if new is not None:
            key = claim_key(new)
            assumed = self._assumed.get(key)
            if assumed is not None and _answers(assumed, new):
                assumed = None
            freed |= self._set(key, observed=held_results(new), assumed=assumed)
        return freed

    def assume(self, claim: ClaimKey, assumption: Assumption) -> None:
        """Counts the devices as held from now on."""
        self._set(claim, observed=self._observed.get(claim, ()), assumed=assumption)

    def note_version(self, claim: ClaimKey, version: str) -> None:
        """A write of ours made this version of the claim."""
        if (assumed := self._assumed.get(claim)) is not None:
            assumed.versions.add(version)

    def land(self, claim: ClaimKey, newest: ResourceClaim | None) -> bool:
        """The write is done, and all its versions are noted; `newest` is the claim as observed by now.

        If it is of another version already, that version is later than the write: nothing more will come.
        """
        if (assumed := self._assumed.get(claim)) is None:
            return False
        assumed.in_flight = False
        return newest is not None and claim_key(newest) == claim and self.observe(newest, newest)

    def drop_assumption(self, claim: ClaimKey) -> bool:
        """The write failed: what the API server shows counts again."""
        return self._set(claim, observed=self._observed.get(claim, ()), assumed=None)

    def _set(
        self,
        claim: ClaimKey,
        *,
        observed: tuple[DeviceAllocationResult, ...],
        assumed: Assumption | None,
    ) -> bool:
        before = self._results(claim)
        self._observed.pop(claim, None)
        if observed:
            self._observed[claim] = observed
        self._assumed.pop(claim, None)
        if assumed is not None:
            self._assumed[claim] = assumed
        after = self._results(claim)
        if before == after:
            return False
        gone = frozenset((claim,))
        for node in {*_by_node(before), *_by_node(after)}:
            holdings = self._holdings.get(node, NOTHING).without(gone)
            if results := _by_node(after).get(node):
                holdings = holdings.with_(claim, results)
            if holdings.by_claim:
                self._holdings[node] = holdings
            else:
                self._holdings.pop(node, None)
        return not set(map(device_id, before)) <= set(map(device_id, after))

    def _results(self, claim: ClaimKey) -> tuple[DeviceAllocationResult, ...]:
        assumed = self._assumed.get(claim)
        return assumed.devices if assumed is not None else self._observed.get(claim, ())


def _by_node(
    results: Iterable[DeviceAllocationResult],
) -> dict[str, list[DeviceAllocationResult]]:
    found: dict[str, list[DeviceAllocationResult]] = {}
    for result in results:
        found.setdefault(result.pool.removeprefix(_POOL_PREFIX), []).append(result)
    return found


def _answers(assumed: Assumption, claim: ResourceClaim) -> bool:
    """True if this state of the claim is later than the assumption (or is the assumption come true).

    Watch events of the versions before and during our own write arrive late and say nothing. While the write
    is in flight its versions are not all known, but a claim without an allocation is then surely an earlier
    one: each write carries the resourceVersion it was read at, so no change of others lies in between.
    """
    if claim.allocation is not None:
        return True
    return not assumed.in_flight and claim.metadata.resource_version not in assumed.versions
