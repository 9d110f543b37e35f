"""The device an expression looks at."""

from collections.abc import Mapping
from fractions import Fraction
from typing import TypeVar

import msgspec

T = TypeVar("T")


class CelDevice(msgspec.Struct, frozen=True, eq=False, kw_only=True, gc=False):
    """The variable `device` (`CELDeviceSelector` of resource/v1).

    `attributes` maps domain → id → value, where a value is bool, int (64 bits), str or SemVer; `capacity`
    maps domain → id → quantity. What the driver publishes under a bare name stands in the driver's own
    domain. The device must not change any more: results are remembered per device.
    """

    driver: str
    attributes: Mapping[str, Mapping[str, object]] = {}
    capacity: Mapping[str, Mapping[str, Fraction]] = {}
    allow_multiple_allocations: bool = False


def by_domain(driver: str, values: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """What is published, by domain and id: bare names stand in the driver's own domain."""
    own: dict[str, T] = {}
    domains = {driver: own}
    for name, value in values.items():
        if "/" in name:
            domain, _, bare = name.partition("/")
            domains.setdefault(domain, {})[bare] = value
        else:
            own[name] = value
    return domains
