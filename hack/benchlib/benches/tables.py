"""How sections of docs/benchmarks.md show series and goals. Pure."""

import textwrap
from collections.abc import Mapping

from benchlib.results import Goal, Result


def prose(text: str) -> str:
    """A paragraph, broken anew into lines of at most 120 characters."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def table(result: Result, labels: Mapping[str, str]) -> str:
    """A row for each series that `labels` names, in that order."""
    rows = ["| | p50 | p99 | IQR | n |", "|---|---|---|---|---|"]
    for name, label in labels.items():
        s = result.series[name]
        rows.append(f"| {label} | {amount(s.p50)} {s.unit} | {amount(s.p99)} | {amount(s.iqr)} | {s.n} |")
    return "\n".join(rows)


def goal_list(result: Result) -> str:
    """Each goal with what came of it."""
    return "\n".join(_goal(goal) for goal in result.goals)


def _goal(goal: Goal) -> str:
    unit = f" {goal.unit}" if goal.unit else ""
    kind = "stretch goal" if goal.stretch else "goal"
    outcome = "met" if goal.met else "missed"
    return f"- {goal.name}: **{amount(goal.value)}{unit}**, {kind} {goal.limit:g}{unit}: {outcome}"


def amount(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    digits = 0
    while digits < 3 and abs(value) * 10**digits < 99.95:
        digits += 1
    return f"{value:.{digits}f}"
