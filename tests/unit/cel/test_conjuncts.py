"""Which term of a selector is false: told to people."""

import pytest

from tangram.cel import CelDevice, by_domain, compile_expression, false_part

_A, _B = "device.driver == 'other'", "device.attributes['d'].x > 1"
_TRUE, _ERROR = "device.driver == 'd'", "device.attributes['d'].y"
_DEVICE = CelDevice(
    driver="d", attributes=by_domain("d", {"x": 1}), capacity={}, allow_multiple_allocations=False
)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (_A, _A),
        (f"{_TRUE} && {_B}", _B),
        (f"{_A}\n  && {_B}", _A),
        (f"({_TRUE} && {_B}) && true", f"({_TRUE} && {_B})"),
        (f"{_ERROR} && {_B}", _B),
        (f"{_TRUE} && !({_TRUE} || {_B} && true)", f"!({_TRUE} || {_B} && true)"),
        (f"{_B} && {_TRUE} || false", f"{_B} && {_TRUE} || false"),
        (f"{_TRUE} && {_B} ? true : false", f"{_TRUE} && {_B} ? true : false"),
        (f"{_TRUE} && [1, 2].all(i, i > 1 && i < 3)", "[1, 2].all(i, i > 1 && i < 3)"),
        (f"device.driver in ['a && b', 'c'] && {_TRUE}", "device.driver in ['a && b', 'c']"),
        (f"true && dyn(false) && {_TRUE}", "dyn(false)"),
        (" && ".join(["true"] * 16 + ["false"]), " && ".join(["true"] * 16 + ["false"])),
    ],
)
def test_the_first_false_term(text: str, part: str) -> None:
    assert false_part(compile_expression(text), _DEVICE).text == part
