"""The device an expression looks at."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CelDevice:
    """The variable `device` (`CELDeviceSelector` of resource/v1).

    `attributes` maps domain → id → value, where a value is bool, int (64 bits), str or SemVer; `capacity`
    maps domain → id → quantity. What the driver publishes under a bare name stands in the driver's own
    domain. The device must not change any more: results are remembered per device.
    """

    driver: str
    attributes: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    capacity: Mapping[str, Mapping[str, Fraction]] = field(default_factory=dict)
    allow_multiple_allocations: bool = False


def by_domain(driver: str, values: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """What is published, by domain and id: bare names stand in the driver's own domain."""
    domains: dict[str, dict[str, T]] = {driver: {}}
    for name, value in values.items():
        domain, slash, bare = name.partition("/")
        if slash:
            domains.setdefault(domain, {})[bare] = value
        else:
            domains[driver][name] = value
    return domains
