"""The authorizer library: declared in every environment of Kubernetes, but without an authorizer to ask, so
that every call of its functions fails when evaluated.
"""

from collections.abc import Sequence

from tangram.cel.declarations import Cost, Estimator, Function, flat, function, method
from tangram.cel.estimate import Estimate, Range, Sized, Sizes, fixed, flat_estimate
from tangram.cel.types import BOOL, STRING, Kind, Type
from tangram.cel.values import Value, kubernetes_size

_AUTHORIZER = Type(Kind.STRUCT, "kubernetes.authorization.Authorizer")
_PATH = Type(Kind.STRUCT, "kubernetes.authorization.PathCheck")
_GROUP = Type(Kind.STRUCT, "kubernetes.authorization.GroupCheck")
_RESOURCE = Type(Kind.STRUCT, "kubernetes.authorization.ResourceCheck")
_DECISION = Type(Kind.STRUCT, "kubernetes.authorization.Decision")
_CHECK_COST = 350_000


def _check_cost(_: Sequence[Value], __: Value) -> int:
    return _CHECK_COST


def _check_estimate(_: Sizes, __: Sized | None, ___: Sequence[Sized]) -> Estimate:
    return Estimate(fixed(_CHECK_COST))


def _selector_range(length: Range) -> Range:
    """A selector is read once, and made into a list of requirements."""
    return fixed(10).plus(length.scaled(0.1)).plus(length.scaled(0.5).scaled(50.0))


def _selector_cost(arguments: Sequence[Value], _: Value) -> int:
    return _selector_range(fixed(kubernetes_size(arguments[1]))).high


def _selector_estimate(sizes: Sizes, _: Sized | None, arguments: Sequence[Sized]) -> Estimate | None:
    return Estimate(_selector_range(sizes.of(arguments[0]))) if len(arguments) == 1 else None


_SIGNATURES: tuple[tuple[str, str, tuple[Type, ...], Type], ...] = (
    ("path", "authorizer_path", (_AUTHORIZER, STRING), _PATH),
    ("group", "authorizer_group", (_AUTHORIZER, STRING), _GROUP),
    ("serviceAccount", "authorizer_serviceaccount", (_AUTHORIZER, STRING, STRING), _AUTHORIZER),
    ("resource", "groupcheck_resource", (_GROUP, STRING), _RESOURCE),
    ("subresource", "resourcecheck_subresource", (_RESOURCE, STRING), _RESOURCE),
    ("namespace", "resourcecheck_namespace", (_RESOURCE, STRING), _RESOURCE),
    ("name", "resourcecheck_name", (_RESOURCE, STRING), _RESOURCE),
    ("errored", "decision_errored", (_DECISION,), BOOL),
    ("error", "decision_error", (_DECISION,), STRING),
    ("allowed", "decision_allowed", (_DECISION,), BOOL),
    ("reason", "decision_reason", (_DECISION,), STRING),
)


def _declared(
    name: str, *signatures: tuple[str, tuple[Type, ...], Type], cost: Cost, estimate: Estimator
) -> Function:
    overloads = (method(id_, parameters, result) for id_, parameters, result in signatures)
    return function(name, *overloads, cost=cost, estimate=estimate)


AUTHORIZER = (
    *(
        _declared(name, (id_, parameters, result), cost=flat, estimate=flat_estimate)
        for name, id_, parameters, result in _SIGNATURES
    ),
    _declared(
        "check",
        ("pathcheck_check", (_PATH, STRING), _DECISION),
        ("resourcecheck_check", (_RESOURCE, STRING), _DECISION),
        cost=_check_cost,
        estimate=_check_estimate,
    ),
    *(
        _declared(
            name,
            (f"authorizer_{name.lower()}", (_RESOURCE, STRING), _RESOURCE),
            cost=_selector_cost,
            estimate=_selector_estimate,
        )
        for name in ("fieldSelector", "labelSelector")
    ),
)
