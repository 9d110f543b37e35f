"""Label and field selectors of list and watch."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from tangram.testing.apiserver.answers import bad_request

Object = dict[str, Any]
Predicate = Callable[[Object], bool]

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "metadata.name": ("metadata", "name"),
    "metadata.namespace": ("metadata", "namespace"),
    "spec.nodeName": ("spec", "nodeName"),
    "spec.driver": ("spec", "driver"),
    "status.phase": ("status", "phase"),
    "regarding.name": ("regarding", "name"),
    "regarding.kind": ("regarding", "kind"),
    "regarding.uid": ("regarding", "uid"),
    "involvedObject.name": ("involvedObject", "name"),
    "involvedObject.namespace": ("involvedObject", "namespace"),
    "involvedObject.kind": ("involvedObject", "kind"),
    "involvedObject.uid": ("involvedObject", "uid"),
}
_SET_BASED = re.compile(r"(?P<key>[^\s!=,()]+)\s+(?P<operator>in|notin)\s+\((?P<values>[^)]*)\)")
# Commas inside the parentheses of `in (a,b)` do not separate terms.
_TERMS = re.compile(r"(?:[^,(]|\([^)]*\))+")


def selector(*, labels: str, fields: str) -> Predicate:
    """Whether an object matches both; answers 400 for what cannot be parsed or is not supported."""
    tests = [_label_test(term.strip()) for term in _TERMS.findall(labels)]
    tests += [_field_test(term.strip()) for term in fields.split(",") if term]
    return lambda obj: all(test(obj) for test in tests)


def _field_test(term: str) -> Predicate:
    name, operator, value = _equality(term)
    if name not in _FIELDS:
        raise bad_request(f"field label not supported: {name}")
    path = _FIELDS[name]
    return lambda obj: (_lookup(obj, path) == value) == (operator == "=")


def _lookup(obj: Object, path: tuple[str, ...]) -> str:
    value: Any = obj
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return str(value or "")


def _label_test(term: str) -> Predicate:
    if match := _SET_BASED.fullmatch(term):
        key, wanted = match["key"], match["operator"] == "in"
        values = {value.strip() for value in match["values"].split(",")}
        # `notin` also matches objects without the label.
        return lambda obj: (_labels(obj).get(key) in values) == wanted
    if "=" in term:
        key, operator, value = _equality(term)
        return lambda obj: (_labels(obj).get(key) == value) == (operator == "=")
    if term.startswith("!"):
        return lambda obj: term[1:] not in _labels(obj)
    return lambda obj: term in _labels(obj)


def _labels(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def _equality(term: str) -> tuple[str, str, str]:
    match = re.fullmatch(r"([^=!\s]+)\s*(==|=|!=)\s*([^=!\s]*)", term)
    if match is None:
        raise bad_request(f"unable to parse requirement: {term!r}")
    return match[1], "!=" if match[2] == "!=" else "=", match[3]
