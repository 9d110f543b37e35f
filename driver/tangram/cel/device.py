"""The device an expression looks at."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction


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
