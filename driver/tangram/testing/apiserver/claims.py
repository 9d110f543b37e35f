"""ResourceClaims and their templates: defaults, gated fields, and the rules of the spec (KEP-4381)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tangram.testing.apiserver import devicerules, metadata
from tangram.testing.apiserver.catalog import CONSUMABLE_CAPACITY, PRIORITIZED_LIST, TAINTS, Version
from tangram.testing.apiserver.problems import (
    Problem,
    Problems,
    checked,
    duplicates,
    immutable,
    invalid,
    label,
    not_supported,
    required,
    subdomain,
    too_many,
)
from tangram.testing.apiserver.store import Object

ADMIN_LABEL = "resource.kubernetes.io/admin-access"
_MAX_ITEMS = 32
_MAX_ALTERNATIVES = 8
_OF_TEMPLATES = frozenset({"labels", "annotations"})


def apply_defaults(spec: Mapping[str, Any] | None) -> None:
    """`allocationMode: ExactCount`, `count: 1`, and the operator of tolerations."""
    for request in _requests(spec):
        if not request.get("allocationMode"):
            request["allocationMode"] = "ExactCount"
        if request["allocationMode"] == "ExactCount" and not request.get("count"):
            request["count"] = 1
        for toleration in request.get("tolerations") or []:
            toleration.setdefault("operator", "Equal")


def drop_disabled_spec(spec: Mapping[str, Any] | None, *, version: Version) -> None:
    """Fields of requests whose gate is off, in place. 1.34 keeps `tolerations` and `distinctAttribute`."""
    if CONSUMABLE_CAPACITY not in version.features:
        for request in _requests(spec):
            request.pop("capacity", None)
    if PRIORITIZED_LIST not in version.features:
        for request in _devices(spec).get("requests") or []:
            request.pop("firstAvailable", None)
    if version.minor >= 35:
        if TAINTS not in version.features:
            for request in _requests(spec):
                request.pop("tolerations", None)
        if CONSUMABLE_CAPACITY not in version.features:
            for constraint in _devices(spec).get("constraints") or []:
                constraint.pop("distinctAttribute", None)


def asks_for_admin_access(spec: Mapping[str, Any] | None) -> Iterator[int]:
    """The positions of the requests with admin access."""
    for index, request in enumerate(_devices(spec).get("requests") or []):
        if (request.get("exactly") or {}).get("adminAccess"):
            yield index


def validate_template(new: Object, old: Object | None, version: Version) -> Problems:
    """Of a ResourceClaimTemplate."""
    template = new["spec"]
    meta = template.get("metadata") or {}
    for field in sorted(set(meta) - _OF_TEMPLATES):
        yield Problem("Forbidden", f"spec.metadata.{field}", "cannot be set")
    yield from metadata.labels(meta.get("labels"), where="spec.metadata.labels")
    yield from metadata.annotations(meta.get("annotations"), where="spec.metadata.annotations")
    if old is not None and new["spec"] != old["spec"]:
        yield immutable("spec", new["spec"])
    elif old is None:
        yield from validate_spec(template.get("spec") or {}, where="spec.spec", version=version)


def validate_spec(spec: Mapping[str, Any], *, where: str, version: Version) -> Problems:
    """Of the spec of a claim, at `where`."""
    del version
    devices, where = _devices(spec), f"{where}.devices"
    requests = devices.get("requests") or []
    yield from _list(requests, _request, where=f"{where}.requests")
    if len(requests) <= _MAX_ITEMS:
        yield from duplicates(f"{where}.requests", [request.get("name") or "" for request in requests])
    known = set(request_names(spec))

    def constraint(entry: Mapping[str, Any], *, where: str) -> Problems:
        yield from devicerules.requests(entry.get("requests") or [], known, where=f"{where}.requests")
        given = [field for field in ("matchAttribute", "distinctAttribute") if entry.get(field) is not None]
        if not given:
            yield required(where, "one of `matchAttribute`, `distinctAttribute` is required")
        for field in given:
            yield from devicerules.attribute_name(entry[field], where=f"{where}.{field}", qualified=True)

    def config(entry: Mapping[str, Any], *, where: str) -> Problems:
        yield from devicerules.requests(entry.get("requests") or [], known, where=f"{where}.requests")
        yield from devicerules.opaque(entry, where=where)

    yield from _list(devices.get("constraints") or [], constraint, where=f"{where}.constraints")
    yield from _list(devices.get("config") or [], config, where=f"{where}.config")


def request_names(spec: Mapping[str, Any] | None) -> Iterator[str]:
    """How requests are referred to. The plain name passes for one with alternatives too."""
    for request in _devices(spec).get("requests") or []:
        yield request["name"]
        for alternative in request.get("firstAvailable") or []:
            yield f"{request['name']}/{alternative.get('name')}"


def _list(entries: list[Any], rule: Callable[..., Problems], *, where: str) -> Problems:
    yield from too_many(where, entries, _MAX_ITEMS)
    if len(entries) <= _MAX_ITEMS:
        for index, entry in enumerate(entries):
            yield from rule(entry, where=f"{where}[{index}]")


def _devices(spec: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return (spec or {}).get("devices") or {}


def _requests(spec: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    for request in _devices(spec).get("requests") or []:
        if request.get("exactly") is not None:
            yield request["exactly"]
        yield from request.get("firstAvailable") or []


def _request(request: Mapping[str, Any], *, where: str) -> Problems:
    name, exactly = request.get("name") or "", request.get("exactly")
    alternatives = request.get("firstAvailable") or []
    yield from checked(f"{where}.name", name, label(name))
    if exactly is None and not alternatives:
        yield required(where, "exactly one of `exactly` or `firstAvailable` is required")
    elif exactly is not None and alternatives:
        yield invalid(
            where, "{`exactly`, `firstAvailable`}", "exactly one of them is required, but multiple are set"
        )
    elif exactly is not None:
        yield from _demand(exactly, where=f"{where}.exactly")
    elif len(alternatives) > _MAX_ALTERNATIVES:
        yield from too_many(f"{where}.firstAvailable", alternatives, _MAX_ALTERNATIVES)
    else:
        where = f"{where}.firstAvailable"
        yield from duplicates(where, [each.get("name") or "" for each in alternatives])
        for index, alternative in enumerate(alternatives):
            name = alternative.get("name") or ""
            yield from checked(f"{where}[{index}].name", name, label(name))
            yield from _demand(alternative, where=f"{where}[{index}]")


def _demand(request: Mapping[str, Any], *, where: str) -> Problems:
    """What `exactly` and each alternative have in common."""
    if not (name := request.get("deviceClassName")):
        yield required(f"{where}.deviceClassName")
    else:
        yield from checked(f"{where}.deviceClassName", name, subdomain(name))
    yield from devicerules.selectors(request.get("selectors") or [], where=f"{where}.selectors")
    mode, count = request.get("allocationMode"), request.get("count", 0)
    if mode not in {"ExactCount", "All"}:
        yield not_supported(f"{where}.allocationMode", mode, ["All", "ExactCount"])
    elif mode == "ExactCount" and count < 1:
        yield invalid(f"{where}.count", count, "must be greater than zero")
    elif mode == "All" and count:
        yield invalid(f"{where}.count", count, "must not be specified when allocationMode is 'All'")
    yield from devicerules.tolerations(request.get("tolerations") or [], where=f"{where}.tolerations")
