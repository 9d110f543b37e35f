"""Other forms of an answer (meta.k8s.io/v1): tables, which `kubectl get` prints, and metadata alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from tangram.kube.resources import EVENTS, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from tangram.testing.apiserver.answers import not_acceptable
from tangram.testing.apiserver.catalog import DEPLOYMENTS, JOBS
from tangram.testing.apiserver.store import Object

Form = Literal["Object", "Table", "PartialObjectMetadata"]

_META = "meta.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class _Column:
    """`priority` 1 is shown by `--output wide` only."""

    name: str
    cell: Callable[[Object], Any]
    priority: int = 0


def form(accept: str, resource: Resource) -> Form:
    """What a request's Accept header asks for first. Where a table has nothing to tell besides name and age,
    which kubectl finds itself, the object will do; 406 for what is not served."""
    first = accept.partition(",")[0]
    if "as=Table" in first:
        return "Table" if resource in _COLUMNS else "Object"
    if "as=PartialObjectMetadata" in first:
        return "PartialObjectMetadata"
    if accept and not any(kind in accept for kind in ("json", "yaml", "*/*", "application/*")):
        raise not_acceptable()
    return "Object"


def partial(found: Object) -> Object:
    """An object or list with the metadata alone."""
    if "items" in found:
        items = [partial(item) for item in found["items"]]
        kind = "PartialObjectMetadataList"
        return {"kind": kind, "apiVersion": _META, "metadata": found["metadata"], "items": items}
    return {"kind": "PartialObjectMetadata", "apiVersion": _META, "metadata": found["metadata"]}


def table(
    resource: Resource, objects: Sequence[Object], *, metadata: Mapping[str, Any], now: datetime
) -> Object:
    """The table of some objects; `metadata` is that of the list."""
    columns = [
        _Column("Name", lambda obj: obj["metadata"]["name"]),
        *(column for column in _COLUMNS[resource] if not column.priority),
        _Column("Age", lambda obj: _age(obj["metadata"]["creationTimestamp"], now)),
        *(column for column in _COLUMNS[resource] if column.priority),
    ]
    return {
        "kind": "Table",
        "apiVersion": _META,
        "metadata": dict(metadata),
        "columnDefinitions": [
            {
                "name": column.name,
                "type": "string",
                "format": "name" if column.name == "Name" else "",
                "description": "",
                "priority": column.priority,
            }
            for column in columns
        ],
        "rows": [
            {
                "cells": [column.cell(obj) for column in columns],
                "object": partial(obj),
            }
            for obj in objects
        ],
    }


def _status(obj: Object) -> Object:
    return obj.get("status") or {}


def _spec(obj: Object) -> Object:
    return obj.get("spec") or {}


def _age(created: str, now: datetime) -> str:
    seconds = max(0, int((now - datetime.fromisoformat(created)).total_seconds()))
    for unit, size, limit in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172800)):
        if seconds < limit:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86400}d"


def _pod_ready(pod: Object) -> str:
    statuses = _status(pod).get("containerStatuses") or []
    return f"{sum(bool(each['ready']) for each in statuses)}/{len(_spec(pod).get('containers') or [])}"


def _pod_status(pod: Object) -> str:
    """As kubectl has it: of what is wrong, else of the containers, else of the pod."""
    status = _status(pod)
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    if reason := status.get("reason"):
        return str(reason)
    phase = status.get("phase", "Unknown")
    init = status.get("initContainerStatuses") or []
    done = sum(
        "terminated" in _state(each) and not _state(each)["terminated"].get("exitCode") for each in init
    )
    if done < len(init):
        return f"Init:{_reason(init[done]) or f'{done}/{len(init)}'}"
    reasons = [_reason(each) for each in status.get("containerStatuses") or []]
    if phase == "Pending" and _spec(pod).get("nodeName"):
        return "ContainerCreating"
    return next(filter(None, reasons), "Completed" if phase == "Succeeded" else str(phase))


def _state(container: Object) -> Object:
    return container.get("state") or {}


def _reason(container: Object) -> str:
    """Why it does not run; empty if it does, or is about to."""
    state = _state(container)
    reason = str((state.get("waiting") or state.get("terminated") or {}).get("reason") or "")
    return "" if reason == "PodInitializing" else reason


def _restarts(pod: Object) -> str:
    status = _status(pod)
    kinds = ("initContainerStatuses", "containerStatuses")
    return str(sum(each.get("restartCount", 0) for kind in kinds for each in status.get(kind) or []))


def _claim_state(claim: Object) -> str:
    states = ["deleted"] if "deletionTimestamp" in claim["metadata"] else []
    states += ["allocated"] if _status(claim).get("allocation") else []
    states += ["reserved"] if _status(claim).get("reservedFor") else []
    return ",".join(states) or "pending"


def _job_state(job: Object) -> str:
    conditions = _status(job).get("conditions") or [{"type": "Running"}]
    return str(conditions[0]["type"])


def _regarding(event: Object) -> str:
    about = event.get("regarding") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _node_state(node: Object) -> str:
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in _status(node).get("conditions") or [])
    return "Ready" if ready else "NotReady"


_COLUMNS: dict[Resource, tuple[_Column, ...]] = {
    PODS: (
        _Column("Ready", _pod_ready),
        _Column("Status", _pod_status),
        _Column("Restarts", _restarts),
        _Column("Node", lambda pod: _spec(pod).get("nodeName") or "<none>", 1),
    ),
    RESOURCE_CLAIMS: (_Column("State", _claim_state),),
    RESOURCE_SLICES: (
        _Column("Node", lambda item: _spec(item).get("nodeName") or "<none>"),
        _Column("Driver", lambda item: _spec(item).get("driver", "")),
        _Column("Pool", lambda item: (_spec(item).get("pool") or {}).get("name", "")),
    ),
    NODES: (_Column("Status", _node_state),),
    EVENTS: (
        _Column("Type", lambda event: event.get("type")),
        _Column("Reason", lambda event: event.get("reason")),
        _Column("Object", _regarding),
        _Column("Note", lambda event: event.get("note")),
    ),
    DEPLOYMENTS: (
        _Column("Ready", lambda d: f"{_status(d).get('readyReplicas', 0)}/{_spec(d).get('replicas', 1)}"),
        _Column("Up-to-date", lambda d: str(_status(d).get("updatedReplicas", 0))),
        _Column("Available", lambda d: str(_status(d).get("availableReplicas", 0))),
    ),
    JOBS: (
        _Column("Status", _job_state),
        _Column(
            "Completions", lambda j: f"{_status(j).get('succeeded', 0)}/{_spec(j).get('completions', 1)}"
        ),
    ),
}
