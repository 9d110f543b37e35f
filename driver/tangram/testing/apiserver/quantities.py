"""Quantities in the form in which the API server writes them (`resource.Quantity` of apimachinery)."""

from tangram.model.quantity import parse_quantity

_BINARY = [(f"{prefix}i", 10 * power) for power, prefix in reversed(list(enumerate("KMGTPE", start=1)))]
_DECIMAL = [
    ("E", 18),
    ("P", 15),
    ("T", 12),
    ("G", 9),
    ("M", 6),
    ("k", 3),
    ("", 0),
    ("m", -3),
    ("u", -6),
    ("n", -9),
]


def canonical(text: str) -> str:
    """The largest suffix of the same kind that leaves an integer, e.g. `1Gi` for `1024Mi`. ValueError."""
    value = parse_quantity(text.strip())
    if text.rstrip().endswith("i") and abs(value) >= 1024:
        for suffix, bits in _BINARY:
            if value % 2**bits == 0:
                return f"{value / 2**bits}{suffix}"
    if not value:
        return "0"
    exponent_form = "e" in text.lower() and not text.rstrip().endswith(("i", "E"))
    for suffix, power in _DECIMAL:
        scaled = value * 10**-power if power < 0 else value / 10**power
        if scaled.denominator == 1:
            return f"{scaled}e{power}" if exponent_form and power else f"{scaled}{suffix}"
    raise AssertionError(text)  # parse_quantity rounds to 1n
