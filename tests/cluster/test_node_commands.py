"""`tangram node …` as an operator runs it: by kubectl exec, in the pod of the node plugin."""

import json
from typing import Any

import pytest
from tests.cluster.harness import DRIVER, SYSTEM, Cluster, pod, template

pytestmark = pytest.mark.cluster


class Operator:
    """Somebody with kubectl, at one node."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self._cluster, self.node = cluster, node

    def run(self, *words: str) -> str:
        """What a command prints that may find something wrong."""
        (plugin,) = self._cluster.component_pods("node", self.node)
        name = plugin["metadata"]["name"]
        return self._cluster.kubectl("exec", "-n", SYSTEM, name, "--", "tangram", "node", *words, check=False)

    def told(self, *words: str) -> dict[str, Any]:
        """The same for programs."""
        found: dict[str, Any] = json.loads(self.run(*words, "-o", "json"))
        return found

    def gpu(self, uuid: str) -> dict[str, Any]:
        """A GPU in the node's status."""
        (found,) = (gpu for gpu in self.told("status")["gpus"] if gpu["uuid"] == uuid)
        return dict(found)


def published(cluster: Cluster, uuid: str) -> set[tuple[bool, bool]]:
    """Health of the devices of a GPU, and whether they have the taint."""
    found = set()
    for item in cluster.items("resourceslices"):
        for device in item["spec"].get("devices") or []:
            attributes = device["attributes"]
            if attributes.get("parentUUID", attributes["uuid"]).get("string") == uuid:
                keys = {taint["key"] for taint in device.get("taints", [])}
                found.add((attributes["healthy"]["bool"], f"{DRIVER}/drained" in keys))
    return found


def wanting(name: str, uuid: str) -> dict[str, Any]:
    """A template of a claim for that GPU alone."""
    expression = f'device.attributes["{DRIVER}"].uuid == "{uuid}"'
    return template(name, selectors=[{"cel": {"expression": expression}}])


def test_a_gpu_is_drained_and_given_back(cluster: Cluster) -> None:
    cluster.apply(template("any"), pod("runs", "any"))
    running = cluster.wait_phase("runs", "Running", timeout_s=120)
    operator = Operator(cluster, running["spec"]["nodeName"])
    (device,) = cluster.devices_of(running)
    (held,) = (gpu for gpu in operator.told("status")["gpus"] if gpu["holders"])
    uuid, holder = held["uuid"], held["holders"][0]
    assert (holder["namespace"], holder["device"]) == (cluster.namespace, device.rpartition("/")[2])
    assert (holder["pods"], held["published"], held["state"]) == (["runs"], "healthy", "healthy")

    tainted = cluster.minor() >= 36  # older servers drop the taints of devices
    shown = "drained" if tainted else "unhealthy"
    done = operator.told("drain-gpu", uuid, "--reason", "fan")
    assert (done["outcome"], done["published"], done["drained"]["reason"]) == ("published", shown, "fan")
    assert done["holders"][0]["pods"] == ["runs"]
    assert published(cluster, uuid) == {(False, tainted)}
    assert cluster.get("pod", "runs")["metadata"]["uid"] == running["metadata"]["uid"]

    # The GPU gets free, its plugin starts anew, and still nobody gets it.
    cluster.kubectl("delete", "pod", "runs", "-n", cluster.namespace)
    cluster.kill_component("node", operator.node)
    cluster.wait_components()
    cluster.apply(wanting("this-one", uuid), pod("late", "this-one"))
    cluster.wait(
        "the claim to be told why",
        lambda: any(f" {shown}" in event["message"] for event in told_of(cluster, "late")),
        timeout_s=90,
    )
    assert cluster.get("pod", "late")["status"]["phase"] == "Pending"
    assert shown in cluster.kubectl("tangram", "why", "pod/late", "-n", cluster.namespace, check=False)
    assert published(cluster, uuid) == {(False, tainted)}
    assert operator.gpu(uuid)["state"] == "drained"

    assert operator.told("drain-gpu", uuid, "--undo")["outcome"] == "published"
    assert cluster.devices_of(cluster.wait_phase("late", "Running", timeout_s=120)) == [device]
    assert published(cluster, uuid) == {(True, False)}


def test_nothing_is_wrong_with_a_node_that_works(cluster: Cluster) -> None:
    node = cluster.component_pods("node")[0]["spec"]["nodeName"]
    report = Operator(cluster, node).told("doctor")
    assert [check for check in report["checks"] if check["result"] == "fail"] == []
    named = {check["name"] for check in report["checks"] if check["result"] == "ok"}
    assert {"plugin", "registration-socket", "api-server", "node-object", "api-rights", "published"} <= named


def test_a_plugin_that_hangs_is_told(cluster: Cluster) -> None:
    node = cluster.component_pods("node")[0]["spec"]["nodeName"]
    operator = Operator(cluster, node)
    cluster.on_node(node, "pkill", "-STOP", "-f", "tangram node run")
    try:
        assert operator.told("status")["plugin"]["state"] == "not answering"
    finally:
        cluster.on_node(node, "pkill", "-CONT", "-f", "tangram node run", check=False)
    cluster.wait_components()


def told_of(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    """Events about a pod and its claims."""
    found = cluster.events(name)
    for item in cluster.items("resourceclaims"):
        found += cluster.events(item["metadata"]["name"])
    return found
