"""Which devices a request can never have, whatever is free: not selected, too small, tainted, feature off.

One judge per decision: it remembers its answers.
"""

from collections.abc import Sequence

from tangram.allocation.structured.account import Account
from tangram.allocation.structured.capacity import Demand, demand
from tangram.allocation.structured.cluster import Attribute, Device
from tangram.allocation.structured.derived import Deriver, Expression
from tangram.allocation.structured.features import Fault, Features, Gate
from tangram.allocation.structured.outcome import Code, FatalError
from tangram.allocation.structured.parameters import requested, unmet
from tangram.allocation.structured.requests import Alternative
from tangram.allocation.structured.view import Matches, Refused, View
from tangram.model.kubernetes import DeviceTaint, DeviceToleration

OPTIONAL_NODE_OPERATIONS = "DRAOptionalNodeOperations"
"""What a node declares that can leave out operations (KEP-5945)."""


class Judge:
    """`account`: what evaluating selectors may still cost in this decision."""

    def __init__(self, view: View, account: Account) -> None:
        self.view = view
        self._features: Features = view.features
        self._account = account
        account.allow(len(view.places))
        self._known: dict[tuple[int, int], Refused | None] = {}
        self._demands: dict[tuple[int, int], Demand] = {}
        self._derived: dict[tuple[str, Device], Attribute | str] = {}
        self._deriver = Deriver(account, view.features, places=len(view.places))
        self._consumable = view.features.on(Gate.CONSUMABLE_CAPACITY)
        self._late_taints = view.features.late_taints

    def verdict(self, matches: Matches, position: int) -> Refused | None:
        """What selectors say of a device. Raises TooDear when their cost is beyond the bound."""
        self._account.look()
        return matches.verdict(position, self._account)

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

    def derived(self, alternative: Alternative, expression: Expression, device: Device) -> Attribute:
        """The value of an attribute that the request derives. Raises FatalError and TooDear."""
        key = (expression.text, device)
        known = self._derived.get(key)
        if known is None:
            self._account.look()
            known = self._derived[key] = self._deriver.derive(expression.text, device)
        if isinstance(known, str):
            raise FatalError(f"claim {alternative.claim_name}: {expression.field}: {known}")
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
        refused = self.verdict(alternative.matches, position)
        if refused is not None:
            if refused.fatal:
                where = f"claim {alternative.claim_name}, request {alternative.name}"
                raise FatalError(f"{where}: {refused.text}")
            return refused
        device = self.view.device(position)
        asks = alternative.capacity or alternative.demand
        if self._consumable and (asks or not device.plain):
            wanted = self.demand(alternative, position)
            if wanted.fatal:
                raise FatalError(
                    f"request {alternative.name}: checking capacity for device {device.id}: {wanted.fatal}"
                )
            if wanted.refused:
                return Refused(Code.CAPACITY, wanted.refused, f"unfit ({wanted.refused})")
        if alternative.demand and (text := unmet(alternative.demand, device)):
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
