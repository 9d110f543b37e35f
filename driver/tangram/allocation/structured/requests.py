"""Claims as the search sees them: requests with alternatives, checked as upstream checks them first."""

import itertools
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tangram import DRIVER_NAME
from tangram.allocation.structured.capacity import demand, lacking
from tangram.allocation.structured.cluster import Cluster
from tangram.allocation.structured.derived import Expression, expressions
from tangram.allocation.structured.features import Fault, Gate
from tangram.allocation.structured.outcome import FatalError
from tangram.allocation.structured.parameters import requested, unmet
from tangram.allocation.structured.quantities import Quantity, quantity
from tangram.allocation.structured.state import Allocated, claim_name
from tangram.allocation.structured.view import Matches, Refused, Terms, View, carries_guard
from tangram.api import Demand, demand_of, linked_count
from tangram.base.errors import InvalidObjectError
from tangram.model.kubernetes import (
    CapacityRequirements,
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)

MAXIMUM_RESULTS = 32
"""Devices per claim (`AllocationResultsMaxSize` of resource/v1)."""


class Alternative(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One way to serve a request: the request itself, or one of its subrequests.

    `index` numbers all alternatives of the decision. `everything`: the request wants all matching devices,
    at the places `positions`; `count` is then their number. `demand`: its GPUClaimParameters, if it has any.
    `derived`: its derived attributes by name.
    """

    index: int
    claim: int
    claim_name: str
    request: str
    subrequest: str
    device_class: DeviceClass
    everything: bool
    count: int
    admin: bool
    tolerations: list[DeviceToleration] | None
    capacity: Mapping[str, Quantity] | None
    matches: Matches
    demand: Demand | None = None
    positions: tuple[int, ...] = ()
    derived: Mapping[str, Expression] = {}

    @property
    def name(self) -> str:
        """As results and configurations name it."""
        return f"{self.request}/{self.subrequest}" if self.subrequest else self.request

    @property
    def linked_set_size(self) -> int:
        """The devices must split into fully linked sets of so many."""
        return self.demand.linked_set_size if self.demand else 1


class Request(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """`prioritized`: the alternatives are subrequests, tried in order."""

    claim: int
    name: str
    prioritized: bool
    alternatives: tuple[Alternative, ...]


class Compiler:
    """Turns claims into requests. Everything it refuses is fatal for the pod, as upstream."""

    def __init__(
        self,
        cluster: Cluster,
        view: View,
        allocated: Allocated,
        verdict: Callable[[Matches, int], Refused | None],
        *,
        controller: bool,
    ) -> None:
        self._verdict = verdict
        self._cluster = cluster
        self._allocated = allocated
        self._view = view
        self._features = view.features
        self._controller = controller
        self._indices = itertools.count()

    def compile(self, claims: Sequence[ResourceClaim]) -> list[Request]:
        """The requests of all claims, in order. Raises FatalError."""
        requests = []
        for index, claim in enumerate(claims):
            fewest = 0
            for number, wire in enumerate(claim.spec.devices.requests or ()):
                request = self._request(index, claim, number, wire)
                requests.append(request)
                fewest += min(alternative.count for alternative in request.alternatives)
                if fewest > MAXIMUM_RESULTS:
                    raise FatalError(
                        f"claim {claim_name(claim)}, request {wire.name}: {fewest} devices exceed the claim "
                        f"limit of {MAXIMUM_RESULTS}"
                    )
            for number, constraint in enumerate(claim.spec.devices.constraints or ()):
                known = constraint.match_attribute is not None or (
                    constraint.distinct_attribute is not None and not self._features.is_basic
                )
                if not known:
                    raise FatalError(
                        f"claim {claim_name(claim)}, constraint #{number}: empty constraint "
                        "(unsupported constraint type?)"
                    )
        return requests

    def _request(self, index: int, claim: ResourceClaim, number: int, wire: DeviceRequest) -> Request:
        where = f"claim {claim_name(claim)}, request {wire.name}"
        subrequests = wire.first_available or []
        if subrequests and not self._features.on(Gate.PRIORITIZED_LIST):
            raise FatalError(f"{where}: has subrequests, but the DRAPrioritizedList feature is disabled")
        items: Sequence[ExactDeviceRequest | DeviceSubRequest] = subrequests
        if not subrequests:
            if wire.exactly is None:
                raise FatalError(f"{where}: asks for nothing (unsupported request type?)")
            items = (wire.exactly,)
        consumable = self._features.on(Gate.CONSUMABLE_CAPACITY) or self._features.is_basic
        if not consumable and any(item.capacity is not None for item in items):
            raise FatalError(
                f"{where}: has capacity requests, but the DRAConsumableCapacity feature is disabled"
            )
        field = f"spec.devices.requests[{number}]."
        alternatives: list[Alternative] = []
        for i, item in enumerate(items):
            part = f"firstAvailable[{i}]" if subrequests else "exactly"
            listed = None
            if i == 1 and self._features.has(Fault.ALL_LOSES_SUBREQUEST) and alternatives[0].everything:
                listed = alternatives[0].matches
            alternatives.append(self._alternative(index, claim, wire.name, item, field + part, listed=listed))
        return Request(
            claim=index, name=wire.name, prioritized=bool(subrequests), alternatives=tuple(alternatives)
        )

    def _alternative(
        self,
        index: int,
        claim: ResourceClaim,
        name: str,
        wire: ExactDeviceRequest | DeviceSubRequest,
        field: str,
        *,
        listed: Matches | None,
    ) -> Alternative:
        """`listed`: by whose selectors "all devices" are listed instead of its own; a fault of versions."""
        subrequest = wire.name if isinstance(wire, DeviceSubRequest) else ""
        where = f"claim {claim_name(claim)}, request {subrequest or name}"
        admin = None if isinstance(wire, DeviceSubRequest) else wire.admin_access
        if wire.derived_attributes and not self._features.on(Gate.DERIVED_ATTRIBUTES):
            raise FatalError(f"{where}: has derived attributes, but the DRADerivedAttributes feature is off")
        selectors = _selectors(wire.selectors, where)
        if admin is not None and not self._features.on(Gate.ADMIN_ACCESS):
            raise FatalError(f"{where}: admin access is requested, but the feature is disabled")
        device_class = self._class(wire.device_class_name, where)
        mode = wire.allocation_mode or "ExactCount"
        if mode not in ("ExactCount", "All"):
            raise FatalError(f"{where}: unsupported count mode {mode}")
        count = wire.count or 1  # as the API server fills it in
        if mode == "ExactCount" and count < 0:
            raise FatalError(f"{where}: the count {count} is negative")
        class_name = device_class.metadata.name
        matches = self._view.matches(
            Terms(
                class_name,
                _selectors(device_class.spec.selectors, f"class {class_name}"),
                selectors,
                self._controller,
            )
        )
        wanted = self._demand(claim, name, subrequest, device_class) if self._controller else None
        if mode == "All":
            matches = listed or matches
            positions = self._everything(matches, wire.capacity, wanted, where)
        else:
            positions = ()
            count = _linked_count(claim, wanted, count, f"{field}.count")
        return Alternative(
            index=next(self._indices),
            claim=index,
            claim_name=claim_name(claim),
            request=name,
            subrequest=subrequest,
            device_class=device_class,
            everything=mode == "All",
            count=len(positions) if mode == "All" else count,
            admin=bool(admin),
            tolerations=[_toleration(t) for t in wire.tolerations] if wire.tolerations else None,
            capacity=_capacity(wire.capacity, where),
            matches=matches,
            demand=wanted,
            positions=positions,
            derived=expressions(wire.derived_attributes, field),
        )

    def _demand(
        self, claim: ResourceClaim, request: str, subrequest: str, device_class: DeviceClass
    ) -> Demand | None:
        """The GPUClaimParameters; only for classes that leave their devices to our controller."""
        configs = (device_class.spec.config or (), claim.spec.devices.config or ())
        if not any(entry.opaque and entry.opaque.driver == DRIVER_NAME for c in configs for entry in c):
            return None
        class_name = device_class.metadata.name
        if not carries_guard(_selectors(device_class.spec.selectors, f"class {class_name}")):
            return None
        try:
            return demand_of(
                (request, f"{request}/{subrequest}"),
                class_name=class_name,
                class_config=configs[0],
                claim_name=claim_name(claim),
                claim_config=configs[1],
            )
        except InvalidObjectError as error:
            raise FatalError(str(error)) from None

    def _class(self, name: str, where: str) -> DeviceClass:
        if not name:
            raise FatalError(f"{where}: missing device class name (unsupported request type?)")
        found = self._cluster.classes.get(name)
        if found is None:
            raise FatalError(f"{where}: device class {name} does not exist")
        return found

    def _everything(
        self, matches: Matches, wire: CapacityRequirements | None, wanted: Demand | None, where: str
    ) -> tuple[int, ...]:
        """The places of all matching devices, whether or not somebody has them."""
        positions = []
        capacity = _capacity(wire, where)
        for pool in self._view.pools:
            if pool.incomplete or pool.invalid:
                state = "being updated" if pool.incomplete else "invalid"
                raise FatalError(
                    f"{where}: asks for all devices, but resource pool {pool.id} is currently {state}"
                )
            for position in self._view.by_pool.get(pool.id, ()):
                verdict = self._verdict(matches, position)
                if verdict is not None and verdict.fatal:
                    raise FatalError(f"{where}: {verdict.text}")
                if verdict is not None or unmet(wanted, self._view.device(position)):
                    continue
                if self._big_enough(
                    position, requested(capacity, wanted, self._view.device(position)), where
                ):
                    positions.append(position)
        return tuple(positions)

    def _big_enough(self, position: int, capacity: Mapping[str, Quantity] | None, where: str) -> bool:
        if not self._features.on(Gate.CONSUMABLE_CAPACITY):
            return True
        device = self._view.device(position)
        taken = demand(device, capacity, self._features)
        if taken.fatal:
            raise FatalError(f"{where}: checking capacity for device {device.id}: {taken.fatal}")
        if taken.refused:
            return False
        if not self._features.has(Fault.ALL_BY_REMAINING_CAPACITY):
            return True
        shares = self._allocated.shared.get(device.id)
        return not lacking(device, taken, shares.consumed if shares else None)


def _linked_count(claim: ResourceClaim, wanted: Demand | None, count: int, field: str) -> int:
    try:
        return linked_count(wanted, count, object_name=f"ResourceClaim {claim_name(claim)}", field=field)
    except InvalidObjectError as error:
        raise FatalError(str(error)) from None


def _selectors(wire: list[DeviceSelector] | None, where: str) -> tuple[str, ...]:
    texts = []
    for index, selector in enumerate(wire or ()):
        if selector.cel is None:
            raise FatalError(f"{where}, selector #{index}: CEL expression empty (unsupported selector type?)")
        texts.append(selector.cel.expression)
    return tuple(texts)


def _toleration(wire: DeviceToleration) -> DeviceToleration:
    """With the default that the API server fills in."""
    return wire if wire.operator else msgspec.structs.replace(wire, operator="Equal")


def _capacity(wire: CapacityRequirements | None, where: str) -> Mapping[str, Quantity] | None:
    try:
        return {name: quantity(value) for name, value in (wire.requests or {}).items()} if wire else None
    except ValueError as error:
        raise FatalError(f"{where}: capacity: {error}") from None
