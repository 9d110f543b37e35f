"""Mutation testing: what is changed, that each change is one, and what the tests make of it."""

import argparse
import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from benchlib.benches import mutants as bench
from benchlib.benches.mutants import reasons
from benchlib.results import Machine, Result, Results
from clusterlib.layout import REPOSITORY
from devtools.mutate import mutants, mutated
from devtools.mutation import SUITES, Change, Outcome, Trial, changes, sample


def _after(source: str) -> list[str]:
    return [ast.unparse(mutated(source, mutant.number)) for mutant in mutants(source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", ["a <= b"]),
        ("a is None", ["a is not None"]),
        ("a in b not in c", ["a not in b not in c"]),
        ("a and b", ["a or b"]),
        ("a + b", ["a - b"]),
        ("x |= y", ["x &= y"]),
        ("not a", ["a"]),
        ("x = 3", ["x = 4"]),
        ("x = True", ["x = False"]),
        ("a if b else c", ["a if not b else c"]),
        ("[a for a in b if c]", ["[a for a in b]"]),
        ("if a:\n    b", ["if False:\n    b"]),
        ("def f():\n    return a", ["def f():\n    return None"]),
        ("f(a)", ["pass"]),
        ("for a in b:\n    continue", ["for a in b:\n    break"]),
    ],
)
def test_what_is_changed(source: str, expected: list[str]) -> None:
    assert _after(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "x: int | None = y",
        "def f(a: b | c) -> d | e:\n    'text'",
        "Alias = a | b",
        "'a' + b",
        "@d(frozen=True)\nclass C(B):\n    'text'",
        "raise E('text')",
        "return_none = None",
    ],
)
def test_what_is_left_alone(source: str) -> None:
    assert _after(source) == []


def test_every_change_of_a_real_module_compiles_and_differs() -> None:
    path = REPOSITORY / "driver" / "tangram" / "model" / "quantity.py"
    source = path.read_text(encoding="utf-8")
    unchanged = ast.unparse(ast.parse(source))
    found = mutants(source)
    assert len(found) > 20
    for mutant in found:
        tree = mutated(source, mutant.number)
        compile(tree, str(path), "exec")
        assert ast.unparse(tree) != unchanged


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    first = sample("cel", module="", size=20, seed=3)
    assert first == sample("cel", module="", size=20, seed=3)
    assert first != sample("cel", module="", size=20, seed=4)
    assert all("lexer" in f"{change}" for change in sample("cel", module="lexer", size=5, seed=1))


def test_a_change_says_where_it_is() -> None:
    path = REPOSITORY / "driver" / "tangram" / "cel" / "lexer.py"
    (first, *_) = mutants("class A:\n    def b():\n        x = 1")
    change = Change(path, first)
    assert change.module == "tangram.cel.lexer"
    assert f"{change}" == "cel/lexer.py A.b: 1 → 2"


def test_what_survived_is_tried_again_and_counted_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    every = changes("cel", module="lexer")
    names = Counter(f"{change}" for change in every)
    twice = next(name for name, count in names.items() if count == 2)
    once, other, argued = [name for name, count in names.items() if count == 1][:3]
    monkeypatch.setattr(bench, "reasons", lambda: {argued: "spares time"})
    outcomes = {"noticed": 4, "timed out": 1, "survived": 6}
    survivors = [once, other, argued, twice, twice, "cel/lexer.py of old: 1 → 2"]
    recorded = Result(
        bench="mutants",
        variant="cel",
        parameters={"sample": 10, "seed": 1, "module": ""},
        details={"outcomes": outcomes, "survivors": survivors},
        commit="abc1234",
        measured_at="2026-01-01T00:00:00Z",
        duration_seconds=1,
        machine=Machine(cpu="", cpus=1, memory_bytes=1, kernel="", os="", load=(0, 0)),
        versions={},
    )
    monkeypatch.setattr(bench, "read_results", lambda _: Results(items=[recorded]))

    def tried(package: str, chosen: list[Change], *, jobs: int) -> list[Trial]:
        """The first of the two places with one name is not noticed."""
        seen: set[str] = set()
        trials = []
        for change in chosen:
            assert f"{change}" != argued
            survives = f"{change}" in (other, twice) and f"{change}" not in seen
            seen.add(f"{change}")
            trials.append(Trial(change, Outcome.SURVIVED if survives else Outcome.NOTICED))
        return trials

    monkeypatch.setattr(bench, "_tried", tried)
    parser = argparse.ArgumentParser()
    bench.configure(parser)
    found = bench.measure(parser.parse_args(["--package", "cel", "--again"]))
    assert found.details["outcomes"] == {"noticed": 5, "timed out": 1, "survived": 4}
    assert found.details["survivors"] == sorted([other, argued, twice, twice])
    assert found.details["first"] == {"commit": "abc1234", "outcomes": outcomes}
    assert found.goals[0].value == pytest.approx(100 * 4 / 10)
    page = bench.section({"cel": msgspec.structs.replace(recorded, details=found.details)})
    assert "| cel | 10 | 5 | 1 | 4 | 60 % | 45 %, commit abc1234 |" in page
    assert f"- `{argued}`: spares time\n" in page
    assert f"- `{other}`: **a test is missing**\n" in page


