"""Expressions made to hurt: they end, within the budget, in an error that says so.

None of these tests measures time. Each would run for minutes to ages, or out of memory or stack, if the limit
that it is about did not hold.
"""

import pytest
from tests.unit.cel.support import DEVICE

from tangram.base.errors import CelBudgetError, CelCompileError
from tangram.cel import Program, compile_expression
from tangram.cel.parser import MAXIMUM_LENGTH
from tangram.cel.program import Programs
from tangram.cel.values import MAXIMUM_WORK


def ones(count: int) -> str:
    return "[" + ", ".join(["1"] * count) + "]"


def spent(text: str) -> int:
    """The units that an expression costs."""
    return compile_expression(text).answer(DEVICE)[1].cost


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("x" * (MAXIMUM_LENGTH + 1), "longer than 10240 bytes"),
        ("'" + "é" * (MAXIMUM_LENGTH // 2) + "' == ''", "longer than 10240 bytes"),
        ("(" * 10_000, "nested deeper than"),
        ("(" * 5_000 + "true" + ")" * 5_000, "nested deeper than"),
        ("[" * 10_000, "nested deeper"),
        ("{1:" * 3_000, "nested deeper"),
        ("device" + ".a" * 5_000, "nested deeper"),
        ("a" + "[0]" * 3_000, "nested deeper"),
        ("1" + " + 1" * 2_500 + " == 1", "nested deeper"),
        ("a ? b : " * 1_200 + "c", "nested deeper"),
        ("size(" * 2_000, "nested deeper"),
        ("'''" * 3_000, "expected the end of the expression"),
        ('"""x' + "'''" * 3_000, "a string begins here"),
        ("9" * 10_000 + " == 1", "does not fit 64 bits"),
        ("0x" + "f" * 10_000 + " == 1", "does not fit 64 bits"),
        ("9" * 10_000 + "u == 1u", "does not fit 64 bits"),
        ("9" * 10_000 + ".0 == 1.0", "does not fit a double"),
        ("1e" + "9" * 10_000 + " == 1.0", "does not fit a double"),
        ("a" * 10_000, "there is no variable"),
        ("a" * 5_000 + "()", "there is no function"),
        ('int("' + "9" * 9_000 + '") == 1', "does not convert to int"),
        (r"'a'.matches('\\pL{500}')", "the pattern is too large"),
        (" && ".join(f"'a'.matches('[^{c}]{{999}}')" for c in "abcdefgh"), "the pattern is too large"),
        ('double("' + "9" * 9_000 + '") == 1.0', "does not convert to double"),
    ],
)
def test_refused_when_compiling(text: str, cause: str) -> None:
    with pytest.raises(CelCompileError) as caught:
        compile_expression(text)
    assert cause in caught.value.cause
    assert len(str(caught.value)) < 20_000


@pytest.mark.parametrize(
    "text",
    [
        f"{ones(1600)}.all(x, {ones(1600)}.all(y, x == y))",
        f"{ones(500)}.all(a, {ones(500)}.all(b, {ones(500)}.all(c, {ones(500)}.all(d, a + b + c + d > 0))))",
        f"{ones(1600)}.map(x, {ones(1600)}.map(y, x)).size() == 0",
        f"{ones(1600)}.filter(x, {ones(1600)}.exists(y, x != y)).size() == 0",
        f"{ones(1600)}.exists_one(x, {ones(1600)}.exists_one(y, x != y))",
        # An error or a true operand beside the loop must not hide that it costs too much.
        f"{ones(1600)}.all(x, {ones(1600)}.all(y, x == y)) || true",
        f"[1].exists(z, {ones(1600)}.all(x, {ones(1600)}.all(y, x == y))) || 1 / 0 == 1",
        f"cel.bind(a, {ones(1600)}.all(x, {ones(1600)}.all(y, x == y)), a || true)",
        # Doubling: strings, lists, and lists that share their members.
        '["' + "x" * 4_000 + '"]' + ".map(a, a + a)" * 40 + ".size() == 1",
        "[[1]]" + ".map(a, a + a)" * 40 + ".size() == 1",
        "[[1]]" + ".map(a, [a, a])" * 40 + " == [[1]]" + ".map(a, [a, a])" * 40,
        "[{1: 1}]" + ".map(a, {1: a, 2: a})" * 40 + " == [{1: 1}]" + ".map(a, {1: a, 2: a})" * 40,
        # Long strings: made once, compared, searched and copied many times.
        *(
            f'cel.bind(s, ["{"ab" * 250}"].map(a, a+a+a+a+a+a+a+a).map(a, a+a+a+a+a+a+a+a)[0], '
            f'cel.bind(t, s + "a", cel.bind(u, s + "a", {ones(700)}.all(x, {ones(700)}.all(y, {body})))))'
            for body in ("t == u", "t != s", "t <= u", 's.contains("b")', "t in [u]", "s.lowerAscii() != t")
        ),
        # Walks over members that are shared: each list is small, what it holds is not.
        *(
            f"[[]]{'.map(a, [a, a])' * 38}{end}"
            for end in (
                ".flatten(100).size() == 0",
                ".indexOf(dyn(1)) == 0",
                ".includes(dyn(1))",
                ".lastIndexOf(dyn([])) == 0",
                f" == [[]]{'.map(a, [a, a])' * 38}",
            )
        ),
        *(f"dyn([[]]{'.map(a, [a, a])' * 38}).{call}" for call in ("isSorted()", "max() == 1", "min() == 1")),
        f"'%s'.format([[[1]]{'.map(a, [a, a])' * 38}]) == ''",
        # What makes many or large things of little, again and again.
        *(
            f'cel.bind(s, ["{"ab," * 300}"].map(a, {"+".join("a" * 10)})[0], {ones(1500)}.all(x, {body}))'
            for body in (
                's.findAll("[a-z]").size() > 0',
                "s.split(',').size() > 0",
                "s.replace(',', s).size() > 0",
                "[s, s, s].join(s).size() > 0",
                "'%s'.format([s.split(',')]) != ''",
                "s.matches('(a|b|,)*a(a|b|,){20}c') || true",
                "s.indexOf(s.substring(0, 90) + 'x') < 0",
                "s.lastIndexOf('x' + s.substring(0, 4000)) < 0",
                "isURL('http://a/' + s)",
                "url('http://a/?' + s).getQuery().size() > 0",
                "format.dns1123Subdomain().validate(s).hasValue()",
                "strings.quote(s) != ''",
            )
        ),
        f'{ones(1500)}.all(x, {ones(1500)}.all(y, "%.999f".format([1.5]) != ""))',
        f'{ones(1500)}.all(x, {ones(1500)}.all(y, !"a".matches("[^b]{{999}}" + string(x))))',
        f'{ones(1500)}.all(x, {ones(1500)}.all(y, url("https://a/b").getHost() == "a"))',
        "lists.range(1400).map(x, lists.range(1400).map(y, {y: x})).size() == 0",
    ],
)
def test_stopped_by_the_budget(text: str) -> None:
    with pytest.raises(CelBudgetError, match="costs too much"):
        compile_expression(text).evaluate(DEVICE)


