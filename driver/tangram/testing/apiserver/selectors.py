"""Label and field selectors of list and watch."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from tangram.kube.resources import EVENTS, NODES, PODS, RESOURCE_SLICES, Resource
from tangram.testing.apiserver.answers import bad_request
from tangram.testing.apiserver.catalog import JOBS, NAMESPACES, Version
from tangram.testing.apiserver.problems import label_value, qualified_name

Object = dict[str, Any]
Predicate = Callable[[Object], bool]

_OF_ALL = frozenset({"metadata.name", "metadata.namespace"})
_FIELDS: Mapping[Resource, frozenset[str]] = {
    PODS: frozenset(
        {
            "spec.host",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        }
    ),
    NODES: frozenset({"spec.unschedulable"}),
    NAMESPACES: frozenset({"status.phase"}),
    JOBS: frozenset({"status.successful"}),
    RESOURCE_SLICES: frozenset({"spec.nodeName", "spec.driver"}),
    EVENTS: frozenset(
        {
            *(
                f"regarding.{name}"
                for name in ("name", "namespace", "kind", "uid", "apiVersion", "fieldPath")
            ),
            *(f"involvedObject.{name}" for name in ("name", "namespace", "kind", "uid", "apiVersion")),
            "reason",
            "reportingController",
            "source",
            "type",
        }
    ),
}
_SINCE_1_37: Mapping[Resource, frozenset[str]] = {RESOURCE_SLICES: frozenset({"spec.pool.name"})}
_ALIASES = {"spec.host": "spec.nodeName"}
_SET_BASED = re.compile(r"(?P<key>[^\s!=,()<>]+)\s+(?P<operator>in|notin)\s+\((?P<values>[^)]*)\)")
_WORDS = re.compile(r"(?P<key>[^\s!=,()<>]+)\s+(?P<word>\S+).*")
# Commas inside the parentheses of `in (a,b)` do not separate terms.
_TERMS = re.compile(r"(?:[^,(]|\([^)]*\))+")


def selector(*, labels: str, fields: str, resource: Resource, version: Version) -> Predicate:
    """Whether an object matches both; 400 for what cannot be parsed, or `resource` does not support."""
    tests = [_label_test(term.strip()) for term in _TERMS.findall(labels)]
    tests += [_field_test(term.strip(), resource, version) for term in fields.split(",") if term]
    return lambda obj: all(test(obj) for test in tests)


def _field_test(term: str, resource: Resource, version: Version) -> Predicate:
    match = re.fullmatch(r"([^=!\s]+)\s*(==|=|!=)\s*(.*)", term)
    if match is None:
        raise bad_request(f"invalid selector: '{term}'; can't understand '{term}'")
    name, positive, value = match[1], match[2] != "!=", match[3]
    if name not in _OF_ALL | _supported(resource, version):
        if resource in _FIELDS:
            raise bad_request(f"field label not supported: {name}")
        raise bad_request(
            f'"{name}" is not a known field selector: only "metadata.name", "metadata.namespace"'
        )
    path = tuple(_ALIASES.get(name, name).split("."))
    return lambda obj: (_lookup(obj, path) == value) == positive


def _supported(resource: Resource, version: Version) -> frozenset[str]:
    none: frozenset[str] = frozenset()
    recent = _SINCE_1_37.get(resource, none) if version.minor >= 37 else none
    return _FIELDS.get(resource, none) | recent


def _lookup(obj: Object, path: tuple[str, ...]) -> str:
    value: Any = obj
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or path == ("spec", "unschedulable"):
        return str(bool(value)).lower()
    return str(value or "")


def _label_test(term: str) -> Predicate:
    if match := _SET_BASED.fullmatch(term):
        key, wanted = _label_key(match["key"]), match["operator"] == "in"
        values = {value.strip() for value in match["values"].split(",")}
        # `notin` also matches objects without the label.
        return lambda obj: (_labels(obj).get(key) in values) == wanted
    if match := re.fullmatch(r"([^\s=!<>]+)\s*([<>])\s*(\S+)", term):
        return _compared(_label_key(match[1]), match[2], match[3])
    if "=" in term:
        key, positive, value = _equality(term)
        return lambda obj: (_labels(obj).get(key) == value) == positive
    if match := _WORDS.fullmatch(term):
        raise bad_request(
            f"unable to parse requirement: found '{match['word']}', expected: in, notin, =, ==, !=, gt, lt"
        )
    if term.startswith("!"):
        absent = _label_key(term[1:].strip())
        return lambda obj: absent not in _labels(obj)
    return lambda obj: _label_key(term) in _labels(obj)


def _compared(key: str, operator: str, text: str) -> Predicate:
    if not text.lstrip("-").isdigit():
        why = "for 'Gt', 'Lt' operators, the value must be an integer"
        raise bad_request(f'unable to parse requirement: values[0]: Invalid value: "{text}": {why}')

    def test(obj: Object) -> bool:
        given = _labels(obj).get(key, "")
        if not given.lstrip("-").isdigit():
            return False
        return int(given) > int(text) if operator == ">" else int(given) < int(text)

    return test


def _labels(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def _label_key(text: str) -> str:
    for why in qualified_name(text):
        raise bad_request(f'unable to parse requirement: key: Invalid value: "{text}": {why}')
    return text


def _equality(term: str) -> tuple[str, bool, str]:
    match = re.fullmatch(r"([^=!\s]+)\s*(==|=|!=)\s*([^=!]*)", term)
    if match is None:
        raise bad_request(f"unable to parse requirement: {term!r}")
    value, _, rest = match[3].strip().partition(" ")
    if rest:
        raise bad_request(f"found '{rest}', expected: ',' or 'end of string'")
    for why in label_value(value):
        raise bad_request(f'unable to parse requirement: values[0]: Invalid value: "{value}": {why}')
    return _label_key(match[1]), match[2] != "!=", value
