"""What a measurement is on paper: `kind: BenchmarkResult`, and the file that holds the latest of each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from benchlib.series import Summary

API_VERSION = "tangram/v1alpha1"


class Goal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A bound that was set before measuring. `value` and `limit` are in `unit`."""

    name: str
    value: float
    limit: float
    unit: str
    stretch: bool = False

    @property
    def met(self) -> bool:
        return self.value <= self.limit


class Measurement(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a bench found.

    `series` are samples by name, the reference of the same run among them; `goals` are judged by the exit
    code; `details` is whatever else its section of the document shows; `parameters` say how it was run.
    Results of different `variant`s of one bench stand side by side, such as of several versions.
    """

    variant: str = ""
    parameters: dict[str, Any] = {}
    series: dict[str, Summary] = {}
    goals: list[Goal] = []
    details: dict[str, Any] = {}


class Machine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where it was measured. `load` is the 1-minute load average before and after."""

    cpu: str
    cpus: int
    memory_bytes: int
    kernel: str
    os: str
    load: tuple[float, float]


class Result(Measurement, frozen=True, kw_only=True, rename="camel"):
    """A measurement with its circumstances. `commit` ends in `-dirty` if code was changed."""

    api_version: str = API_VERSION
    kind: Literal["BenchmarkResult"] = "BenchmarkResult"
    bench: str
    commit: str
    measured_at: str
    duration_seconds: float
    machine: Machine
    versions: dict[str, str]

    @property
    def missed(self) -> list[Goal]:
        """Goals that were missed, stretch goals aside."""
        return [goal for goal in self.goals if not goal.met and not goal.stretch]


class Results(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`kind: BenchmarkResults`: the latest result of each bench and variant."""

    api_version: str = API_VERSION
    kind: Literal["BenchmarkResults"] = "BenchmarkResults"
    items: list[Result] = []

    def of(self, bench: str) -> Mapping[str, Result]:
        """By variant."""
        return {item.variant: item for item in self.items if item.bench == bench}

    def with_(self, result: Result) -> "Results":
        """With this result instead of the one of the same bench and variant."""
        others = [item for item in self.items if (item.bench, item.variant) != (result.bench, result.variant)]
        items = sorted([*others, result], key=lambda item: (item.bench, item.variant))
        return msgspec.structs.replace(self, items=items)


def read_results(path: Path) -> Results:
    """None yet where there is no file."""
    return msgspec.json.decode(path.read_bytes(), type=Results) if path.exists() else Results()


def to_json(value: Result | Results) -> str:
    """Indented, with a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
