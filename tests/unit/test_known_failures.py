"""docs/known-failures.md names each statement once, and only tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs" / "known-failures.md").read_text().splitlines()
    if re.match(r"\| P\d\d ", line)
]
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"def (test_\w+)\(", path.read_text())
} | {path.name for path in (ROOT / "tests" / "scenarios").glob("*.yaml")}


def test_every_statement_stands_once() -> None:
    assert [row[0] for row in ROWS] == [f"P{number:02}" for number in range(1, 79)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_its_tests_exist(row: list[str]) -> None:
    named = re.findall(r"`([^`]+)`", row[3]) if len(row) > 3 else []
    assert set(named) <= TESTS
    # What applies without a word of reserve has a test.
    assert named or not row[2].startswith("applies") or row[2].startswith("applies in part")


def test_tests_that_carry_a_number_are_named() -> None:
    """A test named after a statement belongs to a row, though not every one is listed."""
    numbers = {match.upper() for name in TESTS for match in re.findall(r"^test_(p\d\d)_", name)}
    assert numbers <= {row[0] for row in ROWS}
