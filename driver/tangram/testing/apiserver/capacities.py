"""`requestPolicy` of a capacity: what a claim may ask of a device that several share (KEP-5075)."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from tangram.model.quantity import parse_quantity
from tangram.testing.apiserver.problems import Problem, Problems, invalid, required, too_many

_MAX_VALID_VALUES = 10


def request_policy(capacity: Mapping[str, Any], *, shared: bool, where: str) -> Problems:
    """Of the policy of one capacity; `shared`: the device allows multiple allocations."""
    policy = capacity.get("requestPolicy")
    if policy is None:
        return
    if not shared:
        yield Problem("Forbidden", where, "allowMultipleAllocations must be true")
        return
    limit, default = parse_quantity(capacity["value"]), policy.get("default")
    values, valid_range = policy.get("validValues"), policy.get("validRange")
    if values and valid_range:
        yield Problem("Forbidden", where, "cannot specify `validValues` and `validRange` at the same time")
    elif default is None:
        if values or valid_range:
            yield required(f"{where}.default", "required when validValues or validRange is defined")
    elif values:
        yield from _values(values, parse_quantity(default), limit, where=f"{where}.validValues")
    elif valid_range:
        yield from _range(valid_range, parse_quantity(default), limit, where=f"{where}.validRange")
    elif parse_quantity(default) > limit:
        yield invalid(f"{where}.default", default, f"default is larger than capacity value: {limit}")


def _values(values: list[str], default: Fraction, limit: Fraction, *, where: str) -> Problems:
    yield from too_many(where, values, _MAX_VALID_VALUES)
    values = values if len(values) <= _MAX_VALID_VALUES else []
    numbers = [parse_quantity(value) for value in values]
    for index, (value, number) in enumerate(zip(values, numbers, strict=True)):
        if index and numbers[index - 1] >= number:
            yield invalid(f"{where}[{index}]", value, "values must be sorted in ascending order")
        if number > limit:
            yield invalid(f"{where}[{index}]", value, f"option is larger than capacity value: {limit}")
    if default not in numbers:
        yield invalid(where, values, "default value is not valid according to the requestPolicy")


def _range(given: Mapping[str, Any], default: Fraction, limit: Fraction, *, where: str) -> Problems:
    if given.get("min") is None:
        yield required(f"{where}.min")
        return
    low = parse_quantity(given["min"])
    if low > limit:
        yield invalid(f"{where}.min", given["min"], f"min is larger than capacity value: {limit}")
    if default < low:
        yield invalid(f"{where}.min", given["min"], "default is less than min")
    high = parse_quantity(given["max"]) if given.get("max") is not None else None
    if high is not None:
        if low > high:
            yield invalid(f"{where}.max", given["max"], "min is larger than max")
        if high > limit:
            yield invalid(f"{where}.max", given["max"], f"max is larger than capacity value: {limit}")
        if default > high:
            yield invalid(f"{where}.max", given["max"], "default is more than max")
    if given.get("step") is None:
        return
    step = parse_quantity(given["step"])
    if step <= 0:
        yield invalid(f"{where}.step", given["step"], "must be greater than zero")
        return
    if low + step > limit:
        yield invalid(f"{where}.step", given["step"], "one step above min is larger than capacity value")
    if (default - low) % step or (high is not None and (high - low) % step):
        yield invalid(f"{where}.step", given["step"], "value is not a multiple of a given step from min")
