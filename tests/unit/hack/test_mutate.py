"""Mutation testing: what is changed, and that each change is one."""

import ast

import pytest

from clusterlib.layout import REPOSITORY
from devtools.mutate import mutants, mutated
from devtools.mutation import Change, sample


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
    (first, *_) = mutants("x = 1")
    change = Change(path, first)
    assert change.module == "tangram.cel.lexer"
    assert f"{change}" == "cel/lexer.py:1: 1 → 2"
