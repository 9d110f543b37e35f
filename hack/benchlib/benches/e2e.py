"""From the creation of a pod to its containers, on a real cluster: our controller against kube-scheduler."""

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from benchlib.benches.tables import amount, goal_list, prose, table
from benchlib.realcluster import BASE_PORT, KUBERNETES_VERSION, deployed
from benchlib.results import Goal, Measurement, Result
from benchlib.series import summarize
from clusterlib.errors import ClusterError
from clusterlib.images import BUSYBOX_IMAGE
from clusterlib.steps import Step, step
from tangram import DRIVER_NAME
from tangram.kube.client import Client
from tangram.kube.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Resource

_DESCRIPTION = """\
Starts a real Kubernetes of two equal nodes (hack/cluster; needs root, Debian 12 and Go), deploys Tangram from
this checkout, and creates pods with one GPU each, one at a time, in turns: on node-1 Tangram's controller
allocates, on node-2 kube-scheduler does so natively, as the reference. The class, the plugin, the simulated
machine and the shape of the pods are the same.

A watch tells when each step was there: the claim, its allocation, the binding of the pod, its containers. A
pod is gone with its claim before the next one is created.
"""
_EPILOG = """\
examples:
  hack/bench e2e                                   starts a cluster and removes it
  hack/cluster up --base-port 17600 --nodes 2      keeps one for several runs
  hack/bench e2e --base-port 17600 --samples 100

The first start builds Kubernetes and the image: some ten minutes.
"""
_MACHINE = "a100-sxm4-80gb-x8"
_NODES = {"controller": "node-1", "scheduler": "node-2"}
_WARM_UP = 2
_TIMEOUT_S = 60.0
# Steps in their order, each with what it shows itself in.
_STEPS = ("claim", "allocated", "bound", "running")
_WORDS = {
    "claim": "its claim is there",
    "allocated": "the claim is allocated",
    "bound": "**the pod is bound**",
    "running": "**the pod is Running**",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument(
        "--samples", type=int, default=25, metavar="N", help="pods of each kind (%(default)s)"
    )
    parser.add_argument(
        "--base-port", type=int, default=BASE_PORT, metavar="P",
        help="which cluster; one that is up is used and stays up (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--version", default=KUBERNETES_VERSION, metavar="X.Y.Z", help="of Kubernetes (%(default)s)"
    )


def measure(options: argparse.Namespace) -> Measurement:
    nodes = {node: {"simulate": _MACHINE, "allocator": allocator} for allocator, node in _NODES.items()}
    with (
        deployed(
            base_port=options.base_port, version=options.version, node_config={"nodes": nodes}
        ) as config,
        step(f"e2e: {options.samples} pods of each kind") as progress,
    ):
        samples = asyncio.run(_measure(config, options.samples, progress))
    series = {name: summarize(values, unit="ms") for name, values in samples.items()}
    return Measurement(
        parameters={"samples": options.samples, "kubernetes": options.version, "machine": _MACHINE},
        series=series,
        goals=[
            Goal(name=f"pod created → {name}, median, ratio", value=ratio, limit=1.3, unit="")
            for name, ratio in (
                ("bound", series["controller_bound"].p50 / series["scheduler_bound"].p50),
                ("Running", series["controller_running"].p50 / series["scheduler_running"].p50),
            )
        ],
    )


async def _measure(kubeconfig: Path, count: int, progress: Step) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {f"{kind}_{name}": [] for kind in _NODES for name in _STEPS}
    client = await Client.connect(kubeconfig=str(kubeconfig), user_agent="tangram-bench/1")
    try:
        async with _namespace(client) as namespace, _Observer(client, namespace) as observer:
            for number in range(-_WARM_UP, count):
                # Whoever comes first has no advantage.
                for kind in sorted(_NODES, reverse=number % 2 == 0):
                    found = await observer.pod(f"{kind}-{number + _WARM_UP:03}", node=_NODES[kind])
                    for name, value in found.items() if number >= 0 else ():
                        samples[f"{kind}_{name}"].append(value)
                progress.note(f"{max(0, number)} of {count}")
    finally:
        await client.close()
    return samples


_NAMESPACES = Resource(group="", version="v1", kind="Namespace", plural="namespaces", namespaced=False)


@contextlib.asynccontextmanager
async def _namespace(client: Client) -> AsyncIterator[str]:
    """One of its own, with the template of the claims."""
    made = await client.create(_NAMESPACES, {"metadata": {"generateName": "bench-"}})
    name: str = msgspec.json.decode(made)["metadata"]["name"]
    try:
        request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER_NAME}}
        template = {"metadata": {"name": "gpu"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
        await client.create(RESOURCE_CLAIM_TEMPLATES, template, namespace=name)
        yield name
    finally:
        await client.delete(_NAMESPACES, name=name)


@dataclass(slots=True)
class _Seen:
    """Objects as last seen by name, and when a step of a pod was first seen."""

    pods: dict[str, Any] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, dict[str, float]] = field(default_factory=dict)


class _Observer:
    """Watches the namespace. Times are of the moment in which an event arrives."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._seen = _Seen()
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "_Observer":
        for resource, note in ((PODS, self._note_pod), (RESOURCE_CLAIMS, self._note_claim)):
            page = msgspec.json.decode(await self._client.list_page(resource, namespace=self._namespace))
            version = page["metadata"]["resourceVersion"]
            self._tasks.append(asyncio.create_task(self._watch(resource, version, note)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def pod(self, name: str, *, node: str) -> dict[str, float]:
        """Milliseconds from the creation of a pod until each step; it is gone, with its claim, at the end."""
        started_s = perf_counter()
        await self._client.create(PODS, _pod(name, node=node), namespace=self._namespace)
        await self._until(lambda: "running" in self._seen.steps.get(name, ()), f"pod {name} to be Running")
        await self._client.delete(PODS, name=name, namespace=self._namespace)
        await self._until(lambda: not self._seen.pods and not self._seen.claims, f"pod {name} to be gone")
        return {step: 1000 * (at_s - started_s) for step, at_s in self._seen.steps[name].items()}

    async def _until(self, seen: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S), self._changed:
                await self._changed.wait_for(lambda: seen() or any(task.done() for task in self._tasks))
        except TimeoutError:
            raise ClusterError(
                f"waited {_TIMEOUT_S:.0f} s for {what}; seen last: {self._seen.pods or self._seen.claims}",
                next_step="keep the cluster (`hack/cluster up` first) and look with kubectl",
            ) from None
        for task in self._tasks:
            if task.done():
                task.result()
                raise ClusterError("a watch ended early", next_step="run it again")

    async def _watch(self, resource: Resource, version: str, note: Callable[[str, Any], None]) -> None:
        try:
            async for line in self._client.watch(
                resource, namespace=self._namespace, resource_version=version, timeout_s=3600
            ):
                event = msgspec.json.decode(line)
                if event["type"] != "BOOKMARK":
                    note(event["type"], event["object"])
                async with self._changed:
                    self._changed.notify_all()
        finally:
            async with self._changed:
                self._changed.notify_all()

    def _note_pod(self, change: str, pod: Any) -> None:
        name = pod["metadata"]["name"]
        if change == "DELETED":
            self._seen.pods.pop(name, None)
            return
        self._seen.pods[name] = pod
        if pod["spec"].get("nodeName"):
            self._step(name, "bound")
        if pod["status"].get("phase") == "Running":
            self._step(name, "running")

    def _note_claim(self, change: str, claim: Any) -> None:
        name, owner = claim["metadata"]["name"], claim["metadata"]["ownerReferences"][0]["name"]
        if change == "DELETED":
            self._seen.claims.pop(name, None)
            return
        self._seen.claims[name] = claim
        self._step(owner, "claim")
        if (claim.get("status") or {}).get("allocation"):
            self._step(owner, "allocated")

    def _step(self, pod: str, name: str) -> None:
        self._seen.steps.setdefault(pod, {}).setdefault(name, perf_counter())


def _pod(name: str, *, node: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        # Ends as soon as it is told to.
        "command": ["sh", "-c", "trap exit TERM; sleep 3600 & wait"],
        "resources": {"claims": [{"name": "gpu"}]},
    }
    return {
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 5,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
            "containers": [container],
        },
    }


def section(results: Mapping[str, Result]) -> str:
    result = results[""]
    series = result.series
    labels = {
        f"{kind}_{name}": f"{who}: {words}"
        for name, words in _WORDS.items()
        for kind, who in (("scheduler", "reference, kube-scheduler"), ("controller", "Tangram's controller"))
    }
    what = f"""
        From the creation of a pod with one GPU to its binding and its containers, on a real Kubernetes
        {result.parameters["kubernetes"]} of two equal nodes (`{_MACHINE}` simulated), one pod at a time. On
        one node Tangram's controller allocates, on the other kube-scheduler does so natively, in turns; the
        class, the plugin and the shape of the pods are the same. Times are those of watch events."""

    def between(kind: str, first: str, second: str) -> str:
        return amount(series[f"{kind}_{second}"].p50 - series[f"{kind}_{first}"].p50)

    reading = f"""
        From claim to allocation Tangram's controller takes {between("controller", "claim", "allocated")} ms,
        kube-scheduler {between("scheduler", "claim", "allocated")} ms: for both mostly two writes, the
        finalizer and the allocation. From there to the binding it is
        {between("controller", "allocated", "bound")} ms against {between("scheduler", "allocated", "bound")}
        ms: kube-scheduler has tried the pod before, takes it up again when it sees the allocation, and writes
        the reservation, which natively is part of the allocation, and the binding. Differences are those of
        medians."""
    return "\n\n".join(
        ["## Pod to containers", prose(what), goal_list(result), table(result, labels), prose(reading)]
    )
