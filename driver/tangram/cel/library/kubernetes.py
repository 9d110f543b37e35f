"""Quantities and semantic versions: Kubernetes' libraries (`k8s.io/apiserver/pkg/cel/library`)."""

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from tangram.base.errors import CelBudgetError, CelRuntimeError
from tangram.cel.declarations import Function, flat, function, kubernetes_per_character, method, overload
from tangram.cel.estimate import flat_estimate, per_character_of
from tangram.cel.types import BOOL, DOUBLE, INT, QUANTITY, SEMVER, STRING, Type
from tangram.cel.values import INT_MAXIMUM, INT_MINIMUM, UINT_MAXIMUM, Budget, Sum, Value
from tangram.model.quantity import parse_quantity
from tangram.model.semver import SemVer

_PARTS = re.compile(r"v?([^.]*)(?:\.([^.]*))?(?:\.(.*))?", re.DOTALL)
_NUMBER = re.compile(r"(?<![0-9A-Za-z-])[0-9]+(?![0-9A-Za-z-])")
_MAXIMUM_VERSION = 256


def _quantity(text: str) -> Fraction:
    try:
        return parse_quantity(text)
    except ValueError as error:
        raise CelRuntimeError(str(error)) from None


def _as_integer(quantity: Fraction) -> int:
    if quantity.denominator != 1 or not INT_MINIMUM <= quantity <= INT_MAXIMUM:
        raise CelRuntimeError("the quantity is not a 64-bit integer", next_step="ask isInteger() first")
    return int(quantity)


def semver(budget: Budget, text: str, normalize: bool = False) -> SemVer:
    """With `normalize`, `v1.2` is 1.2.0 and `01.2.3` is 1.2.3 (Semver library, version 1)."""
    budget.labour(2 * len(text))
    return _semver(text, normalize)


@lru_cache(maxsize=1024)
def _semver(text: str, normalize: bool) -> SemVer:
    if len(text) > _MAXIMUM_VERSION:
        raise CelRuntimeError(f"the version is longer than {_MAXIMUM_VERSION} characters")
    try:
        version = SemVer(_normalized(text) if normalize else text)
    except ValueError as error:
        raise CelRuntimeError(str(error)) from None
    if any(
        len(number) >= 20 and int(number) > UINT_MAXIMUM for number in _NUMBER.findall(text.partition("+")[0])
    ):
        raise CelRuntimeError("a number of the version does not fit 64 bits")
    return version


def _normalized(text: str) -> str:
    match = _PARTS.fullmatch(text)
    assert match is not None  # the pattern covers every text
    parts = [part for part in match.groups() if part is not None]
    if len(parts) < 3 and set("+-") & set(parts[-1]):
        return ""  # refused: a short version has no pre-release
    stripped = [re.sub(r"^0+(?=[0-9])", "", part) for part in parts]
    return ".".join([*stripped, *["0"] * (3 - len(stripped))])


def _as_int64(number: int) -> int:
    """Go converts the unsigned numbers of a version without a check."""
    return (number + 2**63) % 2**64 - 2**63


def _accepts(parse: Callable[..., Value]) -> Callable[..., bool]:
    """`isX(text)`: does `parse` accept it?"""

    def check(*arguments: Value) -> bool:
        try:
            parse(*arguments)
        except CelRuntimeError:
            return False
        return True

    return check


def _accepts_version(budget: Budget, *arguments: Value) -> bool:
    try:
        semver(budget, *arguments)
    except CelBudgetError:
        raise
    except CelRuntimeError:
        return False
    return True


def _order(left: Value, right: Value) -> int:
    return -1 if left < right else int(right < left)


def _parsing(
    name: str, *overloads: tuple[str, tuple[Type, ...], Type, Callable[..., Value]], budgeted: bool = False
) -> Function:
    return function(
        name,
        *(
            overload(id_, parameters, result, call, budgeted=budgeted)
            for id_, parameters, result, call in overloads
        ),
        cost=kubernetes_per_character(),
        estimate=per_character_of(0),
    )


def _nominal(name: str, *overloads: tuple[str, tuple[Type, ...], Type, Callable[..., Value]]) -> Function:
    return function(
        name,
        *(method(id_, parameters, result, call) for id_, parameters, result, call in overloads),
        cost=flat,
        estimate=flat_estimate,
    )


def _comparing(name: str, suffix: str, result: Type, call: Callable[[Value, Value], Value]) -> Function:
    def versions(budget: Budget, left: SemVer, right: SemVer) -> Value:
        budget.labour((len(left.text) + len(right.text)) >> 3)
        return call(left, right)

    return function(
        name,
        method(f"quantity_{suffix}", (QUANTITY, QUANTITY), result, call),
        method(f"semver_{suffix}", (SEMVER, SEMVER), result, versions, budgeted=True),
        cost=flat,
        estimate=flat_estimate,
    )


QUANTITIES = (
    _parsing("quantity", ("string_to_quantity", (STRING,), QUANTITY, _quantity)),
    _parsing("isQuantity", ("is_quantity_string", (STRING,), BOOL, _accepts(_quantity))),
    function(
        "sign",
        overload("quantity_sign", (QUANTITY,), INT, lambda value: (value > 0) - (value < 0)),
        cost=flat,
        estimate=flat_estimate,
    ),
    _nominal("isInteger", ("quantity_is_integer", (QUANTITY,), BOOL, _accepts(_as_integer))),
    _nominal("asInteger", ("quantity_get_int", (QUANTITY,), INT, _as_integer)),
    _nominal("asApproximateFloat", ("quantity_get_float", (QUANTITY,), DOUBLE, float)),
    _nominal(
        "add",
        ("quantity_add", (QUANTITY, QUANTITY), QUANTITY, lambda a, b: Sum(Fraction(a) + Fraction(b))),
        ("quantity_add_int", (QUANTITY, INT), QUANTITY, lambda a, b: Sum(Fraction(a) + b)),
    ),
    _nominal(
        "sub",
        ("quantity_sub", (QUANTITY, QUANTITY), QUANTITY, lambda a, b: Sum(Fraction(a) - Fraction(b))),
        ("quantity_sub_int", (QUANTITY, INT), QUANTITY, lambda a, b: Sum(Fraction(a) - b)),
    ),
)
VERSIONS = (
    _parsing(
        "semver",
        ("string_to_semver", (STRING,), SEMVER, semver),
        ("string_bool_to_semver", (STRING, BOOL), SEMVER, semver),
        budgeted=True,
    ),
    _parsing(
        "isSemver",
        ("is_semver_string", (STRING,), BOOL, _accepts_version),
        ("is_semver_string_bool", (STRING, BOOL), BOOL, _accepts_version),
        budgeted=True,
    ),
    _nominal("major", ("semver_major", (SEMVER,), INT, lambda version: _as_int64(version.major))),
    _nominal("minor", ("semver_minor", (SEMVER,), INT, lambda version: _as_int64(version.minor))),
    _nominal("patch", ("semver_patch", (SEMVER,), INT, lambda version: _as_int64(version.patch))),
)
COMPARISONS = (
    _comparing("isGreaterThan", "is_greater_than", BOOL, lambda a, b: bool(a > b)),
    _comparing("isLessThan", "is_less_than", BOOL, lambda a, b: bool(a < b)),
    _comparing("compareTo", "compare_to", INT, _order),
)
"""Of quantities, and of versions."""
