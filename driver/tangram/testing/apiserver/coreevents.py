"""core/v1 events: the other name of events.k8s.io/v1, read only; kubectl asks for them by it."""

import re
from typing import Any

from tangram.testing.apiserver.store import Object

Address = tuple[str, str]
"""Namespace ("" for all) and name ("" for a list)."""

_PATH = re.compile(r"/api/v1/(?:namespaces/([^/]+)/)?events(?:/([^/]+))?/?")


def parse(path: str) -> Address | None:
    """What a path of core/v1 events addresses; None if `path` is not one."""
    match = _PATH.fullmatch(path)
    return (match[1] or "", match[2] or "") if match else None


def view(event: Object) -> Object:
    """An events.k8s.io/v1 Event as core/v1 has it (`events/v1/conversion.go`)."""
    core: dict[str, Any] = {
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": event["metadata"],
        "involvedObject": event.get("regarding") or {},
        "reason": event.get("reason"),
        "message": event.get("note"),
        "source": event.get("deprecatedSource") or {},
        "firstTimestamp": event.get("deprecatedFirstTimestamp"),
        "lastTimestamp": event.get("deprecatedLastTimestamp"),
        "count": event.get("deprecatedCount"),
        "type": event.get("type"),
        "eventTime": event.get("eventTime"),
        "series": event.get("series"),
        "action": event.get("action"),
        "related": event.get("related"),
        "reportingComponent": event.get("reportingController", ""),
        "reportingInstance": event.get("reportingInstance", ""),
    }
    written = {"firstTimestamp", "lastTimestamp"}
    return {key: value for key, value in core.items() if value is not None or key in written}


def in_list(event: Object) -> Object:
    """As an item of a list."""
    return {key: value for key, value in event.items() if key not in {"kind", "apiVersion"}}
