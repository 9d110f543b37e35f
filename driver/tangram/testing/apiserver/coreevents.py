"""core/v1 events: the other name of events.k8s.io/v1, read only; kubectl asks for them by it."""

import re
from typing import Any

from tangram.testing.apiserver.store import Object

_PATH = re.compile(r"/api/v1/(?:namespaces/([^/]+)/)?events/?")


def parse(path: str) -> str | None:
    """The namespace of a list of core/v1 events ("" for all); None if `path` is not one."""
    match = _PATH.fullmatch(path)
    return (match[1] or "") if match else None


def view(event: Object) -> Object:
    """An events.k8s.io/v1 Event as core/v1 has it (`events/v1/conversion.go`)."""
    series: dict[str, Any] = event.get("series") or {}
    first = event.get("eventTime")
    last = series.get("lastObservedTime") or first
    return {
        "metadata": event["metadata"],
        "involvedObject": event.get("regarding") or {},
        "reason": event.get("reason"),
        "message": event.get("note"),
        "type": event.get("type"),
        "action": event.get("action"),
        "reportingComponent": event.get("reportingController"),
        "reportingInstance": event.get("reportingInstance"),
        "source": {"component": event.get("reportingController")},
        "firstTimestamp": _seconds(first),
        "lastTimestamp": _seconds(last),
        "eventTime": first,
        "count": series.get("count", 1),
    }


def _seconds(time: str | None) -> str | None:
    """A MicroTime as a Time."""
    return re.sub(r"\.\d+", "", time) if time else None
