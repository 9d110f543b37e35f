"""The playground as a world of scenarios."""

import contextlib
import copy
from collections.abc import Collection, Sequence

from tangram import DRIVER_NAME
from tangram.base.errors import ApiError, InvalidObjectError, NotFoundError
from tangram.kube.decoding import ObjectKey
from tangram.kube.resources import EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from tangram.playground.cluster import Cluster
from tangram.playground.manifests import resource_of
from tangram.playground.objects import Object
from tangram.playground.scenarios.schema import Action, Apply, Component, Disturb, ObjectKind
from tangram.playground.scenarios.world import Container, Event, State
from tangram.testing.apiserver import DEPLOYMENTS, JOBS

_NAMESPACE = "default"
_KINDS = {"Pod": PODS, "ResourceClaim": RESOURCE_CLAIMS, "Deployment": DEPLOYMENTS, "Job": JOBS}
_GRACE_S = 30
_SETTLED_S = 0.2
"""Files and processes change without a write to the API."""


class PlaygroundWorld:
    """A `World`: the namespace `default`."""

    name = "playground"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._server = cluster.server
        self._applied: dict[tuple[str, str], Resource] = {}
        self.nodes = tuple(cluster.nodes)

    def cannot(self, action: Action) -> str:
        if isinstance(action, Disturb) and action.kill and action.what.component == "kubelet":
            return "its kubelets are part of its own process: restart one instead"
        if isinstance(action, Apply):
            for each in action.objects:
                if resource_of(each) is None:
                    return f"it knows no {each['kind']} of {each['apiVersion']}"
        return ""

    async def simulate(self, node: str, description: str) -> None:
        self._cluster.simulate(node, description)

    async def apply(self, objects: Sequence[Object]) -> None:
        for each in objects:
            resource = resource_of(each)
            label = f"{each['kind']} {each['metadata'].get('name', '')}"
            if resource is None:
                raise InvalidObjectError("is of a kind that the playground does not know", object_name=label)
            namespace = _NAMESPACE if resource.namespaced else ""
            name = each["metadata"].get("name", "")
            try:
                if name and self._exists(resource, ObjectKey(namespace, name)):
                    self._server.patch(resource, copy.deepcopy(each), name=name, namespace=namespace)
                else:
                    name = self._server.create(resource, each)["metadata"]["name"]
            except ApiError as error:
                raise InvalidObjectError(error.cause, object_name=label) from None
            self._applied[resource.kind, name] = resource

    async def delete(self, kind: ObjectKind, name: str, *, force: bool) -> None:
        with contextlib.suppress(NotFoundError):
            grace_s = 0 if force else self._grace_s(name) if kind == "Pod" else 0
            self._server.delete(_KINDS[kind], name=name, namespace=_NAMESPACE, grace_s=grace_s)

    async def disturb(self, component: Component, node: str, *, kill: bool) -> None:
        if component == "controller":
            await self._cluster.restart("controller", kill=kill)
        for name in [node] if node else self.nodes:
            if component == "plugin":
                await self._cluster.restart(name, kill=kill)
            if component == "kubelet":
                await self._cluster.kubelets[name].restart()

    async def state(self, *, logs: Collection[Container], held: bool) -> State:
        del held  # looking costs nothing here
        return State(
            objects={
                **{
                    kind: [
                        each
                        for each in self._server.objects(resource)
                        if each["metadata"]["namespace"] == _NAMESPACE
                    ]
                    for kind, resource in _KINDS.items()
                },
                "ResourceSlice": self._server.objects(RESOURCE_SLICES),
            },
            events=[
                Event(
                    kind=event["regarding"].get("kind", ""),
                    name=event["regarding"].get("name", ""),
                    uid=event["regarding"].get("uid", ""),
                    reason=event.get("reason", ""),
                    text=event.get("note", ""),
                )
                for event in sorted(self._server.objects(EVENTS), key=_written)
                if event["metadata"]["namespace"] == _NAMESPACE
            ],
            logs={each: await self._log(each) for each in logs},
            held=self._files("plugins/" + DRIVER_NAME + "/claims", prefix=""),
            cdi=self._files("cdi", prefix=f"{DRIVER_NAME}_"),
        )

    async def change(self) -> None:
        asked = iter((False, True))  # asked at once, and again after a change
        with contextlib.suppress(TimeoutError):
            await self._server.until(lambda: next(asked), timeout_s=_SETTLED_S)

    async def clean_up(self) -> None:
        for (kind, name), resource in reversed(self._applied.items()):
            namespace = _NAMESPACE if resource.namespaced else ""
            with contextlib.suppress(NotFoundError):
                grace_s = self._grace_s(name) if kind == "Pod" else 0
                self._server.delete(resource, name=name, namespace=namespace, grace_s=grace_s)
        self._applied.clear()

    async def picture(self) -> str:
        return ""

    def _exists(self, resource: Resource, key: ObjectKey) -> bool:
        with contextlib.suppress(NotFoundError):
            self._server.get(resource, name=key.name, namespace=key.namespace)
            return True
        return False

    def _grace_s(self, pod: str) -> int:
        spec = self._server.get(PODS, name=pod, namespace=_NAMESPACE)["spec"]
        return int(spec.get("terminationGracePeriodSeconds", _GRACE_S))

    async def _log(self, container: Container) -> str:
        pod, name = container
        for kubelet in self._cluster.kubelets.values():
            key = ObjectKey(_NAMESPACE, pod)
            if kubelet.has(key):
                parts = [part async for part in kubelet.log(key, {"container": name})]
                return b"".join(parts).decode(errors="replace")
        return ""

    def _files(self, folder: str, *, prefix: str) -> frozenset[str]:
        """Claim uids that stand in the names of files of any node."""
        return frozenset(
            file.stem.removeprefix(prefix)
            for kubelet in self._cluster.kubelets.values()
            for file in (kubelet.directory / folder).glob(f"{prefix}*.json")
        )


def _written(obj: Object) -> int:
    return int(obj["metadata"]["resourceVersion"])
