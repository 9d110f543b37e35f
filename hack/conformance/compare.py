"""Two answers to one problem: do they agree? Pure.

An answer of the oracle is an entry of `nodes` in what hack/oracle prints, one of ours in what
`tangram allocate --all-nodes -o json` prints.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from tangram.model.quantity import parse_quantity

Answer = Mapping[str, Any]


class Verdict(StrEnum):
    """What an answer comes to. `UNKNOWN`: the oracle crashed or ran out of time."""

    FITS = "fits"
    UNFIT = "does not fit"
    FATAL = "fatal for the pod"
    UNKNOWN = "unknown"


def verdict_of_oracle(answer: Answer) -> Verdict:
    """An error that concerns only one node is no fit there."""
    if answer.get("timedOut") or answer.get("scope") == "panic":
        return Verdict.UNKNOWN
    if answer["fits"]:
        return Verdict.FITS
    return Verdict.FATAL if answer.get("scope") == "pod" else Verdict.UNFIT


def verdict_of_ours(answer: Answer) -> Verdict:
    """All claims of the group, or none."""
    if any(claim["error"] is not None for claim in answer["claims"]):
        return Verdict.FATAL
    return Verdict.FITS if all(claim["allocation"] for claim in answer["claims"]) else Verdict.UNFIT


def difference(oracle: Answer, ours: Answer) -> str:
    """One line about the first thing that differs; "" if they agree, or if the oracle does not know."""
    theirs, mine = verdict_of_oracle(oracle), verdict_of_ours(ours)
    if theirs is Verdict.UNKNOWN:
        return ""
    if theirs is not mine:
        return f"{mine} instead of {theirs}"
    if theirs is not Verdict.FITS:
        return ""
    expected = [normal(allocation) for allocation in oracle.get("allocations") or ()]
    got = [normal(claim["allocation"]) for claim in ours["claims"]]
    return _differing(expected, got)


def agrees_with_one(oracle: Answer, ours: Answer) -> bool:
    """Whether ours is among the outcomes of several samples (`others`), or could be (one is unknown)."""
    return any(not difference(sample, ours) for sample in [oracle, *oracle.get("others", ())])


def _differing(expected: Sequence[Answer], got: Sequence[Answer]) -> str:
    if len(expected) != len(got):
        return f"{len(got)} claims instead of {len(expected)}"
    for number, (theirs, mine) in enumerate(zip(expected, got, strict=True)):
        for part in ("results", "config", "nodeSelector"):
            if theirs[part] != mine[part]:
                return f"claim {number}: {part} {mine[part]} instead of {theirs[part]}"
    return ""


def normal(allocation: Answer) -> dict[str, Any]:
    """An allocation with everything taken out that may differ.

    Share ids are random, quantities may be written in several ways, requirements in any order.
    """
    devices = allocation.get("devices") or {}
    return {
        "results": [_result(result) for result in devices.get("results") or ()],
        "config": [_without_empty(entry) for entry in devices.get("config") or ()],
        "nodeSelector": _selector(allocation.get("nodeSelector")),
    }


def _result(result: Answer) -> dict[str, Any]:
    made = _without_empty(result)
    if "shareID" in made:
        made["shareID"] = "*"
    if "consumedCapacity" in made:
        consumed = made["consumedCapacity"]
        made["consumedCapacity"] = {name: parse_quantity(str(value)) for name, value in consumed.items()}
    return made


def _selector(selector: Answer | None) -> list[Any]:
    terms = (selector or {}).get("nodeSelectorTerms") or ()
    return [
        {kind: sorted(map(repr, map(_sorted_items, found))) for kind, found in term.items() if found}
        for term in terms
    ]


def _sorted_items(requirement: Answer) -> list[tuple[str, Any]]:
    return sorted(_without_empty(requirement).items())


def _without_empty(value: Answer) -> dict[str, Any]:
    return {key: entry for key, entry in value.items() if entry not in (None, [], {}, "")}
