"""Consumable capacity (KEP-5075): what a request takes of each capacity of a device, and whether it may."""

from collections.abc import Mapping
from typing import NamedTuple

from tangram.allocation.structured.cluster import Capacity, Device, Policy
from tangram.allocation.structured.features import Fault, Features, Gate
from tangram.allocation.structured.quantities import (
    MAX_INT64,
    MILLI,
    NANO,
    Format,
    Quantity,
)


class Demand(NamedTuple):
    """What a request takes of a device: per capacity, if `refused` is empty.

    `fatal`: the request cannot be represented, which ends the decision.
    """

    consumed: Mapping[str, Quantity]
    refused: str = ""
    fatal: str = ""


_NOTHING: Mapping[str, Quantity] = {}


_FREE = Demand(_NOTHING)


def demand(device: Device, requests: Mapping[str, Quantity] | None, features: Features) -> Demand:
    """What a request takes, regardless of what others took; capacities match by their literal names."""
    if not device.capacity and not requests:
        return _FREE
    for name in requests or ():
        if name not in device.capacity:
            return Demand(_NOTHING, f"has no capacity {name}")
    consumed: dict[str, Quantity] = {}
    strict = not features.has(Fault.UNREPRESENTABLE_CAPACITY_WRAPS)
    for name, capacity in device.capacity.items():
        try:
            taken = _consumed((requests or {}).get(name), capacity, features)
        except OverflowError as error:
            return Demand(_NOTHING, fatal=f"capacity {name}: {error}")
        if strict and taken.nano < 0:
            return Demand(_NOTHING, fatal=f"capacity {name} is negative")
        consumed[name] = taken
    for name, capacity in device.capacity.items():
        taken = consumed[name]
        if capacity.policy is not None and (text := _violates(taken, capacity.policy, features)):
            return Demand(_NOTHING, f"capacity {name}: {text}")
        if taken.nano > capacity.value.nano:
            return Demand(_NOTHING, f"capacity {name}: {taken} needed, {capacity.value} there")
    return Demand(consumed)


def _consumed(requested: Quantity | None, capacity: Capacity, features: Features) -> Quantity:
    policy = capacity.policy
    if requested is None:
        return policy.default if policy and policy.default is not None else capacity.value
    if policy is None:
        return requested
    if policy.minimum is not None:
        return _round_up(requested, policy, policy.minimum, features)
    for valid in policy.valid_values or ():
        if requested.nano <= valid.nano:
            return valid
    return requested


def _round_up(requested: Quantity, policy: Policy, minimum: Quantity, features: Features) -> Quantity:
    """To the smallest value of the range; OverflowError if 64 bits cannot hold it."""
    step = policy.step
    if requested.nano < minimum.nano:
        return minimum
    if step is None:
        return requested
    if _fractional(policy, features):
        unit, limit = MILLI, MAX_INT64
        if requested.nano % MILLI or requested.milli() > MAX_INT64:
            raise OverflowError(f"{requested} is not a representable milli value")
        amount, start, width = requested.milli(), minimum.milli(), step.milli()
    else:
        unit, limit = NANO, MAX_INT64
        amount, start, width = requested.whole(), minimum.whole(), max(step.whole(), 1)
    rounded = start + -((start - amount) // width) * width
    if rounded > limit:
        if not features.has(Fault.UNREPRESENTABLE_CAPACITY_WRAPS):
            raise OverflowError(f"{requested} rounded up to the next step is too large")
        rounded = _wrapped(rounded)
    binary = features.has(Fault.ROUNDED_IN_BINARY)
    return Quantity(rounded * unit, Format.BINARY if binary else step.format)


def _violates(taken: Quantity, policy: Policy, features: Features) -> str:
    if policy.default is not None and taken == policy.default:
        return ""
    if policy.has_range:
        if policy.maximum is not None and taken.nano > policy.maximum.nano:
            return f"{taken} is above the maximum of {policy.maximum}"
        return _off_step(taken, policy, features)
    if policy.valid_values and all(taken.nano != valid.nano for valid in policy.valid_values):
        return f"{taken} is not among {', '.join(map(str, policy.valid_values))}"
    return ""


def _off_step(taken: Quantity, policy: Policy, features: Features) -> str:
    if policy.step is None:
        return ""
    minimum = policy.minimum or Quantity(0)
    if _fractional(policy, features):
        off = taken.nano % MILLI or (taken.milli() - minimum.milli()) % policy.step.milli()
    else:
        off = _wrapped(taken.whole() - minimum.whole()) % max(policy.step.whole(), 1)
    return f"{taken} is not on a step of {policy.step} from {minimum}" if off else ""


def _wrapped(number: int) -> int:
    """What 64 bits hold of it."""
    return (number + 2**63) % 2**64 - 2**63


def _fractional(policy: Policy, features: Features) -> bool:
    """True if ranges are counted in thousandths: the feature is on, and all of the range can be."""
    if not features.on(Gate.FRACTIONAL_CAPACITY_RANGE):
        return False
    limits = [limit for limit in (policy.minimum, policy.maximum, policy.step) if limit is not None]
    return all(limit.nano % MILLI == 0 and abs(limit.milli()) <= MAX_INT64 for limit in limits) and (
        policy.step is None or policy.step.milli() >= 1
    )


class Lacking(NamedTuple):
    """A capacity of which too little is left."""

    capacity: str
    needed: Quantity
    rest: Quantity
    value: Quantity

    def __str__(self) -> str:
        return f"capacity {self.capacity}: {self.needed} needed, {self.rest} of {self.value} left"


def lacking(device: Device, taken: Demand, consumed: Mapping[str, int] | None) -> Lacking | None:
    """Which capacity of a device is too small for `taken` after `consumed` (nano-units)."""
    for name, amount in taken.consumed.items():
        used = consumed.get(name, 0) if consumed else 0
        value = device.capacity[name].value
        if used + amount.nano > value.nano:
            return Lacking(name, amount, Quantity(max(value.nano - used, 0), value.format), value)
    return None
