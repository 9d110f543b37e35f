"""A kubelet of the playground: finds the plugin by its sockets, prepares claims, runs pods as processes."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc

from tangram import DRIVER_NAME
from tangram.base.clock import Clock, rfc3339
from tangram.base.errors import InvalidObjectError, NotFoundError, TangramError
from tangram.kube.decoding import ObjectKey
from tangram.kube.resources import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tangram.kubeletplugin.driver import ClaimReference
from tangram.playground.containers import Container, cdi_edits
from tangram.playground.events import warn
from tangram.playground.guard import Guard
from tangram.playground.limits import ignored
from tangram.playground.objects import Object, claim_names, finished, leaving, place, results, uid
from tangram.playground.podlife import PodLife
from tangram.testing.apiserver import FakeApiServer
from tangram.testing.kubelet import FakeKubelet, PreparedClaim

_POLL_S = 0.05
_RETRY_S = 1.0
_TRUE = frozenset({"true", "1"})


class Node:
    """One node. `directory` holds what a real one has in /var/lib/kubelet and /var/run/cdi."""

    def __init__(
        self, name: str, *, server: FakeApiServer, directory: Path, clock: Clock, guard: Guard
    ) -> None:
        self.name = name
        self.directory = directory
        self.cdi_root = directory / "cdi"
        self._server = server
        self._clock = clock
        self._guard = guard
        self._kubelet = FakeKubelet(directory)
        self._pods: dict[str, asyncio.Event] = {}
        self._users: dict[str, set[str]] = {}
        self._lives: dict[str, PodLife] = {}
        self._keys: dict[ObjectKey, str] = {}

    async def run(self) -> None:
        """Until cancelled; then no process of a pod is left."""
        self.directory.mkdir(parents=True)
        self.cdi_root.mkdir()
        try:
            async with self._kubelet, asyncio.TaskGroup() as tasks:
                async for _ in self._server.changes():
                    self._look(tasks)
        finally:
            for life in self._lives.values():
                life.kill()

    async def restart(self) -> None:
        """As a kubelet that starts again: without its connections and its node's slices."""
        await self._kubelet.stop()
        for item in self._server.objects(RESOURCE_SLICES):
            if item["spec"].get("nodeName") == self.name:
                self._server.delete(RESOURCE_SLICES, name=item["metadata"]["name"])
        self._kubelet.start()

    async def log(self, key: ObjectKey, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """What a container of a pod here has written; with `follow` until it ends."""
        wanted = query.get("container")
        previous = query.get("previous") in _TRUE
        container = next((each for each in self._containers(key) if wanted in {None, "", each.name}), None)
        position = 0
        while container is not None:
            ended = container.exit_code() is not None or container not in self._containers(key)
            data, position = container.output(start=position, previous=previous)
            if data:
                yield data
            if ended or previous or query.get("follow") not in _TRUE:
                return
            await asyncio.sleep(_POLL_S)

    def _containers(self, key: ObjectKey) -> list[Container]:
        """Of a pod."""
        life = self._lives.get(self._keys.get(key, ""))
        return [] if life is None else life.containers()

    def has(self, key: ObjectKey) -> bool:
        """Whether the pod is run here."""
        return self._keys.get(key, "") in self._lives

    def _look(self, tasks: asyncio.TaskGroup) -> None:
        present = set()
        for pod in self._server.objects(PODS):
            if pod["spec"].get("nodeName") != self.name:
                continue
            present.add(uid(pod))
            if uid(pod) not in self._pods:
                self._pods[uid(pod)] = asyncio.Event()
                self._keys[ObjectKey(pod["metadata"]["namespace"], pod["metadata"]["name"])] = uid(pod)
                tasks.create_task(self._pod(pod))
            if leaving(pod):
                self._pods[uid(pod)].set()
        for gone in self._pods.keys() - present:
            self._pods[gone].set()

    async def _pod(self, pod: Object) -> None:
        """The life of a pod. `stopping` is set when its deletion is asked for."""
        stopping = self._pods[uid(pod)]
        folder = self.directory / "pods" / uid(pod)
        prepared: list[ClaimReference] = []
        try:
            pod, prepared, answers = await self._prepare_until_done(pod, stopping)
            if not stopping.is_set():
                await self._run(pod, folder, answers, stopping)
        except InvalidObjectError as error:
            self._event(pod, "Failed", str(error))
            self._status(pod, "Failed", {"reason": "NotInPlayground", "message": str(error)})
        if life := self._lives.get(uid(pod)):
            await life.stop(grace_s=pod["spec"].get("terminationGracePeriodSeconds", 30))
        await self._unprepare(pod, prepared)
        await stopping.wait()
        with contextlib.suppress(NotFoundError):
            current = self._server.get(PODS, **place(pod))
            if uid(current) == uid(pod):
                self._server.delete(PODS, **place(pod), grace_s=0)
        self._lives.pop(uid(pod), None)
        shutil.rmtree(folder, ignore_errors=True)

    # --- claims -------------------------------------------------------------------------------------------

    async def _prepare_until_done(
        self, pod: Object, stopping: asyncio.Event
    ) -> tuple[Object, list[ClaimReference], dict[str, PreparedClaim]]:
        """The pod as it was then, its claims, and what they were answered."""
        said = ""
        references: list[ClaimReference] = []
        while not stopping.is_set():
            try:
                # Read anew: a pod that names its node may be here before its claims.
                current = self._server.get(PODS, **place(pod))
                pod = current if uid(current) == uid(pod) else pod
                references = self._references(pod)
                for reference in references:
                    self._users.setdefault(reference.uid, set()).add(uid(pod))
                answers = await self._kubelet.prepare(DRIVER_NAME, references) if references else {}
                errors = [answer.error for answer in answers.values() if answer.error]
                if not errors:
                    return pod, references, answers
                problem = errors[0]
            except (TangramError, grpc.aio.AioRpcError, TimeoutError) as error:
                problem = str(error)
            if problem != said:
                self._event(pod, "FailedPrepareDynamicResources", problem)
                said = problem
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), _RETRY_S)
        return pod, references, {}

    def _references(self, pod: Object) -> list[ClaimReference]:
        """The pod's claims that our driver serves; TangramError for one that is not the pod's."""
        found = []
        for entry, name in claim_names(pod):
            if not name:
                raise TangramError(f"the claim for {entry} is not made yet")
            claim = self._server.get(RESOURCE_CLAIMS, name=name, namespace=pod["metadata"]["namespace"])
            holders = (claim.get("status") or {}).get("reservedFor") or ()
            if not any(holder["uid"] == uid(pod) for holder in holders):
                raise TangramError(f"claim {name} is not reserved for pod {pod['metadata']['name']}")
            if any(result["driver"] == DRIVER_NAME for result in results(claim)):
                found.append(ClaimReference(uid=uid(claim), **place(claim)))
        return found

    async def _unprepare(self, pod: Object, references: list[ClaimReference]) -> None:
        over = []
        for reference in references:
            users = self._users.get(reference.uid, set())
            users.discard(uid(pod))
            if not users:
                over.append(reference)
        while over:
            try:
                answers = await self._kubelet.unprepare(DRIVER_NAME, over)
                over = [reference for reference in over if answers[reference.uid]]
            except (TangramError, grpc.aio.AioRpcError, TimeoutError) as error:
                self._event(pod, "FailedUnprepareDynamicResources", str(error))
            if over:
                await asyncio.sleep(_RETRY_S)

    # --- containers ---------------------------------------------------------------------------------------

    async def _run(
        self, pod: Object, folder: Path, answers: Mapping[str, PreparedClaim], stopping: asyncio.Event
    ) -> None:
        """Until all containers have ended for good, or the pod is to be deleted."""
        if names := ignored(pod["spec"]):
            self._event(pod, "NotInPlayground", f"the playground does without {', '.join(names)}")
        life = self._lives[uid(pod)] = PodLife(
            pod,
            init=self._made(pod, "initContainers", folder, answers),
            main=self._made(pod, "containers", folder, answers),
            guard=self._guard,
            clock=self._clock,
            report=lambda phase, fields: self._status(pod, phase, fields),
        )
        running = asyncio.create_task(life.run())
        stopped = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            for task in (running, stopped):
                task.cancel()
            await asyncio.wait({running, stopped})

    def _made(
        self, pod: Object, kind: str, folder: Path, answers: Mapping[str, PreparedClaim]
    ) -> list[Container]:
        namespace = pod["metadata"]["namespace"]
        uids = {
            entry: uid(self._server.get(RESOURCE_CLAIMS, name=claim, namespace=namespace))
            for entry, claim in claim_names(pod)
        }
        made = []
        for spec in pod["spec"].get(kind) or ():
            path = f"spec.{kind}[{spec['name']}]"
            if spec.get("restartPolicy"):
                raise InvalidObjectError(
                    "the playground does not know sidecars",
                    object_name=f"pod {namespace}/{pod['metadata']['name']}",
                    field=f"{path}.restartPolicy",
                )
            ids = [
                device_id
                for wanted in (spec.get("resources") or {}).get("claims") or ()
                for device in answers.get(uids.get(wanted["name"], ""), PreparedClaim()).devices
                if wanted.get("request", "") in {"", *device.request_names}
                for device_id in device.cdi_device_ids
            ]
            edits = cdi_edits(self.cdi_root, ids)
            made.append(Container(spec, path=path, pod=pod, directory=folder / spec["name"], edits=edits))
        return made

    # --- what it tells the API server ---------------------------------------------------------------------

    def _status(self, pod: Object, phase: str, fields: Mapping[str, Any]) -> None:
        with contextlib.suppress(NotFoundError):
            current = self._server.get(PODS, **place(pod))
            if uid(current) != uid(pod) or finished(current):
                return
            now = rfc3339(self._clock.now())
            statuses = fields.get("containerStatuses") or ()
            truth = {True: "True", False: "False"}
            ready = truth[bool(statuses) and all(each["ready"] for each in statuses)]
            conditions = [
                {"type": kind, "status": status, "lastTransitionTime": now}
                for kind, status in (
                    ("PodScheduled", "True"),
                    ("Initialized", truth[phase != "Pending"]),
                    ("ContainersReady", ready),
                    ("Ready", ready),
                )
            ]
            status = {
                "phase": phase,
                "hostIP": "127.0.0.1",
                "startTime": (current.get("status") or {}).get("startTime") or now,
                "conditions": conditions,
                **fields,
            }
            self._server.patch(PODS, {"status": status}, **place(pod), subresource="status")

    def _event(self, pod: Object, reason: str, note: str) -> None:
        warn(self._server, self._clock, pod, reason=reason, note=note, source="kubelet")
