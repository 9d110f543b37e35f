"""Plays scenarios on a cluster, and tells what became of every pod."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tangram.base.errors import TangramError
from tangram.playground import scenario
from tangram.playground.cluster import Cluster
from tangram.playground.picture import draw
from tangram.playground.recorder import GpuSeen, PodSeen, Recorder
from tangram.playground.scenario import Scenario

_STEP_TIMEOUT_S = 60.0


@dataclass(slots=True, kw_only=True)
class Step:
    """A scenario that was played."""

    scenario: Scenario
    pods: list[PodSeen] = field(default_factory=list)


class Teller:
    """Says what happens, as it happens; silent where the report is for a machine."""

    def __init__(self, *, silent: bool, colour: bool) -> None:
        self._silent = silent
        self._colour = colour

    def say(self, *lines: str) -> None:
        """Prints lines."""
        if not self._silent:
            print(*lines, sep="\n", flush=True)

    def picture(self, title: str, recorder: Recorder) -> None:
        """Prints the GPUs."""
        self.say("", title, *draw(recorder.gpus(), recorder.holders(), colour=self._colour))


class Play:
    """One run through scenarios; `report` is what it was, as `PlaygroundReport`."""

    def __init__(self, cluster: Cluster, teller: Teller, *, started_s: float) -> None:
        self._cluster = cluster
        self._teller = teller
        self._started_s = started_s
        self.recorder = Recorder(cluster.server, controller_log=cluster.controller_log)
        cluster.on_change(self.recorder.observe)
        self._first_pod_s: float | None = None
        self._steps: list[Step] = []

    async def run(self, scenarios: Sequence[Scenario]) -> None:
        """InvalidObjectError for an object that is refused, TangramError where nothing is decided in time."""
        self._teller.picture("The GPUs before:", self.recorder)
        for number, each in enumerate(scenarios, start=1):
            title = f"{each.name}: {each.about}" if each.about else each.name
            self._teller.say("", f"[{number}/{len(scenarios)}] {title}")
            await self._step(each)
        self._teller.picture("The GPUs now:", self.recorder)

    async def _step(self, each: Scenario) -> None:
        before = set(self.recorder.pods)
        for document in each.documents:
            scenario.apply(self._cluster.server, document)
        step = Step(scenario=each)

        def settled() -> bool:
            self.recorder.observe()
            step.pods = [pod for uid, pod in self.recorder.pods.items() if uid not in before]
            if self._first_pod_s is None and any(pod.phase == "Running" for pod in step.pods):
                self._first_pod_s = time.monotonic() - self._started_s
            return len(step.pods) >= each.pods and all(pod.settled for pod in step.pods)

        try:
            await self._cluster.server.until(settled, timeout_s=_STEP_TIMEOUT_S)
        except TimeoutError:
            waiting = ", ".join(pod.name for pod in step.pods if not pod.settled)
            raise TangramError(
                f"{each.name}: not decided within {_STEP_TIMEOUT_S:.0f} s: {waiting or 'any pod'}",
                next_step="run it with --keep and look at it with kubectl describe",
            ) from None
        self._steps.append(step)
        for pod in sorted(step.pods, key=lambda one: one.name):
            self._teller.say(*self._told(pod))

    def _told(self, pod: PodSeen) -> list[str]:
        if not pod.node:
            return [f"  {pod.name} waits", f"    why: {pod.waits}"]
        lines = [f"  {pod.name}: {pod.phase} on {pod.node}"]
        lines += [f"    GPU {gpu.index}  {gpu.product_name}  {gpu.uuid}" for gpu in self._gpus(pod)]
        lines += [f"    why: {text}" for text in self._why(pod)]
        return lines

    def _why(self, pod: PodSeen) -> list[str]:
        decisions = self.recorder.decisions()
        next_best = {
            decision["runner_up"]
            for claim in pod.claims.values()
            if (decision := decisions.get(claim)) and decision["runner_up"]
        }
        suffix = f"; next best: {', '.join(sorted(next_best))}" if next_best else ""
        reasons = [f"{text}{suffix}" for text in pod.why]
        return [*reasons, *([pod.waits] if pod.phase == "Failed" and pod.waits else [])]

    def _gpus(self, pod: PodSeen) -> list[GpuSeen]:
        return [gpu for gpu in self.recorder.gpus() if (gpu.node, gpu.device) in pod.devices]

    @property
    def failed(self) -> bool:
        """Whether a pod ended badly. One that waits has not."""
        return any(pod.phase == "Failed" for step in self._steps for pod in step.pods)

    def report(self, *, kubeconfig: str) -> dict[str, Any]:
        """As documented in docs/quickstart.md; times in seconds, `kubeconfig` empty unless it stays."""
        self.recorder.observe()
        holders = self.recorder.holders()
        return {
            "apiVersion": "tangram/v1alpha1",
            "kind": "PlaygroundReport",
            "firstPodSeconds": None if self._first_pod_s is None else round(self._first_pod_s, 3),
            "totalSeconds": round(time.monotonic() - self._started_s, 3),
            "kubeconfig": kubeconfig,
            "nodes": [
                {
                    "name": name,
                    "machine": machine,
                    "gpus": [
                        {
                            "device": gpu.device,
                            "uuid": gpu.uuid,
                            "index": gpu.index,
                            "productName": gpu.product_name,
                            "memoryBytes": gpu.memory_bytes,
                            "nvlinkLinks": gpu.links,
                            "holders": sorted(holders.get((name, gpu.device), ())),
                        }
                        for gpu in self.recorder.gpus()
                        if gpu.node == name
                    ],
                }
                for name, machine in self._cluster.nodes.items()
            ],
            "steps": [
                {
                    "file": step.scenario.name,
                    "pods": [self._pod(pod) for pod in sorted(step.pods, key=lambda one: one.name)],
                }
                for step in self._steps
            ],
        }

    def _pod(self, pod: PodSeen) -> dict[str, Any]:
        return {
            "namespace": pod.namespace,
            "name": pod.name,
            "phase": pod.phase,
            "node": pod.node,
            "gpus": [gpu.uuid for gpu in self._gpus(pod)],
            "why": [pod.waits] if not pod.node else self._why(pod),
        }
