"""Comparing many problems: what differs is found, reduced and counted. The oracle is our own engine, bent."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from clusterlib.errors import ClusterError
from conformance import engine
from conformance.compare import Verdict
from conformance.oracle import Oracle
from conformance.problems import Problem, numbered
from conformance.recorded import Case, case, kept_cases, read, write, write_case
from conformance.run import Comparison, Tally
from conformance.versions import VERSIONS, Version

Node = dict[str, Any]


class BentOracle:
    """Answers as the engine does, with `bend` applied to each sample of each node."""

    def __init__(self, version: Version, bend: Callable[[Node, int], Node]) -> None:
        self._version = version
        self._bend = bend

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        if not question["items"]:
            return {"error": "nothing there"}
        problem = Problem(items=tuple(question["items"]), features=tuple(question["features"]))
        nodes = []
        for ours in engine.answer(problem, self._version):
            claims = ours["claims"]
            fits = all(claim["allocation"] for claim in claims) and all(
                not claim["error"] for claim in claims
            )
            allocations = [claim["allocation"] for claim in claims] if fits else None
            node = {"node": ours["node"], "fits": fits, "allocations": allocations, "nanoseconds": 5}
            if any(claim["error"] for claim in claims):
                node |= {"error": "fatal", "scope": "pod"}
            samples = [self._bend(node, number) for number in range(question.get("samples", 1))]
            nodes.append({**samples[0], "others": samples[1:]})
        return {"nodes": nodes}


def comparison(version: Version, bend: Callable[[Node, int], Node]) -> Comparison:
    return Comparison(version, cast("Oracle", BentOracle(version, bend)))


def straight(node: Node, _: int) -> Node:
    return node


def mistaken(node: Node, _: int) -> Node:
    """Says that what needs nic.example.com does not fit."""
    results = [result for each in node["allocations"] or () for result in each["devices"].get("results", ())]
    used = any(result["driver"] == "nic.example.com" for result in results)
    return {**node, "fits": False, "allocations": None} if used else node


VERSION = VERSIONS["1.37"]


def test_an_engine_agrees_with_itself() -> None:
    tally = Tally()
    for number in range(60):
        comparison(VERSION, straight).compare(numbered(9, number, VERSION), number, tally)
    assert tally.found == []
    assert tally.any_order == 0
    assert {Verdict.FITS, Verdict.UNFIT, Verdict.FATAL} <= set(tally.verdicts)
    assert tally.devices == tally.verdicts[Verdict.FITS]
    assert tally.oracle_ns == 5 * tally.verdicts.total()
    assert sum(tally.topics.values()) >= 60


def test_a_difference_is_found_and_reduced() -> None:
    tally = Tally()
    for number in range(60):
        if not tally.found:
            comparison(VERSION, mistaken).compare(numbered(9, number, VERSION), number, tally)
    (found,) = tally.found
    assert found.text == "fits instead of does not fit"
    assert found.oracle["fits"] is False
    specs = [item["spec"] for item in found.problem.items if item["kind"] == "ResourceSlice"]
    assert "nic.example.com" in {spec["driver"] for spec in specs}
    assert [len(spec["devices"]) for spec in specs] in ([1], [1, 1])
    assert len(found.problem.items) <= 6


def test_one_of_many_orders_will_do_where_there_is_none() -> None:
    def unsteady(node: Node, number: int) -> Node:
        return node if number == 3 else mistaken(node, number)

    version = VERSIONS["1.35"]
    tally = Tally()
    for number in range(60):
        comparison(version, unsteady).compare(numbered(9, number, version), number, tally)
    assert tally.found == []
    assert tally.any_order > 0


def test_what_the_oracle_cannot_read_is_an_error() -> None:
    with pytest.raises(ClusterError, match="nothing there"):
        comparison(VERSION, straight).ask(Problem(items=(), features=()))


def test_tallies_add_up() -> None:
    one, two = Tally(), Tally()
    for number, tally in enumerate((one, two)):
        comparison(VERSION, straight).compare(numbered(9, number, VERSION), number, tally)
    answers = one.verdicts.total() + two.verdicts.total()
    one.add(two)
    assert one.verdicts.total() == answers


def test_cases_read_back_what_was_written(tmp_path: Any) -> None:
    made = numbered(9, 1, VERSION)
    nodes = [{"node": "n1", "fits": False, "steps": 3, "nanoseconds": 7}]
    kept = case(VERSION, made, nodes, note="a note")
    assert kept.problem == made
    assert kept.nodes == ({"node": "n1", "fits": False},)
    write(tmp_path / "cases.xz", [kept, kept])
    assert list(read(tmp_path / "cases.xz")) == [kept, kept]
    write_case(tmp_path / "one.json", kept)
    assert '"note": "a note"' in (tmp_path / "one.json").read_text()


def test_kept_cases_say_what_they_are_kept_for() -> None:
    for name, kept in kept_cases().items():
        assert isinstance(kept, Case)
        assert name.startswith(f"{kept.version}-")
        assert kept.note.endswith(".")
