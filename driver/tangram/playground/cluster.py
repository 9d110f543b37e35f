"""The playground's cluster: started, running, and gone without a trace."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tangram
from tangram import DRIVER_NAME
from tangram.base.clock import Clock, SystemClock
from tangram.base.errors import TangramError
from tangram.kube.decoding import ObjectKey
from tangram.kube.resources import DEVICE_CLASSES, NODES, RESOURCE_SLICES
from tangram.playground import claimcontroller, scheduler, workloads
from tangram.playground.nodes import Node
from tangram.playground.objects import Object
from tangram.testing.apiserver import FakeApiServer

# Paths of sockets hold 107 bytes, of which the plugin's own part takes about 60.
_LONGEST_TEMPORARY_DIRECTORY = 24
_START_TIMEOUT_S = 120.0
_POLL_S = 0.1
_LOG_TAIL_BYTES = 4000


class Cluster:
    """Made by `running_cluster`."""

    def __init__(self, machines: Sequence[str], *, root: Path, server: FakeApiServer, clock: Clock) -> None:
        self.root = root
        self.server = server
        self.kubeconfig = root / "kubeconfig"
        self.controller_log = root / "controller.log"
        self.nodes = {f"node-{number}": machine for number, machine in enumerate(machines, start=1)}
        self._clock = clock
        self._observers: list[Callable[[], None]] = []
        self._kubelets = [
            Node(name, server=server, directory=root / name, clock=clock) for name in self.nodes
        ]
        self._daemons: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}

    def on_change(self, observer: Callable[[], None]) -> None:
        """`observer` is called after changes, before the stand-ins act on them."""
        self._observers.append(observer)

    async def run(self, started: asyncio.Event) -> None:
        """Until cancelled. TangramError if one of our processes ends; all that it started is ended."""
        self.server.kubeconfig(self.kubeconfig)
        self.server.serve_logs(self._log)
        self.server.create(DEVICE_CLASSES, gpu_class())
        for name in self.nodes:
            self.server.create(NODES, _node(name))
        try:
            self._start_daemons()
            async with asyncio.TaskGroup() as tasks:
                for kubelet in self._kubelets:
                    tasks.create_task(kubelet.run())
                tasks.create_task(self._stand_ins())
                tasks.create_task(self._watch_daemons())
                await self._published()
                started.set()
                await asyncio.Event().wait()
        finally:
            self._end_daemons()

    async def _stand_ins(self) -> None:
        async for _ in self.server.changes():
            for observer in self._observers:
                observer()
            workloads.step(self.server, self._clock)
            claimcontroller.step(self.server, self._clock)
            scheduler.step(self.server, self._clock)

    async def _published(self) -> None:
        """Every node has all its slices."""

        def complete() -> bool:
            pools: dict[str, list[Object]] = {}
            for each in self.server.objects(RESOURCE_SLICES):
                pools.setdefault(each["spec"].get("nodeName", ""), []).append(each["spec"])
            return all(
                name in pools and len(pools[name]) == pools[name][0]["pool"]["resourceSliceCount"]
                for name in self.nodes
            )

        await self.server.until(complete, timeout_s=_START_TIMEOUT_S)

    # --- Tangram's own processes ----------------------------------------------------------------------------

    def _start_daemons(self) -> None:
        self._start("controller", "controller", "run")
        for name, machine in self.nodes.items():
            directory = self.root / name
            self._start(
                name, "node", "run", "--node-name", name, "--simulate", machine,
                "--kubelet-dir", str(directory), "--cdi-root", str(directory / "cdi"),
            )  # fmt: skip

    def _start(self, name: str, *words: str) -> None:
        log = self.root / f"{name}.log"
        source = str(Path(tangram.__file__).parents[1])
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TANGRAM_")}
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "tangram", *words,
                 "--kubeconfig", str(self.kubeconfig), "--metrics-address", ""],
                env={**kept, "PYTHONPATH": source},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # Ctrl-C in the terminal is for the playground to handle
            )  # fmt: skip
        self._daemons[name] = (process, log)

    async def _watch_daemons(self) -> None:
        while True:
            for name, (process, log) in self._daemons.items():
                if (code := process.poll()) is not None:
                    tail = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
                    raise TangramError(
                        f"the process of {name} ended with exit code {code}; its log ends with\n{tail}"
                    )
            await asyncio.sleep(_POLL_S)

    def _end_daemons(self) -> None:
        """Hard: what they hold on disk goes with the playground."""
        for process, _ in self._daemons.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process, _ in self._daemons.values():
            process.wait()

    async def _log(self, key: ObjectKey, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        for kubelet in self._kubelets:
            if kubelet.has(key):
                async for chunk in kubelet.log(key, query):
                    yield chunk


@contextlib.asynccontextmanager
async def running_cluster(machines: Sequence[str]) -> AsyncIterator[Cluster]:
    """A cluster with Tangram on it, ready for pods; nothing of it is left afterwards.

    `machines` as of `parse_machines`. TangramError if a part of it fails, also while the body runs.
    """
    clock = SystemClock()
    root = Path(tempfile.mkdtemp(prefix="tangram-", dir=_temporary_directory()))
    try:
        async with FakeApiServer(clock=clock) as server:
            cluster = Cluster(machines, root=root, server=server, clock=clock)
            started = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(cluster.run(started))
                await started.wait()
                try:
                    yield cluster
                finally:
                    running.cancel()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def gpu_class() -> Object:
    """The DeviceClass of whole GPUs, as the chart has it: guarded, so that only Tangram allocates them."""
    attributes = f'device.attributes["{DRIVER_NAME}"]'
    lines = (
        f'device.driver == "{DRIVER_NAME}" &&',
        f"has({attributes}.allocator) &&",
        f'{attributes}.allocator == "scheduler" &&',
        f'{attributes}.type == "gpu" &&',
        f"{attributes}.healthy",
    )
    selectors = [{"cel": {"expression": "\n".join(lines)}}]
    return {"metadata": {"name": DRIVER_NAME}, "spec": {"selectors": selectors}}


def _node(name: str) -> Object:
    room = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    ready: dict[str, Any] = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "spec": {},
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }


def _temporary_directory() -> str:
    usual = tempfile.gettempdir()
    return usual if len(usual) <= _LONGEST_TEMPORARY_DIRECTORY else "/tmp"
