"""Derived attributes: what a claim computes of a device, for its constraints (KEP-6080, alpha in 1.37).

An expression in the environment of selectors that evaluates to a scalar, or to a list of scalars of one type.
"""

from tangram.base.errors import CelCompileError, CelRuntimeError
from tangram.cel import types
from tangram.cel.environment import Environment
from tangram.cel.program import Expression, Programs
from tangram.cel.types import Type, list_of
from tangram.cel.values import ABSENT, OptionalValue, Value, type_name
from tangram.model.semver import SemVer

Scalar = bool | int | str | SemVer
Derived = Scalar | tuple[Scalar, ...]
"""The members of a list are of one type."""

_SCALARS = (types.BOOL, types.INT, types.STRING, types.SEMVER, types.DYN, types.ANY)
_RESULTS = (*_SCALARS, *map(list_of, _SCALARS))
_KINDS = frozenset({bool, int, str, SemVer})
_REMEMBERED_NODES = 20_000


class Derivation(Expression[Derived]):
    """The expression of a derived attribute."""

    wanted = "a string, an integer, a bool, a version, or a list of one of these"

    def results(self) -> tuple[Type, ...]:
        return _RESULTS

    def converted(self, value: Value) -> Derived | CelRuntimeError:
        """As upstream, which looks inside optionals, and takes a type for its name."""
        if type(value) is not tuple:
            scalar = _inside(value)
            if type(scalar) in _KINDS:
                return scalar  # type: ignore[no-any-return] # a value of one of these types
            return CelRuntimeError(f"the expression evaluates to {type_name(value)}, not {self.wanted}")
        items = tuple(map(_inside, value))
        for index, item in enumerate(items):
            if type(item) not in _KINDS:
                return CelRuntimeError(f"item {index} of the list is {type_name(value[index])}, no scalar")
            if type(item) is not type(items[0]):
                return CelRuntimeError(
                    f"item {index} of the list is {type_name(item)}, where the first is {type_name(items[0])}"
                )
        return items


def _inside(value: Value) -> Value:
    while type(value) is OptionalValue and value is not ABSENT:
        value = value.opened()
    return value.name if type(value) is Type else value


_derivations = Programs(Derivation, nodes=_REMEMBERED_NODES)


def derivation(text: str, environment: Environment | None = None) -> Derivation | CelCompileError:
    """The expression of a derived attribute, or what is wrong with it; the latest environment by default."""
    return _derivations.get(text, environment)
