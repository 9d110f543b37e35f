"""Kubernetes resource quantities: exact, as `resource.Quantity` of apimachinery parses them."""

import re
from fractions import Fraction
from functools import lru_cache

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?",
    re.ASCII,
)
_BINARY = {f"{prefix}i": Fraction(1024) ** power for power, prefix in enumerate("KMGTPE", start=1)}
_DECIMAL = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)} | {
    prefix: Fraction(1000) ** power for power, prefix in enumerate("kMGTPE", start=1)
}
_MAXIMUM_LENGTH = 64
_MAXIMUM_EXPONENT = 24


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Fraction:
    """The exact value of a quantity such as `80Gi`, `1.5`, `100m` or `12e6`.

    Raises ValueError where apimachinery's parser refuses the text (e.g. `1e3Gi`, `1 Gi`, an empty string).
    """
    if len(text) > _MAXIMUM_LENGTH:
        raise ValueError("quantity is longer than 64 characters")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity (examples: 80Gi, 1.5, 100m)")
    number = Fraction(match["number"])
    suffix = match["suffix"] or ""
    if not suffix:
        return number
    if suffix in _BINARY:
        return number * _BINARY[suffix]
    if suffix in _DECIMAL:
        return number * _DECIMAL[suffix]
    exponent = int(suffix[1:])
    if abs(exponent) > _MAXIMUM_EXPONENT:
        raise ValueError(f"{text!r}: the exponent is out of range")
    return number * Fraction(10) ** exponent


def format_bytes(value_bytes: int) -> str:
    """Bytes as a canonical binary quantity: the largest suffix that keeps the number an integer (`80Gi`)."""
    if value_bytes == 0:
        return "0"
    for suffix, factor in reversed(_BINARY.items()):
        quotient, rest = divmod(value_bytes, int(factor))
        if rest == 0:
            return f"{quotient}{suffix}"
    return str(value_bytes)


def human_bytes(value_bytes: int) -> str:
    """Bytes for people: Gi with at most one decimal (`79.6Gi`), smaller sizes in Mi."""
    gib = value_bytes / 2**30
    if gib >= 1:
        return f"{gib:.1f}".rstrip("0").rstrip(".") + "Gi"
    return f"{value_bytes / 2**20:.0f}Mi"
