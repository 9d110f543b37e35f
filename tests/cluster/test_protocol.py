"""The allocation protocol on a real cluster: vetoes, pods that name their node, late devices."""

from typing import Any

import pytest
from tests.cluster.harness import DRIVER, Cluster

pytestmark = pytest.mark.cluster


def template(name: str, *, count: int = 1, **more: Any) -> dict[str, Any]:
    exactly = {"deviceClassName": DRIVER, "count": count, **more}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }


def pod(name: str, template_name: str = "", *, cpu: str = "10m", **spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "main",
        "image": "busybox:1.36",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "env; ls -l /dev/nvidia*; trap exit TERM; sleep 3600 & wait"],
        "resources": {"requests": {"cpu": cpu}},
    }
    claims = []
    if template_name:
        claims = [{"name": "gpu", "resourceClaimTemplateName": template_name}]
        container["resources"]["claims"] = [{"name": "gpu"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "resourceClaims": claims,
            "terminationGracePeriodSeconds": 1,
            **spec,
        },
    }


def allocated_node(cluster: Cluster, claim_of: str) -> str:
    """The node that a pod's first claim is allocated on; empty if it is not."""
    item = cluster.get("pod", claim_of)
    if len(item["status"].get("resourceClaimStatuses", [])) < len(item["spec"]["resourceClaims"]):
        return ""
    claim = cluster.claims_of(item)[0]
    allocation = claim.get("status", {}).get("allocation")
    if not allocation:
        return ""
    (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
    node: str = term["matchFields"][0]["values"][0]
    return node


def test_a_veto_of_the_scheduler_leads_to_another_node(cluster: Cluster) -> None:
    """The pod also needs a device that kube-scheduler allocates and that is not there yet: so its GPU is
    allocated, and the pod not bound, while somebody fills the node."""
    nic = "nic.example.com"
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": nic},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{nic}"'}}]},
    }
    nics = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": nic},
        "spec": {
            "driver": nic,
            "allNodes": True,
            "pool": {"name": nic, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "nic-0"}],
        },
    }
    other = template("nic")
    other["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = nic
    wanted = pod("wanted", "gpu", cpu="1500m")
    wanted["spec"]["resourceClaims"].append({"name": "nic", "resourceClaimTemplateName": "nic"})
    try:
        cluster.apply(device_class, template("gpu"), other, wanted)
        first = cluster.wait("an allocation", lambda: allocated_node(cluster, "wanted"))
        cluster.apply(pod("filler", cpu="1", nodeName=first))
        cluster.wait_phase("filler", "Running")
        cluster.apply(nics)
        bound = cluster.wait(
            "the pod to be bound", lambda: cluster.get("pod", "wanted")["spec"].get("nodeName")
        )
        assert bound != first
        assert allocated_node(cluster, "wanted") == bound
    finally:
        cluster.kubectl("delete", f"resourceslice/{nic}", f"deviceclass/{nic}", "--ignore-not-found")


def test_a_pod_that_names_its_node_runs(cluster: Cluster) -> None:
    cluster.apply(template("gpu"), pod("pinned", "gpu", nodeName="node-2"))
    # The kubelet may see the pod before its claim is made; it then looks again only after a minute or more.
    running = cluster.wait_phase("pinned", "Running", timeout_s=150)
    assert cluster.devices_of(running)[0].startswith(f"{DRIVER}/node-2/")


def test_a_waiting_pod_starts_when_devices_are_freed(cluster: Cluster) -> None:
    cluster.apply(template("eight", count=8), pod("a", "eight"), pod("b", "eight"))
    cluster.wait_phase("a", "Running")
    cluster.wait_phase("b", "Running")
    cluster.apply(template("one"), pod("late", "one"))

    def told() -> list[str]:
        return [e["message"] for e in cluster.events("late") if e["reason"] == "WaitingForDevices"]

    (message, *_) = cluster.wait("an event", told)
    assert message == "16 GPUs on 2 nodes: 16 in use by other claims"
    cluster.kubectl("delete", "pod", "a", "-n", cluster.namespace)
    cluster.wait_phase("late", "Running")


def test_an_unused_named_claim_holds_nothing(cluster: Cluster) -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "idle"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}},
    }
    cluster.apply(claim, template("one"), pod("other", "one"))
    cluster.wait_phase("other", "Running")
    assert not cluster.get("resourceclaim", "idle").get("status", {}).get("allocation")


def test_many_pods_at_once_get_different_gpus(cluster: Cluster) -> None:
    cluster.apply(template("one"))
    cluster.apply(*(pod(f"p{i}", "one") for i in range(16)))
    pods = [cluster.wait_phase(f"p{i}", "Running", timeout_s=120) for i in range(16)]
    devices = [device for item in pods for device in cluster.devices_of(item)]
    assert len(set(devices)) == 16
    for node in ("node-1", "node-2"):
        uids = {
            claim["metadata"]["uid"]
            for item in pods
            if item["spec"]["nodeName"] == node
            for claim in cluster.claims_of(item)
        }
        assert cluster.held_on(node) == uids
        assert cluster.cdi_on(node) == uids
    cluster.kubectl("delete", "pods", "--all", "-n", cluster.namespace)
    cluster.wait("held state gone", lambda: not (cluster.held_on("node-1") | cluster.held_on("node-2")))
    assert not (cluster.cdi_on("node-1") | cluster.cdi_on("node-2"))


def test_a_claim_with_a_mistake_says_which_field(cluster: Cluster) -> None:
    bad = template("bad")
    bad["spec"]["spec"]["devices"]["config"] = [
        {
            "opaque": {
                "driver": DRIVER,
                "parameters": {
                    "apiVersion": f"{DRIVER}/v1alpha1",
                    "kind": "GPUClaimParameters",
                    "memoryGb": 80,
                },
            }
        }
    ]
    cluster.apply(bad, pod("p", "bad"))

    def told() -> list[str]:
        return [e["message"] for e in cluster.events("p") if e["reason"] == "WaitingForDevices"]

    (message, *_) = cluster.wait("an event", told)
    assert "spec.devices.config[0].opaque.parameters" in message
    assert "memoryGb" in message
    assert "memoryGB" in message
