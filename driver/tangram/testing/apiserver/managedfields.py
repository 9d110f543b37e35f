"""Who manages which fields, and server-side apply, which is decided by it (KEP-555)."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tangram.base.clock import Clock, rfc3339
from tangram.base.errors import ConflictError
from tangram.kube.decoding import ObjectKey
from tangram.kube.resources import Resource
from tangram.testing.apiserver import applying
from tangram.testing.apiserver.answers import bad_request, internal
from tangram.testing.apiserver.decoding import DecodeError, Decoder
from tangram.testing.apiserver.fieldsets import (
    FieldSet,
    Path,
    fields_of,
    from_json,
    parents,
    text,
    to_json,
    value_at,
)
from tangram.testing.apiserver.objects import check_place
from tangram.testing.apiserver.options import WriteOptions
from tangram.testing.apiserver.store import Object

_BEFORE = "before-first-apply"


@dataclass(frozen=True, slots=True)
class _Manager:
    """Whose fields: a name, how it writes, and through which subresource."""

    name: str
    operation: str
    subresource: str = ""


class Managers:
    """Keeps `metadata.managedFields`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def check(self, resource: Resource, key: ObjectKey, applied: Any) -> None:
        """That a configuration can be applied at all: 400, and 500 for unknown fields as a real server."""
        body = applied if isinstance(applied, dict) else {}
        version, kind = body.get("apiVersion") or "", body.get("kind") or ""
        if (version, kind) != (resource.api_version, resource.kind):
            raise bad_request(f"invalid object type: {version}, Kind={kind}")
        metadata = body.setdefault("metadata", {}) or {}
        if metadata.get("managedFields") is not None:
            raise bad_request("metadata.managedFields must be nil")
        metadata.setdefault("name", key.name)
        if resource.namespaced:
            metadata.setdefault("namespace", key.namespace)
        check_place(key, metadata)
        decoder = Decoder()
        try:
            decoder.struct(resource.kind, body)
        except DecodeError as error:
            raise bad_request(f"failed to create typed patch object: {error}") from error
        if decoder.unknown:
            raise internal(
                f"failed to create typed patch object ({key.namespace}/{key.name}; {version}, Kind={kind}): "
                f".{decoder.unknown[0]}: field not declared in schema"
            )

    def merge(
        self, resource: Resource, old: Object, applied: Object, *, subresource: str, options: WriteOptions
    ) -> Object:
        """The live object with a configuration applied; 409 where it differs from what others manage."""
        kind, me = resource.kind, _Manager(options.manager, "Apply", subresource)
        managers = self._managers_of(resource, old)
        mine = fields_of(kind, applied, applied=True)
        conflicts: list[tuple[_Manager, Path]] = []
        for manager, theirs in managers.items():
            if manager != me:
                conflicts += [
                    (manager, path)
                    for path in sorted((mine & theirs) - parents(mine))
                    if value_at(applied, path) != value_at(old, path)
                ]
        if conflicts and not options.force:
            raise _conflict(conflicts, resource)
        others: FieldSet = frozenset().union(
            *(theirs for manager, theirs in managers.items() if manager != me)
        )
        abandoned = managers.get(me, frozenset()) - mine - others
        return applying.prune(kind, applying.merge(kind, old, applied), abandoned)

    def record_new(
        self, resource: Resource, obj: Object, *, applied: Object | None, options: WriteOptions
    ) -> None:
        """Notes who made an object, in place."""
        operation = "Update" if applied is None else "Apply"
        given = obj if applied is None else applied
        fields = fields_of(resource.kind, given, applied=applied is not None)
        self._write(resource, obj, {_Manager(options.manager, operation): fields}, {})

    def record(
        self,
        resource: Resource,
        old: Object,
        new: Object,
        *,
        managed: list[Any],
        applied: Object | None,
        subresource: str,
        options: WriteOptions,
    ) -> None:
        """Notes who made a change, in place. An empty list of `managed` fields in the request ends the
        counting, until the next apply."""
        before = old["metadata"].get("managedFields") or []
        new["metadata"].pop("managedFields", None)
        if applied is None and (not before or not managed):
            return
        times = {_identity(entry): entry.get("time") for entry in before}
        managers = self._managers_of(resource, old)
        now, then = (fields_of(resource.kind, each, applied=False) for each in (new, old))
        leaves = (now & then) - parents(now) - parents(then)
        changed = (now - then) | {path for path in leaves if value_at(new, path) != value_at(old, path)}
        if applied is None:
            me = _Manager(options.manager, "Update", subresource)
            fields = (managers.get(me, frozenset()) | changed) & now
        else:
            me = _Manager(options.manager, "Apply", subresource)
            fields = fields_of(resource.kind, applied, applied=True)
        result: dict[_Manager, FieldSet] = {}
        for manager, theirs in managers.items():
            if manager != me:
                result[manager] = frozenset(
                    path for path in theirs - changed if value_at(new, path) is not None
                )
        result[me] = fields
        if changed or fields != managers.get(me):
            times.pop(me, None)
        self._write(resource, new, result, times)

    def _managers_of(self, resource: Resource, obj: Object) -> dict[_Manager, FieldSet]:
        found = {
            _identity(entry): from_json(entry.get("fieldsV1") or {})
            for entry in obj["metadata"].get("managedFields") or []
        }
        if not found:
            return {_Manager(_BEFORE, "Update"): fields_of(resource.kind, obj, applied=False)}
        return found

    def _write(
        self,
        resource: Resource,
        obj: Object,
        managers: Mapping[_Manager, FieldSet],
        times: Mapping[_Manager, str | None],
    ) -> None:
        entries = []
        now = rfc3339(self._clock.now())
        for manager, fields in managers.items():
            if not fields:
                continue
            entry = {
                "manager": manager.name,
                "operation": manager.operation,
                "apiVersion": resource.api_version,
                "time": times.get(manager) or now,
                "fieldsType": "FieldsV1",
                "fieldsV1": to_json(fields),
            }
            if manager.subresource:
                entry["subresource"] = manager.subresource
            entries.append(entry)
        entries.sort(key=lambda entry: (entry["operation"], entry["time"], entry["manager"]))
        if entries:
            obj["metadata"]["managedFields"] = copy.deepcopy(entries)


def _identity(entry: Mapping[str, Any]) -> _Manager:
    return _Manager(entry.get("manager", ""), entry.get("operation", ""), entry.get("subresource", ""))


def _conflict(conflicts: list[tuple[_Manager, Path]], resource: Resource) -> ConflictError:
    causes, lines = [], []
    for manager, path in conflicts:
        using = f" using {resource.api_version}" if manager.operation == "Update" else ""
        said = f'conflict with "{manager.name}"{using}'
        causes.append({"reason": "FieldManagerConflict", "message": said, "field": text(path)})
        lines.append(f"{said}: {text(path)}")
    count = f"{len(lines)} conflict{'s' if len(lines) > 1 else ''}"
    return ConflictError(
        f"Apply failed with {count}: {', '.join(lines)}",
        status=409,
        reason="Conflict",
        details={"causes": causes},
    )
