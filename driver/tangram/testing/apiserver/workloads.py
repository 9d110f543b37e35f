"""Deployments and Jobs: what makes pods."""

import json
from collections.abc import Mapping
from typing import Any

from tangram.testing.apiserver import pods
from tangram.testing.apiserver.catalog import Version
from tangram.testing.apiserver.problems import Problems, immutable, invalid, not_supported, required
from tangram.testing.apiserver.store import Object

_STRATEGIES = ("Recreate", "RollingUpdate")
_NOT_NEGATIVE = "must be greater than or equal to 0"


def validate_deployment(new: Object, old: Object | None, _version: Version) -> Problems:
    """Of a Deployment."""
    spec = new["spec"]
    template, selector = spec["template"], spec.get("selector")
    yield from _counts(spec, ("replicas",))
    if selector is None:
        yield required("spec.selector")
    elif not selector:
        yield invalid("spec.selector", "{}", "empty selector is invalid for deployment")
    labels = template["metadata"].get("labels") or {}
    if selector != {} and not (selector and _selects(selector, labels)):
        why = "`selector` does not match template `labels`"
        yield invalid("spec.template.metadata.labels", json.dumps(labels), why)
    yield from pods.validate_spec(template["spec"], where="spec.template.spec")
    if (policy := template["spec"].get("restartPolicy")) in set(pods.RESTART_POLICIES) - {"Always"}:
        yield not_supported("spec.template.spec.restartPolicy", policy, ["Always"])
    if (strategy := spec["strategy"].get("type")) not in _STRATEGIES:
        yield not_supported("spec.strategy", strategy, _STRATEGIES)
    if old is not None and selector != old["spec"].get("selector"):
        yield immutable("spec.selector", selector)


def validate_job(new: Object, old: Object | None, _version: Version) -> Problems:
    """Of a Job."""
    spec = new["spec"]
    yield from _counts(spec, ("parallelism", "completions", "backoffLimit"))
    pod = spec["template"]["spec"]
    yield from pods.validate_spec(pod, where="spec.template.spec")
    if (policy := pod.get("restartPolicy")) == "Always":
        yield required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"')
    elif policy not in pods.RESTART_POLICIES:
        yield not_supported("spec.template.spec.restartPolicy", policy, ["OnFailure", "Never"])
    if old is not None:
        for field in ("template", "selector", "completions"):
            if spec.get(field) != old["spec"].get(field):
                yield immutable(f"spec.{field}", spec.get(field))


def _counts(spec: Mapping[str, Any], fields: tuple[str, ...]) -> Problems:
    for field in fields:
        if (count := spec.get(field, 0)) < 0:
            yield invalid(f"spec.{field}", count, _NOT_NEGATIVE)


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if not (selector.get("matchLabels") or {}).items() <= labels.items():
        return False
    for term in selector.get("matchExpressions") or []:
        present, values = term["key"] in labels, term.get("values") or []
        matches = {
            "In": labels.get(term["key"]) in values,
            "NotIn": labels.get(term["key"]) not in values,
            "Exists": present,
            "DoesNotExist": not present,
        }
        if not matches.get(term["operator"], False):
            return False
    return True
