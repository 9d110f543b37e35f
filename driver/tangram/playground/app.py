"""The command: start, play, tell, end. Ctrl-C at any moment leaves nothing behind."""

import asyncio
import io
import json
import signal
import sys
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path

from tangram.base.errors import TangramError
from tangram.playground.cluster import Cluster, running_cluster
from tangram.playground.picture import coloured
from tangram.playground.plans import Plans
from tangram.playground.play import Play, Teller
from tangram.playground.recorder import PodSeen

_INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`machines` and `version` as of `running_cluster`; `command` is how the user called it, for what to type
    next, and `started_s` when (monotonic)."""

    machines: tuple[str, ...]
    version: str
    plans: Plans
    keep: bool
    json: bool
    command: str
    started_s: float


def run(options: Options) -> int:
    """Exit code 0: played; 3: a pod or a scenario failed; 130: interrupted.

    TangramError: a part of the cluster failed.
    """
    return asyncio.run(_until_signal(_main(options)))


async def _main(options: Options) -> int:
    started_s = options.started_s
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot draw boxes
    teller = Teller(silent=options.json, colour=coloured(sys.stdout))
    teller.say(f"Starting Kubernetes {options.version} of simulated machines: {', '.join(options.machines)}")
    async with running_cluster(options.machines, version=options.version) as cluster:
        play = Play(cluster, teller, started_s=started_s)
        ready_s = time.monotonic() - started_s
        teller.say(f"Ready after {ready_s:.1f} s")
        await play.run(options.plans, keep=options.keep)
        kubeconfig = str(cluster.kubeconfig)
        if options.json:
            report = play.report(kubeconfig=kubeconfig if options.keep else "")
            print(json.dumps(report, indent=2, ensure_ascii=False), flush=True)
        if play.first_pod_s is not None:
            teller.say(
                "",
                f"The first pod had its GPU after {play.first_pod_s:.1f} s: {ready_s:.1f} s to start"
                f" the cluster, {play.first_pod_s - ready_s:.1f} s from there",
            )
        teller.say(*(_kept(cluster, play) if options.keep else _next(options.command)))
        if options.keep:
            await asyncio.Event().wait()
        return 3 if play.failed else 0


def _next(command: str) -> list[str]:
    return [
        "",
        "Next:",
        f"  {command} --keep                             leave it running, for kubectl in a second terminal",
        f"  {command} --machines h200x8,t4x4             other machines; --list-machines names them",
        f"  {command} --scenario my-pods.yaml            your own manifests",
    ]


def _kept(cluster: Cluster, play: Play) -> list[str]:
    pods = [pod for pod in play.recorder.pods.values() if not pod.gone]
    waiting = [_named(pod) for pod in pods if not pod.node]
    holding = [_named(pod) for pod in pods if pod.phase == "Running" and pod.devices]
    return [
        "",
        "It goes on until Ctrl-C. In a second terminal:",
        f"  export KUBECONFIG={cluster.kubeconfig}",
        "  kubectl get pods,resourceclaims",
        *(line for name in waiting[:1] for line in _about(name)),
        *(f"  kubectl delete pod {name}" for name in holding[:1]),
        f"  {_tangram()} node status --config {cluster.settings_file(next(iter(cluster.nodes)))}",
    ]


def _named(pod: PodSeen) -> str:
    return pod.name if pod.namespace == "default" else f"{pod.name} -n {pod.namespace}"


def _about(waiting: str) -> list[str]:
    return [f"  kubectl describe pod {waiting}", f"  {_tangram()} why pod/{waiting}"]


def _tangram() -> str:
    """The command, beside the Python that runs this: it need not be in the PATH."""
    command = Path(sys.executable).with_name("tangram")
    return str(command) if command.is_file() else "tangram"


async def _until_signal(main: Awaitable[int]) -> int:
    task = asyncio.ensure_future(main)
    interrupted = False

    def stop() -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    try:
        return await task
    except asyncio.CancelledError:
        return _INTERRUPTED
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, TangramError):
            raise error from None
        raise
