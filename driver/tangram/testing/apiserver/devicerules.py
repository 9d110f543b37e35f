"""Rules that slices, claims and classes have in common (resource/validation of Kubernetes, KEP-4381)."""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tangram.base.errors import CelCompileError, CelNotSupportedError
from tangram.cel import compile_expression
from tangram.testing.apiserver.problems import (
    Problem,
    Problems,
    c_identifier,
    checked,
    invalid,
    not_supported,
    qualified_name,
    required,
    subdomain,
    too_long,
    too_many,
)

MAX_SELECTORS = 32
_MAX_DRIVER_BYTES = 63
_MAX_ID_BYTES = 32
_MAX_OPAQUE_BYTES = 10 * 1024
_MAX_EXPRESSION_BYTES = 10 * 1024
_MAX_CONDITIONS = 4
_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})


def driver(name: str, *, where: str) -> Problems:
    """Of a driver's name, which is compared in lower case."""
    if not name:
        yield required(where)
        return
    yield from too_long(where, name, _MAX_DRIVER_BYTES)
    yield from checked(where, name, subdomain(name.lower()))


def pool(name: str, *, where: str) -> Problems:
    """Of a pool's name: subdomains separated by slashes."""
    if not name:
        yield required(where)
        return
    yield from too_long(where, name, 253)
    for part in name.split("/"):
        yield from checked(where, part, subdomain(part))


def attribute_name(name: str, *, where: str, qualified: bool = False) -> Problems:
    """Of `[domain/]id`; with `qualified` the domain is needed."""
    domain, slash, identifier = name.partition("/")
    if not slash:
        domain, identifier = "", name
        if not name:
            yield required(where) if qualified else invalid(where, name, "name must not be empty")
            return
        if qualified:
            yield invalid(
                where, name, "a fully qualified name must be a domain and a name separated by a slash"
            )
            return
    elif not domain:
        yield invalid(where, domain, "the domain must not be empty")
    else:
        yield from too_long(where, domain, _MAX_DRIVER_BYTES)
        yield from checked(where, domain, subdomain(domain.lower()))
    if not identifier:
        yield invalid(where, identifier, "the name must not be empty")
        return
    yield from too_long(where, identifier, _MAX_ID_BYTES)
    if "/" not in identifier:  # upstream does not look at what follows a second slash
        yield from checked(where, identifier, c_identifier(identifier))


def opaque(entry: Mapping[str, Any], *, where: str) -> Problems:
    """Of the `opaque` in a configuration entry at `where`."""
    found = entry.get("opaque")
    if found is None:
        yield required(f"{where}.opaque")
        return
    yield from driver(found.get("driver") or "", where=f"{where}.opaque.driver")
    yield from json_object(found.get("parameters"), where=f"{where}.opaque.parameters", needed=True)


def json_object(value: Any, *, where: str, needed: bool = False) -> Problems:
    """Of raw JSON that must be an object."""
    if value is None:
        if needed:
            yield required(where)
    elif len(json.dumps(value, separators=(",", ":"))) > _MAX_OPAQUE_BYTES:
        yield Problem("TooLong", where, f"may not be more than {_MAX_OPAQUE_BYTES} bytes")
    elif not isinstance(value, Mapping):
        yield invalid(where, "<value omitted>", "must be a valid JSON object")


def selectors(entries: Sequence[Mapping[str, Any]], *, where: str) -> Problems:
    """Of CEL selectors. What our CEL does not know yet passes: a real server may know it."""
    yield from too_many(where, entries, MAX_SELECTORS)
    for index, entry in enumerate(entries[:MAX_SELECTORS]):
        cel = entry.get("cel")
        if cel is None:
            yield required(f"{where}[{index}].cel")
            continue
        field, expression = f"{where}[{index}].cel.expression", cel.get("expression") or ""
        if len(expression) > _MAX_EXPRESSION_BYTES:
            yield from too_long(field, expression, _MAX_EXPRESSION_BYTES)
        elif why := _compile_error(expression):
            yield invalid(field, expression, why)


@functools.lru_cache(maxsize=1024)
def _compile_error(expression: str) -> str:
    try:
        compile_expression(expression)
    except CelNotSupportedError:
        return ""
    except CelCompileError as error:
        return f"compilation failed: {error}"
    return ""


