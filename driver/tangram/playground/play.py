"""Plays manifests or scenarios on a cluster, and tells what became of every pod."""

import time
from dataclasses import dataclass, field
from typing import Any, Literal

from tangram.base.errors import TangramError
from tangram.playground import manifests
from tangram.playground.cluster import Cluster
from tangram.playground.manifests import Manifests
from tangram.playground.picture import draw, holding
from tangram.playground.plans import Plans
from tangram.playground.recorder import GpuSeen, PodSeen, Recorder
from tangram.playground.scenarios.runner import Runner
from tangram.playground.scenarios.schema import Scenario
from tangram.playground.world import PlaygroundWorld

_STEP_TIMEOUT_S = 60.0


@dataclass(slots=True, kw_only=True)
class Step:
    """A file that was played; `message` says why a scenario failed or was skipped."""

    file: str
    outcome: Literal["played", "passed", "failed", "skipped"] = "played"
    message: str = ""
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
    """One run through files; `report` is what it was, as `PlaygroundReport`."""

    def __init__(self, cluster: Cluster, teller: Teller, *, started_s: float) -> None:
        self._cluster = cluster
        self._teller = teller
        self._started_s = started_s
        self.recorder = Recorder(cluster.server, controller_log=cluster.controller_log)
        cluster.on_change(self._observe)
        self.first_pod_s: float | None = None
        self._steps: list[Step] = []

    async def run(self, plans: Plans, *, keep: bool) -> None:
        """With `keep`, what the last file made stays; what manifests made stays anyway.

        InvalidObjectError for an object that is refused, TangramError where nothing is decided in time.
        """
        self._teller.picture("The GPUs before:", self.recorder)
        world = PlaygroundWorld(self._cluster)
        runner = Runner(world, clock=self._cluster.clock, tell=lambda text: self._teller.say(f"  {text}"))
        for number, plan in enumerate(plans, start=1):
            title = f"{plan.name}: {plan.about}" if plan.about else plan.name
            self._teller.say("", f"[{number}/{len(plans)}] {title}")
            before = set(self.recorder.pods)
            step = Step(file=plan.name)
            self._steps.append(step)
            if isinstance(plan, Scenario):
                outcome = await runner.play(plan, keep=keep and number == len(plans))
                step.outcome, step.message = outcome.result, outcome.message
                step.pods = self._since(before)
            else:
                await self._apply(plan, step, before)
            for pod in sorted(step.pods, key=lambda one: one.name):
                self._teller.say(*self._told(pod))
            if step.outcome != "played":
                self._teller.say(f"  {step.outcome}{f': {step.message}' if step.message else ''}")
        self._teller.picture("The GPUs now:", self.recorder)

    async def _apply(self, plan: Manifests, step: Step, before: set[str]) -> None:
        """Until every pod runs, or is told why it does not."""
        for document in plan.documents:
            manifests.apply(self._cluster.server, document)

        def settled() -> bool:
            self._observe()
            step.pods = self._since(before)
            return len(step.pods) >= plan.pods and all(pod.settled for pod in step.pods)

        try:
            await self._cluster.server.until(settled, timeout_s=_STEP_TIMEOUT_S)
        except TimeoutError:
            waiting = ", ".join(pod.name for pod in step.pods if not pod.settled)
            raise TangramError(
                f"{plan.name}: not decided within {_STEP_TIMEOUT_S:.0f} s: {waiting or 'any pod'}",
                next_step="run it with --keep and look at it with kubectl describe",
            ) from None

    def _observe(self) -> None:
        self.recorder.observe()
        if self.first_pod_s is None and self.recorder.one_runs_with_devices():
            self.first_pod_s = time.monotonic() - self._started_s

    def _since(self, before: set[str]) -> list[PodSeen]:
        return [pod for uid, pod in self.recorder.pods.items() if uid not in before]

    def _told(self, pod: PodSeen) -> list[str]:
        if not pod.node:
            return [f"  {pod.name} waits", f"    why: {pod.waits}"]
        lines = [f"  {pod.name}: {pod.phase} on {pod.node}"]
        lines += [f"    {self._one(gpu, pod)}" for gpu in self._gpus(pod)]
        lines += [f"    why: {text}" for text in self._why(pod)]
        return lines

    @staticmethod
    def _one(gpu: GpuSeen, pod: PodSeen) -> str:
        text = f"GPU {gpu.index}  {gpu.product_name}  {gpu.uuid}"
        parts = [device for node, device in pod.devices if node == gpu.node and device in gpu.devices]
        return text if parts == [gpu.name] else f"{text}  {', '.join(parts)}"

    def _why(self, pod: PodSeen) -> list[str]:
        decisions = self.recorder.decisions()
        next_best = {
            decision["runner_up"]
            for claim in pod.claims.values()
            if (decision := decisions.get(claim)) and decision["runner_up"]
        }
        suffix = f"; next best: {', '.join(sorted(next_best))}" if next_best else ""
        reasons = [*(f"{text}{suffix}" for text in pod.why), *pod.notes, *pod.ends]
        return [*reasons, *([pod.waits] if pod.phase == "Failed" and pod.waits else [])]

    def _gpus(self, pod: PodSeen) -> list[GpuSeen]:
        mine = set(pod.devices)
        return [
            gpu
            for gpu in self.recorder.gpus()
            if not mine.isdisjoint((gpu.node, device) for device in gpu.devices)
        ]

    @property
    def failed(self) -> bool:
        """Whether a pod of manifests, or a scenario, ended badly. A pod that waits has not."""
        return any(
            step.outcome == "failed"
            or (step.outcome == "played" and any(pod.phase == "Failed" for pod in step.pods))
            for step in self._steps
        )

    def report(self, *, kubeconfig: str) -> dict[str, Any]:
        """As documented in docs/quickstart.md; times in seconds, `kubeconfig` empty unless it stays."""
        self.recorder.observe()
        holders = self.recorder.holders()
        return {
            "apiVersion": "tangram/v1alpha1",
            "kind": "PlaygroundReport",
            "firstPodSeconds": None if self.first_pod_s is None else round(self.first_pod_s, 3),
            "totalSeconds": round(time.monotonic() - self._started_s, 3),
            "kubeconfig": kubeconfig,
            "nodes": [
                {
                    "name": name,
                    "machine": machine,
                    "gpus": [
                        {
                            "device": gpu.name,
                            "uuid": gpu.uuid,
                            "index": gpu.index,
                            "productName": gpu.product_name,
                            "memoryBytes": gpu.memory_bytes,
                            "nvlinkLinks": gpu.links,
                            "holders": sorted(holding(gpu, holders)),
                        }
                        for gpu in self.recorder.gpus()
                        if gpu.node == name
                    ],
                }
                for name, machine in self._cluster.nodes.items()
            ],
            "steps": [
                {
                    "file": step.file,
                    "outcome": step.outcome,
                    "message": step.message,
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
