"""Events of the stand-ins about pods."""

from tangram.base.clock import Clock, rfc3339_micro
from tangram.kube.resources import EVENTS
from tangram.playground.objects import Object, place, uid
from tangram.testing.apiserver import FakeApiServer

_MAXIMUM_NOTE = 1000


def warn(server: FakeApiServer, clock: Clock, pod: Object, *, reason: str, note: str, source: str) -> None:
    """A Warning, unless the same one is there already."""
    note = note[:_MAXIMUM_NOTE]
    for event in server.objects(EVENTS):
        if (event["regarding"].get("uid"), event["reason"], event.get("note")) == (uid(pod), reason, note):
            return
    metadata = {"generateName": f"{pod['metadata']['name']}-", "namespace": pod["metadata"]["namespace"]}
    server.create(
        EVENTS,
        {
            "metadata": metadata,
            "eventTime": rfc3339_micro(clock.now()),
            "reportingController": source,
            "reportingInstance": "playground",
            "action": "Running",
            "reason": reason,
            "note": note,
            "type": "Warning",
            "regarding": {"apiVersion": "v1", "kind": "Pod", "uid": uid(pod), **place(pod)},
        },
    )
