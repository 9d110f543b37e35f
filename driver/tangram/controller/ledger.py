"""The ledger: who holds which device. Rebuilt from claims only; slices say what exists, never what is free.

On top of what the API server shows lie assumptions: allocations this controller is writing or has written and
not yet seen back. An assumption outranks the observed claim until the API server has answered for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tangram import DRIVER_NAME
from tangram.allocation import ClaimKey, DeviceId
from tangram.controller.claims import claim_key
from tangram.kube.objects import ResourceClaim


@dataclass(slots=True, kw_only=True)
class Assumption:
    """An allocation on its way. `versions` are resourceVersions of the claim before and during the write."""

    node: str
    devices: tuple[DeviceId, ...]
    versions: set[str] = field(default_factory=set)
    in_flight: bool = True


def held_devices(claim: ResourceClaim) -> tuple[DeviceId, ...]:
    """The devices of our driver that a claim's allocation takes; administrative access takes none."""
    if claim.allocation is None:
        return ()
    found = (
        DeviceId(result.pool, result.device)
        for result in claim.allocation.devices.results or ()
        if result.driver == DRIVER_NAME and not result.admin_access
    )
    return tuple(dict.fromkeys(found))


class Ledger:
    """Holdings by device, kept as claims come and go. Methods that may free devices say whether they did."""

    def __init__(self) -> None:
        self._observed: dict[ClaimKey, tuple[DeviceId, ...]] = {}
        self._assumed: dict[ClaimKey, Assumption] = {}
        self._holders: dict[DeviceId, tuple[ClaimKey, ...]] = {}

    def held(self) -> Mapping[DeviceId, tuple[ClaimKey, ...]]:
        """A copy for a snapshot."""
        return dict(self._holders)

    def holders(self, device: DeviceId) -> tuple[ClaimKey, ...]:
        """The claims on this device; more than one means that somebody bypassed the guard."""
        return self._holders.get(device, ())

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
            freed |= self._set(key, observed=held_devices(new), assumed=assumed)
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

    def _set(self, claim: ClaimKey, *, observed: tuple[DeviceId, ...], assumed: Assumption | None) -> bool:
        before = self._devices(claim)
        self._observed.pop(claim, None)
        if observed:
            self._observed[claim] = observed
        self._assumed.pop(claim, None)
        if assumed is not None:
            self._assumed[claim] = assumed
        after = self._devices(claim)
        freed = False
        for device in before:
            if device not in after:
                left = tuple(holder for holder in self._holders[device] if holder != claim)
                freed |= not left
                if left:
                    self._holders[device] = left
                else:
                    del self._holders[device]
        for device in after:
            holders = self._holders.get(device, ())
            if claim not in holders:
                self._holders[device] = (*holders, claim)
        return freed

    def _devices(self, claim: ClaimKey) -> tuple[DeviceId, ...]:
        assumed = self._assumed.get(claim)
        return assumed.devices if assumed is not None else self._observed.get(claim, ())


def _answers(assumed: Assumption, claim: ResourceClaim) -> bool:
    """True if this state of the claim is later than the assumption (or is the assumption come true).

    Watch events of the versions before and during our own write arrive late and say nothing. While the write
    is in flight its versions are not all known, but a claim without an allocation is then surely an earlier
    one: each write carries the resourceVersion it was read at, so no change of others lies in between.
    """
    if claim.allocation is not None:
        return True
    return not assumed.in_flight and claim.metadata.resource_version not in assumed.versions
