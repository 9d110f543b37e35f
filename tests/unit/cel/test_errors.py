"""Expressions that do not compile: where the error is, and what it says."""

import pytest

from tangram.base.errors import CelCompileError, CelNotSupportedError, UsageError
from tangram.cel import compile_expression

SYNTAX: list[tuple[str, int, str]] = [
    ("", 1, "expected a value, found the end of the expression"),
    ("   ", 4, "found the end of the expression"),
    ("true &&", 8, "found the end of the expression"),
    ("&& true", 1, "found '&&'"),
    ("(true", 6, "expected ')', found the end of the expression"),
    ("true)", 5, "expected the end of the expression, found ')'"),
    ("()", 2, "found ')'"),
    ("true true", 6, "expected the end of the expression"),
    ("true & false", 6, "'&' is not an operator, '&&' is"),
    ("true | false", 6, "'||' is"),
    ("true = false", 6, "'==' is"),
    ("true; false", 5, "';' has no meaning here"),
    ("# comment", 1, "'#' has no meaning here"),
    ("a ? b", 6, "expected ':'"),
    ("true ? true ? true : true : true", 13, "expected ':', found '?'"),
    ("[1 2] == []", 4, "expected ']', found '2'"),
    ("[,,] == []", 3, "expected ']', found ','"),
    ("device.`a-b` == 1", 7, "device has no field"),
    ("a.``", 3, "'`' has no meaning here"),
    ("{1} == {}", 3, "expected ':'"),
    ('{"a" 1} == {}', 6, "expected ':', found '1'"),
    ("size([1],) == 1", 10, "expected a value, found ')'"),
    ("device.", 8, "expected a name"),
    ("device..driver == ''", 8, "expected a name, found '.'"),
    ("device.true == 1", 8, "expected a name, found 'true'"),
    ("device.in == 1", 8, "expected a name, found 'in'"),
    ("device.1 == 1", 7, "expected the end of the expression, found '.1'"),
    ("[1]() == 1", 4, "expected the end of the expression, found '('"),
    ("1. == 1.0", 4, "expected a name"),
    ("0X1f == 31", 2, "found 'X1f'"),
    ("1f == 1.0", 2, "found 'f'"),
    ("9223372036854775808 == 0", 1, "9223372036854775808 does not fit 64 bits"),
    ("-9223372036854775809 == 0", 2, "does not fit 64 bits"),
    ("18446744073709551616u == 0u", 1, "does not fit 64 bits"),
    ("1e999 == 1.0", 1, "1e999 does not fit a double"),
    ('"abc', 1, "a string begins here that does not end on its line"),
    ("'a\nb' == 'a'", 1, "a string begins here"),
    (r"'\z' == 'z'", 1, r"there is no escape sequence \z"),
    (r"'\400' == 'b'", 1, r"no escape sequence \4"),
    (r"'\x4' == 'b'", 1, r"no escape sequence \x"),
    (r"'\uD800' == 'b'", 1, "is not a Unicode character"),
    (r"'\U00110000' == 'b'", 1, "is not a Unicode character"),
    (r"b'\u0041' == b'A'", 1, "is not allowed in bytes"),
    ("if == 1", 1, "'if' is a reserved word"),
    ("1 == for", 6, "'for' is a reserved word"),
    ("has(device)", 1, "has() takes one field, as in has(a.b)"),
    ('has(device.attributes["a"])', 1, "has() takes one field"),
    ("has(device.driver, 1)", 1, "has() takes one field"),
    ("[1].all(1, true)", 5, "the first argument of all() must be a simple name"),
    ("[1].exists(x.y, true)", 5, "must be a simple name"),
    ("[1].filter(x)", 5, "wrong number of arguments: write items.filter(x, x > 1)"),
    ("[1].map(x, 1, 2, 3) == []", 5, "wrong number of arguments: write items.map(x, x + 1)"),
    ("cel.bind(a, 2)", 5, "wrong number of arguments: write cel.bind(x, value, x > 1)"),
    ("cel.bind(1, 2, true)", 5, "the first argument of bind() must be a simple name"),
]

