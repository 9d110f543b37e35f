"""Lists, maps, macros, conversions and optionals.

Expected outcomes are those of Kubernetes' own CEL library.
"""

import pytest
from tests.unit.cel.support import outcome

Cases = list[tuple[str, bool | str]]

LISTS_AND_MAPS: Cases = [
    ("[1, 2, 3][1] == 2", True),
    ("[1, 2, 3][3] == 2", "error: index 3 of a list of 3 items"),
    ("[1, 2, 3][-1] == 2", "error: index -1 of a list of 3 items"),
    ("[1, 2, 3][dyn(1.0)] == 2", True),
    ("[1, 2, 3][dyn(1.5)] == 2", "error: a list has no index of type double"),
    ("[1, 2, 3][dyn(1u)] == 2", True),
    ('[1, 2, 3][dyn("a")] == 2', "error: a list has no index of type string"),
    ("[[1]][0][0] == 1", True),
    ('{"a": 1}["a"] == 1', True),
    ('{"a": 1}.a == 1', True),
    ('{"a": 1}["b"] == 1', "error: no such key: 'b'"),
    ('{"a": 1}.b == 1', "error: no such key: 'b'"),
    ('{1: "x"}[1] == "x"', True),
    ("{1: 2}[dyn(1.0)] == 2", True),
    ("{1: 2}[dyn(1u)] == 2", True),
    ("{true: 1}[true] == 1", True),
    ("dyn({1: 2})[true] == 2", "error: no such key: True"),
    ("dyn({true: 2})[1] == 2", "error: no such key: 1"),
    ('{dyn(1): "a", dyn(true): "b"}.size() == 2', True),
    ('dyn({"a": {"b": 1}}).a.b == 1', True),
    ("dyn(1).a == 1", "error: a value of type int has no fields"),
    ("dyn(null).a == 1", "error: a value of type null has no fields"),
    ("dyn(1)[0] == 1", "error: a value of type int has no fields"),
    ("1 in [1, 2]", True),
    ("3 in [1, 2]", False),
    ("dyn(1.0) in [1, 2]", True),
    ("dyn(1u) in [1, 2]", True),
    ('dyn("1") in [1, 2]', False),
    ("dyn(true) in [dyn(1)]", False),
    ("[1] in [[1], [2]]", True),
    ('"a" in {"a": 1}', True),
    ('"b" in {"a": 1}', False),
    ("dyn(1.0) in {1: 2}", True),
    ("dyn(true) in {1: 2}", False),
    ("dyn([1]) in {1: 2}", False),
    ("dyn(1) in dyn(2)", "error: no such overload: int in int"),
    ("size([1, 2]) == 2", True),
    ('{"a": 1}.size() == 1', True),
    ("size(dyn(1)) == 1", "error: no such overload: size(int)"),
]

MACROS: Cases = [
    ("[1, 2].all(x, x > 0)", True),
    ("[1, 2].all(x, x > 1)", False),
    ("[].all(x, false)", True),
    ("[1, 2].exists(x, x == 2)", True),
    ("[].exists(x, true)", False),
    ("[1, 2].exists_one(x, x == 2)", True),
    ("[2, 2].exists_one(x, x == 2)", False),
    ("[1, 2].map(x, x * 2) == [2, 4]", True),
    ("[1, 2].map(x, x > 1, x * 2) == [4]", True),
    ("[1, 2].filter(x, x > 1) == [2]", True),
    ("[1, 2].filter(x, x > 5).size() == 0", True),
    ('{"a": 1}.all(k, k == "a")', True),
    ('{"b": 1, "a": 2}.exists(k, k == "b")', True),
    ('{"a": 1}.map(k, k) == ["a"]', True),
    ('{"a": 1}.filter(k, k == "a") == ["a"]', True),
    ("[1, 0].all(x, 1 / x > 5)", False),
    ("[0, 1].all(x, 1 / x > 5)", False),
    ("[1, 2].all(x, x / 0 == 1)", "error: division by zero"),
    ("[0, 1].exists(x, 1 / x == 1)", True),
    ("[0, 2].exists(x, 1 / x == 1)", "error: division by zero"),
    ("[0, 1].exists_one(x, 1 / x == 1)", "error: division by zero"),
    ("[0, 1].map(x, 1 / x) == [1]", "error: division by zero"),
    ("[0, 1].filter(x, 1 / x == 1) == [1]", "error: division by zero"),
    ("dyn([1]).filter(x, dyn(1)) == []", "error: no such overload: an operand of filter is int, not bool"),
    ("dyn([1]).all(x, dyn(1))", "error: no such overload: an operand of all is int, not bool"),
    ("dyn(1).all(x, true)", "error: a macro cannot iterate over a value of type int"),
    ('dyn("abc").map(x, x) == []', "error: a macro cannot iterate over a value of type string"),
    ("[1].all(x, [2].all(x, x == 2) && x == 1)", True),
    ("[1, 2].all(x, [3].all(y, x < y))", True),
    ("[[1], [2, 3]].map(x, x.map(y, y + 1)) == [[2], [3, 4]]", True),
    ("[1, 2, 3].map(x, [x, x + 1]).exists(p, p[0] + p[1] == 5)", True),
    ("[1].all(device, device == 1)", True),
    ("[[1]].map(a, [a, a])[0][1] == [1]", True),
    ("[1].all(x, [2].all(x, [3].all(y, [4].all(z, x == 2 && y == 3 && z == 4))))", True),
    ("cel.bind(a, 1 + 1, a * a) == 4", True),
    ("cel.bind(a, 1, cel.bind(a, a + 1, a)) == 2", True),
    ("cel.bind(a, 1 / 0, true)", True),
    ("cel.bind(a, 1 / 0, a == 1)", "error: division by zero"),
    ("cel.bind(a, 1 / 0, a == 1 || true)", True),
    ("[1, 2].map(x, cel.bind(y, x + 1, y * y)) == [4, 9]", True),
]

