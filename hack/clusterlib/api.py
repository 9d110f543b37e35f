"""The few reads of the Kubernetes API that starting a cluster needs."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import msgspec


class Condition(msgspec.Struct, frozen=True):
    type: str
    status: str
    message: str = ""


class NodeStatus(msgspec.Struct, frozen=True):
    conditions: Sequence[Condition] = ()


class ObjectMeta(msgspec.Struct, frozen=True):
    name: str


class Node(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)

    @property
    def ready(self) -> Condition:
        """Its Ready condition, or one that says that there is none yet."""
        unknown = Condition(type="Ready", status="Unknown", message="the kubelet has not reported yet")
        return next((condition for condition in self.status.conditions if condition.type == "Ready"), unknown)


class _NodeList(msgspec.Struct, frozen=True):
    items: Sequence[Node]


def is_healthy(url: str) -> bool:
    """Whether a health endpoint answers without an error. Raises OSError while nobody listens."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5):
        return True


class Api:
    """A client of one API server. Every method raises OSError when the server cannot be reached."""

    def __init__(self, *, server: str, ca_file: Path, token: str) -> None:
        self._server = server
        self._headers = {"Authorization": f"Bearer {token}"}
        # Neither the machine's CA bundle nor its proxies have a say here.
        context = ssl.create_default_context(cafile=str(ca_file))
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )

    def ready(self) -> bool:
        return self._get("/readyz") is not None

    def nodes(self) -> dict[str, Node]:
        body = self._get("/api/v1/nodes")
        items = msgspec.json.decode(body, type=_NodeList).items if body else ()
        return {node.metadata.name: node for node in items}

    def accepts_pods(self) -> bool:
        """Pods can be created once the controller manager has made the default service account."""
        return self._get("/api/v1/namespaces/default/serviceaccounts/default") is not None

    def _get(self, path: str) -> bytes | None:
        """The body, or None when the server answers with an error."""
        request = urllib.request.Request(self._server + path, headers=self._headers)
        try:
            with self._opener.open(request, timeout=5) as response:
                body: bytes = response.read()
                return body
        except urllib.error.HTTPError:
            return None
