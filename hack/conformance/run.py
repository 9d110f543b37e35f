"""Many problems, asked of the oracle and of Tangram side by side."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from clusterlib.errors import ClusterError
from conformance import engine
from conformance.compare import Verdict, agrees_with_one, difference, verdict_of_oracle
from conformance.oracle import Oracle, ensure_oracle
from conformance.problems import Problem, numbered
from conformance.recorded import Case, case
from conformance.reduce import reduced
from conformance.versions import VERSIONS, Version

_TIMEOUT_MS = 300
_SAMPLES = 240
"""Of an allocator without a defined order: four pools and two slices have 48, and Go has favourites."""
_FIRST_SAMPLES = 20
"""Most often so many are enough to meet our order."""
_TRIES = 5
"""With all samples, until one meets it: one try misses an order of 48 every eighth time."""
_CHUNK = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A problem on which the two differ, at one node, reduced."""

    number: int
    text: str
    problem: Problem
    oracle: Mapping[str, Any]
    ours: Mapping[str, Any]


@dataclass(slots=True)
class Tally:
    """Counts of answers (one per problem and node): by verdict, and by topic of the problem."""

    verdicts: Counter[str] = field(default_factory=Counter)
    topics: Counter[str] = field(default_factory=Counter)
    devices: int = 0
    """Answers of which the very devices were compared."""
    exhausted: list[int] = field(default_factory=list)
    """Problems that our search gave up where the allocator did not."""
    any_order: int = 0
    """Answers among those of an allocator without a defined order."""
    oracle_ns: int = 0
    our_ns: int = 0
    found: list[Found] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.verdicts += other.verdicts
        self.topics += other.topics
        self.devices += other.devices
        self.any_order += other.any_order
        self.exhausted += other.exhausted
        self.oracle_ns += other.oracle_ns
        self.our_ns += other.our_ns
        self.found += other.found


class Comparison:
    """A running oracle of one version beside our engine."""

    def __init__(self, version: Version, oracle: Oracle) -> None:
        self.version = version
        self._oracle = oracle

    def compare(self, problem: Problem, number: int, tally: Tally) -> None:
        """Adds what came of one problem, its first difference reduced."""
        started_ns = time.perf_counter_ns()
        ours = engine.answer(problem, self.version)
        tally.our_ns += time.perf_counter_ns() - started_ns
        theirs = self.ask(problem)
        tally.topics.update(problem.topics)
        for oracle_node, our_node in _pairs(theirs, ours):
            tally.oracle_ns += oracle_node["nanoseconds"]
            verdict = verdict_of_oracle(oracle_node)
            tally.verdicts[verdict] += 1
            tally.devices += verdict is Verdict.FITS
            text = difference(oracle_node, our_node)
            if not text:
                continue
            if our_node["exhausted"]:
                tally.exhausted.append(number)
                continue
            found = None
            if not self._is_order(problem, our_node):
                found = self.reduced(problem, number, our_node["node"])
            if found is None:
                tally.any_order += 1
                continue
            tally.found.append(found)
            return

    def ask(
        self, problem: Problem, *, samples: int = 1, timeout_ms: int = _TIMEOUT_MS
    ) -> Sequence[Mapping[str, Any]]:
        """The oracle's answers. Raises ClusterError if it cannot read the problem."""
        question = problem.question(self.version, timeoutMs=timeout_ms, samples=samples)
        answer = self._oracle.ask(question)
        if "nodes" not in answer:
            raise ClusterError(f"the oracle: {answer.get('error')}", next_step="mend the generated problem")
        nodes: Sequence[Mapping[str, Any]] = answer["nodes"]
        return nodes

    def _is_order(self, problem: Problem, ours: Mapping[str, Any]) -> bool:
        """Whether the allocator has no defined order, and gives this answer in one of its orders."""
        if self.version.ordered(problem.features):
            return False
        return any(
            node["node"] == ours["node"] and agrees_with_one(node, ours)
            for samples in (_FIRST_SAMPLES, *(_SAMPLES,) * _TRIES)
            for node in self.ask(problem, samples=samples)
        )

    def differing(
        self, problem: Problem, node: str
    ) -> tuple[str, Mapping[str, Any], Mapping[str, Any]] | None:
        """How the two differ at a node, and both answers."""
        for theirs, ours in _pairs(self.ask(problem), engine.answer(problem, self.version)):
            if ours["node"] == node and not ours["exhausted"] and (text := difference(theirs, ours)):
                return None if self._is_order(problem, ours) else (text, theirs, ours)
        return None

    def reduced(self, problem: Problem, number: int, node: str) -> Found | None:
        """The problem, reduced as long as it differs in the same way; None if it does not always differ."""
        kind = self._kind(problem, node)
        if not kind:
            return None
        small = reduced(problem, lambda smaller: self._kind(smaller, node) == kind)
        last = self.differing(small, node)
        if last is None:
            return None
        text, theirs, ours = last
        return Found(number=number, text=text, problem=small, oracle=theirs, ours=ours)

    def _kind(self, problem: Problem, node: str) -> str:
        """The first words of a difference; "" if there is none, or if the problem became senseless."""
        try:
            differs = self.differing(problem, node)
        except engine.UnreadableError:
            return ""
        return differs[0].split("[")[0] if differs else ""


