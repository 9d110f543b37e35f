"""Which devices a request can never have, whatever is free: not selected, too small, tainted, feature off.

One judge per decision: it remembers its answers, and bounds what selectors may cost. A claim is written by
anybody, and one loop decides for all. It is counted as work (`tangram.cel.work`), without regard to what
caches know: the same decision always ends at the same place.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tangram.allocation.structured.capacity import Demand, demand
from tangram.allocation.structured.cluster import Device
from tangram.allocation.structured.features import Fault, Features, Gate
from tangram.allocation.structured.outcome import Code, FatalError
from tangram.allocation.structured.parameters import requested, unmet
from tangram.allocation.structured.requests import Alternative
from tangram.allocation.structured.view import Bill, Matches, Verdict, View
from tangram.model.kubernetes import DeviceTaint, DeviceToleration

OPTIONAL_NODE_OPERATIONS = "DRAOptionalNodeOperations"
"""What a node declares that can leave out operations (KEP-5945)."""


_PAIRS = 33_000
_PAIRS_PER_DEVICE = 4
"""Pairs of a request and a device that are looked at, some 50 us each: as many as 32 requests with 8
alternatives and 128 devices make, and on however many nodes a few requests for each device."""


class Refused(NamedTuple):
    """Why a device cannot be taken now. `what` is put into words only when somebody reads it."""

    code: Code
    what: object
    short: str = ""

    @property
    def text(self) -> str:
        return str(self.what)


class TooDear(Exception):  # noqa: N818 - an outcome that crosses frames, as search.Exhausted
    """Evaluating the selectors costs more than one decision may."""


class Account:
    """What evaluating selectors may cost in one decision, on however many nodes. What was paid for once is
    free: equal devices cost no more than one. Looking at a pair of request and device never is."""

    def __init__(self, units: int) -> None:
        self._units_left = units
        self._pairs_left = _PAIRS
        self._paid: set[int] = set()

    def pay(self, bill: Bill) -> None:
        """Raises TooDear when that is beyond the bound."""
        for item, cost in bill:
            if item not in self._paid:
                self._paid.add(item)
                self._units_left -= cost
        if self._units_left < 0:
            raise TooDear

    def allow(self, devices: int) -> None:
        """So many devices more come into question."""
        self._pairs_left += _PAIRS_PER_DEVICE * devices

    def look(self) -> None:
        """A device is looked at for a request. Raises TooDear when that is beyond the bound."""
        self._pairs_left -= 1
        if self._pairs_left < 0:
            raise TooDear

    @property
    def exhausted(self) -> bool:
        """Whether any more payment was refused."""
        return self._units_left < 0 or self._pairs_left < 0


class Judge:
    """`account`: what evaluating selectors may still cost in this decision."""

    def __init__(self, view: View, account: Account) -> None:
        self.view = view
        self._features: Features = view.features
        self._account = account
        account.allow(len(view.places))
        self._known: dict[tuple[int, int], Refused | None] = {}
        self._demands: dict[tuple[int, int], Demand] = {}
        self._consumable = view.features.on(Gate.CONSUMABLE_CAPACITY)
        self._late_taints = view.features.late_taints

    def verdict(self, matches: Matches, position: int) -> Verdict | None:
        """What selectors say of a device. Raises TooDear when their cost is beyond the bound."""
        self._account.look()
        verdict = matches.verdict(position)
        self._account.pay(matches.bill(position))
        return verdict

    def demand(self, alternative: Alternative, position: int) -> Demand:
        """What the request takes of the capacities of the device."""
        key = (alternative.index, position)
        known = self._demands.get(key)
        if known is None:
            device = self.view.device(position)
            known = self._demands[key] = demand(
                device, requested(alternative.capacity, alternative.demand, device), self._features
            )
        return known

    def unfit(self, alternative: Alternative, position: int) -> Refused | None:
        """Why the device can never be taken for the request.

        Raises FatalError where upstream would, and TooDear.
        """
        key = (alternative.index, position)
        if key not in self._known:
            self._known[key] = self._unfit(alternative, position)
        return self._known[key]

    def _unfit(self, alternative: Alternative, position: int) -> Refused | None:
        verdict = self.verdict(alternative.matches, position)
        if verdict is not None:
            if verdict.fatal:
                claim = alternative.matches.terms.claim
                raise FatalError(f"claim {claim}, request {alternative.name}: {verdict.text}")
            return Refused(verdict.code, verdict.text, verdict.short)
        if self._consumable:
            wanted = self.demand(alternative, position)
            if wanted.fatal:
                device = self.view.device(position)
                raise FatalError(
                    f"request {alternative.name}: checking capacity for device {device.id}: {wanted.fatal}"
                )
            if wanted.refused:
                return Refused(Code.CAPACITY, wanted.refused, f"unfit ({wanted.refused})")
        if text := unmet(alternative.demand, self.view.device(position)):
            return Refused(Code.PARAMETERS, text)
        return self._barred(alternative, position)

    def _barred(self, alternative: Alternative, position: int) -> Refused | None:
        """Features and taints."""
        features, place = self._features, self.view.places[position]
        device = self.view.device(position)
        if place.slice is not None and place.slice.skip_node_operations and features.skips_operations:
            declared = OPTIONAL_NODE_OPERATIONS in self.view.node.declared_features
            if not features.on(Gate.OPTIONAL_NODE_OPERATIONS) or not declared:
                return Refused(Code.FEATURE, f"needs {OPTIONAL_NODE_OPERATIONS}, which the node lacks")
        if device.consumes and not features.on(Gate.PARTITIONABLE_DEVICES):
            return Refused(Code.FEATURE, "consumes counters, which are not honoured")
        return None if self._late_taints else self.taint(alternative, device)

    def taint(self, alternative: Alternative, device: Device) -> Refused | None:
        """A taint that the request does not tolerate."""
        if not device.wire.taints or not self._features.on(Gate.DEVICE_TAINTS):
            return None
        every_effect = self._features.has(Fault.ALL_TAINTS_BLOCK)
        for taint in device.wire.taints:
            blocks = every_effect or taint.effect in ("NoSchedule", "NoExecute")
            if blocks and not tolerated(taint, alternative.tolerations):
                value = f"={taint.value}" if taint.value else ""
                return Refused(Code.TAINT, f"with the taint {taint.key}{value}:{taint.effect}")
        return None


def tolerated(taint: DeviceTaint, tolerations: Sequence[DeviceToleration] | None) -> bool:
    """True if a toleration covers the taint (`ToleratesTaint` of the resourceclaim package)."""
    for toleration in tolerations or ():
        if toleration.effect and toleration.effect != taint.effect:
            continue
        if toleration.key and toleration.key != taint.key:
            continue
        if toleration.operator == "Exists":
            return True
        if toleration.operator in ("", "Equal") and toleration.value == taint.value:
            return True
    return False
