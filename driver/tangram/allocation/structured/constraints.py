"""matchAttribute and distinctAttribute while devices are taken and put back."""

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Protocol

from tangram.allocation.structured.cluster import Attribute, Device
from tangram.allocation.structured.derived import Expression
from tangram.allocation.structured.features import Fault, Features, Gate
from tangram.allocation.structured.requests import Alternative
from tangram.model.kubernetes import DeviceConstraint, ResourceClaim

Derive = Callable[[Alternative, Expression, Device], Attribute]


class Constraint(Protocol):
    """A constraint of one claim. For every `add` that succeeded there is one `remove`, in reverse order."""

    claim: int

    def applies(self, alternative: Alternative) -> bool: ...
    def alike(self, device: Device, fitting: Sequence[Alternative]) -> Hashable:
        """Equal for devices that may be exchanged. `fitting`: the (sub)requests that may have it."""
        ...

    def add(self, alternative: Alternative, device: Device) -> object | None:
        """Takes the device in, or says why not: something with a text."""
        ...

    def remove(self, alternative: Alternative) -> None: ...


class Clash(NamedTuple):
    """Why a device cannot be added: it lacks the attribute, or its value does not go with the others'."""

    attribute: str
    value: Attribute | None = None
    others: Attribute | None = None

    def __str__(self) -> str:
        if self.value is None:
            return f"without the attribute {self.attribute}"
        if self.others is None:
            return f"{self.attribute} is {self.value}, as of another device chosen with it"
        return f"{self.attribute} is {self.value}, but {self.others} of the devices chosen with it"


class _Constraint:
    """What both kinds have in common; no request names means all requests."""

    def __init__(
        self, claim: int, requests: Sequence[str], attribute: str, features: Features, derive: Derive
    ) -> None:
        self.claim = claim
        self.attribute = attribute
        self._derive = derive
        self._requests = frozenset(requests)
        self._lists = features.on(Gate.LIST_TYPE_ATTRIBUTES)
        self._applies: dict[int, bool] = {}
        self._values: dict[Device, Attribute | None] = {}

    def applies(self, alternative: Alternative) -> bool:
        """True if devices of this (sub)request are constrained."""
        known = self._applies.get(alternative.index)
        if known is None:
            named = self._requests
            known = not named or alternative.request in named
            known = known or (bool(alternative.subrequest) and alternative.name in named)
            self._applies[alternative.index] = known
        return known

    def derives(self, alternative: Alternative) -> bool:
        """True if the (sub)request derives the attribute."""
        return self.attribute in alternative.derived and self.applies(alternative)

    def alike(self, device: Device, fitting: Sequence[Alternative]) -> Hashable:
        """Devices of one value are, published and derived."""
        derived = [(a.index, self.value(a, device)) for a in fitting if self.derives(a)]
        return (self._published(device), *derived) if derived else self._published(device)

    def value(self, alternative: Alternative, device: Device) -> Attribute | None:
        """The attribute of a device for a (sub)request: as this derives it, else as published. Where lists
        are compared, an empty one is none.

        Raises FatalError and TooDear: ask only about devices that the (sub)request may have.
        """
        if alternative.derived and (expression := alternative.derived.get(self.attribute)) is not None:
            derived = self._derive(alternative, expression, device)
            return derived if derived.values or not self._lists else None
        return self._published(device)

    def _published(self, device: Device) -> Attribute | None:
        if device not in self._values:
            self._values[device] = device.attribute(self.attribute)
        return self._values[device]


