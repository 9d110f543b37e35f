"""Kubernetes resource quantities, as `resource.Quantity` of apimachinery parses them."""

import re
from fractions import Fraction
from functools import lru_cache
from math import ceil

_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<decimals>[0-9]*))?"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?"
)
_BINARY = {f"{prefix}i": Fraction(1024) ** power for power, prefix in enumerate("KMGTPE", start=1)}
_DECIMAL = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)} | {
    prefix: Fraction(1000) ** power for power, prefix in enumerate("kMGTPE", start=1)
}
_MAXIMUM_LENGTH = 64
_MAXIMUM_EXPONENT = 300
_MAXIMUM_BINARY = 2**63 - 1
_NANO = 10**9


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Fraction:
    """The value of a quantity such as `80Gi`, `1.5`, `100m` or `12e6`, as apimachinery understands it.

    That is: rounded to 1n away from zero, with a binary suffix capped at 2^63-1, and a missing number is 0
    (`Ki`, `.`). Raises ValueError where apimachinery's parser refuses the text (`1e3Gi`, `1 Gi`, an empty
    string), and for what no resource can mean: over 64 characters, or an exponent beyond 300.
    """
    if len(text) > _MAXIMUM_LENGTH:
        raise ValueError("quantity is longer than 64 characters")
    match = _QUANTITY.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"{text!r} is not a quantity (examples: 80Gi, 1.5, 100m)")
    decimals, suffix = match["decimals"] or "", match["suffix"] or ""
    value = Fraction(int(f"{match['whole']}{decimals}" or 0), 10 ** len(decimals))
    if suffix in _BINARY:
        value *= _BINARY[suffix]
    elif suffix in _DECIMAL:
        value *= _DECIMAL[suffix]
    elif suffix:
        exponent = int(suffix[1:])
        if abs(exponent) > _MAXIMUM_EXPONENT:
            raise ValueError(f"{text!r}: the exponent is out of range")
        value *= Fraction(10) ** exponent
    value = Fraction(ceil(value * _NANO), _NANO)
    if suffix in _BINARY:
        value = min(value, Fraction(_MAXIMUM_BINARY))
    return -value if match["sign"] == "-" else value


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
