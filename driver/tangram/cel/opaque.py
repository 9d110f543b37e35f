"""What Kubernetes adds to CEL: quantities and semantic versions (`k8s.io/apiserver/pkg/cel/library`)."""

import re
from collections.abc import Callable
from fractions import Fraction

from tangram.base.errors import CelRuntimeError
from tangram.cel.values import INT_MAXIMUM, INT_MINIMUM, Value
from tangram.model.quantity import parse_quantity
from tangram.model.semver import SemVer

_PARTS = re.compile(r"v?([^.]*)(?:\.([^.]*))?(?:\.(.*))?", re.DOTALL)
_MAXIMUM_VERSION = 256


def quantity(text: str) -> Fraction:
    try:
        return parse_quantity(text)
    except ValueError as error:
        raise CelRuntimeError(str(error)) from None


def as_integer(quantity: Fraction) -> int:
    if quantity.denominator != 1 or not INT_MINIMUM <= quantity <= INT_MAXIMUM:
        raise CelRuntimeError("the quantity is not a 64-bit integer", next_step="ask isInteger() first")
    return int(quantity)


def semver(text: str, normalize: bool = False) -> SemVer:
    """With `normalize`, `v1.2` is 1.2.0 and `01.2.3` is 1.2.3 (Semver library, version 1)."""
    if len(text) > _MAXIMUM_VERSION:
        raise CelRuntimeError(f"the version is longer than {_MAXIMUM_VERSION} characters")
    try:
        version = SemVer(_normalized(text) if normalize else text)
    except ValueError as error:
        raise CelRuntimeError(str(error)) from None
    if max(version.major, version.minor, version.patch) > INT_MAXIMUM:
        raise CelRuntimeError("a number of the version does not fit 64 bits")
    return version


def _normalized(text: str) -> str:
    match = _PARTS.fullmatch(text)
    assert match is not None  # the pattern covers every text
    parts = [part for part in match.groups() if part is not None]
    if len(parts) < 3 and set("+-") & set(parts[-1]):
        return text  # refused below: a short version has no pre-release
    stripped = [re.sub(r"^0+(?=[0-9])", "", part) for part in parts]
    return ".".join([*stripped, *["0"] * (3 - len(stripped))])


def accepts(parse: Callable[..., Value]) -> Callable[..., bool]:
    """`isX(text)`: does `parse` accept it?"""

    def check(*arguments: Value) -> bool:
        try:
            parse(*arguments)
        except CelRuntimeError:
            return False
        return True

    return check


def sign(value: Fraction) -> int:
    return (value > 0) - (value < 0)


def order(left: Value, right: Value) -> int:
    return -1 if left < right else int(right < left)
