"""One cluster's life: up, down, status. Each can be repeated, and each copes with what a crash left."""

import fcntl
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGKILL

import msgspec

from clusterlib import access, cgroups, controlplane, network, pki, processes
from clusterlib.api import Api
from clusterlib.binaries import Binaries, binaries_of, ensure_binaries
from clusterlib.commands import ensure_packages
from clusterlib.errors import ClusterError
from clusterlib.images import write_test_images
from clusterlib.layout import CACHE_DIR, Layout, NodeLayout
from clusterlib.nodes import CONTAINERD, KUBELET, PROGRAMS, NodeRunner
from clusterlib.steps import step

DEBIAN_PACKAGES = (
    "busybox-static",
    "conntrack",
    "containernetworking-plugins",
    "iproute2",
    "iptables",
    "openssl",
    "procps",
    "runc",
)

_POLL_S = 0.1


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """What `up` was asked for, kept in the run directory."""

    version: str
    node_count: int


class ComponentStatus(msgspec.Struct, frozen=True, kw_only=True):
    component: str
    pid: int | None
    """None when it does not run."""


class Cluster:
    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def state(self) -> ClusterState | None:
        """None when there is no cluster in the run directory."""
        try:
            return msgspec.json.decode(self.layout.state_file.read_bytes(), type=ClusterState)
        except FileNotFoundError:
            return None

    def existing(self) -> tuple[ClusterState, NodeRunner]:
        """What acts on a cluster needs. Raises ClusterError (exit code 3) when there is none."""
        state = self.state()
        if state is None:
            raise ClusterError(
                f"there is no cluster with base port {self.layout.base_port} in {self.layout.run_dir}",
                next_step="start one with `hack/cluster up`, or give its --base-port and --run-dir",
                exit_code=3,
            )
        return state, NodeRunner(self.layout, binaries_of(state.version))

    def nodes(self) -> Sequence[NodeLayout]:
        return self.layout.nodes(self.existing()[0].node_count)

    def node(self, name: str) -> NodeLayout:
        for node in self.nodes():
            if node.name == name:
                return node
        names = ", ".join(node.name for node in self.nodes())
        raise ClusterError(f"there is no node {name!r}", next_step=f"choose one of: {names}", exit_code=2)

    def api(self) -> Api:
        token = access.read_tokens(self.layout)[access.ADMIN]
        return Api(server=self.layout.server, ca_file=self.layout.pki_dir / "ca.crt", token=token)

    def up(self, state: ClusterState) -> None:
        """Build, start and wait for whatever is missing."""
        with self._locked():
            self._refuse_conflicts(state)
            ensure_packages(DEBIAN_PACKAGES)
            binaries = ensure_binaries(state.version)
            if not processes.find(self.layout.base_port):
                self._remove_all()
                shutil.rmtree(self.layout.log_dir, ignore_errors=True)
            self.layout.run_dir.mkdir(parents=True, exist_ok=True)
            self.layout.state_file.write_bytes(msgspec.json.encode(state))
            _Start(self, binaries, self.layout.nodes(state.node_count)).run()

    def down(self) -> bool:
        """Remove everything of the cluster but its logs. False when there was nothing."""
        with self._locked():
            found = (
                self.state() is not None or bool(processes.find(self.layout.base_port)) or self._leftovers()
            )
            self._remove_all()
        return found

    def components(self) -> Sequence[ComponentStatus]:
        state = self.state()
        living = processes.find(self.layout.base_port)
        wanted = [(name, name) for name in controlplane.COMPONENTS]
        for node in self.layout.nodes(state.node_count if state else 0):
            wanted += [(node.component(program), program) for program in PROGRAMS]
        result = []
        for component, program in wanted:
            process = processes.main_process(living, component, NodeRunner.process_name(program))
            result.append(ComponentStatus(component=component, pid=process.pid if process else None))
        return result

    def load_image(self, archive: Path) -> None:
        """Import an OCI or Docker image archive into every node."""
        _, runner = self.existing()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: runner.import_image(node, archive), self.nodes()))

    def start_kubelet(self, node: NodeLayout) -> None:
        """Start the node's kubelet unless it runs, and wait until it says that it is healthy."""
        _, runner = self.existing()
        spawned = runner.start(node, KUBELET)
        handles = {node.component(KUBELET): spawned} if spawned else {}
        wait_until(
            lambda: runner.kubelet_healthy(node), "a healthy kubelet", self.layout, handles, timeout_s=60
        )

    def _refuse_conflicts(self, wanted: ClusterState) -> None:
        if not processes.find(self.layout.base_port):
            return
        present = self.state()
        if present is None:
            raise ClusterError(
                f"base port {self.layout.base_port} is used by a cluster with another run directory",
                next_step="choose another --base-port, or give that cluster's --run-dir",
                exit_code=2,
            )
        if present.version != wanted.version or present.node_count > wanted.node_count:
            raise ClusterError(
                f"Kubernetes {present.version} with {present.node_count} node(s) is up on base port "
                f"{self.layout.base_port}; its version cannot change, nor can nodes be taken away",
                next_step="`hack/cluster down` first, or choose another --base-port",
                exit_code=2,
            )

    def _leftovers(self) -> bool:
        return network.leftovers(self.layout) or cgroups.exists(self.layout.cgroup)

    def _remove_all(self) -> None:
        while living := processes.find(self.layout.base_port):
            processes.end([process.pid for process in living], SIGKILL)
        if self._leftovers():
            network.remove(self.layout)
            cgroups.remove(self.layout.cgroup)
        self._remove_files()

    def _remove_files(self) -> None:
        """All but the logs. By name, because the run directory is the user's choice."""
        layout = self.layout
        for directory in (layout.pki_dir, layout.config_dir, layout.etcd_dir, layout.run_dir / "nodes"):
            shutil.rmtree(directory, ignore_errors=not directory.exists())
        for file in (layout.kubeconfig, layout.test_images, layout.state_file):
            file.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock_file = CACHE_DIR / "run" / f".{self.layout.base_port}.lock"
        lock_file.parent.mkdir(parents=True, exist_ok=True)
        with lock_file.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ClusterError(
                    f"another command is changing the cluster on base port {self.layout.base_port}",
                    next_step="wait for it to end",
                ) from error
            yield


