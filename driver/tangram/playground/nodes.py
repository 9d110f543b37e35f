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
from tangram.kube.resources import PODS, RESOURCE_CLAIMS
from tangram.kubeletplugin.driver import ClaimReference
from tangram.playground.containers import Container, cdi_edits
from tangram.playground.events import warn
from tangram.playground.objects import Object, claim_names, finished, leaving, place, results, uid
from tangram.testing.apiserver import FakeApiServer
from tangram.testing.kubelet import FakeKubelet, PreparedClaim

_POLL_S = 0.05
_RETRY_S = 1.0


class Node:
    """One node. `directory` holds what a real one has in /var/lib/kubelet and /var/run/cdi."""

    def __init__(self, name: str, *, server: FakeApiServer, directory: Path, clock: Clock) -> None:
        self.name = name
        self.directory = directory
        self.cdi_root = directory / "cdi"
        self._server = server
        self._clock = clock
        self._kubelet = FakeKubelet(directory)
        self._pods: dict[str, asyncio.Event] = {}
        self._users: dict[str, set[str]] = {}
        self._containers: dict[str, list[Container]] = {}
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
            for container in [each for group in self._containers.values() for each in group]:
                container.kill()

    async def log(self, key: ObjectKey, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """What a container of a pod here has written; with `follow` until it ends."""
        containers = self._containers.get(self._keys.get(key, ""), [])
        wanted = query.get("container")
        container = next((each for each in containers if wanted in {None, "", each.name}), None)
        position = 0
        while container is not None:
            ended = container.exit_code() is not None or container not in self._containers.get(
                self._keys.get(key, ""), []
            )
            data, position = container.output(start=position)
            if data:
                yield data
            if ended or query.get("follow") not in {"true", "1"}:
                return
            await asyncio.sleep(_POLL_S)

    def has(self, key: ObjectKey) -> bool:
        """Whether the pod is or was run here."""
        return key in self._keys

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
            prepared, answers = await self._prepare_until_done(pod, stopping)
            if not stopping.is_set():
                self._start(pod, folder, answers)
                await self._watch(pod, stopping)
        except InvalidObjectError as error:
            self._event(pod, "Failed", str(error))
            self._status(pod, phase="Failed", reason="NotInPlayground", message=str(error))
        await self._stop(pod, grace_s=pod["spec"].get("terminationGracePeriodSeconds", 30))
        await self._unprepare(pod, prepared)
        await stopping.wait()
        with contextlib.suppress(NotFoundError):
            current = self._server.get(PODS, **place(pod))
            if uid(current) == uid(pod):
                self._server.delete(PODS, **place(pod), grace_s=0)
        self._containers.pop(uid(pod), None)
        shutil.rmtree(folder, ignore_errors=True)

    # --- claims -------------------------------------------------------------------------------------------

    async def _prepare_until_done(
        self, pod: Object, stopping: asyncio.Event
    ) -> tuple[list[ClaimReference], dict[str, PreparedClaim]]:
        said = ""
        references: list[ClaimReference] = []
        while not stopping.is_set():
            try:
                references = self._references(pod)
                for reference in references:
                    self._users.setdefault(reference.uid, set()).add(uid(pod))
                answers = await self._kubelet.prepare(DRIVER_NAME, references) if references else {}
                errors = [answer.error for answer in answers.values() if answer.error]
                if not errors:
                    return references, answers
                problem = errors[0]
            except (TangramError, grpc.aio.AioRpcError, TimeoutError) as error:
                problem = str(error)
            if problem != said:
                self._event(pod, "FailedPrepareDynamicResources", problem)
                said = problem
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), _RETRY_S)
        return references, {}

    def _references(self, pod: Object) -> list[ClaimReference]:
        """The pod's claims that our driver serves; TangramError for one that is not the pod's."""
        found = []
        for _, name in claim_names(pod):
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

    def _start(self, pod: Object, folder: Path, answers: Mapping[str, PreparedClaim]) -> None:
        name = f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
        if pod["spec"].get("initContainers"):
            raise InvalidObjectError(
                "not known to the playground", object_name=name, field="spec.initContainers"
            )
        uids = {
            entry: uid(self._server.get(RESOURCE_CLAIMS, name=claim, namespace=pod["metadata"]["namespace"]))
            for entry, claim in claim_names(pod)
        }
        running = self._containers.setdefault(uid(pod), [])
        for spec in pod["spec"].get("containers") or ():
            ids = [
                device_id
                for wanted in (spec.get("resources") or {}).get("claims") or ()
                for device in answers.get(uids.get(wanted["name"], ""), PreparedClaim()).devices
                if wanted.get("request", "") in {"", *device.request_names}
                for device_id in device.cdi_device_ids
            ]
            edits = cdi_edits(self.cdi_root, ids)
            directory = folder / spec["name"]
            running.append(Container(spec, directory=directory, object_name=name, edits=edits))
        self._report(pod, "Running")

    async def _watch(self, pod: Object, stopping: asyncio.Event) -> None:
        """Until all containers have ended, which is written, or the pod is to be deleted."""
        containers = self._containers[uid(pod)]
        while any(container.exit_code() is None for container in containers):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), _POLL_S)
            if stopping.is_set():
                return
        failed = any(container.exit_code() for container in containers)
        self._report(pod, "Failed" if failed else "Succeeded")

    async def _stop(self, pod: Object, *, grace_s: float) -> None:
        containers = self._containers.get(uid(pod), [])
        for container in containers:
            container.terminate()
        try:
            async with asyncio.timeout(grace_s):
                while any(container.exit_code() is None for container in containers):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)  # processes send no event
        except TimeoutError:
            pass
        for container in containers:
            container.kill()

    # --- what it tells the API server ---------------------------------------------------------------------

    def _report(self, pod: Object, phase: str) -> None:
        now = rfc3339(self._clock.now())
        statuses = []
        for container in self._containers[uid(pod)]:
            code = container.exit_code() if phase != "Running" else None
            ended = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now}
            statuses.append(
                {
                    "name": container.name,
                    "image": container.image,
                    "imageID": "",
                    "restartCount": 0,
                    "ready": code is None,
                    "started": code is None,
                    "state": {"running": {"startedAt": now}} if code is None else {"terminated": ended},
                }
            )
        self._status(pod, phase=phase, containerStatuses=statuses)

    def _status(self, pod: Object, *, phase: str, **fields: Any) -> None:
        with contextlib.suppress(NotFoundError):
            current = self._server.get(PODS, **place(pod))
            if uid(current) != uid(pod) or finished(current):
                return
            now = rfc3339(self._clock.now())
            ready = "True" if phase == "Running" else "False"
            conditions = [
                {"type": kind, "status": status, "lastTransitionTime": now}
                for kind, status in (
                    ("PodScheduled", "True"),
                    ("Initialized", "True"),
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
