"""Quantities, against what `resource.ParseQuantity` of apimachinery v0.37.2 answered."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.model.quantity import format_bytes, human_bytes, parse_quantity

VALID = {
    "0": "0",
    "1": "1",
    "+1": "1",
    "-1": "-1",
    "1.": "1",
    ".5": "0.5",
    "00010": "10",
    "00.5": "0.5",
    "1Ki": "1024",
    "1Mi": "1048576",
    "1Gi": "1073741824",
    "80Gi": "85899345920",
    "1Ti": "1099511627776",
    "1Pi": "1125899906842624",
    "1Ei": "1152921504606846976",
    "7Ei": "8070450532247928832",
    "1k": "1000",
    "1M": "1000000",
    "1G": "1000000000",
    "1T": "1000000000000",
    "1P": "1000000000000000",
    "1E": "1000000000000000000",
    "1m": "0.001",
    "1u": "0.000001",
    "1n": "0.000000001",
    "100m": "0.1",
    "1.5Gi": "1610612736",
    "0.5Ki": "512",
    "-1Gi": "-1073741824",
    "+.5Gi": "536870912",
    "1e3": "1000",
    "1E3": "1000",
    "1e+3": "1000",
    "1e-3": "0.001",
    "1e0": "1",
    "5E5": "500000",
    "12e6": "12000000",
    "1e25": "10000000000000000000000000",
    "999999999999999999999999": "999999999999999999999999",
    # rounded to 1n, away from zero
    "0.1n": "0.000000001",
    "1.5n": "0.000000002",
    "1e-10": "0.000000001",
    "-0.1n": "-0.000000001",
    "1.0000000001": "1.000000001",
    # binary ones are capped
    "8Ei": "9223372036854775807",
    "16Ei": "9223372036854775807",
    "-10Ei": "-9223372036854775807",
    "9223372036854775808": "9223372036854775808",
    # a missing number is none
    ".": "0",
    "+": "0",
    "-": "0",
    "k": "0",
    "Ki": "0",
    "E": "0",
    "e3": "0",
}
INVALID = [
    *("", " 1", "1 ", "1Ki ", "1 Gi", "1\n", "0x10", "1_000", "\u0661", "1,5", "1.2.3", "1.1.M", "1+1.0M"),
    *("1e", "1Ee", "1e3Gi", "1e1e1", "1E1E", "1K", "1KI", "1gi", "1i", ".5i", "-3.01i", "-3.01e-", "0.1mi"),
    *("0.1am", "aoeu", "1mm", "1Mi1", "--1", "+-1", "1e1.5", "inf", "nan"),
]


@pytest.mark.parametrize(("text", "value"), VALID.items())
def test_values(text: str, value: str) -> None:
    assert parse_quantity(text) == Fraction(value)


@pytest.mark.parametrize("text", INVALID)
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


@pytest.mark.parametrize("text", ["1" * 65, "1e301", "1e-301", "1e" + "9" * 60])
def test_what_no_resource_can_mean(text: str) -> None:
    with pytest.raises(ValueError, match=r"longer than 64|out of range"):
        parse_quantity(text)


@given(st.text(max_size=70))
def test_any_text_has_a_value_or_a_reason(text: str) -> None:
    try:
        value = parse_quantity(text)
    except ValueError:
        return
    assert (value * 10**9).denominator == 1


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_bytes_survive_the_journey(value: int) -> None:
    assert parse_quantity(format_bytes(value)) == value


@given(st.integers(min_value=0, max_value=10**9), st.sampled_from(["", "k", "M", "Ki", "Gi", "m", "e3"]))
def test_values_keep_their_order(number: int, suffix: str) -> None:
    assert parse_quantity(f"{number}{suffix}") < parse_quantity(f"{number + 1}{suffix}")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1, "1"),
        (1023, "1023"),
        (1024, "1Ki"),
        (1536, "1536"),
        (81559 * 2**20, "81559Mi"),
        (80 * 2**30, "80Gi"),
        (2**60, "1Ei"),
        (-(2**30), "-1Gi"),
    ],
)
def test_canonical_bytes(value: int, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(80 * 2**30, "80Gi"), (81559 * 2**20, "79.6Gi"), (2**30, "1Gi"), (100 * 2**20, "100Mi"), (0, "0Mi")],
)
def test_bytes_for_people(value: int, text: str) -> None:
    assert human_bytes(value) == text
