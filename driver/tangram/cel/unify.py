"""Which types fit together, and what that says of their type variables.

Follows the CEL language definition ("Gradual Type Checking") and the choices of cel-go where it leaves room.
"""

from collections.abc import Mapping, Sequence

from tangram.cel.types import DYN, Kind, Type

Bindings = Mapping[Type, Type]
"""What is known of type variables."""


class _Trial:
    """Bindings with more that are given up if the trial fails."""

    __slots__ = ("_known", "found")

    def __init__(self, known: Bindings) -> None:
        self._known = known
        self.found: dict[Type, Type] = {}

    def get(self, variable: Type) -> Type | None:
        return self.found.get(variable) or self._known.get(variable)

    def bind(self, variable: Type, kind: Type) -> None:
        self.found[variable] = kind


_PARAMETERISED = frozenset({Kind.OPAQUE, Kind.LIST, Kind.MAP, Kind.TYPE})
_NULLABLE = frozenset({Kind.OPAQUE, Kind.STRUCT, Kind.ANY, Kind.DURATION, Kind.TIMESTAMP})


def unify(actual: Sequence[Type], wanted: Sequence[Type], bindings: Bindings) -> Bindings | None:
    """What must be bound besides, so that each actual type is assignable to the wanted one; None if nothing
    does."""
    if len(actual) != len(wanted):
        return None
    trial = _Trial(bindings)
    for one, other in zip(actual, wanted, strict=True):
        if not _assignable(one, other, trial):
            return None
    return trial.found


def _assignable(actual: Type, wanted: Type, trial: _Trial) -> bool:
    if wanted.kind is Kind.PARAMETER:
        valid, bound = _bind(actual, wanted, trial)
        if valid or bound:
            return valid
    if actual.kind is Kind.PARAMETER:
        return _bind(wanted, actual, trial)[0]
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
    return all(_assignable(a, w, trial) for a, w in zip(actual.parameters, wanted.parameters, strict=True))


def _bind(kind: Type, variable: Type, trial: _Trial) -> tuple[bool, bool]:
    """Whether `variable` may stand for `kind`, and whether it already stood for something."""
    if kind == variable:
        return True, True
    known = trial.get(variable)
    if known is not None:
        if kind == known:
            return True, True
        if not _assignable(kind, known, trial):
            return False, True
        general = most_general(kind, known)
        if not _occurs(variable, general, trial):
            trial.bind(variable, general)
        return True, True
    if _occurs(variable, kind, trial):
        return False, False
    trial.bind(variable, kind)
    return True, False


def _occurs(variable: Type, within: Type, trial: _Trial) -> bool:
    if variable == within:
        return True
    if within.kind is Kind.PARAMETER:
        known = trial.get(within)
        return known is not None and _occurs(variable, known, trial)
    return within.kind in _PARAMETERISED and any(
        _occurs(variable, inner, trial) for inner in within.parameters
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
