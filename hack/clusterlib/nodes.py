"""A node: a set of namespaces on this machine with a containerd and a kubelet in it."""

import json
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM

import yaml

from clusterlib import access, cgroups, network, processes
from clusterlib.api import is_healthy
from clusterlib.binaries import Binaries
from clusterlib.commands import run
from clusterlib.errors import ClusterError
from clusterlib.images import PAUSE_IMAGE
from clusterlib.layout import Layout, NodeLayout

INIT = "init"
CONTAINERD = "containerd"
KUBELET = "kubelet"
PROGRAMS = (INIT, CONTAINERD, KUBELET)

KUBELET_HEALTH_PORT = 10_248

_INIT_SCRIPT = Path(__file__).with_name("node-init.sh")
_UNSHARE = ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child", "--"]
_CONTAINERD_SOCKET = "/run/containerd/containerd.sock"


class NodeRunner:
    """Starts, stops and enters the nodes of one cluster. Holds no state: what runs is asked of the kernel."""

    def __init__(self, layout: Layout, binaries: Binaries) -> None:
        self._layout = layout
        self._binaries = binaries

    def running(self, node: NodeLayout, program: str) -> processes.Process | None:
        living = processes.find(self._layout.base_port)
        return processes.main_process(living, node.component(program), self.process_name(program))

    @staticmethod
    def process_name(program: str) -> str:
        """unshare(1), the parent of a node's process 1, has its mark too; the script itself runs as bash."""
        return "bash" if program == INIT else program

    def enter(self, node: NodeLayout) -> list[str]:
        """The words that run a command inside the node. Raises ClusterError when the node is not up."""
        init = self.running(node, INIT)
        if init is None or not self._ready_file(init.pid).exists():
            raise ClusterError(
                f"{node.name} is not up", next_step="start it with `hack/cluster up`", exit_code=3
            )
        return _enter(init.pid)

    def ensure_namespaces(self, node: NodeLayout) -> None:
        """Create the node's namespaces, or create them anew where an earlier attempt stopped half-way."""
        init = self.running(node, INIT)
        if init is not None and self._ready_file(init.pid).exists():
            return
        if init is not None:
            processes.end([init.pid], SIGKILL)
        cgroups.create(node.cgroup)
        _write_configuration(self._layout, node)
        spawned = processes.spawn(
            [*_UNSHARE, "bash", _INIT_SCRIPT, node.name, node.directory],
            base_port=self._layout.base_port,
            component=node.component(INIT),
            log_file=node.log_dir / "init.log",
        )
        pid = self._wait_mounted(node, spawned)
        network.connect(self._layout, node, init_pid=pid, enter=_enter(pid))
        self._ready_file(pid).touch()

    def start(self, node: NodeLayout, program: str) -> subprocess.Popen[bytes] | None:
        """Start containerd or the kubelet in the node; None when it runs already."""
        if self.running(node, program) is not None:
            return None
        argv = (
            _containerd(self._binaries, node)
            if program == CONTAINERD
            else _kubelet(self._binaries, self._layout, node)
        )
        return processes.spawn(
            [*self.enter(node), *argv],
            base_port=self._layout.base_port,
            component=node.component(program),
            log_file=node.log_dir / f"{program}.log",
            path=[self._binaries.containerd],  # containerd looks for its shim there
        )

    def stop_kubelet(self, node: NodeLayout, *, kill9: bool) -> bool:
        """End the kubelet and wait for its end. False when none ran."""
        kubelet = self.running(node, KUBELET)
        if kubelet is not None:
            processes.end([kubelet.pid], SIGKILL if kill9 else SIGTERM, timeout_s=60)
        return kubelet is not None

    @staticmethod
    def kubelet_healthy(node: NodeLayout) -> bool:
        """Raises OSError while nobody listens."""
        return is_healthy(f"http://{node.address}:{KUBELET_HEALTH_PORT}/healthz")

    def import_image(self, node: NodeLayout, archive: Path) -> None:
        """Load an image archive into the node's containerd."""
        ctr = self._binaries.containerd / "ctr"
        run([*self.enter(node), ctr, "--namespace=k8s.io", "images", "import", archive])

    def wait_for_containerd(self, node: NodeLayout, *, timeout_s: float = 30.0) -> None:
        """containerd opens its socket when all its plugins are there."""
        deadline_s = time.monotonic() + timeout_s
        init = self.running(node, INIT)
        while init is not None and time.monotonic() < deadline_s:
            with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
                client.connect(f"/proc/{init.pid}/root{_CONTAINERD_SOCKET}")
                return
            time.sleep(0.02)
        raise ClusterError(
            f"containerd of {node.name} does not answer", next_step=f"read {node.log_dir / 'containerd.log'}"
        )

    def _wait_mounted(
        self, node: NodeLayout, spawned: subprocess.Popen[bytes], *, timeout_s: float = 15.0
    ) -> int:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s and spawned.poll() is None:
            init = self.running(node, INIT)
            if init is not None and Path(f"/proc/{init.pid}/root/run/node-mounted").exists():
                return init.pid
            time.sleep(0.02)
        raise ClusterError(
            f"{node.name} could not set up its namespaces", next_step=f"read {node.log_dir / 'init.log'}"
        )

    @staticmethod
    def _ready_file(init_pid: int) -> Path:
        return Path(f"/proc/{init_pid}/root/run/node-ready")


def _enter(init_pid: int) -> list[str]:
    return ["nsenter", f"--target={init_pid}", "--mount", "--net", "--uts", "--pid", "--"]


def _containerd(binaries: Binaries, node: NodeLayout) -> list[str | Path]:
    return [binaries.containerd / CONTAINERD, "--config", node.directory / "containerd.toml"]


def _kubelet(binaries: Binaries, layout: Layout, node: NodeLayout) -> list[str | Path]:
    return [
        binaries.kubernetes / KUBELET,
        f"--config={node.directory / 'kubelet.yaml'}",
        f"--kubeconfig={access.kubeconfig_file(layout, node.name)}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
    ]


def _write_configuration(layout: Layout, node: NodeLayout) -> None:
    cni_file = node.directory / "etc/cni/net.d/10-tangram.conflist"
    cni_file.parent.mkdir(parents=True, exist_ok=True)
    cni_file.write_text(json.dumps(cni_config(node), indent=2))
    (node.directory / "containerd.toml").write_text(containerd_config())
    (node.directory / "kubelet.yaml").write_text(
        yaml.safe_dump(kubelet_config(layout, node), sort_keys=False)
    )


def cni_config(node: NodeLayout) -> dict[str, object]:
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": f"{node.pod_network}"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": ipam}
    return {"cniVersion": "1.0.0", "name": "tangram", "plugins": [bridge]}


def containerd_config() -> str:
    """containerd's configuration, version 3 (docs/cri/config.md of containerd 2.x)."""
    return f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "{_CONTAINERD_SOCKET}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
cdi_spec_dirs = ["/var/run/cdi"]
# Where CAP_SYS_RESOURCE is missing, runc cannot lower a score and dies.
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "/etc/cni/net.d"
"""


def kubelet_config(layout: Layout, node: NodeLayout) -> dict[str, object]:
    """KubeletConfiguration (https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1)."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{layout.pki_dir / 'ca.crt'}"},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{_CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "enforceNodeAllocatable": [],
        # All nodes share the machine's disk and memory: what is scarce there must not evict pods in a test.
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "failCgroupV1": False,
        "failSwapOn": False,
        "healthzBindAddress": f"{node.address}",
        "healthzPort": KUBELET_HEALTH_PORT,
    }
