"""The language itself.

Expected outcomes are those of Kubernetes' own CEL library.
"""

import pytest
from tests.unit.cel.support import outcome

Cases = list[tuple[str, bool | str]]

LITERALS: Cases = [
    ("1 == 1", True),
    ("0x1F == 31", True),
    ("-0x1F == -31", True),
    ("007 == 7", True),
    ("-9223372036854775808 < -9223372036854775807", True),
    ("9223372036854775807 > 9223372036854775806", True),
    ("5u == 5u", True),
    ("0x5U == 5u", True),
    ("18446744073709551615u > 0u", True),
    ("1.5 == 1.5", True),
    (".5 == 0.5", True),
    ("1e3 == 1000.0", True),
    ("1E+3 == 1000.0", True),
    ("1.5e-3 == 0.0015", True),
    ("1e-999 == 0.0", True),
    ("true", True),
    ("false", False),
    ("null == null", True),
    ("\"a\" == 'a'", True),
    ('\'a"b\' == "a\\"b"', True),
    (r'"\x41\u0042\U00000043\104" == "ABCD"', True),
    ("\"\\t\\n\\r\\a\\b\\f\\v\\\\\\?\\'\\\"\\`\" == '\\t\\n\\r\\a\\b\\f\\v\\\\\\?\\'\\\"\\`'", True),
    (r'r"a\n" == "a\\n"', True),
    ("R'\\' == \"\\\\\"", True),
    ("'''a'b''' == \"a'b\"", True),
    ('"""a"b""" == \'a"b\'', True),
    ('r"""a\\""" == "a\\\\"', True),
    (r'"é" == "\u00e9"', True),
    ("b\"ab\" == b'ab'", True),
    (r'b"\xff\377" == b"\377\xff"', True),
    (r'b"é" == b"\xc3\xa9"', True),
    ("br'\\n' == b\"\\\\n\"", True),
    ('B"a" == b"a"', True),
    ("1 == 1 // a comment", True),
    ("[1, 2,] == [1, 2]", True),
    ('{"a": 1,} == {"a": 1}', True),
    ("[] == []", True),
    ("{} == {}", True),
]

EQUALITY: Cases = [
    ("1 == 2", False),
    ("1 != 2", True),
    ('"a" == "b"', False),
    ('"a" != "b"', True),
    ("true == true", True),
    ("null != null", False),
    ("dyn(1) == dyn(1.0)", True),
    ("dyn(1u) == dyn(1)", True),
    ("dyn(1u) == dyn(1.0)", True),
    ("dyn(1) == dyn(true)", False),
    ("dyn(0) == dyn(false)", False),
    ('dyn(1) == dyn("1")', False),
    ("dyn(1) == dyn(null)", False),
    ('dyn("a") == dyn(b"a")', False),
    ('dyn("a") != dyn(1)', True),
    ("dyn(9007199254740993) == dyn(9007199254740992.0)", True),
    ("dyn(9223372036854775807) == dyn(9223372036854775808.0)", True),
    ("0.0 / 0.0 == 0.0 / 0.0", False),
    ("0.0 / 0.0 != 0.0 / 0.0", True),
    ("0.0 == -0.0", True),
    ("[1, 2] == [1, 2]", True),
    ("[1] == [1, 2]", False),
    ("[[1, 2]] == [[1, 2]]", True),
    ("dyn([1]) == dyn([1.0])", True),
    ('[dyn(1), dyn("a")] == [dyn(1.0), dyn("a")]', True),
    ('{"a": [1]} == {"a": [1]}', True),
    ('{"a": 1} == {"b": 1}', False),
    ('{"a": 1} != {"a": 2}', True),
    ("dyn({1: 2}) == dyn({1u: 2})", True),
    ("dyn([]) == dyn({})", False),
]

ORDER: Cases = [
    ("1 < 2", True),
    ("2 <= 2", True),
    ("1.5 > 1", True),
    ("1 >= 0.5", True),
    ("1u <= 2", True),
    ("dyn(1u) < dyn(-1)", False),
    ("dyn(9223372036854775807) < dyn(9223372036854775808.0)", False),
    ('"a" < "aa"', True),
    ('"é" < "z"', False),
    ('b"a" < b"b"', True),
    ("false < true", True),
    ("0.0 / 0.0 < 1.0", "error: NaN has no order"),
    ('dyn(1) < dyn("a")', "error: no such overload: int < string"),
    ("dyn(null) < dyn(1)", "error: no such overload: null < int"),
    ("dyn([1]) < dyn([2])", "error: no such overload: list < list"),
    ("1 < 2 == true", True),
]

