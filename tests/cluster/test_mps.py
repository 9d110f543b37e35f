"""GPUs shared by MPS on a real cluster: simulated daemons outlive plugin and supervisor, and are replaced."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.cluster.harness import DRIVER, ROOT, SYSTEM, Cluster

pytestmark = pytest.mark.cluster

EXAMPLE = ROOT / "deploy" / "examples" / "12-mps.yaml"
MPS = f"/var/lib/kubelet/plugins/{DRIVER}/mps"
SMALL, LARGE = "inference-small", "inference-large"


class Shared:
    """The GPU that the two pods of the example share."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        cluster.wait("the MPS supervisors", self._supervised, timeout_s=120)
        cluster.apply(EXAMPLE)
        small, large = (cluster.wait_phase(name, "Running", timeout_s=120) for name in (SMALL, LARGE))
        (device,) = {*cluster.devices_of(small), *cluster.devices_of(large)}
        self.node: str = small["spec"]["nodeName"]
        self.directory = f"{MPS}/{device.rpartition('/')[2].split('-')[1]}"

    def status(self) -> dict[str, Any]:
        """What the supervisor says."""
        text = self._cluster.on_node(self.node, "cat", f"{self.directory}/status.json")
        return dict(json.loads(text))

    def wait(self, what: str, right: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The status once it is right."""

        def seen() -> dict[str, Any]:
            status = self.status()
            return status if right(status) else {}

        found: dict[str, Any] = self._cluster.wait(what, seen, timeout_s=90)
        return found

    def daemon(self) -> str:
        """The control daemon's pid on the node."""
        return self.pid("simulateddaemon.py -f -M")

    def pid(self, command: str) -> str:
        """The newest process with that in its command line."""
        return self._cluster.on_node(self.node, "pgrep", "-nf", command).strip()

    def supervisor_pod(self) -> str:
        """Its uid and the restarts of its container."""
        (pod,) = self._cluster.component_pods("mps", self.node)
        (container,) = pod["status"]["containerStatuses"]
        return f"{pod['metadata']['uid']} {container['restartCount']}"

    def _supervised(self) -> bool:
        pods = self._cluster.component_pods("mps")
        return len(pods) == 2 and all(pod["status"].get("phase") == "Running" for pod in pods)


def told(cluster: Cluster, claim: dict[str, Any]) -> bool:
    """Whether an event on the claim says that its daemon has failed."""
    return "MpsFailed" in {event["reason"] for event in cluster.events(claim["metadata"]["name"])}


def log_of(cluster: Cluster, name: str) -> str:
    """What a pod has printed."""
    log: str = cluster.wait(
        f"log of {name}", lambda: cluster.kubectl("logs", name, "-n", cluster.namespace, check=False)
    )
    return log


@pytest.fixture
def shared(cluster: Cluster) -> Shared:
    return Shared(cluster)


def test_two_pods_share_a_gpu(cluster: Cluster, shared: Shared) -> None:
    status = shared.wait("the daemon ready", lambda status: bool(status["state"] == "ready"))
    assert status["limits"]["coresPercent"] == 60
    for name, percent in ((SMALL, 40), (LARGE, 60)):
        log = log_of(cluster, name)
        assert "CUDA_MPS_PIPE_DIRECTORY=/run/tangram-mps\n" in log
        assert f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percent}\n" in log
        cluster.kubectl("exec", name, "-n", cluster.namespace, "--", "test", "-S", "/run/tangram-mps/control")
    before = shared.daemon()
    cluster.kubectl("delete", "pod", LARGE, "-n", cluster.namespace)
    shared.wait("limits to sink", lambda status: bool(status.get("limits", {}).get("coresPercent") == 40))
    assert shared.daemon() == before
    cluster.kubectl("delete", "pod", SMALL, "-n", cluster.namespace)
    shared.wait("the daemon to stop", lambda status: bool(status["state"] == "stopped"))
    assert cluster.on_node(shared.node, "pgrep", "-f", "simulateddaemon.py", check=False) == ""


def test_p41_what_dies_comes_back_and_leaves_the_rest_alone(cluster: Cluster, shared: Shared) -> None:
    pod, daemon = shared.supervisor_pod(), shared.daemon()
    # The plugin: its restart finds all as it was.
    cluster.kill_component("node", shared.node)
    cluster.wait_components()
    assert (shared.daemon(), shared.supervisor_pod()) == (daemon, pod)
    # The supervisor, which is the younger of the two processes of that command.
    supervisor = shared.pid("tangram mps run")
    cluster.on_node(shared.node, "kill", "-KILL", supervisor)
    cluster.wait("another supervisor", lambda: shared.pid("tangram mps run") != supervisor)
    shared.wait("the daemon adopted", lambda status: bool(status["state"] == "ready"))
    assert (shared.daemon(), shared.supervisor_pod()) == (daemon, pod)
    # The daemon itself.
    cluster.on_node(shared.node, "kill", "-KILL", daemon)
    status = shared.wait(
        "another daemon",
        lambda status: bool(status["state"] == "ready" and status.get("incidents") == 1),
    )
    assert status["incident"]["kind"] == "died"
    assert shared.daemon() != daemon
    assert shared.supervisor_pod() == pod
    for name in (SMALL, LARGE):
        (claim,) = cluster.claims_of(cluster.get("pod", name))
        cluster.wait(f"the event on the claim of {name}", partial(told, cluster, claim))


def test_an_update_of_the_plugin_leaves_daemons_alone(cluster: Cluster, shared: Shared) -> None:
    pod, daemon = shared.supervisor_pod(), shared.daemon()
    cluster.kubectl("rollout", "restart", "daemonset/tangram-node", "-n", SYSTEM)
    cluster.kubectl("rollout", "status", "daemonset/tangram-node", "-n", SYSTEM, "--timeout=180s")
    cluster.wait_components()
    assert (shared.daemon(), shared.supervisor_pod()) == (daemon, pod)
    assert all(cluster.get("pod", name)["status"]["phase"] == "Running" for name in (SMALL, LARGE))
