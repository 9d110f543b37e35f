"""The rules of pods (core/validation), as far as the kinds of fields that GPU workloads use."""

import json
from collections.abc import Mapping
from typing import Any

from tangram.model.quantity import parse_quantity
from tangram.testing.apiserver import devicerules, metadata
from tangram.testing.apiserver.catalog import Version
from tangram.testing.apiserver.problems import (
    Problem,
    Problems,
    checked,
    duplicates,
    invalid,
    label,
    not_supported,
    qualified_name,
    required,
    subdomain,
)
from tangram.testing.apiserver.store import Object

RESTART_POLICIES = ("Always", "OnFailure", "Never")
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_MUTABLE = ("activeDeadlineSeconds", "terminationGracePeriodSeconds")
_MAY_CHANGE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations)"
)


def validate(new: Object, old: Object | None, _version: Version) -> Problems:
    """Of a Pod."""
    spec = new["spec"]
    if old is None:
        yield from validate_spec(spec, where="spec")
        if spec.get("nodeName") and spec.get("schedulingGates"):
            why = "cannot be set until all schedulingGates have been cleared"
            yield Problem("Forbidden", "spec.nodeName", why)
        return
    if spec != old["spec"]:
        yield from validate_spec(spec, where="spec")
        yield from _validate_change(spec, old["spec"])
    known = {claim["name"] for claim in spec.get("resourceClaims") or []}
    for index, status in enumerate((new.get("status") or {}).get("resourceClaimStatuses") or []):
        if (name := status.get("name")) not in known:
            why = "must match the name of an entry in `spec.resourceClaims`"
            yield invalid(f"status.resourceClaimStatuses[{index}].name", name, why)


def validate_spec(spec: Mapping[str, Any], *, where: str) -> Problems:
    """Of a pod's spec at `where`."""
    claims = spec.get("resourceClaims") or []
    yield from _claims(claims, where=f"{where}.resourceClaims")
    if not spec.get("containers"):
        yield required(f"{where}.containers")
    names: set[str] = set()
    ports: set[tuple[Any, ...]] = set()
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field) or []):
            at, name = f"{where}.{field}[{index}]", container.get("name") or ""
            if not name:
                yield required(f"{at}.name")
            elif name in names:
                yield Problem("Duplicate", f"{at}.name", f'"{name}"')
            else:
                yield from checked(f"{at}.name", name, label(name))
            names.add(name)
            yield from _container(container, spec, where=at)
            yield from _ports(container.get("ports") or [], ports, where=f"{at}.ports")
    if (policy := spec.get("restartPolicy")) not in RESTART_POLICIES:
        yield not_supported(f"{where}.restartPolicy", policy, RESTART_POLICIES)
    yield from metadata.labels(spec.get("nodeSelector"), where=f"{where}.nodeSelector")
    gates = [gate.get("name") or "" for gate in spec.get("schedulingGates") or []]
    yield from duplicates(f"{where}.schedulingGates", gates)
    for index, gate in enumerate(gates):
        yield from checked(f"{where}.schedulingGates[{index}]", gate, qualified_name(gate))
    if name := spec.get("nodeName"):
        yield from checked(f"{where}.nodeName", name, subdomain(name))
    for index, toleration in enumerate(spec.get("tolerations") or []):
        if (operator := toleration.get("operator") or "Equal") not in {"Equal", "Exists"}:
            yield not_supported(f"{where}.tolerations[{index}].operator", operator, ["Equal", "Exists"])
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    if (terms := affinity.get("requiredDuringSchedulingIgnoredDuringExecution")) is not None:
        at = f"{where}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        yield from devicerules.node_selector(terms, where=at)


def _claims(claims: list[dict[str, Any]], *, where: str) -> Problems:
    seen: set[str] = set()
    for index, claim in enumerate(claims):
        at, name = f"{where}[{index}]", claim.get("name") or ""
        if not name:
            yield required(f"{at}.name")
        elif name in seen:
            yield Problem("Duplicate", f"{at}.name", f'"{name}"')
        else:
            yield from checked(f"{at}.name", name, label(name))
        seen.add(name)
        given = [
            field
            for field in ("resourceClaimName", "resourceClaimTemplateName")
            if claim.get(field) is not None
        ]
        if len(given) != 1:
            why = "exactly one of `resourceClaimName` and `resourceClaimTemplateName` is needed"
            yield invalid(at, json.dumps(claim), why)
        for field in given:
            yield from checked(f"{at}.{field}", claim[field], subdomain(claim[field]))


