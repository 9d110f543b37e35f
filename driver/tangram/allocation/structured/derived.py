"""Derived attributes (KEP-6080): what a request computes of a device in place of what is published.

Constraints see them; selectors do not.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tangram.allocation.structured.account import Bill
from tangram.allocation.structured.cluster import Attribute, Device
from tangram.allocation.structured.features import Features
from tangram.base.errors import CelCompileError, CelRuntimeError
from tangram.cel import Derivation, derivation
from tangram.cel.derived import Derived
from tangram.cel.work import COMPILING, REFUSING
from tangram.model.kubernetes import DeviceDerivedAttribute
from tangram.model.semver import SemVer


class Expression(NamedTuple):
    """Of a derived attribute. `field`: where it stands in its claim."""

    text: str
    field: str


def expressions(wire: Sequence[DeviceDerivedAttribute] | None, field: str) -> Mapping[str, Expression]:
    """By name, as constraints give it. `field`: of the (sub)request in its claim."""
    return {
        item.name: Expression(item.expression, f"{field}.derivedAttributes[{index}].expression")
        for index, item in enumerate(wire or ())
    }


def derive(text: str, device: Device, features: Features) -> tuple[Attribute | str, Bill]:
    """The value of a derived attribute on a device, or what is wrong, which is fatal; and what that takes."""
    found = derivation(text, features.environment)
    if isinstance(found, CelCompileError):
        refusing = (hash((Derivation, text)), REFUSING * len(text))
        return f"CEL compile error: {found}", (refusing,)
    parts, answer = found.answer(device.cel)
    compiling = (hash((Derivation, text)), COMPILING * found.size)
    bill = (compiling, (hash((Derivation, text, parts)), answer.work))
    if isinstance(answer.result, CelRuntimeError):
        return f"on device {device.id}: CEL runtime error: {answer.result}", bill
    return _attribute(answer.result), bill


def _attribute(value: Derived) -> Attribute:
    if not isinstance(value, tuple):
        return Attribute(_KINDS[type(value)], frozenset((_plain(value),)), scalar=True)
    kind = _KINDS[type(value[0])] if value else "string"
    return Attribute(kind, frozenset(map(_plain, value)), scalar=False)


_KINDS: Mapping[type, str] = {bool: "bool", int: "int", str: "string", SemVer: "version"}


def _plain(value: object) -> object:
    """Versions are compared by their text."""
    return value.text if isinstance(value, SemVer) else value