TYPES: list[tuple[str, int, str]] = [
    ("1", 1, "the expression must evaluate to bool, not int"),
    ('"abc"', 1, "not string"),
    ("device.attributes", 7, "not map(string, map(string, dyn))"),
    ("optional.of(1)", 10, "not optional(int)"),
    ("device.driver == 1", 15, "no such overload: string == int"),
    ("1 == 1.0", 3, "no such overload: int == double"),
    ("1 == 1u", 3, "no such overload: int == uint"),
    ("null == device.driver", 6, "no such overload: null == string"),
    ('1 < "a"', 3, "no such overload: int < string"),
    ("1 < 2 < 3", 7, "no such overload: bool < int"),
    ("[1] < [2]", 5, "no such overload: list(int) < list(int)"),
    ('"a" + 1 == "b"', 5, "no such overload: string + int"),
    ('true || "a" + 1 == "b"', 13, "no such overload: string + int"),
    ('[1] + ["a"] == [1]', 5, "no such overload: list(int) + list(string)"),
    ("7.0 % 2.0 == 1.0", 5, "no such overload: double % double"),
    ("1u + 1 == 2u", 4, "no such overload: uint + int"),
    ('-"a" == "b"', 1, "no such overload: -(string)"),
    ("-1u == 1u", 1, "no such overload: -(uint)"),
    ("!1", 1, "no such overload: !(int)"),
    ("1 && true", 1, "an operand of && must be bool, not int"),
    ('false || "a"', 10, "an operand of || must be bool, not string"),
    ("1 ? true : false", 1, "the condition of ?: must be bool, not int"),
    ('true ? 1 : "a"', 6, "the two results of ?: must be of one type, not int and string"),
    ("[1, 'a'] == []", 5, "the items of a list must be of one type, not int and string"),
    ("{'a': 1, 1: 2} == {}", 10, "the keys of a map must be of one type, not string and int"),
    ("{'a': 1, 'b': 'c'} == {}", 15, "the values of a map must be of one type, not int and string"),
    ("{b'a': 1} == {}", 1, "a value of type bytes cannot be a key of a map"),
    ("{'a': 1}[b'a'] == 1", 9, "no such overload: map(string, int)[bytes]"),
    ("{null: 1}[null] == 1", 11, "a value of type null is no key or index"),
    ("1 in [1.0]", 3, "no such overload: int in list(double)"),
    ("1 in 2", 3, "no such overload: int in int"),
    ('"x" in "xyz"', 5, "no such overload: string in string"),
    ('"abc"[0] == "a"', 6, "no such overload: string[int]"),
    ("[1][0][0] == 1", 7, "no such overload: int[int]"),
    ("[1][1.0] == 1", 4, "no such overload: list(int)[double]"),
    ('{"a": 1}[1] == 1', 9, "no such overload: map(string, int)[int]"),
    ("device.attributes[1].x == 1", 18, "no such overload: map(string, map(string, dyn))[int]"),
    ("device.foo == 1", 7, "device has no field 'foo'; its fields are driver, attributes, capacity"),
    ("device.atributes.a.b == 1", 7, "did you mean 'attributes'?"),
    ("device.driver.foo == 1", 14, "a value of type string has no fields"),
    ("has(device.driver.foo)", 18, "a value of type string has no fields"),
    ("true.foo", 5, "a value of type bool has no fields"),
    ('device.capacity["a"].memory.foo == 1', 28, "a value of type quantity has no fields"),
    (
        'device.capacity["a"].memory == "80Gi"',
        29,
        'no such overload: quantity == string; write quantity("…")',
    ),
    (
        'device.capacity["a"].memory > quantity("1")',
        29,
        "no such overload: quantity > quantity; use isLessThan(), isGreaterThan() or compareTo()",
    ),
    ('quantity("1").isLessThan("2")', 15, "no such overload: isLessThan(quantity, string)"),
    ("quantity(1) == quantity('1')", 1, "no such overload: quantity(int)"),
    ("foo", 1, "there is no variable 'foo'"),
    ("devise.driver == ''", 1, "there is no variable 'devise'; did you mean 'device'?"),
    ("size == 1", 1, "there is no variable 'size'"),
    ("[1].all(x, x == 1) && x == 1", 23, "there is no variable 'x'"),
    ("foo(1) == 1", 1, "there is no function 'foo'"),
    ('"a".startWith("a")', 5, "there is no function 'startWith'; did you mean 'startsWith'?"),
    ('startsWith("a", "b")', 1, "'startsWith' is called on a value; write value.startsWith(…)"),
    ('"1".quantity() == quantity("1")', 5, "'quantity' is not called on a value; write quantity(…)"),
    ('"a".startsWith(1)', 5, "no such overload: startsWith(string, int)"),
    ("size(1) == 1", 1, "no such overload: size(int)"),
    ("size() == 1", 1, "no such overload: size()"),
    ("int(true) == 1", 1, "no such overload: int(bool)"),
    ('"abc".all(x, true)', 7, "a macro needs a list or a map, not string"),
    ("[1].all(x, 1)", 12, "an operand of && must be bool, not int"),
    ("[1].map(x, x, 1) == []", 12, "the condition of ?: must be bool, not int"),
    ('int("0x5") == 5', 1, "'0x5' does not convert to int"),
    ('int("1_0") == 10', 1, "does not convert to int"),
    ('int(" 5") == 5', 1, "does not convert to int"),
    ("int(1e19) == 1", 1, "integer overflow"),
    ('double("1e999") > 1.0', 1, "does not convert to double"),
    ('bool("yes")', 1, "'yes' does not convert to bool"),
    ("uint(-1) == 1u", 1, "unsigned integer overflow"),
    (r'string(b"\xff") == "a"', 1, "the bytes are no UTF-8 text"),
]

