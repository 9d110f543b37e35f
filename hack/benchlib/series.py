"""Samples → medians and spread. Pure."""

import math
from collections.abc import Sequence

import msgspec


class Summary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Order statistics of `n` samples in `unit`; `iqr` is p75 - p25."""

    unit: str
    n: int
    p50: float
    p99: float
    iqr: float
    minimum: float
    maximum: float


def summarize(samples: Sequence[float], *, unit: str) -> Summary:
    """Raises ValueError where there are none."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    return Summary(
        unit=unit,
        n=len(ordered),
        p50=quantile(ordered, 0.5),
        p99=quantile(ordered, 0.99),
        iqr=quantile(ordered, 0.75) - quantile(ordered, 0.25),
        minimum=ordered[0],
        maximum=ordered[-1],
    )


def quantile(ordered: Sequence[float], q: float) -> float:
    """Of ascending samples, linear between neighbours (Hyndman and Fan's type 7, as numpy does)."""
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
