"""Where Kubernetes' answer is not ours, on purpose: docs/differences.md, "Selectors"."""

import pytest
from tests.unit.cel.support import outcome

from tangram.base.errors import CelCompileError
from tangram.cel import Environment, compile_expression


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # Upstream evaluates messages of protobuf.
        ("google.protobuf.Int32Value{value: 1} == 1", "unsupported: a message literal is not supported"),
        # Upstream changes a list that is empty when it is bound in place: the second sum has two items.
        ("cel.bind(x, [], (x + [1]).size() == 1 && (x + [1]).size() == 1)", True),
        ("cel.bind(x, [], (x + [1]).size() == 1 && (x + [1]).size() == 2)", False),
        # Upstream panics.
        ('{dyn(b"a"): 1}.size() == 1', "invalid: a value of type bytes cannot be a key of a map"),
        ('dyn(b"a") in ["a"]', "error: no such overload: in(bytes)"),
        ("[1, 2].flatten(@.type) == [1, 2]", "error: the expression costs too much to evaluate"),
        # Upstream walks maps in random order, and so gives either of the two.
        ('{"b": 1, "a": 2}.map(k, k) == ["a", "b"]', True),
    ],
)
def test_ours(expression: str, expected: bool | str) -> None:
    assert outcome(expression) == expected


@pytest.mark.parametrize(
    "expression",
    [
        # Upstream has no limit on work that costs nothing, and would run or allocate for minutes.
        (
            "lists.range(1000).exists_one(x, lists.range(1000).exists_one(y,"
            " lists.range(1000).exists_one(z, false)))"
        ),
        "lists.range(999).all(x, true) && lists.range(9999999999).size() == 1",
        '("%" + ".999999999f").format([1.5]) == ""',
        (
            'cel.bind(a, ["aaaaaaaaaa"].map(a, a+a+a+a).map(a, a+a+a+a).map(a, a+a+a+a)[0],'
            ' cel.bind(b, a.replace("a", a), cel.bind(c, b.replace("a", b), c.size() == 1)))'
        ),
    ],
)
def test_work_is_bounded(expression: str) -> None:
    environment = Environment.of("k8s-1.36")
    assert outcome(expression, environment) == "error: the expression costs too much to evaluate"


def test_depth_is_bounded() -> None:
    with pytest.raises(CelCompileError, match="nested deeper than"):
        compile_expression("(" * 120 + "true" + ")" * 120)
