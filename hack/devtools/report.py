"""Adds up the test reports of several pytest runs: `N passed, N failed` on one line."""

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree


@dataclass(frozen=True, slots=True)
class Totals:
    """Outcomes of tests; a run that left no report counts as one failed test."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
        )


def read_report(path: Path) -> Totals:
    """Counts one JUnit XML file as pytest writes it."""
    try:
        suites = ElementTree.parse(path).getroot().iter("testsuite")
    except (OSError, ElementTree.ParseError):
        return Totals(failed=1)
    total = Totals()
    for suite in suites:
        tests, failures, errors, skipped = (
            int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")
        )
        failed = failures + errors
        total += Totals(passed=max(0, tests - failed - skipped), failed=failed, skipped=skipped)
    return total


def totals_text(total: Totals) -> str:
    """What is printed last."""
    skipped = f"skipped: {total.skipped}\n" if total.skipped else ""
    return f"{skipped}{total.passed} passed, {total.failed} failed"