class MatchAttribute(_Constraint):
    """All devices have the attribute with one value; of lists, with a common element."""

    def __init__(
        self, claim: int, requests: Sequence[str], attribute: str, features: Features, derive: Derive
    ) -> None:
        super().__init__(claim, requests, attribute, features, derive)
        self._keeps_narrowed = features.has(Fault.INTERSECTION_NOT_RESTORED) and self._lists
        self._common: list[Attribute] = []
        self._narrowed: Attribute | None = None

    @property
    def common(self) -> Attribute | None:
        """What the devices so far have in common; None if there is none yet."""
        return self._common[-1] if self._common else None

    def add(self, alternative: Alternative, device: Device) -> Clash | None:
        """Takes the device in, or says why not."""
        if not self.applies(alternative):
            return None
        value = self.value(alternative, device)
        if value is None:
            return Clash(self.attribute)
        if not self._common:
            self._common.append(value)
            self._narrowed = value
            return None
        common = self._common[-1]
        if self._keeps_narrowed and self._narrowed is not None:
            common = self._narrowed
        shared = self._shared(common, value)
        if shared is None:
            return Clash(self.attribute, value, common)
        self._common.append(shared)
        self._narrowed = shared
        return None

    def _shared(self, common: Attribute, value: Attribute) -> Attribute | None:
        if common.kind != value.kind:
            return None
        if not self._lists:
            return common if value.scalar and common.scalar and common.values == value.values else None
        both = common.values & value.values
        return common._replace(values=both) if both else None

    def bound_by(self, device: Device) -> Attribute | None:
        """What others would have to agree with once the device is taken, by what is published; None if it
        cannot be."""
        value, common = self._published(device), self.common
        return value if value is None or common is None else self._shared(common, value)

    def agrees(self, alternative: Alternative, device: Device, common: Attribute | None) -> bool:
        """True if the device has the attribute, and could be added after devices with `common`."""
        value = self.value(alternative, device)
        return value is not None and (common is None or self._shared(common, value) is not None)

    def matches(self, common: Attribute, value: Attribute) -> bool:
        """True if a device with `value` could be added after devices with `common`."""
        return self._shared(common, value) is not None

    def is_alone(self, value: Attribute) -> bool:
        """True if a device with this value agrees with no other, not even of the same value: a list, where
        lists are not compared."""
        return not (self._lists or value.scalar)

    def single_values(self, value: Attribute) -> list[Attribute]:
        """What devices with this value could agree on: of a list, each of its elements."""
        if not self._lists:
            return [value]
        return [value._replace(values=frozenset((element,))) for element in value.values]

    def remove(self, alternative: Alternative) -> None:
        """Takes the last device out."""
        if self.applies(alternative):
            self._common.pop()


class DistinctAttribute(_Constraint):
    """All devices have the attribute, no two with the same value; lists are disjoint."""

    def __init__(
        self, claim: int, requests: Sequence[str], attribute: str, features: Features, derive: Derive
    ) -> None:
        super().__init__(claim, requests, attribute, features, derive)
        self._last_only = features.has(Fault.DISTINCT_REMEMBERS_LAST)
        self._same_only = features.has(Fault.DISTINCT_COMPARES_DEVICES)
        self._taken: list[tuple[Attribute, Device]] = []
        self._last: dict[str, tuple[Attribute, Device]] = {}

    @property
    def taken(self) -> frozenset[Attribute]:
        """The values of the devices so far."""
        return frozenset(value for value, _ in self._taken)

    def add(self, alternative: Alternative, device: Device) -> Clash | None:
        """Takes the device in, or says why not."""
        if not self.applies(alternative):
            return None
        value = self.value(alternative, device)
        if value is None:
            return Clash(self.attribute)
        remembered = self._last.values() if self._last_only else self._taken
        if self._taken:
            for other, owner in remembered:
                if self._same_only and owner is not device:
                    continue
                if self._collides(other, value):
                    return Clash(self.attribute, value)
        self._taken.append((value, device))
        self._last[alternative.request] = (value, device)
        return None

    def _collides(self, other: Attribute, value: Attribute) -> bool:
        if self._lists:
            return other.kind == value.kind and bool(other.values & value.values)
        if not value.scalar:
            return True  # a kind of value that the version does not know
        return other.scalar and other.kind == value.kind and other.values == value.values

    def remove(self, alternative: Alternative) -> None:
        """Takes the last device out."""
        if self.applies(alternative):
            self._taken.pop()
            self._last.pop(alternative.request, None)


def constraints(
    claims: Sequence[ResourceClaim], features: Features, derive: Derive
) -> list[list[Constraint]]:
    """The constraints of each claim. `derive`: the value of a derived attribute (`Judge.derived`)."""
    return [
        [_constraint(index, wire, features, derive) for wire in claim.spec.devices.constraints or ()]
        for index, claim in enumerate(claims)
    ]


def _constraint(claim: int, wire: DeviceConstraint, features: Features, derive: Derive) -> Constraint:
    if wire.match_attribute is not None:
        return MatchAttribute(claim, wire.requests or (), wire.match_attribute, features, derive)
    return DistinctAttribute(claim, wire.requests or (), wire.distinct_attribute or "", features, derive)
