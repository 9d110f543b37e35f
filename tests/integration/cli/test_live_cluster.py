"""Reading a running cluster for `tangram why`: all pages of everything an allocation depends on."""

from pathlib import Path

from tests.dra_objects import TWO_NODES, claim, pod, template

from tangram.cli.livecluster import read_cluster
from tangram.kube.client import Client
from tangram.kube.resources import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from tangram.testing.apiserver import FakeApiServer

_RESOURCES = {"Node": NODES, "DeviceClass": DEVICE_CLASSES, "ResourceSlice": RESOURCE_SLICES}


async def test_all_pages_are_read_and_only_the_pods_of_the_namespace(tmp_path: Path) -> None:
    async with FakeApiServer() as server:
        for item in TWO_NODES:
            server.create(_RESOURCES[item["kind"]], item)
        for namespace in ("default", "other"):
            for index in range(600):
                body = claim(f"c{index}")
                body["metadata"]["namespace"] = namespace
                server.create(RESOURCE_CLAIMS, body)
            for resource, body in ((RESOURCE_CLAIM_TEMPLATES, template("t")), (PODS, pod("p"))):
                body["metadata"]["namespace"] = namespace
                server.create(resource, body)
        client = await Client.connect(
            kubeconfig=server.kubeconfig(tmp_path / "kubeconfig"), user_agent="tangram-test/1.0"
        )
        try:
            found = await read_cluster(client, namespace="default")
        finally:
            await client.close()
    kinds = [item.kind for item in found]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "ResourceSlice": 2,
        "DeviceClass": 1,
        "Node": 2,
        "ResourceClaim": 1200,
        "ResourceClaimTemplate": 1,
        "Pod": 1,
    }
    assert {item.api_version for item in found} == {"v1", "resource.k8s.io/v1"}