def test_reasons_are_about_changes_that_there_are() -> None:
    names = {f"{change}" for package in SUITES for change in changes(package)}
    assert not reasons().keys() - names


_NESTED = """\
LIMIT = 5

def small(
    number=7,
):
    if (
        number
        < LIMIT
    ):
        return [
            other for other in range(number)
            if other
        ]
"""


def test_a_change_knows_the_lines_of_its_statement() -> None:
    found = {mutant.before: (mutant.function, mutant.line, mutant.lines) for mutant in mutants(_NESTED)}
    condition = frozenset({6, 7, 8, 9})
    result = frozenset({10, 11, 12, 13})
    assert found == {
        "5": ("", 1, {1}),
        "7": ("small", 4, {3, 4, 5}),
        "if number < LIMIT:": ("small", 6, condition),
        "number < LIMIT": ("small", 7, condition),
        "return [other for other in range(number) if other]": ("small", 10, result),
        "for other in range(number) if other": ("small", 12, result),
    }


_TINY = """\
from functools import cache

LIMIT = 3

@cache
def unit():
    return 9 - 8

def below(number):
    return number < LIMIT

def least(result, number):
    return number if result is None else min(result, number)

def emptied(waits):
    while waits:
        waits.pop()
    return len(waits)

def forgotten():
    return LIMIT + 1
"""
_TINY_TESTS = """\
from tangram.tiny.sums import below, emptied, least, unit

def test_unit_is_there():
    assert unit() is not None

def test_unit_is_remembered():
    assert unit() == 1

def test_below():
    assert below(2)
    assert not below(3)

def test_least():
    assert least(None, 2) == 2
    assert least(2, 1) == 1

def test_emptied():
    assert emptied([1, 2]) == 0
"""


_TRY = """\
import pathlib, sys
from devtools import mutation

mutation.REPOSITORY = pathlib.Path(sys.argv[1])
mutation._LEAST_S = 1
mutation.SUITES["tiny"] = [mutation.REPOSITORY / "tests"]
changes = mutation.sample("tiny", module="", size=20, seed=1)
for trial in mutation.Suite("tiny").trials(changes, jobs=2):
    print(f"{trial.change.mutant.before}: {trial.outcome}")
"""


def test_what_the_tests_make_of_a_change(tmp_path: Path) -> None:
    package = tmp_path / "driver" / "tangram" / "tiny"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "sums.py").write_text(_TINY)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_sums.py").write_text(_TINY_TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = driver\n")
    # A process of its own: it forks, and runs pytest.
    done = subprocess.run(
        [sys.executable, "-c", _TRY, str(tmp_path)],
        env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(done.stdout.splitlines()) == [
        "1: survived",
        "3: noticed",
        "8: noticed",
        "9 - 8: noticed",
        "9: noticed",
        "LIMIT + 1: survived",
        "number < LIMIT: noticed",
        "number if result is None else min(result, number): noticed",
        "result is None: noticed",
        "return 9 - 8: noticed",
        "return LIMIT + 1: survived",
        "return len(waits): noticed",
        "return number < LIMIT: noticed",
        "return number if result is None else min(result, number): noticed",
        "waits.pop(): timed out",
    ]
