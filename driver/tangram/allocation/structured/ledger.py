"""What is taken while a decision is being made: devices, shares, counters; put back in reverse order.

Starts from the state of the cluster; the accounts of counters are opened when a device first needs them.
"""

from collections.abc import Hashable, Iterator, Mapping
from typing import NamedTuple

from tangram.allocation.structured.capacity import Demand
from tangram.allocation.structured.cluster import Device, DeviceId
from tangram.allocation.structured.features import Fault, Features, Gate
from tangram.allocation.structured.pools import Pool
from tangram.allocation.structured.quantities import Quantity
from tangram.allocation.structured.state import Allocated
from tangram.allocation.structured.view import Place, View

CounterKey = tuple[str, str]
"""Counter set and counter."""


class Lack(NamedTuple):
    """A counter that has too little left, in nano-units."""

    counter_set: str
    counter: str
    needed: int
    rest: int

    def __str__(self) -> str:
        name, rest = f"{self.counter_set}/{self.counter}", f"{Quantity(self.rest)} left"
        if not self.needed:  # it bars devices that do not draw on it (`Fault.OVERDRAWN_COUNTER_BLOCKS_POOL`)
            return f"counter {name} of the pool is overdrawn: {rest}"
        return f"counter {name}: {Quantity(self.needed)} needed, {rest}"


class _Account:
    """What is left of the counters of a pool (1.34: of a slice)."""

    def __init__(self, rest: dict[CounterKey, int]) -> None:
        self.rest = rest
        self.overdrawn = next((key for key, left in rest.items() if left < 0), None)


