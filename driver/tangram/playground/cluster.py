"""The playground's cluster: started, running, and gone without a trace."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tangram
from tangram import DRIVER_NAME
from tangram.base.clock import Clock, SystemClock
from tangram.base.errors import TangramError
from tangram.hardware.machines import machine_file, read_machine
from tangram.kube.decoding import ObjectKey
from tangram.kube.resources import DEVICE_CLASSES, NODES, RESOURCE_SLICES
from tangram.playground import claimcontroller, scheduler, workloads
from tangram.playground.guard import Group, Guard
from tangram.playground.nodes import Node
from tangram.playground.objects import Object
from tangram.testing.apiserver import DEFAULT_VERSION, FakeApiServer

# Paths of sockets hold 107 bytes, of which the plugin's own part takes about 60.
_TYPES = {"": "gpu", "mig.": "mig", "mps.": "mps", "timeslice.": "timeslice"}
"""Beginning of a class's name → the type of its devices."""
_MPS = "mps-"
_LONGEST_TEMPORARY_DIRECTORY = 24
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 30.0
_POLL_S = 0.1
_LOG_TAIL_BYTES = 4000


class Cluster:
    """Made by `running_cluster`."""

    def __init__(self, machines: Sequence[str], *, guard: Guard, server: FakeApiServer, clock: Clock) -> None:
        self._root = root = guard.directory
        self.server = server
        self.kubeconfig = root / "kubeconfig"
        self.controller_log = self._process_log("controller")
        self.nodes = {f"node-{number}": machine for number, machine in enumerate(machines, start=1)}
        self.clock = clock
        self._guard = guard
        self._observers: list[Callable[[], None]] = []
        self.kubelets = {
            name: Node(name, server=server, directory=root / name, clock=clock, guard=guard)
            for name in self.nodes
        }
        self._daemons: dict[str, Group] = {}

    def on_change(self, observer: Callable[[], None]) -> None:
        """`observer` is called after changes, before the stand-ins act on them."""
        self._observers.append(observer)

    async def run(self, started: asyncio.Event) -> None:
        """Until cancelled. TangramError if one of our processes ends; all that it started is ended."""
        self.server.kubeconfig(self.kubeconfig)
        self.server.serve_logs(self._log)
        for item in device_classes():
            self.server.create(DEVICE_CLASSES, item)
        for name, machine in self.nodes.items():
            self.server.create(NODES, _node(name))
            # A user's own file is read again where it is: editing it plugs and unplugs GPUs.
            if (file := machine_file(machine)) is not None:
                self._machine_file(name).symlink_to(file)
            else:
                self.simulate(name, read_machine(machine).decode())
        try:
            for name in ("controller", *self.nodes):
                self._start(name)
            async with asyncio.TaskGroup() as tasks:
                for kubelet in self.kubelets.values():
                    tasks.create_task(kubelet.run())
                tasks.create_task(self._stand_ins())
                tasks.create_task(self._watch_daemons())
                await self._published()
                for name in self.nodes:  # nobody waits for these before a claim for a share is prepared
                    self._start(f"{_MPS}{name}")
                started.set()
                await asyncio.Event().wait()
        finally:
            self._end_daemons()

    async def _stand_ins(self) -> None:
        async for _ in self.server.changes():
            for observer in self._observers:
                observer()
            workloads.step(self.server, self.clock)
            claimcontroller.step(self.server, self.clock)
            scheduler.step(self.server, self.clock)

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

    # --- machines -------------------------------------------------------------------------------------------

    def simulate(self, node: str, description: str) -> None:
        """The node's GPUs are those of this description at the plugin's next look."""
        new = self._machine_file(node).with_suffix(".new")
        new.write_text(description, encoding="utf-8")
        new.replace(self._machine_file(node))

    def _machine_file(self, node: str) -> Path:
        return self._root / f"{node}-machine.yaml"

    # --- Tangram's own processes ----------------------------------------------------------------------------

    @property
    def processes(self) -> tuple[str, ...]:
        """`controller`; of each node the plugin by its name, the MPS supervisor by `mps-` and its name."""
        return ("controller", *self.nodes, *(f"{_MPS}{name}" for name in self.nodes))

    async def restart(self, name: str, *, kill: bool) -> None:
        """Ends one of our processes, by SIGKILL or in order, and starts it again."""
        group = self._daemons.pop(name)  # from here on nobody is alarmed by its end
        try:
            if not kill:
                group.terminate()
                async with asyncio.timeout(_STOP_TIMEOUT_S):
                    while group.exit_code() is None:  # noqa: ASYNC110
                        await asyncio.sleep(_POLL_S)  # processes send no event
        except TimeoutError:
            raise TangramError(f"the process of {name} did not stop within {_STOP_TIMEOUT_S:.0f} s") from None
        finally:
            group.kill()
        self._start(name)

    def _start(self, name: str) -> None:
        node = name.removeprefix(_MPS)
        directory = self._root / node
        connection = ["--kubeconfig", str(self.kubeconfig), "--metrics-address", ""]
        if name in self.nodes:
            self.settings_file(name).write_text(json.dumps(self._node_settings(name)))
            words = ["node", "run", "--config", str(self.settings_file(name))]
        elif node in self.nodes:
            words = ["mps", "run", "--simulated", "true", "--kubelet-dir", str(directory), *connection]
        else:
            # As in the chart, where it is the pod's name: the next process has it too, and so the lease.
            words = ["controller", "run", "--identity", name, *connection]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TANGRAM_")}
        with self._process_log(name).open("ab") as log:
            self._daemons[name] = self._guard.start(
                [sys.executable, "-m", "tangram", *words],
                environment={**kept, "PYTHONPATH": str(Path(tangram.__file__).parents[1])},
                output=log,
                directory=self._root,
            )

    def settings_file(self, name: str) -> Path:
        """The settings of a node's plugin: commands about the node take them too (`--config`)."""
        return self._root / f"{name}-settings.json"

    def _node_settings(self, name: str) -> Object:
        directory = self._root / name
        return {
            "nodeName": name,
            "simulate": str(self._machine_file(name)),
            "simulateStateDir": str(directory / "gpus"),
            "rescanIntervalS": 1,
            "kinds": "gpu,mig,mps,timeslice",
            "migMode": "dynamic",
            "kubeletDir": str(directory),
            "cdiRoot": str(directory / "cdi"),
            "kubeconfig": str(self.kubeconfig),
            "metricsAddress": "",
        }

    def _process_log(self, name: str) -> Path:
        return self._root / f"{name}.log"

    async def _watch_daemons(self) -> None:
        while True:
            for name, group in self._daemons.items():
                if (code := group.exit_code()) is not None:
                    tail = self._process_log(name).read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
                    raise TangramError(
                        f"the process of {name} ended with exit code {code}; its log ends with\n{tail}"
                    )
            await asyncio.sleep(_POLL_S)

    def _end_daemons(self) -> None:
        """Hard: what they hold on disk goes with the playground."""
        for group in self._daemons.values():
            group.kill()

    async def _log(self, key: ObjectKey, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        for kubelet in self.kubelets.values():
            if kubelet.has(key):
                async for chunk in kubelet.log(key, query):
                    yield chunk


@contextlib.asynccontextmanager
async def running_cluster(
    machines: Sequence[str], *, version: str = DEFAULT_VERSION
) -> AsyncIterator[Cluster]:
    """A cluster with Tangram on it, ready for pods; nothing of it is left afterwards.

    `machines` as of `parse_machines`; `version`: of Kubernetes, of `VERSIONS`. TangramError if a part of it
    fails, also while the body runs.
    """
    clock = SystemClock()
    with Guard(Path(temporary_directory())) as guard:
        async with FakeApiServer(version=version, clock=clock) as server:
            cluster = Cluster(machines, guard=guard, server=server, clock=clock)
            started = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(cluster.run(started))
                await started.wait()
                try:
                    yield cluster
                finally:
                    running.cancel()


def device_classes() -> list[Object]:
    """The DeviceClasses as the chart has them: guarded, so that only Tangram allocates their devices."""
    return [_class(f"{prefix}{DRIVER_NAME}", type_) for prefix, type_ in _TYPES.items()]


def _class(name: str, type_: str) -> Object:
    attributes = f'device.attributes["{DRIVER_NAME}"]'
    lines = (
        f'device.driver == "{DRIVER_NAME}" &&',
        f"has({attributes}.allocator) &&",
        f'{attributes}.allocator == "scheduler" &&',
        f'{attributes}.type == "{type_}" &&',
        f"{attributes}.healthy",
    )
    selectors = [{"cel": {"expression": "\n".join(lines)}}]
    return {"metadata": {"name": name}, "spec": {"selectors": selectors}}


def _node(name: str) -> Object:
    room = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    ready: dict[str, Any] = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "spec": {},
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }


def temporary_directory() -> str:
    """TMPDIR, or /tmp where there is none, one that cannot be written, or one too long for sockets in it."""
    # Not tempfile.gettempdir(), which tries by writing a file: if killed then, it leaves that.
    usual = os.environ.get("TMPDIR", "")
    fits = len(usual) <= _LONGEST_TEMPORARY_DIRECTORY and os.path.isabs(usual)
    return usual if fits and os.path.isdir(usual) and os.access(usual, os.W_OK | os.X_OK) else "/tmp"
