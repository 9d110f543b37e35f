"""The node an allocation is for, and which node selectors select it.

Semantics of `k8s.io/component-helpers/scheduling/corev1/nodeaffinity`: terms are alternatives, requirements
of a term must all hold, an empty term selects nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from tangram.model.kubernetes import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm

_NAME = re.compile(r"(?=.{1,63}\Z)[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DOMAIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_INTEGER = re.compile(r"[-+]?[0-9]{1,64}")
_LONGEST = 63
"""Characters of a label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """`declared_features` is `status.declaredFeatures` of the node."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    declared_features: frozenset[str] = frozenset()


class NodeSelectorError(ValueError):
    """A node selector cannot be understood. Fatal for the pod, as in kube-scheduler."""


def selects(selector: NodeSelector, node: NodeFacts) -> bool:
    """True if the selector selects the node. Raises NodeSelectorError for unknown operators and fields, and
    for what is no label."""
    matches = [_term(term, node) for term in selector.node_selector_terms or ()]
    return any(matches)


def _term(term: NodeSelectorTerm, node: NodeFacts) -> bool:
    expressions, fields = term.match_expressions or [], term.match_fields or []
    held = [_expression(requirement, node.labels) for requirement in expressions]
    held += [_field(requirement, node) for requirement in fields]
    return bool(held) and all(held)


def _expression(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    values = requirement.values or []
    value = labels.get(requirement.key)
    if not _is_key(requirement.key):
        raise NodeSelectorError(f"{_quoted(requirement.key)} is no label")
    for text in values:
        if not _is_value(text):
            raise NodeSelectorError(f"{_quoted(requirement.key)} with the value {_quoted(text)} is no label")
    match requirement.operator:
        case "In" if values:
            return value in values
        case "NotIn" if values:
            return value not in values
        case "Exists" if not values:
            return value is not None
        case "DoesNotExist" if not values:
            return value is None
        case "Gt" | "Lt" if len(values) == 1 and (limit := integer(values[0])) is not None:
            found = integer(value)
            if found is None:
                return False
            return found > limit if requirement.operator == "Gt" else found < limit
    raise _misused(requirement, _quoted(requirement.key))


def _field(requirement: NodeSelectorRequirement, node: NodeFacts) -> bool:
    values = requirement.values or []
    if requirement.operator not in ("In", "NotIn") or len(values) != 1:
        raise _misused(requirement, f"the field {_quoted(requirement.key)}")
    value = node.name if requirement.key == "metadata.name" else ""
    return (value == values[0]) is (requirement.operator == "In")


def _misused(requirement: NodeSelectorRequirement, what: str) -> NodeSelectorError:
    values = requirement.values or []
    given = f"the value {_quoted(values[0])}" if len(values) == 1 else f"{len(values)} values"
    return NodeSelectorError(
        f"{_quoted(requirement.operator)} with {given} is not valid for {what} in a node selector"
    )


def _quoted(text: str) -> str:
    """A text of anybody, short enough for a reason."""
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


@lru_cache(maxsize=4096)
def _is_value(text: str) -> bool:
    return not text or bool(_NAME.fullmatch(text))


@lru_cache(maxsize=4096)
def _is_key(text: str) -> bool:
    domain, slash, name = text.rpartition("/")
    return bool(_NAME.fullmatch(name) and (_DOMAIN.fullmatch(domain) if slash else True))


def integer(text: str | None) -> int | None:
    """The number that Kubernetes reads in a label; None where it reads none (`1_0`, ` 1`, beyond 64 bits)."""
    if text is None or not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None
