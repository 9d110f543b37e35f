"""Every shipped example on a real cluster: it runs, or waits, as it should."""

import re
from typing import Any

import pytest
from tests.cluster.harness import Cluster, example

pytestmark = pytest.mark.cluster


def environment(log: str) -> dict[str, str]:
    """The TANGRAM_ variables a container printed."""
    return dict(re.findall(r"^(TANGRAM_\w+)=(.*)$", log, flags=re.MULTILINE))


def device_files(log: str) -> set[str]:
    """The GPU nodes (`/dev/nvidia<minor>`) a container listed."""
    return set(re.findall(r"/dev/nvidia\d+", log))


def sees_its_gpus(cluster: Cluster, pod: str, *, count: int, container: str = "") -> dict[str, str]:
    """Checks that a container sees exactly the GPUs that its claim was given; returns its environment."""
    item = cluster.get("pod", pod)
    arguments = ["logs", pod, "-n", cluster.namespace, *(["-c", container] if container else [])]

    def printed() -> str:
        log = cluster.kubectl(*arguments, check=False)
        return log if device_files(log) else ""

    log = cluster.wait(f"log of {pod}", printed)
    (claim,) = cluster.claims_of(item)
    seen = environment(log)
    assert seen["TANGRAM_CLAIM_NAME"] == claim["metadata"]["name"]
    assert seen["TANGRAM_CLAIM_NAMESPACE"] == cluster.namespace
    assert seen["TANGRAM_CLAIM_UID"] == claim["metadata"]["uid"]
    uuids = {device["data"]["uuid"] for device in device_statuses(cluster, claim)}
    assert set(seen["TANGRAM_GPU_UUIDS"].split(",")) == uuids
    assert len(uuids) == len(device_files(log)) == count
    return seen


def device_statuses(cluster: Cluster, claim: dict[str, Any]) -> list[dict[str, Any]]:
    """`status.devices` of a claim once the plugin has written it, each Ready."""
    wanted = len(claim["status"]["allocation"]["devices"]["results"])

    def written() -> list[dict[str, Any]]:
        current = cluster.get("resourceclaim", claim["metadata"]["name"])
        devices: list[dict[str, Any]] = current["status"].get("devices", [])
        return devices if len(devices) == wanted else []

    devices: list[dict[str, Any]] = cluster.wait("status.devices", written)
    for device in devices:
        (ready,) = (c for c in device["conditions"] if c["type"] == "Ready")
        assert ready["status"] == "True", ready
    return devices


def test_01_one_gpu_by_memory(cluster: Cluster) -> None:
    path, objects = example("01")
    cluster.apply(path)
    name = objects[-1]["metadata"]["name"]
    pod = cluster.wait_phase(name, "Running")
    sees_its_gpus(cluster, name, count=1)
    (claim,) = cluster.claims_of(pod)
    described = cluster.kubectl(
        "describe", "resourceclaim", claim["metadata"]["name"], "-n", cluster.namespace
    )
    assert "GPU-" in described
    assert "Ready" in described
    assert "Peers" in described
    assert "Allocated" in described  # the event


def test_02_h100_by_type(cluster: Cluster) -> None:
    path, objects = example("02")
    cluster.apply(path)
    name = objects[-1]["metadata"]["name"]
    pod = cluster.wait_phase(name, "Running")
    assert pod["spec"]["nodeName"] == "node-2"
    sees_its_gpus(cluster, name, count=1)
    (claim,) = cluster.claims_of(pod)
    assert "H100" in device_statuses(cluster, claim)[0]["data"]["productName"]


def test_03_four_linked(cluster: Cluster) -> None:
    path, objects = example("03")
    cluster.apply(path)
    name = objects[-1]["metadata"]["name"]
    pod = cluster.wait_phase(name, "Running")
    sees_its_gpus(cluster, name, count=4)
    groups = set()
    slices = {d["name"]: d for s in cluster.items("resourceslices") for d in s["spec"]["devices"]}
    for device in cluster.devices_of(pod):
        groups.add(slices[device.rsplit("/", 1)[1]]["attributes"]["nvlinkGroup4"]["string"])
    assert len(groups) == 1


def test_04_two_pods_share_a_claim(cluster: Cluster) -> None:
    path, objects = example("04")
    cluster.apply(path)
    names = [item["metadata"]["name"] for item in objects if item["kind"] == "Pod"]
    assert len(names) == 2
    pods = [cluster.wait_phase(name, "Running") for name in names]
    seen = [sees_its_gpus(cluster, name, count=1) for name in names]
    assert seen[0] == seen[1]
    assert pods[0]["spec"]["nodeName"] == pods[1]["spec"]["nodeName"]


def test_05_two_containers_share_a_claim(cluster: Cluster) -> None:
    path, objects = example("05")
    cluster.apply(path)
    name = objects[-1]["metadata"]["name"]
    cluster.wait_phase(name, "Running")
    seen = [sees_its_gpus(cluster, name, count=1, container=each) for each in ("first", "second")]
    assert seen[0] == seen[1]

    def printed() -> str:
        return cluster.kubectl("logs", name, "-n", cluster.namespace, "-c", "without", check=False)

    log = cluster.wait("log of the container without the claim", printed)
    assert not environment(log)
    assert not device_files(log)


def test_06_a_job_gives_its_gpu_back(cluster: Cluster) -> None:
    path, objects = example("06")
    cluster.apply(path)
    name = objects[-1]["metadata"]["name"]
    cluster.wait("the Job to complete", lambda: cluster.get("job", name)["status"].get("succeeded"))
    cluster.wait("its claim to go", lambda: not cluster.items("resourceclaims"))


def test_07_a_deployment(cluster: Cluster) -> None:
    path, objects = example("07")
    cluster.apply(path)
    item = objects[-1]
    replicas = item["spec"]["replicas"]
    name = item["metadata"]["name"]
    cluster.wait(
        "all replicas", lambda: cluster.get("deployment", name)["status"].get("readyReplicas") == replicas
    )
    devices = [device for pod in cluster.items("pods") for device in cluster.devices_of(pod)]
    assert len(devices) == len(set(devices)) == replicas


def test_08_claim_parameters(cluster: Cluster) -> None:
    path, objects = example("08")
    cluster.apply(path)
    name = objects[-1]["metadata"]["name"]
    pod = cluster.wait_phase(name, "Running")
    assert pod["spec"]["nodeName"] == "node-2"
    sees_its_gpus(cluster, name, count=8)


def test_09_a_claim_that_cannot_fit(cluster: Cluster) -> None:
    path, objects = example("09")
    cluster.apply(path)
    name = objects[-1]["metadata"]["name"]

    def told() -> list[str]:
        return [event["message"] for event in cluster.events(name) if event["reason"] == "WaitingForDevices"]

    (message, *_) = cluster.wait("an event on the pod", told)
    assert message.startswith("16 GPUs on 2 nodes: 16 not selected by ")
    assert cluster.get("pod", name)["status"]["phase"] == "Pending"
    cluster.kubectl("delete", "pod", name, "-n", cluster.namespace)