def tolerations(entries: Sequence[Mapping[str, Any]], *, where: str) -> Problems:
    """Of device tolerations."""
    for index, entry in enumerate(entries):
        at, key, operator = f"{where}[{index}]", entry.get("key") or "", entry.get("operator")
        if key:
            yield from checked(f"{at}.key", key, qualified_name(key))
        if operator not in {"Equal", "Exists"}:
            yield not_supported(f"{at}.operator", operator, ["Equal", "Exists"])
        elif operator == "Exists" and entry.get("value"):
            yield invalid(f"{at}.value", entry["value"], "must be empty for operator `Exists`")
        effect = entry.get("effect")
        if effect and effect not in {"NoSchedule", "NoExecute", "None"}:
            yield not_supported(f"{at}.effect", effect, ["NoSchedule", "NoExecute", "None"])


def binding_conditions(device: Mapping[str, Any], *, where: str) -> Problems:
    """Of a device's or a result's `bindingConditions` and `bindingFailureConditions`."""
    conditions = device.get("bindingConditions") or []
    failures = device.get("bindingFailureConditions") or []
    for field, values in (("bindingConditions", conditions), ("bindingFailureConditions", failures)):
        yield from too_many(f"{where}.{field}", values, _MAX_CONDITIONS)
        for index, value in enumerate(values[:_MAX_CONDITIONS]):
            yield from checked(f"{where}.{field}[{index}]", value, qualified_name(value))
    for index, value in enumerate(failures):
        if value in conditions:
            why = "bindingFailureConditions must not overlap with bindingConditions"
            yield invalid(f"{where}.bindingFailureConditions[{index}]", value, why)
    if conditions and not failures:
        yield invalid(f"{where}.bindingFailureConditions", failures, "required with bindingConditions")
    if failures and not conditions:
        yield invalid(f"{where}.bindingConditions", conditions, "required with bindingFailureConditions")


def requests(names: Sequence[str], known: Iterable[str], *, where: str) -> Problems:
    """Of references to requests of the claim."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        at = f"{where}[{index}]"
        if name in seen:
            yield Problem("Duplicate", at, f'"{name}"')
        elif name not in known:
            yield unknown_request(at, name)
        seen.add(name)


def unknown_request(where: str, name: str) -> Problem:
    """A reference to a request that the claim has not."""
    why = (
        "must be the name of a request in the claim or "
        "the name of a request and a subrequest separated by '/'"
    )
    return invalid(where, name, why)


def node_selector(selector: Mapping[str, Any], *, where: str) -> Problems:
    """Of a core/v1 NodeSelector."""
    terms = selector.get("nodeSelectorTerms") or []
    if not terms:
        yield required(f"{where}.nodeSelectorTerms", "must have at least one node selector term")
    for index, term in enumerate(terms):
        at = f"{where}.nodeSelectorTerms[{index}]"
        for field, rule in (("matchExpressions", _label_term), ("matchFields", _field_term)):
            for number, requirement in enumerate(term.get(field) or []):
                yield from rule(requirement, where=f"{at}.{field}[{number}]")


def _label_term(term: Mapping[str, Any], *, where: str) -> Problems:
    operator, values = term.get("operator") or "", term.get("values") or []
    if operator in {"In", "NotIn"} and not values:
        yield required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in {"Exists", "DoesNotExist"} and values:
        why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        yield Problem("Forbidden", f"{where}.values", why)
    elif operator in {"Gt", "Lt"} and len(values) != 1:
        yield required(f"{where}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
    elif operator not in _OPERATORS:
        yield invalid(f"{where}.operator", operator, "not a valid selector operator")
    key = term.get("key") or ""
    yield from checked(f"{where}.key", key, qualified_name(key))


def _field_term(term: Mapping[str, Any], *, where: str) -> Problems:
    operator, values, key = term.get("operator") or "", term.get("values") or [], term.get("key") or ""
    if operator not in {"In", "NotIn"}:
        yield invalid(f"{where}.operator", operator, "not a valid selector operator")
    elif len(values) != 1:
        why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        yield required(f"{where}.values", why)
    if key != "metadata.name":
        yield invalid(f"{where}.key", key, "not a valid field selector key")
    else:
        for index, value in enumerate(values):
            yield from checked(f"{where}.values[{index}]", value, subdomain(value))
