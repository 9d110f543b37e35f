"""Whether one device can be taken for one request, and taking it: the tests of upstream, in its order.

`Taker.take` follows `allocateDevice` of `k8s.io/dynamic-resource-allocation/structured`. What it takes, it
records, so that `put_back` undoes the last.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tangram.allocation.structured.account import TooDear
from tangram.allocation.structured.capacity import Demand, Lacking, lacking
from tangram.allocation.structured.cluster import Device
from tangram.allocation.structured.constraints import Constraint
from tangram.allocation.structured.features import Fault, Gate
from tangram.allocation.structured.judge import Judge
from tangram.allocation.structured.ledger import Ledger
from tangram.allocation.structured.outcome import Code, FatalError
from tangram.allocation.structured.requests import Alternative
from tangram.allocation.structured.state import Allocated
from tangram.allocation.structured.view import Refused


class Taken(NamedTuple):
    """A device given to a request. `share`: its share, where it is shared."""

    alternative: Alternative
    position: int
    share: Demand | None
    paid: bool
    groups: Mapping[str, frozenset[str] | None]


class Taker:
    """Takes devices and puts them back. `taken` in order; `results`: how many per claim."""

    def __init__(
        self, judge: Judge, allocated: Allocated, constraints: Sequence[Sequence[Constraint]]
    ) -> None:
        view = judge.view
        self.judge = judge
        self.view = view
        self.ledger = Ledger(view, allocated)
        self.constraints = constraints
        self.taken: list[Taken] = []
        self.results = [0] * max(len(constraints), 1)
        features = self._features = view.features
        self._consumable = features.on(Gate.CONSUMABLE_CAPACITY)
        self._nothing_shared = not allocated.shared
        self._admin_pays = features.has(Fault.ADMIN_ACCESS_PAYS_COUNTERS)
        self._leaks = features.has(Fault.REJECTION_LEAKS)
        self._late_taints = features.late_taints
        self._wrong_device = features.has(Fault.CAPACITY_OF_WRONG_DEVICE)

    def multiple(self, position: int) -> bool:
        """True if the device is shared between claims."""
        return self._consumable and self.view.device(position).multiple

    def short(self, alternative: Alternative, position: int) -> Lacking | None:
        """Which capacity of the device is too small for one more share."""
        if self._nothing_shared and position not in self.ledger.shares:
            return None  # what is too much for the whole device is unfit
        taken = self.judge.demand(alternative, position)
        return lacking(self.view.device(position), taken, self.ledger.consumed(position))

    def in_use(self, alternative: Alternative, position: int) -> Refused | None:
        """Who has the device, if the request cannot have it for that."""
        if self.ledger.in_use(position, alternative.claim, admin=alternative.admin):
            return Refused(Code.HELD, self._held_by(position))
        return None

    def take(self, alternative: Alternative, position: int, slot: int) -> Refused | None:
        """Takes a device neither in use nor unfit, or says what is in the way now. Raises FatalError."""
        ledger, claim = self.ledger, alternative.claim
        if self._consumable and not alternative.everything and (lack := self.short(alternative, position)):
            return Refused(Code.CAPACITY, lack)
        device, multiple = self.view.device(position), self.multiple(position)
        pays = bool(device.consumes) and self._takes(alternative)
        if pays and multiple and ledger.is_shared(position):
            pays = False
        groups: Mapping[str, frozenset[str] | None] = {}
        if pays:
            joined = ledger.join(position)
            if joined is None:
                return Refused(Code.COMPATIBILITY, "is not compatible with devices that use its counters")
            groups = joined
            if counter := ledger.charge(position):
                ledger.leave(position, groups)
                return Refused(Code.COUNTER, counter)
        if self._late_taints and (refused := self.judge.taint(alternative, device)):
            self._unpay(position, groups, paid=pays)
            return refused
        try:
            refused = self._constrain(alternative, device)
        except (FatalError, TooDear):
            self._unpay(position, groups, paid=pays)
            raise
        if refused is not None:
            self._unpay(position, groups, paid=pays)
            return refused
        taken = Taken(alternative, position, None, pays, groups)
        checks_again = self._consumable and (alternative.everything or self._wrong_device)
        if checks_again and (last := self._short_at_last(alternative, position, slot)):
            self._roll_back(taken)
            return Refused(Code.CAPACITY, last)
        if multiple:
            taken = taken._replace(share=self.judge.demand(alternative, position))
            if self._takes(alternative):  # a share that pays nothing must not make others free
                ledger.share(position, self.judge.demand(alternative, position))
        else:
            ledger.mark(position, claim, admin=alternative.admin)
        self.taken.append(taken)
        self.results[claim] += 1
        return None

    def _takes(self, alternative: Alternative) -> bool:
        """Whether what it gets is missing to others: not with admin access."""
        return not alternative.admin or self._admin_pays

    def _unpay(self, position: int, groups: Mapping[str, frozenset[str] | None], *, paid: bool) -> None:
        if paid and not self._leaks:
            self.ledger.release(position)
            self.ledger.leave(position, groups)

    def _constrain(self, alternative: Alternative, device: Device) -> Refused | None:
        constraints = self.constraints[alternative.claim]
        for index, constraint in enumerate(constraints):
            try:
                clash = constraint.add(alternative, device)
            except (FatalError, TooDear):
                self._unconstrain(alternative, index)
                raise
            if clash is None:
                continue
            self._unconstrain(alternative, index)
            if alternative.everything and self._features.has(Fault.ALL_CONSTRAINED_IS_FATAL):
                raise FatalError(
                    f"request {alternative.name}: cannot add device {device.id} because a claim constraint "
                    f"would not be satisfied: {clash}"
                )
            return Refused(Code.CONSTRAINT, clash)
        return None

    def _unconstrain(self, alternative: Alternative, added: int) -> None:
        for constraint in reversed(self.constraints[alternative.claim][:added]):
            constraint.remove(alternative)

    def _short_at_last(self, alternative: Alternative, position: int, slot: int) -> str | Lacking | None:
        """The capacities once more; here is where `All` looks at them."""
        if self._wrong_device:
            item = self.view.places[position].slice
            devices = item.devices if item else ()
            if slot >= len(devices):
                raise FatalError(f"request {alternative.name}: there is no device #{slot} in the slice")
            other = self.view.positions[devices[slot].id]
            wanted = self.judge.demand(alternative, other)
            return wanted.refused or self.short(alternative, other)
        return self.short(alternative, position)

    def _roll_back(self, taken: Taken) -> None:
        if self._leaks:
            if not self.multiple(taken.position):
                self.ledger.mark(taken.position, taken.alternative.claim, admin=taken.alternative.admin)
            return
        for constraint in reversed(self.constraints[taken.alternative.claim]):
            constraint.remove(taken.alternative)
        if taken.paid:
            self.ledger.release(taken.position)
            self.ledger.leave(taken.position, taken.groups)

    def put_back(self) -> None:
        """Undoes the last successful `take`."""
        taken = self.taken.pop()
        alternative, position = taken.alternative, taken.position
        self.results[alternative.claim] -= 1
        if taken.share is not None:
            if self._takes(alternative):
                self.ledger.unshare(position)
        else:
            self.ledger.unmark(position, alternative.claim, admin=alternative.admin)
        for constraint in reversed(self.constraints[alternative.claim]):
            constraint.remove(alternative)
        if taken.paid and not (self._leaks and taken.share is not None):
            self.ledger.release(position)
            self.ledger.leave(position, taken.groups)

    def _held_by(self, position: int) -> str:
        holder = self.ledger.holder[position]
        return f"is held by claim {holder}" if holder else "is given to another request of this decision"
