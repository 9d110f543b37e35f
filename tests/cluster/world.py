"""The real cluster as a world of scenarios."""

import asyncio
import json
from collections.abc import Collection, Sequence

from tests.cluster.harness import DRIVER, SYSTEM, Cluster

from tangram.base.errors import InvalidObjectError
from tangram.playground.objects import Object
from tangram.playground.scenarios.schema import Action, Component, ObjectKind
from tangram.playground.scenarios.world import Container, Event, State

MACHINE_FILE = f"/var/lib/kubelet/plugins/{DRIVER}/machine.yaml"
"""On the node and in the plugin's container alike."""
_KINDS = "pods,resourceclaims,deployments,jobs,resourceslices,events"
_PAUSE_S, _LONGEST_PAUSE_S = 0.3, 2.0


class ClusterWorld:
    """A `World`: the namespace of the test, on nodes whose plugins simulate `MACHINE_FILE`."""

    name = "a real cluster"
    nodes = ("node-1", "node-2")

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._applied: list[Object] = []
        self._pause_s = _PAUSE_S

    def cannot(self, action: Action) -> str:
        return ""

    async def simulate(self, node: str, description: str) -> None:
        await asyncio.to_thread(place_machine, self._cluster, node, description)

    async def apply(self, objects: Sequence[Object]) -> None:
        self._pause_s = _PAUSE_S
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        try:
            await asyncio.to_thread(self._cluster.apply, listed)
        except AssertionError as error:
            raise InvalidObjectError(str(error), object_name="kubectl apply") from None
        self._applied += objects

    async def delete(self, kind: ObjectKind, name: str, *, force: bool) -> None:
        options = ["--force", "--grace-period=0"] if force else []
        await self._kubectl("delete", kind.lower(), name, "--ignore-not-found", "--wait=false", *options)

    async def disturb(self, component: Component, node: str, *, kill: bool) -> None:
        await asyncio.to_thread(self._disturb, component, node, kill)

    async def state(self, *, logs: Collection[Container], held: bool) -> State:
        items = json.loads(await self._kubectl("get", _KINDS, "-o", "json"))["items"]
        kinds = ("Pod", "ResourceClaim", "Deployment", "Job", "ResourceSlice")
        texts = await asyncio.gather(
            *(self._kubectl("logs", pod, "-c", name, check=False) for pod, name in logs)
        )
        nodes = self.nodes if held else ()
        on_nodes = await asyncio.gather(*(asyncio.to_thread(self._cluster.kept_on, node) for node in nodes))
        return State(
            objects={kind: [item for item in items if item["kind"] == kind] for kind in kinds},
            events=[_event(item) for item in sorted(items, key=_written) if item["kind"] == "Event"],
            logs=dict(zip(logs, texts, strict=True)),
            held=frozenset(uid for state, _ in on_nodes for uid in state),
            cdi=frozenset(uid for _, cdi in on_nodes for uid in cdi),
        )

    async def change(self) -> None:
        # kubectl is asked, for nothing tells us: ever less often while the kubelet waits to try again.
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 1.2, _LONGEST_PAUSE_S)

    async def clean_up(self) -> None:
        self._pause_s = _PAUSE_S
        if self._applied:
            listed = {"apiVersion": "v1", "kind": "List", "items": self._applied[::-1]}
            await self._kubectl(
                "delete", "-f", "-", "--ignore-not-found", "--wait=false", stdin=json.dumps(listed)
            )
        self._applied = []

    async def picture(self) -> str:
        return await asyncio.to_thread(self._cluster.describe)

    async def _kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        return await asyncio.to_thread(
            self._cluster.kubectl, *arguments, "-n", self._cluster.namespace, stdin=stdin, check=check
        )

    def _disturb(self, component: Component, node: str, kill: bool) -> None:
        cluster = self._cluster
        if component == "kubelet":
            for each in [node] if node else self.nodes:
                cluster.hack("restart-kubelet", each, *(["--kill9"] if kill else []))
            return
        for pod in cluster.component_pods("node" if component == "plugin" else "controller", node):
            if kill:
                command = "node" if component == "plugin" else "controller"
                cluster.kill_component(command, pod["spec"]["nodeName"])
            else:
                name = pod["metadata"]["name"]
                cluster.kubectl("delete", "pod", name, "-n", SYSTEM, "--wait=false")


def place_machine(cluster: Cluster, node: str, description: str) -> None:
    """Writes the machine description that the node's plugin simulates, at once."""
    script = f"cat >{MACHINE_FILE}.new <<'END'\n{description}\nEND\nmv {MACHINE_FILE}.new {MACHINE_FILE}"
    cluster.on_node(node, "sh", "-c", script)


def _written(item: Object) -> int:
    return int(item["metadata"]["resourceVersion"])


def _event(item: Object) -> Event:
    about = item["involvedObject"]
    return Event(
        kind=about.get("kind", ""),
        name=about.get("name", ""),
        uid=about.get("uid", ""),
        reason=item.get("reason", ""),
        text=item.get("message", ""),
    )