def _pairs(
    theirs: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    if [node["node"] for node in theirs] != [node["node"] for node in ours]:
        raise ClusterError(
            f"answers for the nodes {[node['node'] for node in ours]} instead of "
            f"{[node['node'] for node in theirs]}",
            next_step="see which side leaves out a node",
        )
    yield from zip(theirs, ours, strict=True)


def run(
    version: Version,
    *,
    seed: int,
    cases: int,
    jobs: int,
    most_found: int,
    progress: Callable[[str], None] = lambda _: None,
    tell: Callable[[Found], None] = lambda _: None,
) -> Tally:
    """Cases 0 … `cases` - 1 of `seed`, on `jobs` processes; ends early after so many differences.

    `tell` gets each difference as it is found, `progress` a text now and then.
    """
    ensure_oracle(version)
    total, done = Tally(), 0
    work = iter(range(0, cases, _CHUNK))
    with ProcessPoolExecutor(jobs) as pool:
        chunk = partial(_chunk, version.kubernetes, seed, cases)
        running: set[Future[Tally]] = {
            pool.submit(chunk, first) for first, _ in zip(work, range(2 * jobs), strict=False)
        }
        while running:
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                tally = future.result()
                for found in tally.found:
                    tell(found)
                total.add(tally)
                done += _CHUNK
                first = next(work, None)
                if first is not None and len(total.found) < most_found:
                    running.add(pool.submit(chunk, first))
            progress(f"{min(done, cases)} of {cases} problems, {len(total.found)} differ")
    return total


def record(version: Version, *, seed: int, cases: int) -> Iterator[Case]:
    """The oracle's answers to these cases; of an allocator without a defined order, those of many samples."""
    with Oracle(ensure_oracle(version)) as oracle:
        comparison = Comparison(version, oracle)
        for number in range(cases):
            problem = numbered(seed, number, version)
            samples = 1 if version.ordered(problem.features) else _SAMPLES
            yield case(version, problem, comparison.ask(problem, samples=samples, timeout_ms=1000))


_comparisons: dict[str, Comparison] = {}


def _chunk(kubernetes: str, seed: int, cases: int, first: int) -> Tally:
    """In a worker process, which keeps its oracle until it ends."""
    if kubernetes not in _comparisons:
        version = VERSIONS[kubernetes]
        _comparisons[kubernetes] = Comparison(version, Oracle(ensure_oracle(version)))
    comparison = _comparisons[kubernetes]
    tally = Tally()
    for number in range(first, min(first + _CHUNK, cases)):
        comparison.compare(numbered(seed, number, comparison.version), number, tally)
    return tally
