"""What only Kubernetes itself does to pods and plugins: deletion by force, updates, two allocators."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.harness import DRIVER, ROOT, SYSTEM, Cluster, containers, pod, run, template

pytestmark = pytest.mark.cluster

ON_NODE_1 = {"kubernetes.io/hostname": "node-1"}
ON_NODE_2 = {"kubernetes.io/hostname": "node-2"}


def log_of(cluster: Cluster, name: str) -> str:
    """What a pod printed, up to its device nodes."""

    def printed() -> str:
        log = cluster.kubectl("logs", name, "-n", cluster.namespace, check=False)
        return log if "/dev/nvidia" in log else ""

    log: str = cluster.wait(f"log of {name}", printed)
    return log


def reasons(cluster: Cluster, name: str) -> set[str]:
    """Reasons of the events about an object."""
    return {event["reason"] for event in cluster.events(name)}


def gpus_on_node_1(cluster: Cluster) -> list[dict[str, Any]]:
    """Published devices that are whole GPUs."""
    return [
        device
        for item in cluster.items("resourceslices")
        if item["spec"]["nodeName"] == "node-1"
        for device in item["spec"]["devices"]
        if device["attributes"]["type"]["string"] == "gpu"
    ]


def test_a_force_deleted_pod_shares_nothing_and_keeps_nobody_waiting(cluster: Cluster) -> None:
    mark = "trap : TERM; while true; do sleep 1; done"
    stubborn = pod("stubborn", "eight", nodeSelector=ON_NODE_1, terminationGracePeriodSeconds=120)
    stubborn["spec"]["containers"][0]["command"] = ["sh", "-c", mark]
    cluster.apply(template("eight", count=8), stubborn)
    before = cluster.wait_phase("stubborn", "Running")
    cluster.apply(pod("next", "eight", nodeSelector=ON_NODE_1))
    cluster.kubectl("delete", "pod", "stubborn", "-n", cluster.namespace, "--force", "--grace-period=0")
    # Well below the minute after which the kubelet asks again.
    after = cluster.wait_phase("next", "Running", timeout_s=40)
    assert cluster.on_node("node-1", "pgrep", "-fc", f"^sh -c {mark}", check=False).strip() == "0"
    assert "FailedPrepareDynamicResources" not in reasons(cluster, "next")
    (claim,) = cluster.claims_of(after)
    assert before["metadata"]["uid"] != after["metadata"]["uid"]
    assert cluster.held_on("node-1") == cluster.cdi_on("node-1") == {claim["metadata"]["uid"]}


def apply_chart(cluster: Cluster, *values: Path) -> None:
    """Applies the chart for simulated GPUs, with more values."""
    files = (ROOT / "deploy" / "values-simulated.yaml", *values)
    arguments = [argument for file in files for argument in ("--values", str(file))]
    cluster.kubectl("apply", "-f", "-", stdin=run(str(ROOT / "hack" / "render"), *arguments))


def wait_rolled_out(cluster: Cluster) -> None:
    """The plugins run with what was applied."""
    cluster.kubectl("rollout", "status", "daemonset/tangram-node", "-n", SYSTEM, "--timeout=120s")
    cluster.wait_components()


@pytest.fixture
def impatient(deployed: Cluster, tmp_path: Path) -> Iterator[None]:
    """A controller that leaves devices to a pod that cannot be bound for two seconds only."""
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"controller": {"config": {"unboundTimeoutS": 2}}}))
    for arguments in ((values,), ()):
        apply_chart(deployed, *arguments)
        deployed.kubectl("rollout", "status", "deployment/tangram-controller", "-n", SYSTEM, "--timeout=120s")
        deployed.wait_components()
        deployed.wait("the new controller to lead", lambda: _leads(deployed), timeout_s=60)
        if arguments:
            yield


def _leads(cluster: Cluster) -> bool:
    """True if there is one controller, and it has the lease."""
    names = [
        pod["metadata"]["name"]
        for pod in cluster.items("pods", namespace=SYSTEM)
        if pod["metadata"]["name"].startswith("tangram-controller-")
    ]
    lease = cluster.get("lease", "tangram-controller", namespace=SYSTEM)
    return names == [lease.get("spec", {}).get("holderIdentity", "")]


def volume(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A volume and the claim for it."""
    size = {"storage": "1Mi"}
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    return (
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {**common, "capacity": size, "hostPath": {"path": "/tmp"}},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {**common, "resources": {"requests": size}, "volumeName": name},
        },
    )