class _Start:
    """One run of `up`, after everything is built."""

    def __init__(self, cluster: Cluster, binaries: Binaries, nodes: Sequence[NodeLayout]) -> None:
        self._cluster = cluster
        self._layout = cluster.layout
        self._binaries = binaries
        self._nodes = nodes
        self._runner = NodeRunner(cluster.layout, binaries)
        self._spawned: dict[str, subprocess.Popen[bytes]] = {}

    def run(self) -> None:
        commands = {
            command.component: command for command in controlplane.commands(self._layout, self._binaries)
        }
        with step("keys and network"):
            pki.create(self._layout)
            access.create(self._layout)
            network.create_bridge(self._layout)
        for component in (controlplane.ETCD, controlplane.API_SERVER):
            self._start(commands[component])
        with step(f"namespaces, containerd and test images of {len(self._nodes)} node(s)"):
            self._start_runtimes()
        api = self._cluster.api()
        with step("API server ready"):
            self._wait(api.ready, "a ready API server")
        for component in (access.CONTROLLER_MANAGER, access.SCHEDULER):
            self._start(commands[component])
        with step("nodes ready"):
            for node in self._nodes:
                self._remember(node.component(KUBELET), self._runner.start(node, KUBELET))
            self._wait(lambda: self._nodes_ready(api), "ready nodes")
            self._wait(api.accepts_pods, "the default service account")

    def _start(self, command: controlplane.Command) -> None:
        living = processes.find(self._layout.base_port)
        if processes.main_process(living, command.component, command.component) is None:
            spawned = processes.spawn(
                command.argv,
                base_port=self._layout.base_port,
                component=command.component,
                log_file=self._layout.log_dir / f"{command.component}.log",
            )
            self._remember(command.component, spawned)

    def _start_runtimes(self) -> None:
        for node in self._nodes:
            self._runner.ensure_namespaces(node)
            self._remember(node.component(CONTAINERD), self._runner.start(node, CONTAINERD))
        network.route_to_pods(self._nodes, itself=None)
        for node in self._nodes:
            network.route_to_pods(self._nodes, itself=node, enter=self._runner.enter(node))
        write_test_images(self._layout.test_images)
        for node in self._nodes:
            self._runner.wait_for_containerd(node)
        with ThreadPoolExecutor() as pool:
            list(
                pool.map(lambda node: self._runner.import_image(node, self._layout.test_images), self._nodes)
            )

    def _nodes_ready(self, api: Api) -> bool:
        known = api.nodes()
        return all(node.name in known and known[node.name].ready.status == "True" for node in self._nodes)

    def _remember(self, component: str, spawned: subprocess.Popen[bytes] | None) -> None:
        if spawned is not None:
            self._spawned[component] = spawned

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, what, self._layout, self._spawned, timeout_s=120)


def wait_until(
    condition: Callable[[], bool],
    what: str,
    layout: Layout,
    spawned: dict[str, subprocess.Popen[bytes]],
    *,
    timeout_s: float,
) -> None:
    """Poll until `condition` holds; a server that cannot be reached yet counts as no.

    Fails early when one of the processes just started has ended.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        with suppress(OSError):
            if condition():
                return
        for component, process in spawned.items():
            if process.poll() is not None:
                log_file = layout.log_dir / f"{component}.log"
                raise ClusterError(
                    f"{component} ended with {process.returncode}; its last lines:\n{_tail(log_file)}",
                    next_step=f"read {log_file}, then `hack/cluster down`",
                )
        if time.monotonic() > deadline_s:
            raise ClusterError(
                f"no {what} after {timeout_s:.0f} s", next_step=f"read the logs in {layout.log_dir}"
            )
        time.sleep(_POLL_S)


def _tail(file: Path, lines: int = 15) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-lines:])
