"""Derived attributes (KEP-6080): what a request computes of a device in place of what is published.

Constraints see them; selectors do not.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from tangram.allocation.structured.account import Account
from tangram.allocation.structured.cluster import Attribute, Device
from tangram.allocation.structured.features import Features
from tangram.base.errors import CelCompileError, CelRuntimeError
from tangram.cel import Derivation, derivation
from tangram.cel.derived import Derived
from tangram.cel.work import COMPILING, REFUSING
from tangram.model.kubernetes import DeviceDerivedAttribute
from tangram.model.semver import SemVer

_WORK_PER_COMPARISON = 10
"""What constraints take for each member of a list on each device, which may be longer than evaluating it."""


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


class Deriver:
    """The values in one decision. `places`: how many devices they may be compared on."""

    def __init__(self, account: Account, features: Features, *, places: int) -> None:
        self._account = account
        self._environment = features.environment
        self._per_member = _WORK_PER_COMPARISON * places
        self._known: dict[Hashable, Attribute] = {}

    def derive(self, text: str, device: Device) -> Attribute | str:
        """The value on a device, or what is wrong, which is fatal. Raises TooDear."""
        found = derivation(text, self._environment)
        if isinstance(found, CelCompileError):
            self._account.pay(((hash((Derivation, text)), REFUSING * len(text)),))
            return f"CEL compile error: {found}"
        if device.unreadable:
            return f"on device {device.id}, attribute {device.unreadable}: unsupported attribute value"
        parts, answer = found.answer(device.cel)
        result = answer.result
        members = len(result) if isinstance(result, tuple) else 0
        compiling = (hash((Derivation, text)), COMPILING * found.size)
        answered = (hash((Derivation, text, parts)), answer.work)
        # Paid on nodes of each size: what was affordable on all together must be so on one alone.
        compared = (hash((Derivation, text, parts, self._per_member)), self._per_member * members)
        self._account.pay((compiling, answered, compared))
        if isinstance(result, CelRuntimeError):
            return f"on device {device.id}: CEL runtime error: {result}"
        known = self._known.get((text, parts))
        if known is None:
            known = self._known[text, parts] = _attribute(result)
        return known


def _attribute(value: Derived) -> Attribute:
    if not isinstance(value, tuple):
        return Attribute(_KINDS[type(value)], frozenset((_plain(value),)), scalar=True)
    kind = _KINDS[type(value[0])] if value else "string"
    return Attribute(kind, frozenset(map(_plain, value)), scalar=False)


_KINDS: Mapping[type, str] = {bool: "bool", int: "int", str: "string", SemVer: "version"}


def _plain(value: object) -> object:
    """Versions are compared by their text."""
    return value.text if isinstance(value, SemVer) else value
