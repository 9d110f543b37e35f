"""Problems with the oracle's answers, in files: compressed JSON lines, or one reduced case each."""

import lzma
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from clusterlib.layout import REPOSITORY
from conformance.problems import Problem
from conformance.versions import VERSIONS, Version

RECORDED = REPOSITORY / "tests" / "oracle"
"""One file `1.36.jsonl.xz` per version, and a folder `cases` of reduced problems that once differed."""


class Case(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem and what Kubernetes' allocator answers: `nodes` as hack/oracle prints them, without times.

    `note` says what a case is kept for.
    """

    version: str
    note: str = ""
    features: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    items: tuple[dict[str, Any], ...] = ()
    nodes: tuple[dict[str, Any], ...] = ()

    @property
    def problem(self) -> Problem:
        """What was asked."""
        return Problem(items=self.items, features=self.features, topics=self.topics)


def case(version: Version, problem: Problem, nodes: Sequence[Mapping[str, Any]], *, note: str = "") -> Case:
    """The case of a problem and its answers."""
    kept = tuple(
        {key: value for key, value in node.items() if key not in ("nanoseconds", "steps")} for node in nodes
    )
    return Case(
        version=version.kubernetes,
        note=note,
        features=problem.features,
        topics=problem.topics,
        items=problem.items,
        nodes=kept,
    )


def recorded_file(version: Version) -> Path:
    """Where the recorded cases of a version are."""
    return RECORDED / f"{version.kubernetes}.jsonl.xz"


def write(path: Path, cases: Iterable[Case]) -> None:
    """Replaces the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wb", preset=9 | lzma.PRESET_EXTREME) as file:
        for entry in cases:
            file.write(msgspec.json.encode(entry) + b"\n")


def read(path: Path) -> Iterator[Case]:
    """The cases of a file that `write` made."""
    with lzma.open(path, "rb") as file:
        for line in file:
            yield msgspec.json.decode(line, type=Case)


def write_case(path: Path, entry: Case) -> None:
    """One case as JSON that people can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(entry), indent=1) + b"\n")


def kept_cases() -> dict[str, Case]:
    """The reduced cases, by file name."""
    return {
        path.stem: msgspec.json.decode(path.read_bytes(), type=Case)
        for path in sorted((RECORDED / "cases").glob("*.json"))
    }


__all__ = [
    "RECORDED",
    "VERSIONS",
    "Case",
    "case",
    "kept_cases",
    "read",
    "recorded_file",
    "write",
    "write_case",
]
