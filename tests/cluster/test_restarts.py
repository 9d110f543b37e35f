"""Kubelet, plugin and controller stopped and killed while pods run and while pods start."""

import json
from collections.abc import Callable

import pytest
from tests.cluster.harness import SYSTEM, Cluster
from tests.cluster.test_protocol import pod, template

pytestmark = pytest.mark.cluster

NODES = ("node-1", "node-2")


def restart_kubelet(cluster: Cluster) -> None:
    cluster.hack("restart-kubelet", "node-1")


def kill_kubelet(cluster: Cluster) -> None:
    cluster.hack("restart-kubelet", "node-1", "--kill9")


def restart_plugin(cluster: Cluster) -> None:
    for item in cluster.component_pods("node"):
        cluster.kubectl("delete", "pod", item["metadata"]["name"], "-n", SYSTEM, "--wait=false")


def kill_plugin(cluster: Cluster) -> None:
    for node in NODES:
        cluster.kill_component("node", node)


def restart_controller(cluster: Cluster) -> None:
    for item in cluster.component_pods("controller"):
        cluster.kubectl("delete", "pod", item["metadata"]["name"], "-n", SYSTEM, "--wait=false")


def kill_controller(cluster: Cluster) -> None:
    (item,) = cluster.component_pods("controller")
    cluster.kill_component("controller", item["spec"]["nodeName"])


DISTURBANCES = (
    restart_kubelet,
    kill_kubelet,
    restart_plugin,
    kill_plugin,
    restart_controller,
    kill_controller,
)


@pytest.mark.parametrize("disturb", DISTURBANCES, ids=lambda f: f.__name__)
def test_nothing_is_lost_or_prepared_twice(cluster: Cluster, disturb: Callable[[Cluster], None]) -> None:
    cluster.apply(template("one"), template("two", count=2))
    cluster.apply(*(pod(f"before-{i}", "two") for i in range(2)))
    running = [cluster.wait_phase(f"before-{i}", "Running") for i in range(2)]
    devices = {item["metadata"]["name"]: cluster.devices_of(item) for item in running}
    started = {item["metadata"]["name"]: containers(item) for item in running}

    cluster.apply(*(pod(f"during-{i}", "one") for i in range(4)))
    disturb(cluster)
    cluster.apply(*(pod(f"after-{i}", "one") for i in range(2)))

    names = [f"during-{i}" for i in range(4)] + [f"after-{i}" for i in range(2)]
    later = [cluster.wait_phase(name, "Running", timeout_s=120) for name in names]
    cluster.wait_components()
    # What ran before runs on, on the same devices, in the same containers.
    for name, had in devices.items():
        item = cluster.get("pod", name)
        assert item["status"]["phase"] == "Running"
        assert cluster.devices_of(item) == had
        assert containers(item) == started[name]
    everything = [device for had in devices.values() for device in had]
    everything += [device for item in later for device in cluster.devices_of(item)]
    assert len(everything) == len(set(everything))
    # Slices are back, complete; held state and CDI files are those of the live claims.
    cluster.wait("16 slices", lambda: len(cluster.items("resourceslices")) == 16)
    live = {claim["metadata"]["uid"] for item in cluster.items("pods") for claim in cluster.claims_of(item)}
    assert cluster.held_on("node-1") | cluster.held_on("node-2") == live
    assert cluster.cdi_on("node-1") | cluster.cdi_on("node-2") == live
    # And all of it can be given back.
    cluster.kubectl("delete", "pods", "--all", "-n", cluster.namespace, "--timeout=90s")
    cluster.wait("held state gone", lambda: not (cluster.held_on("node-1") | cluster.held_on("node-2")))
    cluster.wait("claims gone", lambda: not cluster.items("resourceclaims"))


def containers(item: dict[str, object]) -> str:
    """The identities of a pod's containers, and how often they were restarted."""
    status = item["status"]
    assert isinstance(status, dict)
    return json.dumps([(s["containerID"], s["restartCount"]) for s in status["containerStatuses"]])
