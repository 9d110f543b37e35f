"""Quantities as an allocator needs them: exact sums, and the text that Kubernetes would write.

An amount is an int in nano-units, which is how fine a quantity can be (`resource.Quantity` of apimachinery).
"""

from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from tangram.model.kubernetes import AnyQuantity
from tangram.model.quantity import parse_quantity

NANO = 10**9
MILLI = 10**6
"""Nano-units of 1 and of 1m."""
MAX_INT64 = 2**63 - 1

_DECIMAL_SUFFIXES = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_BINARY_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class Format(Enum):
    """The family of suffixes a quantity was written in; it is kept when the quantity is written again."""

    DECIMAL = "DecimalSI"
    BINARY = "BinarySI"
    EXPONENT = "DecimalExponent"


class Quantity(NamedTuple):
    """A quantity: its amount, and how it is written."""

    nano: int
    format: Format = Format.DECIMAL

    def whole(self) -> int:
        """The value in whole units, rounded up (`Value()`)."""
        return -(-self.nano // NANO)

    def milli(self) -> int:
        """The value in thousandths, rounded up (`MilliValue()`)."""
        return -(-self.nano // MILLI)

    def __str__(self) -> str:
        """The canonical text, as apimachinery prints it."""
        if not self.nano:
            return "0"
        binary = self.format is Format.BINARY and abs(self.nano) >= 1024 * NANO and not self.nano % NANO
        return _binary(self.nano // NANO) if binary else _decimal(self.nano, self.format)


def quantity(value: AnyQuantity) -> Quantity:
    """The quantity of an API object. Raises ValueError where apimachinery refuses the text."""
    return _parse(str(value))


@lru_cache(maxsize=4096)
def _parse(text: str) -> Quantity:
    amount = parse_quantity(text) * NANO
    suffix = text.lstrip("+-0123456789.")
    if suffix.endswith("i"):
        format_ = Format.BINARY
    elif len(suffix) > 1:
        format_ = Format.EXPONENT
    else:
        format_ = Format.DECIMAL
    return Quantity(int(amount), format_)


def _binary(whole: int) -> str:
    power = 0
    while whole % 1024 == 0 and power < len(_BINARY_SUFFIXES) - 1:
        whole //= 1024
        power += 1
    return f"{whole}{_BINARY_SUFFIXES[power]}"


def _decimal(nano: int, format_: Format) -> str:
    exponent = -9
    while nano % 10 == 0:
        nano //= 10
        exponent += 1
    while exponent % 3:
        nano *= 10
        exponent -= 1
    if format_ is Format.EXPONENT:
        return f"{nano}e{exponent}" if exponent else str(nano)
    # Beyond E, apimachinery has no suffix and writes the bare number.
    return f"{nano}{_DECIMAL_SUFFIXES.get(exponent, '')}"