LITERALS: list[tuple[str, int, str]] = [
    ('duration("1d") == duration("1s")', 10, "'1d' does not convert to duration"),
    ('timestamp("2020") == timestamp(0)', 11, "'2020' does not convert to timestamp"),
    ("timestamp(true) == timestamp(0)", 1, "no such overload: timestamp(bool)"),
    ("timestamp(253402300800) == timestamp(0)", 11, "timestamp overflow"),
    ('"a".matches("(")', 13, "not a regular expression: missing )"),
    ('"a".matches("" + "(") && "a".find("(") == ""', 30, "not a regular expression"),
    ('matches("(", "a")', 9, "not a regular expression"),
    (r'"a".matches(r"\C")', 13, r"not a regular expression: \C"),
    ('"%d".format(["a"]) == ""', 14, "decimal clause can only be used on integers, was given string"),
    ('"%s".format([optional.of(1)]) == ""', 23, "was given optional(int)"),
    ('"%s".format([[quantity("1")]]) == ""', 15, "was given quantity"),
    ('"%s".format([{"a": quantity("1")}]) == ""', 20, "was given quantity"),
    ('"%s %s".format(["a"]) == ""', 9, "index 1 out of range"),
    ('"a".format(["a"]) == ""', 5, "the format takes 0 arguments, not 1"),
    ('"%".format(["a"]) == ""', 5, "the format ends within a clause"),
    ('"%z".format(["a"]) == ""', 6, "unrecognized formatting clause 'z'"),
    ('"%.f".format([1.5]) == ""', 7, "'.' is not a precision"),
    ("[?1] == [1]", 3, "what stands behind ? must be an optional, not int"),
    ("{?'a': 1} == {'a': 1}", 8, "what stands behind ? must be an optional, not int"),
    ("[1].all(i, i, true)", 5, "both variables of all() are named 'i'"),
    ("[1].all(i, 1, true)", 5, "the second argument of all() must be a simple name"),
    ("[1].all(__result__, true)", 5, "'__result__' cannot be the name of a variable"),
    ("(1).sortBy(x, x) == 1", 5, "sortBy() sorts a list"),
    ("url('/a').b == 1", 10, "a value of type URL has no fields"),
    ("{'a': 1}.a.b == 1", 11, "a value of type int has no fields"),
]


@pytest.mark.parametrize(("expression", "column", "cause"), SYNTAX + TYPES + LITERALS)
def test_compile_errors_say_where_and_why(expression: str, column: int, cause: str) -> None:
    with pytest.raises(CelCompileError) as caught:
        compile_expression(expression)
    assert not isinstance(caught.value, CelNotSupportedError)
    assert cause in str(caught.value)
    assert (caught.value.line, caught.value.column) == (1, column)


def test_message_shows_the_place() -> None:
    with pytest.raises(UsageError) as caught:
        compile_expression('device.driver == "x" &&\n  device.driver == 1')
    assert str(caught.value) == (
        "CEL line 2, column 17: no such overload: string == int\n    device.driver == 1\n                  ^"
    )
    assert caught.value.exit_code == 2


def test_message_shows_only_the_neighbourhood_of_the_place() -> None:
    text = "true && " * 500 + "nope" + " && true" * 500
    with pytest.raises(CelCompileError) as caught:
        compile_expression(text)
    _, excerpt, caret = str(caught.value).split("\n")
    assert len(excerpt) <= 80
    assert excerpt[caret.index("^") :].startswith("nope")
