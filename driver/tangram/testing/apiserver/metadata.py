"""The rules of `metadata` that all kinds share (apimachinery's `ValidateObjectMeta`)."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tangram.testing.apiserver.problems import (
    Problem,
    Problems,
    checked,
    immutable,
    invalid,
    label_value,
    qualified_name,
    required,
    subdomain,
)

Format = Callable[[str], Iterable[str]]

_MAX_ANNOTATIONS_BYTES = 256 * 1024
_STANDARD_FINALIZERS = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
_WHERE = "metadata"


def validate(metadata: Mapping[str, Any], *, name_format: Format = subdomain) -> Problems:
    """Of a new object."""
    name = metadata.get("name") or ""
    if name:
        yield from checked(f"{_WHERE}.name", name, name_format(name))
    else:
        yield required(f"{_WHERE}.name", "name or generateName is required")
    yield from labels(metadata.get("labels"), where=f"{_WHERE}.labels")
    yield from annotations(metadata.get("annotations"), where=f"{_WHERE}.annotations")
    yield from _owners(metadata.get("ownerReferences") or [])
    yield from _finalizers(metadata.get("finalizers") or [])


def validate_update(metadata: Mapping[str, Any], before: Mapping[str, Any]) -> Problems:
    """Of a change. uid and deletionTimestamp are checked twice, so their problem comes twice."""
    if (uid := metadata.get("uid")) != before["uid"]:
        yield immutable(f"{_WHERE}.uid", uid)
        yield immutable(f"{_WHERE}.uid", uid)
    if (time := metadata.get("deletionTimestamp")) != before.get("deletionTimestamp"):
        yield immutable(f"{_WHERE}.deletionTimestamp", time)
        yield immutable(f"{_WHERE}.deletionTimestamp", time)
    added = set(metadata.get("finalizers") or ()) - set(before.get("finalizers") or ())
    if added and before.get("deletionTimestamp"):
        why = f"no new finalizers can be added if the object is being deleted, found new finalizers {added}"
        yield Problem("Forbidden", f"{_WHERE}.finalizers", why)
    yield from labels(metadata.get("labels"), where=f"{_WHERE}.labels")
    yield from annotations(metadata.get("annotations"), where=f"{_WHERE}.annotations")
    yield from _owners(metadata.get("ownerReferences") or [])
    yield from _finalizers(metadata.get("finalizers") or [])


def labels(values: Mapping[str, str] | None, *, where: str) -> Problems:
    """Of labels and of node selectors."""
    for key, value in (values or {}).items():
        yield from checked(where, key, qualified_name(key))
        yield from checked(where, value, label_value(value))


def annotations(values: Mapping[str, str] | None, *, where: str) -> Problems:
    """Their keys may have capitals, and all of them together have a limit."""
    for key in values or {}:
        yield from checked(where, key, qualified_name(key.lower()))
    if (
        sum(len(key.encode()) + len(value.encode()) for key, value in (values or {}).items())
        > _MAX_ANNOTATIONS_BYTES
    ):
        yield Problem("TooLong", where, f"may not be more than {_MAX_ANNOTATIONS_BYTES} bytes")


def _owners(references: list[Mapping[str, Any]]) -> Problems:
    where = f"{_WHERE}.ownerReferences"
    for reference in references:
        version = reference.get("apiVersion") or ""
        if not version or version.count("/") > 1:
            yield invalid(f"{where}.apiVersion", version, "version must not be empty")
        for field in ("kind", "name", "uid"):
            if not reference.get(field):
                yield invalid(f"{where}.{field}", "", "must not be empty")
        if (version, reference.get("kind")) == ("v1", "Event"):
            yield invalid(where, json.dumps(reference), "/v1, Kind=Event is disallowed from being an owner")
    if sum(bool(reference.get("controller")) for reference in references) > 1:
        yield invalid(where, json.dumps(references), "Only one reference can have Controller set to true")


def _finalizers(finalizers: list[str]) -> Problems:
    for index, name in enumerate(finalizers):
        reasons = list(qualified_name(name))
        yield from checked(f"{_WHERE}.finalizers", name, reasons)
        if not reasons and "/" not in name and name not in _STANDARD_FINALIZERS:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            yield invalid(f"{_WHERE}.finalizers[{index}]", name, why)
    if {"orphan", "foregroundDeletion"} <= set(finalizers):
        yield invalid(f"{_WHERE}.finalizers", finalizers, "orphan and foregroundDeletion exclude each other")