ARITHMETIC: Cases = [
    ("2 + 3 * 4 == 14", True),
    ("(2 + 3) * 4 == 20", True),
    ("10 - 3 - 2 == 5", True),
    ("10 / 2 / 5 == 1", True),
    ("-1 - -1 == 0", True),
    ("- 5 == -5", True),
    ("--5 == 5", True),
    ("-(-5) == 5", True),
    ("-7 / 2 == -3", True),
    ("7 / -2 == -3", True),
    ("-7 % 2 == -1", True),
    ("7 % -2 == 1", True),
    ("9223372036854775807 + 1 == 0", "error: integer overflow"),
    ("-9223372036854775808 - 1 == 0", "error: integer overflow"),
    ("9223372036854775807 * 2 == 0", "error: integer overflow"),
    ("-9223372036854775808 / -1 == 0", "error: integer overflow"),
    ("-9223372036854775808 % -1 == 0", "error: integer overflow"),
    ("-(-9223372036854775808) == 0", "error: integer overflow"),
    ("1 / 0 == 1", "error: division by zero"),
    ("1 % 0 == 1", "error: modulus by zero"),
    ("1.5 + 1.5 == 3.0", True),
    ("0.0 / 0.0 != 1.0", True),
    ("(0.0 / 0.0) / 0.0 != 1.0", True),
    ("1.0 / 0.0 > 1e308", True),
    ("-1.0 / 0.0 < -1e308", True),
    ("1.0 / -0.0 < -1e308", True),
    ("1e308 * 10.0 > 1e308", True),
    ("5u % 3u == 2u", True),
    ("7u / 2u == 3u", True),
    ("5u / 0u == 2u", "error: division by zero"),
    ("1u - 2u == 0u", "error: unsigned integer overflow"),
    ("18446744073709551615u + 1u == 0u", "error: unsigned integer overflow"),
    ("5u * 18446744073709551615u == 2u", "error: unsigned integer overflow"),
    ("-dyn(1u) == 1", "error: no such overload: -(uint)"),
    ("dyn(1u) + 1 == 2", "error: no such overload: +(uint, int)"),
    ("dyn(1) + 1.0 == 2.0", "error: no such overload: +(int, double)"),
    ('"a" + "b" == "ab"', True),
    ('b"a" + b"b" == b"ab"', True),
    ("[1] + [2] == [1, 2]", True),
    ('dyn("a") + "b" == "ab"', True),
    ('dyn("a") + 1 == 2', "error: no such overload: +(string, int)"),
]

LOGIC: Cases = [
    ("true && true", True),
    ("true && false", False),
    ("true || false", True),
    ("!true", False),
    ("!false && true", True),
    ("!!true", True),
    ("true || 1 / 0 == 1", True),
    ("1 / 0 == 1 || true", True),
    ("false && 1 / 0 == 1", False),
    ("1 / 0 == 1 && false", False),
    ("true && 1 / 0 == 1", "error: division by zero"),
    ("1 / 0 == 1 || false", "error: division by zero"),
    ("1 / 0 == 1 || 1 / 0 == 1 || true", True),
    ("1 / 0 == 1 && 1 / 0 == 1 && false", False),
    ("(1 / 0 == 1 || false) && false", False),
    ("dyn(1) || true", True),
    ("dyn(1) && false", False),
    ("dyn(1) || false", "error: no such overload: an operand of || is int, not bool"),
    ('true && dyn("a")', "error: no such overload: an operand of && is string, not bool"),
    ("!dyn(1)", "error: no such overload: an operand of ! is int, not bool"),
    ("!(1 / 0 == 1)", "error: division by zero"),
    ("true && false || true", True),
    ("true || false && false", True),
    ("true ? true : false", True),
    ("false ? true : false", False),
    ("true ? true : 1 / 0 == 1", True),
    ("1 / 0 == 1 ? true : false", "error: division by zero"),
    ("dyn(1) ? true : false", "error: no such overload: an operand of ?: is int, not bool"),
    ("true ? true : false ? true : false", True),
    ('(true ? 1 : dyn("a")) == 1', True),
    ('(false ? "a" : "b") == "b"', True),
]

STRINGS: Cases = [
    ('size("abc") == 3', True),
    ('"héé".size() == 3', True),
    ('size("😀") == 1', True),
    ('size("") == 0', True),
    ('"abc".startsWith("a")', True),
    ('"abc".startsWith("")', True),
    ('"abc".endsWith("bc")', True),
    ('"abc".endsWith("a")', False),
    ('"abc".contains("b")', True),
    ('"abc".contains("x")', False),
    ('"ABCé".lowerAscii() == "abcé"', True),
    ('"aÄc".upperAscii() == "AÄC"', True),
    ('dyn(1).startsWith("a")', "error: no such overload: startsWith(int, string)"),
    ('"abc".contains(dyn(1))', "error: no such overload: contains(string, int)"),
    (r'size(b"h\xc3") == 2', True),
    ('"x" in ["x", "y"]', True),
    ('"z" in ["x", "y"]', False),
]


@pytest.mark.parametrize(("expression", "expected"), LITERALS)
def test_literals(expression: str, expected: bool | str) -> None:
    assert outcome(expression) == expected


@pytest.mark.parametrize(("expression", "expected"), EQUALITY)
def test_equality(expression: str, expected: bool | str) -> None:
    assert outcome(expression) == expected


@pytest.mark.parametrize(("expression", "expected"), ORDER)
def test_order(expression: str, expected: bool | str) -> None:
    assert outcome(expression) == expected


@pytest.mark.parametrize(("expression", "expected"), ARITHMETIC)
def test_arithmetic(expression: str, expected: bool | str) -> None:
    assert outcome(expression) == expected


@pytest.mark.parametrize(("expression", "expected"), LOGIC)
def test_logic(expression: str, expected: bool | str) -> None:
    assert outcome(expression) == expected


@pytest.mark.parametrize(("expression", "expected"), STRINGS)
def test_strings(expression: str, expected: bool | str) -> None:
    assert outcome(expression) == expected
