"""The subcommands of hack/bench: each is a module of `benchlib.benches`, loaded when it is asked for."""

import argparse
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from benchlib.results import Measurement, Result


class Bench(Protocol):
    """What such a module offers. Progress goes to standard error (`clusterlib.steps.step`), nothing to
    standard output; whatever `measure` starts it also ends, on errors too."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Gives the subcommand its description, epilog and flags. The defaults are what `all` runs with."""
        ...

    def measure(self, options: argparse.Namespace) -> Measurement:
        """Runs for at most a few minutes by default. Raises TangramError or ClusterError."""
        ...

    def section(self, results: Mapping[str, Result]) -> str:
        """Its part of docs/benchmarks.md, from `## ` on, without a blank line at either end.

        `results` are by variant, "" for a bench that has none. Every figure comes from them.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of `hack/bench --help`. `in_all`: whether `hack/bench all` measures it anew. `cluster`: it has a
    flag --base-port for the real cluster that it uses."""

    help: str
    in_all: bool = True
    cluster: bool = False


# In the order of the document.
BENCHES: Mapping[str, Entry] = {
    "prepare": Entry(help="NodePrepareResources and NodeUnprepareResources at the socket"),
    "start": Entry(help="the node plugin, from the start of its process to its first ResourceSlice"),
    "memory": Entry(help="node plugin and controller, and what their memory is made of"),
    "e2e": Entry(help="a pod from its creation to its containers, on a real cluster", cluster=True),
    "mutants": Entry(help="do the tests notice small changes of the code?", in_all=False),
    "cel": Entry(help="CEL selectors beside Kubernetes' own library (needs Go)", in_all=False),
    "engine": Entry(help="one decision, beside Kubernetes' own allocator (needs Go)", in_all=False),
    "conformance": Entry(help="the engine beside Kubernetes' own allocator (needs Go)", in_all=False),
}


def load(name: str) -> Bench:
    """The module of a subcommand."""
    return cast("Bench", importlib.import_module(f"benchlib.benches.{name}"))