@pytest.mark.usefixtures("impatient")
def test_a_pod_without_its_volume_leaves_its_gpus_to_others(cluster: Cluster) -> None:
    name = "tangram-test-data"
    own = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "own"},
        "spec": template("own", count=8)["spec"]["spec"],
    }
    cluster.apply(template("eight", count=8), own)

    def holder() -> list[str]:
        status = cluster.get("resourceclaim", "own").get("status", {})
        return [r["device"] for r in status.get("allocation", {}).get("devices", {}).get("results", [])]

    def decided() -> str:
        if len(holder()) == 8:
            return "controller"
        return "scheduler" if "WaitingForScheduler" in reasons(cluster, blocked) else ""

    # The claim is there before the pod: the controller decides before kube-scheduler misses the volume, as a
    # rule. On a slow machine it may be the other way round: then once more.
    for attempt in range(20):
        blocked = f"blocked-{attempt}"
        item = pod(blocked, nodeSelector=ON_NODE_1)
        item["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "own"}]
        item["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        item["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
        cluster.apply(item)
        if cluster.wait("a decision on the blocked pod", decided) == "controller":
            break
        cluster.kubectl("delete", "pod", blocked, "-n", cluster.namespace, "--wait=true")
    assert len(holder()) == 8, "kube-scheduler was first every time"
    cluster.apply(pod("other", "eight", nodeSelector=ON_NODE_1))
    cluster.wait_phase("other", "Running", timeout_s=60)
    assert not holder()
    told = [event["message"] for event in cluster.events(blocked) if event["reason"] == "Deallocated"]
    assert f'persistentvolumeclaim "{name}" not found' in told[0]
    assert cluster.get("pod", blocked)["status"]["phase"] == "Pending"
    try:
        cluster.apply(*volume(name))
        cluster.wait(
            "kube-scheduler to miss nothing but the devices",
            lambda: "cannot allocate all claims" in json.dumps(cluster.get("pod", blocked)["status"]),
        )
        assert not holder()
        cluster.kubectl("delete", "pod", "other", "-n", cluster.namespace)
        cluster.wait_phase(blocked, "Running", timeout_s=60)
        assert len(holder()) == 8
        cluster.kubectl("delete", "pod", blocked, "-n", cluster.namespace)
    finally:
        cluster.kubectl("delete", "pvc", name, "-n", cluster.namespace, "--wait=false", "--ignore-not-found")
        cluster.kubectl("delete", "pv", name, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="module")
def two_allocators(deployed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """On node-2 kube-scheduler allocates."""
    values = tmp_path_factory.mktemp("values") / "values.yaml"
    node = {"simulate": "h100-sxm5-80gb-x8", "allocator": "scheduler"}
    values.write_text(yaml.safe_dump({"node": {"config": {"nodes": {"node-2": node}}}}))
    apply_chart(deployed, values)
    wait_rolled_out(deployed)
    yield
    apply_chart(deployed)
    wait_rolled_out(deployed)


@pytest.mark.usefixtures("two_allocators")
def test_kube_scheduler_and_controller_allocate_beside_each_other(cluster: Cluster) -> None:
    cluster.apply(template("one"), pod("first", "one", nodeSelector=ON_NODE_2))
    (claim,) = cluster.claims_of(cluster.wait_phase("first", "Running"))
    assert "Allocated" not in reasons(cluster, claim["metadata"]["name"])  # not by the controller
    log_of(cluster, "first")
    names = [f"p{number}" for number in range(15)]
    cluster.kubectl(
        "apply", "-n", cluster.namespace, "-f", "-",
        stdin="\n---\n".join(json.dumps(pod(name, "one")) for name in names),
    )  # fmt: skip
    # Both may want one claim. When kube-scheduler comes second, the GPU that it had chosen is free again, and
    # it looks anew at a pod that it had refused meanwhile after its five minutes only.
    items = [cluster.wait_phase(name, "Running", timeout_s=400) for name in ("first", *names)]
    devices = [device for item in items for device in cluster.devices_of(item)]
    assert len(set(devices)) == 16
    assert [item["spec"]["nodeName"] for item in items].count("node-2") == 8


@pytest.mark.usefixtures("two_allocators")
def test_parameters_that_kube_scheduler_cannot_read_are_held_against_what_it_gave(cluster: Cluster) -> None:
    parameters = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "GPUClaimParameters", "nvLinkPeers": 4}
    linked = template("linked")
    linked["spec"]["spec"]["devices"]["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    cluster.apply(linked, pod("p", "linked", nodeSelector=ON_NODE_2))

    def told() -> list[str]:
        return [event["message"] for event in cluster.events("p") if event["reason"] == "PrepareFailed"]

    (message,) = cluster.wait("an event", told)
    assert "sets of 4 (nvLinkPeers)" in message
    assert "ask by selectors" in message


@pytest.mark.usefixtures("two_allocators")
def test_pods_start_while_the_plugins_are_replaced(cluster: Cluster) -> None:
    """The new plugin registers before the old one goes: no preparation fails, no slice is missing.

    The last test with two allocators: it takes them back. node-2, whose allocator changes, is left out.
    """
    cluster.apply(template("one"), template("two", count=2), pod("base", "two", nodeSelector=ON_NODE_1))
    cluster.wait_phase("base", "Running")
    base = containers(cluster.get("pod", "base"))
    old = {item["metadata"]["name"] for item in cluster.component_pods("node")}

    def replaced() -> bool:
        present = {item["metadata"]["name"] for item in cluster.component_pods("node")}
        return len(present) == len(old) and not present & old

    apply_chart(cluster)
    number = 0
    while number < 4 or not replaced():
        assert number < 60
        name = f"p{number}"
        cluster.apply(pod(name, "one", nodeSelector=ON_NODE_1))
        cluster.wait_phase(name, "Running", timeout_s=40)
        assert "FailedPrepareDynamicResources" not in reasons(cluster, name)
        assert len(gpus_on_node_1(cluster)) == 8
        cluster.kubectl("delete", "pod", name, "-n", cluster.namespace, "--wait=false")
        number += 1
    wait_rolled_out(cluster)
    assert containers(cluster.get("pod", "base")) == base