def _container(container: Mapping[str, Any], spec: Mapping[str, Any], *, where: str) -> Problems:
    image = container.get("image") or ""
    if not image:
        yield required(f"{where}.image")
    elif image != image.strip():
        yield invalid(f"{where}.image", image, "must not have leading or trailing whitespace")
    if (policy := container.get("imagePullPolicy")) not in _PULL_POLICIES:
        yield not_supported(f"{where}.imagePullPolicy", policy, _PULL_POLICIES)
    for index, variable in enumerate(container.get("env") or []):
        at, name = f"{where}.env[{index}].name", variable.get("name") or ""
        if not name:
            yield required(at)
        elif "=" in name or not name.isascii() or not name.isprintable():
            yield invalid(at, name, "must consist only of printable ASCII characters other than '='")
    volumes = {volume.get("name") for volume in spec.get("volumes") or []}
    for index, mount in enumerate(container.get("volumeMounts") or []):
        if (name := mount.get("name") or "") not in volumes:
            yield Problem("NotFound", f"{where}.volumeMounts[{index}].name", f'"{name}"')
    yield from _resources(container["resources"], spec, where=f"{where}.resources")


def _resources(resources: Mapping[str, Any], spec: Mapping[str, Any], *, where: str) -> Problems:
    known = {claim.get("name") for claim in spec.get("resourceClaims") or []}
    claims = resources.get("claims") or []
    yield from duplicates(f"{where}.claims", [(each.get("name"), each.get("request")) for each in claims])
    for index, claim in enumerate(claims):
        if (name := claim.get("name") or "") not in known:
            yield Problem("NotFound", f"{where}.claims[{index}]", f'"{name}"')
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name, amount in requests.items():
        extended = "/" in name and not name.partition("/")[0].endswith("kubernetes.io")
        if name in limits and parse_quantity(amount) > parse_quantity(limits[name]):
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            yield invalid(f"{where}.requests", amount, why)
        elif extended and name not in limits:
            yield required(f"{where}.limits", "Limit must be set for non overcommitable resources")
        elif extended and parse_quantity(amount) != parse_quantity(limits[name]):
            yield invalid(f"{where}.requests", amount, f"must be equal to {name} limit of {limits[name]}")


def _ports(ports: list[dict[str, Any]], taken: set[tuple[Any, ...]], *, where: str) -> Problems:
    for index, port in enumerate(ports):
        if not 0 < (number := port.get("containerPort", 0)) < 65536:
            yield invalid(f"{where}[{index}].containerPort", number, "must be between 1 and 65535, inclusive")
        if host := port.get("hostPort"):
            identity = (port.get("protocol"), port.get("hostIP") or "", host)
            if identity in taken:
                yield Problem("Duplicate", f"{where}[{index}].hostPort", str(identity))
            taken.add(identity)


def _validate_change(spec: Mapping[str, Any], before: Mapping[str, Any]) -> Problems:
    gates = [gate["name"] for gate in before.get("schedulingGates") or []]
    for index, gate in enumerate(spec.get("schedulingGates") or []):
        if gate["name"] not in gates:
            why = f"only deletion is allowed, but found new scheduling gate '{gate['name']}'"
            yield Problem("Forbidden", f"spec.schedulingGates[{index}].name", why)
    if len(spec.get("containers") or []) != len(before["containers"]):
        yield Problem("Forbidden", "spec.containers", "pod updates may not add or remove containers")
        return
    settled = _comparable(before)
    changed = _comparable(spec)
    if gates:  # a gated pod may be given a narrower choice of nodes
        selector, old_selector = spec.get("nodeSelector") or {}, before.get("nodeSelector") or {}
        if not old_selector.items() <= selector.items():
            why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
            yield invalid("spec.nodeSelector", json.dumps(selector), why)
        for each in (settled, changed):
            each.pop("nodeSelector", None)
            each.pop("affinity", None)
    if changed != settled:
        yield Problem("Forbidden", "spec", _MAY_CHANGE)
    tolerations = spec.get("tolerations") or []
    if any(each not in tolerations for each in before.get("tolerations") or []):
        why = "existing toleration can not be modified except its tolerationSeconds"
        yield Problem("Forbidden", "spec.tolerations", why)


def _comparable(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What may not change."""
    free = {"schedulingGates", "tolerations", *_MUTABLE}
    kept = {key: value for key, value in spec.items() if key not in free}
    for field in ("initContainers", "containers"):
        if field in kept:
            without = [{key: value for key, value in each.items() if key != "image"} for each in kept[field]]
            kept[field] = without
    return kept
