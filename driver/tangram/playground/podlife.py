"""The containers of a pod: started in order, started again as its restartPolicy says, and told of.

Rules: `core/v1` PodStatus, ContainerStatus; `pkg/kubelet/kuberuntime`. Shorter waits than the kubelet's.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tangram.base.clock import Clock, rfc3339
from tangram.playground.containers import Container
from tangram.playground.guard import Guard
from tangram.playground.objects import Object

_POLL_S = 0.05
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0

Report = Callable[[str, Mapping[str, Any]], None]
"""Takes the pod's phase and fields of its status."""


@dataclass(slots=True)
class _Run:
    """A container and what was last seen of it."""

    container: Container
    state: Object
    last_state: Object

    def status(self) -> Object:
        running = "running" in self.state
        return {
            "name": self.container.name,
            "image": self.container.image,
            "imageID": "",
            "containerID": f"playground://{self.container.name}-{self.container.starts}",
            "restartCount": max(0, self.container.starts - 1),
            "ready": running,
            "started": running,
            "state": self.state,
            "lastState": self.last_state,
        }


class PodLife:
    """`run` is the pod's life up to its own end; `stop` ends it."""

    def __init__(
        self,
        pod: Object,
        *,
        init: Sequence[Container],
        main: Sequence[Container],
        guard: Guard,
        clock: Clock,
        report: Report,
    ) -> None:
        self._policy: str = pod["spec"].get("restartPolicy") or "Always"
        self._guard = guard
        self._clock = clock
        self._report = report
        self._init = [_Run(each, {"waiting": {"reason": "PodInitializing"}}, {}) for each in init]
        self._main = [_Run(each, {"waiting": {"reason": "PodInitializing"}}, {}) for each in main]

    def containers(self) -> list[Container]:
        """All; first those whose log is meant where no container is named."""
        return [run.container for run in (*self._main, *self._init)]

    async def run(self) -> None:
        """Until the pod has succeeded or failed, which a pod that is always restarted never does."""
        for run in self._init:
            # "Always" is for the containers proper: here it means until it succeeds.
            code = await self._live(run, again=lambda code: bool(code) and self._policy != "Never")
            if code:
                self._tell("Failed")
                return
        again = {"Always": lambda _: True, "OnFailure": bool}.get(self._policy, lambda _: False)
        for run in self._main:
            self._start(run)
        self._tell()
        async with asyncio.TaskGroup() as tasks:
            lives = [tasks.create_task(self._live(run, again=again)) for run in self._main]
        self._tell("Failed" if any(life.result() for life in lives) else "Succeeded")

    async def stop(self, *, grace_s: float) -> None:
        """Asks all processes to end, and kills what is left after the time."""
        containers = self.containers()
        for container in containers:
            container.terminate()
        try:
            async with asyncio.timeout(grace_s):
                while any(each.starts and each.exit_code() is None for each in containers):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)  # processes send no event
        except TimeoutError:
            pass
        self.kill()

    def kill(self) -> None:
        """Ends all processes."""
        for container in self.containers():
            container.kill()

    async def _live(self, run: _Run, *, again: Callable[[int], bool]) -> int:
        """One container over its restarts; the code of its last end."""
        pause_s = _FIRST_PAUSE_S
        while True:
            if "running" not in run.state:
                self._start(run)
                self._tell()
            while (code := run.container.exit_code()) is None:  # noqa: ASYNC110 - processes send no event
                await asyncio.sleep(_POLL_S)
            run.container.kill()  # what it left running
            started = run.state["running"]["startedAt"]
            run.state = {"terminated": self._ended(code, started)}
            if not again(code):
                self._tell()
                return code
            run.last_state = run.state
            back_off = f"back-off {pause_s:.0f}s restarting failed container={run.container.name}"
            run.state = {"waiting": {"reason": "CrashLoopBackOff", "message": back_off}}
            self._tell()
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _start(self, run: _Run) -> None:
        run.container.start(self._guard)
        run.state = {"running": {"startedAt": rfc3339(self._clock.now())}}

    def _ended(self, code: int, started: str) -> Object:
        reason = "Error" if code else "Completed"
        now = rfc3339(self._clock.now())
        return {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now}

    def _tell(self, phase: str = "") -> None:
        begun = any(run.container.starts for run in self._main)
        self._report(
            phase or ("Running" if begun else "Pending"),
            {
                "initContainerStatuses": [run.status() for run in self._init],
                "containerStatuses": [run.status() for run in self._main],
            },
        )