class Ledger:
    """Who has what. Positions are those of the view; claims are numbered."""

    def __init__(self, view: View, allocated: Allocated) -> None:
        self._view = view
        self._features: Features = view.features
        self._allocated = allocated
        count = len(view.places)
        self.holder: list[str] = [""] * count
        self.marks = [0] * count
        self.admin_marks = [0] * count
        self.held = 0
        for device, claim in allocated.held.items():
            position = view.positions.get(device)
            if position is not None:
                self.holder[position] = claim
                self.held |= 1 << position
        self.shares: dict[int, list[Demand]] = {}
        self._consumed: dict[int, list[Mapping[str, int]]] = {}
        self._accounts: dict[Hashable, _Account] = {}
        self._draws: dict[int, tuple[tuple[CounterKey, int], ...]] = {}
        self._groups: dict[tuple[Hashable, str], frozenset[str] | None] = {}
        self._seeded: set[Hashable] = set()
        self._users: dict[Hashable, dict[str, list[str]]] = {}
        self._admin_blocks = self._features.has(Fault.ADMIN_ACCESS_BLOCKS)
        self._by_slice = self._features.has(Fault.COUNTERS_PER_SLICE)
        self._by_name = self._features.has(Fault.COUNTERS_BY_POOL_NAME)

    def mark(self, position: int, claim: int, *, admin: bool) -> None:
        """Gives a device that is not shared to a claim."""
        marks = self.admin_marks if admin and not self._admin_blocks else self.marks
        marks[position] |= 1 << claim

    def unmark(self, position: int, claim: int, *, admin: bool) -> None:
        """Takes it back."""
        marks = self.admin_marks if admin and not self._admin_blocks else self.marks
        marks[position] &= ~(1 << claim)

    def in_use(self, position: int, claim: int, *, admin: bool) -> bool:
        """True if the claim cannot have the device: admin access only asks whether it has it already."""
        if admin:
            return bool((self.marks[position] | self.admin_marks[position]) >> claim & 1)
        return bool(self.held >> position & 1 or self.marks[position])

    # --- shares ---

    def consumed(self, position: int) -> Mapping[str, int] | None:
        """What all shares of a device consume, in nano-units; None if there is none that says so."""
        taken = self._consumed.get(position)
        return taken[-1] if taken else self._consumed_before(position)

    def _consumed_before(self, position: int) -> Mapping[str, int] | None:
        base = self._allocated.shared.get(self._view.device(position).id)
        return base.consumed if base else None

    def is_shared(self, position: int) -> bool:
        """True if a share of the device has paid its counters."""
        if self._features.has(Fault.EVERY_SHARE_PAYS_COUNTERS):
            return False
        if self.shares.get(position):
            return True
        base = self._allocated.shared.get(self._view.device(position).id)
        if base is None:
            return False
        return base.consumed is not None or not self._features.has(Fault.SHARES_WITHOUT_CAPACITY_FORGOTTEN)

    def share(self, position: int, demand: Demand) -> None:
        """Takes a share."""
        total = dict(self.consumed(position) or {})
        for name, amount in demand.consumed.items():
            total[name] = total.get(name, 0) + amount.nano
        self.shares.setdefault(position, []).append(demand)
        self._consumed.setdefault(position, []).append(total)

    def unshare(self, position: int) -> None:
        """Puts the last share back."""
        self.shares[position].pop()
        self._consumed[position].pop()

    # --- counters ---

    def charge(self, position: int) -> Lack | None:
        """Takes what a device consumes from its counters, or says which has too little."""
        account = self._account(self._view.places[position])
        rest = account.rest
        if account.overdrawn is not None and self._features.has(Fault.OVERDRAWN_COUNTER_BLOCKS_POOL):
            return Lack(*account.overdrawn, 0, rest[account.overdrawn])
        drawn = self._drawn(position, rest)
        for key, amount in drawn:
            if rest[key] < amount:
                return Lack(*key, amount, rest[key])
        for key, amount in drawn:
            rest[key] -= amount
        return None

    def release(self, position: int) -> None:
        """Puts back what a device consumes."""
        rest = self._account(self._view.places[position]).rest
        for key, amount in self._drawn(position, rest):
            rest[key] += amount

    def _drawn(self, position: int, rest: Mapping[CounterKey, int]) -> tuple[tuple[CounterKey, int], ...]:
        """What a device consumes of the counters that there are."""
        found = self._draws.get(position)
        if found is None:
            amounts: dict[CounterKey, int] = {}
            for consumption in self._view.device(position).consumes:
                for name, amount in consumption.counters:
                    key = (consumption.counter_set, name)
                    if key in rest:
                        amounts[key] = amounts.get(key, 0) + amount
            found = self._draws[position] = tuple(amounts.items())
        return found

    def rest(self, position: int) -> Mapping[CounterKey, int]:
        """What is left of the counters that the device draws on."""
        return self._account(self._view.places[position]).rest

    def account_key(self, place: Place) -> Hashable:
        """What devices that draw on the same counters have in common."""
        if self._by_slice:
            return place.slice.name if place.slice else ""
        if self._by_name:
            return place.pool.id.pool
        return place.pool.id

    def _account(self, place: Place) -> _Account:
        key = self.account_key(place)
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = _Account(self._rest(place))
        return account

    def _rest(self, place: Place) -> dict[CounterKey, int]:
        sets = place.slice.counter_sets if self._by_slice and place.slice else place.pool.counter_sets.items()
        rest = {(name, counter): amount for name, counters in sets for counter, amount in counters.items()}
        for device in self._drawing(place):
            for consumption in device.consumes:
                for counter, amount in consumption.counters:
                    if (consumption.counter_set, counter) in rest:
                        rest[consumption.counter_set, counter] -= amount
        return rest

    def _drawing(self, place: Place) -> Iterator[Device]:
        """The devices that drew on the same counters before this decision."""
        slices = (*place.pool.slices, *place.pool.others)
        if self._by_slice and place.slice is not None:
            slices = (place.slice,)
        for item in slices:
            for device in item.devices:
                if device.consumes and self.is_allocated(device.id):
                    yield device

    def users(self, position: int, counter_set: str) -> list[str]:
        """The claims that had devices which draw on a counter set of the device before this decision."""
        place = self._view.places[position]
        key = self.account_key(place)
        if key not in self._users:
            by_set: dict[str, set[str]] = {}
            for device in self._drawing(place):
                for consumption in device.consumes:
                    by_set.setdefault(consumption.counter_set, set()).update(self.holders(device.id))
            self._users[key] = {name: sorted(claims) for name, claims in by_set.items()}
        return self._users[key].get(counter_set, [])

    def holders(self, device: DeviceId) -> list[str]:
        """The claims that had the device, or a share of it, before this decision."""
        shares = self._allocated.shared.get(device)
        names = {self._allocated.held.get(device, ""), *(shares.holders if shares else ())}
        return sorted(names - {""})

    def is_allocated(self, device: DeviceId) -> bool:
        """True if somebody had the device, or a share of it, before this decision."""
        if device in self._allocated.held:
            return True
        counts = not self._features.has(Fault.SHARED_DEVICES_USE_NO_COUNTERS)
        return counts and device in self._allocated.shared

    # --- compatibility groups (KEP-5963) ---

    def join(self, position: int) -> dict[str, frozenset[str] | None] | None:
        """Adds a device to the groups of its counter sets; what they were before, or None if it cannot be."""
        place, device = self._view.places[position], self._view.device(position)
        if not self._features.on(Gate.COMPATIBILITY_GROUPS):
            return {}
        pool = place.pool
        self._seed(pool)
        before: dict[str, frozenset[str] | None] = {}
        for consumption in device.consumes:
            key = (pool.id, consumption.counter_set)
            current = self._groups.get(key)
            if current is not None and not _compatible(current, consumption.groups):
                self.leave(position, before)
                return None
            before[consumption.counter_set] = current
            self._groups[key] = _narrowed(current, consumption.groups)
        return before

    def leave(self, position: int, before: Mapping[str, frozenset[str] | None]) -> None:
        """Undoes `join`."""
        pool = self._view.places[position].pool
        for counter_set, groups in before.items():
            self._groups[pool.id, counter_set] = groups

    def _seed(self, pool: Pool) -> None:
        if pool.id in self._seeded:
            return
        self._seeded.add(pool.id)
        for item in (*pool.slices, *pool.others):
            for device in item.devices:
                if device.consumes and self.is_allocated(device.id):
                    for consumption in device.consumes:
                        key = (pool.id, consumption.counter_set)
                        self._groups[key] = _narrowed(self._groups.get(key), consumption.groups)


def _compatible(current: frozenset[str], groups: frozenset[str]) -> bool:
    """Devices without groups go with their like only."""
    return bool(current & groups) if current and groups else not current and not groups


def _narrowed(current: frozenset[str] | None, groups: frozenset[str]) -> frozenset[str]:
    if current is None:
        return groups
    return current & groups or _AT_ODDS if current and groups else current


_AT_ODDS = frozenset({""})
"""Devices of one counter set were allocated that have no group in common: no other goes with them."""
