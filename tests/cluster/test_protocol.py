"""What only a real kube-scheduler does to an allocation: vetoes."""

import pytest
from tests.cluster.harness import Cluster, pod, template

pytestmark = pytest.mark.cluster


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