CONVERSIONS: Cases = [
    ('int("5") == 5', True),
    ('int("+5") == 5', True),
    ('int("-9223372036854775808") == -9223372036854775808', True),
    ("int(5.9) == 5", True),
    ("int(-5.9) == -5", True),
    ("int(5u) == 5", True),
    ("int(0.0 / 0.0) == 1", "error: integer overflow"),
    ('uint("5") == 5u', True),
    ("uint(1) == 1u", True),
    ("uint(5.7) == 5u", True),
    ('double("1.5") == 1.5', True),
    ('double("+.5") == 0.5', True),
    ('double("5.") == 5.0', True),
    ('double("1e5") == 100000.0', True),
    ('double("inf") > 1e308', True),
    ('double("-Infinity") < -1e308', True),
    ('double("nan") == 1.0', False),
    ("double(3) == 3.0", True),
    ("double(5u) == 5.0", True),
    ('string(1) == "1"', True),
    ('string(1u) == "1"', True),
    ('string(1.0) == "1"', True),
    ('string(1.5) == "1.5"', True),
    ('string(-0.0) == "-0"', True),
    ('string(0.1) == "0.1"', True),
    ('string(123456.5) == "123456.5"', True),
    ('string(1234567.0) == "1.234567e+06"', True),
    ('string(100000.0) == "100000"', True),
    ('string(1e6) == "1e+06"', True),
    ('string(0.0001) == "0.0001"', True),
    ('string(0.00001) == "1e-05"', True),
    ('string(1e23) == "1e+23"', True),
    ('string(5e-324) == "5e-324"', True),
    ('string(1.0 / 0.0) == "+Inf"', True),
    ('string(-1.0 / 0.0) == "-Inf"', True),
    ('string(0.0 / 0.0) == "NaN"', True),
    ('string(true) == "true"', True),
    ('string(b"ab") == "ab"', True),
    (r'bytes("é") == b"\xc3\xa9"', True),
    ('bool("true")', True),
    ('bool("T")', True),
    ('bool("0")', False),
    ("bool(true)", True),
    ("dyn(1) == 1", True),
]

OPTIONALS: Cases = [
    ("@.?index.orValue(0) == 3", True),
    ("@.?nope.orValue(0) == 0", True),
    ("@.?nope.hasValue()", False),
    ("@.?index.hasValue()", True),
    ("@.?nope.value() == 1", "error: value() of an optional that has none"),
    ("@.?index.value() == 3", True),
    ('@[?"nope"].orValue(7) == 7', True),
    ('device.attributes[?"nope"].?x.orValue(7) == 7', True),
    ('device.?driver.orValue("") == "gpu.resource.admin"', True),
    ('device.?attributes["gpu.resource.admin"].type.orValue("") == "gpu"', True),
    ("optional.of(1).value() == 1", True),
    ("optional.none() == optional.none()", True),
    ("optional.none() == optional.of(1)", False),
    ("@.?index == optional.of(3)", True),
    ("@.?index != optional.of(4)", True),
    ('{"a": {"b": 1}}.?a.b == optional.of(1)', True),
    ('{"a": {"b": 1}}.?a.c.orValue(2) == 2', True),
    ('{"a": {"b": 1}}.?a["b"] == optional.of(1)', True),
    ("[1, 2][?5].orValue(9) == 9", True),
    ("[1, 2][?0].or(optional.of(3)).value() == 1", True),
    ("optional.none().or(optional.of(true)).value()", True),
    ("optional.none().orValue(true)", True),
    ("@.?index.orValue(1 / 0) == 3", True),
    ("@.?nope.orValue(1 / 0) == 3", "error: division by zero"),
    ("optional.of(1).or(optional.of(1 / 0)).value() == 1", True),
    ("[optional.of(1)] == [optional.of(1)]", True),
    ('[optional.of(dyn(1))] == [optional.of(dyn("a"))]', False),
    ("dyn(1).?x.orValue(3) == 3", True),
    ('dyn([1])[?"x"].orValue(3) == 3', "error: a list has no index of type string"),
    ('has({"a": {"b": 1}}.?a.b)', True),
    ('has({"a": {"b": 1}}.?c.b)', False),
    ("@.?index.?foo.hasValue()", False),
]


@pytest.mark.parametrize(("expression", "expected"), LISTS_AND_MAPS)
def test_lists_and_maps(expression: str, expected: bool | str) -> None:
    assert outcome(expression) == expected


@pytest.mark.parametrize(("expression", "expected"), MACROS)
def test_macros(expression: str, expected: bool | str) -> None:
    assert outcome(expression) == expected


@pytest.mark.parametrize(("expression", "expected"), CONVERSIONS)
def test_conversions(expression: str, expected: bool | str) -> None:
    assert outcome(expression) == expected


@pytest.mark.parametrize(("expression", "expected"), OPTIONALS)
def test_optionals(expression: str, expected: bool | str) -> None:
    assert outcome(expression) == expected