def test_texts_have_at_most_a_million_characters() -> None:
    hundred = "a" * 100

    def joined(count: int, separator: str = "") -> str:
        return (
            f'cel.bind(x, "{hundred}".replace("a", "{hundred}"), '
            f'lists.range({count}).map(i, x).join("{separator}").size())'
        )

    assert compile_expression(f"{joined(90)} == 900000").evaluate(DEVICE)
    assert compile_expression(f"{joined(90, hundred)} == 908900").evaluate(DEVICE)
    for text in (joined(101), joined(90, hundred * 20)):
        with pytest.raises(CelBudgetError, match="costs too much"):
            compile_expression(f"{text} > 0").evaluate(DEVICE)


def test_work_does_not_depend_on_what_is_remembered() -> None:
    text = f"{ones(40)}.all(x, {ones(40)}.all(y, x == y && 'a'.matches('a' + string(x)) == false))"
    first = compile_expression(text).answer(DEVICE)[1]
    again = Program(text).answer(DEVICE)[1]
    assert again == first
    assert 0 < first.work < MAXIMUM_WORK


def test_programs_are_forgotten_before_they_fill_the_memory() -> None:
    programs = Programs(Program, nodes=300)
    texts = [f"{ones(20)}.size() == {i}" for i in range(20)]
    many = [programs.get(text, None) for text in texts]
    assert all(isinstance(program, Program) for program in many)
    assert programs.get(texts[-1], None) is many[-1]
    assert programs.get(texts[0], None) is not many[0]
    wrong = programs.get("1 +", None)
    assert isinstance(wrong, CelCompileError)
    assert programs.get("1 +", None) is wrong
    with pytest.raises(CelCompileError):
        compile_expression("1 +")


def test_long_and_wide_but_honest() -> None:
    many = ", ".join(f'"GPU-{i:08x}-0000-0000-0000-000000000000"' for i in range(200))
    assert not compile_expression(f"device.driver in [{many}]").evaluate(DEVICE)
    assert compile_expression(" || ".join(["false"] * 1000 + ["true"])).evaluate(DEVICE)
    assert compile_expression(" && ".join(['device.driver == "gpu.resource.admin"'] * 240)).evaluate(DEVICE)
    assert compile_expression("{" + ", ".join(f"{i}: 1" for i in range(1000)) + "}.size() == 1000").evaluate(
        DEVICE
    )
    assert compile_expression("!" * 10_000 + "true").evaluate(DEVICE)
    assert compile_expression("-" * 10_000 + "1 == 1").evaluate(DEVICE)
    assert compile_expression("(" * 49 + "true" + ")" * 49).evaluate(DEVICE)
    assert compile_expression("1" + " + 1" * 47 + " == 48").evaluate(DEVICE)


def test_cost_grows_with_turns_not_with_devices() -> None:
    one, two = spent(f"{ones(100)}.all(x, x > 0)"), spent(f"{ones(200)}.all(x, x > 0)")
    assert 1.8 < two / one < 2.2
