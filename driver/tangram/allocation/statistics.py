"""What decisions teach about demand: how often each number of GPUs per pod was asked for.

The loop feeds every placement to `observe` and hands the result to the next `allocate`. Best-fit decides
without it; policies that weigh what the rest is worth need to know what is asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """`pods_by_devices`: number of devices asked for together → how many pods asked for that."""

    pods_by_devices: Mapping[int, int] = field(default_factory=dict)


def observe(statistics: Statistics, event: int) -> Statistics:
    """The statistics after one more pod that asked for `event` devices was placed."""
    counts = dict(statistics.pods_by_devices)
    counts[event] = counts.get(event, 0) + 1
    return Statistics(pods_by_devices=MappingProxyType(counts))
