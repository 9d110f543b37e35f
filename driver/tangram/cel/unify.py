"""Which types fit together, and what that says of their type variables.

Follows the CEL language definition ("Gradual Type Checking") and the choices of cel-go where it leaves room.
"""

from collections.abc import Sequence

from tangram.cel.types import DYN, Kind, Type

Bindings = dict[Type, Type]
"""What is known of type variables."""

_PARAMETERISED = frozenset({Kind.OPAQUE, Kind.LIST, Kind.MAP, Kind.TYPE})
_NULLABLE = frozenset({Kind.OPAQUE, Kind.STRUCT, Kind.ANY, Kind.DURATION, Kind.TIMESTAMP})


def unify(actual: Sequence[Type], wanted: Sequence[Type], bindings: Bindings) -> Bindings | None:
    """The bindings under which each actual type is assignable to the wanted one; None if there are none."""
    if len(actual) != len(wanted):
        return None
    found = dict(bindings)
    return found if all(_assignable(a, w, found) for a, w in zip(actual, wanted, strict=True)) else None


def _assignable(actual: Type, wanted: Type, bindings: Bindings) -> bool:
    if wanted.kind is Kind.PARAMETER:
        valid, bound = _bind(actual, wanted, bindings)
        if valid or bound:
            return valid
    if actual.kind is Kind.PARAMETER:
        return _bind(wanted, actual, bindings)[0]
    if actual.is_dynamic or wanted.is_dynamic or Kind.ERROR in (actual.kind, wanted.kind):
        return True
    if actual.kind is Kind.NULL:
        return wanted.kind in _NULLABLE or wanted.kind is Kind.NULL
    if wanted.kind is Kind.NULL:
        return actual.kind in _NULLABLE
    if actual.kind is Kind.TYPE:
        return wanted.kind is Kind.TYPE
    if actual.name != wanted.name or len(actual.parameters) != len(wanted.parameters):
        return False
    return all(_assignable(a, w, bindings) for a, w in zip(actual.parameters, wanted.parameters, strict=True))


def _bind(kind: Type, variable: Type, bindings: Bindings) -> tuple[bool, bool]:
    """Whether `variable` may stand for `kind`, and whether it already stood for something."""
    if kind == variable:
        return True, True
    known = bindings.get(variable)
    if known is not None:
        if kind == known:
            return True, True
        if not _assignable(kind, known, bindings):
            return False, True
        general = most_general(kind, known)
        if not _occurs(variable, general, bindings):
            bindings[variable] = general
        return True, True
    if _occurs(variable, kind, bindings):
        return False, False
    bindings[variable] = kind
    return True, False


def _occurs(variable: Type, within: Type, bindings: Bindings) -> bool:
    if variable == within:
        return True
    if within.kind is Kind.PARAMETER:
        known = bindings.get(within)
        return known is not None and _occurs(variable, known, bindings)
    return within.kind in _PARAMETERISED and any(
        _occurs(variable, inner, bindings) for inner in within.parameters
    )


def most_general(one: Type, other: Type) -> Type:
    """The more general of two types that fit together."""
    return one if _no_more_specific(one, other) else other


def _no_more_specific(one: Type, other: Type) -> bool:
    if one.is_dynamic or one.kind is Kind.PARAMETER:
        return True
    if other.is_dynamic or other.kind is Kind.PARAMETER or one.kind is not other.kind:
        return False
    if one.kind is Kind.TYPE:
        return True
    if one.name != other.name or len(one.parameters) != len(other.parameters):
        return False
    return all(map(_no_more_specific, one.parameters, other.parameters))


def substitute(kind: Type, bindings: Bindings, *, rest: bool = False) -> Type:
    """The type with its variables replaced by what is known of them; with `rest`, the others by dyn."""
    known = bindings.get(kind)
    if known is not None:
        return substitute(known, bindings, rest=rest)
    if kind.kind is Kind.PARAMETER:
        return DYN if rest else kind
    if kind.parameters:
        inner = tuple(substitute(part, bindings, rest=rest) for part in kind.parameters)
        return Type(kind.kind, kind.name, inner)
    return kind
