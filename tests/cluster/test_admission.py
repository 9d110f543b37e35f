"""The chart's admission policies on a real API server, with tokens like those of the node plugin."""

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.harness import SYSTEM, Cluster

from clusterlib.layout import Layout, default_run_dir
from tangram import DRIVER_NAME
from tangram.base.errors import ForbiddenError, InvalidError, KubeError
from tangram.kube.client import Client
from tangram.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES

pytestmark = pytest.mark.cluster

ALLOCATED_CLAIM = "admission-test"
DEADLINE_S = 30.0


class Kubectl:
    """kubectl as the cluster's administrator."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    def __call__(self, *words: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["kubectl", "--kubeconfig", self.kubeconfig, *words],
            input=stdin,
            capture_output=True,
            text=True,
            check=check,
        )

    def apply(self, *manifests: dict[str, Any]) -> None:
        self("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))


@pytest.fixture
def kubectl(deployed: Cluster) -> Kubectl:
    base_port = int(deployed.base_port)
    return Kubectl(Layout(base_port=base_port, run_dir=default_run_dir(base_port)).kubeconfig)


@pytest.fixture
async def plugin(kubectl: Kubectl, tmp_path: Path) -> AsyncIterator[Callable[[str], Awaitable[Client]]]:
    """A client with the node plugin's token, bound to a node; bound to none for an empty name."""
    clients = []

    async def connect(node: str) -> Client:
        bound = ("--bound-object-kind", "Node", "--bound-object-name", node) if node else ()
        token = kubectl("--namespace", SYSTEM, "create", "token", "tangram-node", *bound).stdout.strip()
        config = yaml.safe_load(kubectl.kubeconfig.read_text(encoding="utf-8"))
        config["users"][0]["user"] = {"token": token}
        file = tmp_path / f"kubeconfig-{node}"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        clients.append(await Client.connect(kubeconfig=str(file), user_agent="tangram-test/0"))
        return clients[-1]

    yield connect
    for client in clients:
        await client.close()


def _slice(name: str, *, node: str, driver: str = DRIVER_NAME) -> dict[str, Any]:
    where: dict[str, Any] = {"nodeName": node} if node else {"allNodes": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "pool": {"name": f"{driver}/{name}", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
            **where,
        },
    }


async def _denied(attempt: Callable[[], Awaitable[object]], words: str) -> None:
    """The attempt fails with these words. A policy is enforced only some moments after it was created."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            await attempt()
        except KubeError as error:
            answer = error.cause
        else:
            answer = "allowed"
        if words in answer:
            return
        assert time.monotonic() < deadline_s, answer
        await asyncio.sleep(0.2)


async def test_a_plugin_writes_slices_of_its_own_node_only(
    plugin: Callable[[str], Awaitable[Client]], kubectl: Kubectl
) -> None:
    own, other, unbound = await plugin("node-1"), await plugin("node-2"), await plugin("")
    name = "admission-own"

    async def create(client: Client, body: dict[str, Any]) -> None:
        await client.create(RESOURCE_SLICES, body)
        await client.delete(RESOURCE_SLICES, name=body["metadata"]["name"])

    await _denied(lambda: create(own, _slice(name, node="node-2")), "of node-1 may write slices of that node")
    await _denied(lambda: create(own, _slice(name, node="")), "of node-1 may write slices of that node only")
    await _denied(lambda: create(own, _slice(name, node="node-1", driver="nic.example.com")), DRIVER_NAME)
    await _denied(lambda: create(unbound, _slice(name, node="node-1")), "token names no node")

    await own.create(RESOURCE_SLICES, _slice(name, node="node-1"))
    try:
        change = {"spec": {"pool": {"generation": 2}}}
        with pytest.raises(ForbiddenError, match="node-2 may write slices of that node only"):
            await other.patch(RESOURCE_SLICES, change, name=name)
        with pytest.raises(ForbiddenError, match="node-2 may write slices of that node only"):
            await other.delete(RESOURCE_SLICES, name=name)
        await own.patch(RESOURCE_SLICES, change, name=name)
    finally:
        await own.delete(RESOURCE_SLICES, name=name)


@pytest.fixture
def allocated_claim(kubectl: Kubectl) -> Iterator[None]:
    """A claim allocated to node-1, as the controller writes it."""
    kubectl.apply(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": ALLOCATED_CLAIM, "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER_NAME}}]}},
        }
    )
    patch = (
        "--namespace",
        "default",
        "patch",
        "resourceclaim",
        ALLOCATED_CLAIM,
        "--type",
        "merge",
        "--patch",
    )
    on_node_1 = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
    allocation = {
        "devices": {
            "results": [{"request": "gpu", "driver": DRIVER_NAME, "pool": "pool", "device": "gpu-0"}]
        },
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [on_node_1]}]},
        "allocationTimestamp": "2026-01-01T00:00:00Z",
    }
    kubectl(*patch, '{"metadata":{"finalizers":["resource.kubernetes.io/delete-protection"]}}')
    kubectl(*patch, yaml.safe_dump({"status": {"allocation": allocation}}), "--subresource", "status")
    yield
    kubectl(*patch, '{"status":{"allocation":null,"devices":null}}', "--subresource", "status")
    kubectl(*patch, '{"metadata":{"finalizers":null}}')
    kubectl("--namespace", "default", "delete", "resourceclaim", ALLOCATED_CLAIM, "--ignore-not-found")


@pytest.fixture
def as_before_1_36(kubectl: Kubectl) -> Iterator[None]:
    """Grants what the API server asks for since 1.36: what it then forbids, only our policy forbids."""
    metadata = {"name": "tangram-test-before-1-36"}
    rules = [
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims/binding", "resourceclaims/driver"],
            "verbs": ["patch", "associated-node:patch", "arbitrary-node:patch"],
        }
    ]
    rbac = "rbac.authorization.k8s.io"
    kubectl.apply(
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": metadata["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": "tangram-node", "namespace": SYSTEM}],
        },
    )
    yield
    kubectl("delete", "clusterrole,clusterrolebinding", metadata["name"])


def _devices(driver: str = DRIVER_NAME) -> dict[str, Any]:
    return {"devices": [{"driver": driver, "pool": "pool", "device": "gpu-0", "data": {"uuid": "GPU-0"}}]}


@pytest.mark.usefixtures("allocated_claim", "as_before_1_36")
async def test_a_plugin_changes_nothing_but_devices_of_claims_on_its_node(
    plugin: Callable[[str], Awaitable[Client]],
) -> None:
    own, other = await plugin("node-1"), await plugin("node-2")

    def patch(client: Client, status: dict[str, Any]) -> Callable[[], Awaitable[bytes]]:
        return lambda: client.patch(
            RESOURCE_CLAIMS,
            {"status": status},
            name=ALLOCATED_CLAIM,
            namespace="default",
            subresource="status",
        )

    reservation = {"resource": "pods", "name": "somebody", "uid": "0"}
    await _denied(patch(other, _devices()), "the claim is not allocated to node node-2")
    await _denied(patch(own, {"reservedFor": [reservation]}), "nothing in a claim but status.devices")
    await _denied(patch(own, {"allocation": None}), "nothing in a claim but status.devices")

    await patch(own, _devices())()
    await patch(own, {"devices": None})()


@pytest.mark.usefixtures("allocated_claim")
async def test_a_plugin_does_not_write_outside_the_status(
    plugin: Callable[[str], Awaitable[Client]],
) -> None:
    own = await plugin("node-1")
    with pytest.raises((ForbiddenError, InvalidError)):
        await own.patch(
            RESOURCE_CLAIMS, {"metadata": {"labels": {"a": "b"}}}, name=ALLOCATED_CLAIM, namespace="default"
        )


OURS = f'device.driver == "{DRIVER_NAME}"'
GUARDED = f'device.attributes["{DRIVER_NAME}"].allocator == "scheduler"'


@pytest.mark.parametrize(
    ("expressions", "labels", "outcome"),
    [
        ([OURS], {}, "refused"),
        ([f'device.attributes["{DRIVER_NAME}"].type == "gpu"'], {}, "refused"),
        ([OURS], {f"{DRIVER_NAME}/unguarded": "false"}, "refused"),
        ([OURS], {f"{DRIVER_NAME}/unguarded": "true"}, "created"),
        ([OURS, GUARDED], {}, "created"),
        ([f"{OURS} && {GUARDED}"], {}, "created"),
        ([f"{OURS} &&\n{GUARDED} &&\ndevice.attributes['{DRIVER_NAME}'].healthy"], {}, "created"),
        ([f"{GUARDED} || true"], {}, "refused"),
        ([f"{OURS} && !({GUARDED})"], {}, "refused"),
        ([f"{GUARDED} == false"], {}, "refused"),
        ([f"true // {GUARDED}"], {}, "refused"),
        (['device.driver == "nic.example.com"'], {}, "created"),
        (['"nic.example.com" == device.driver'], {}, "created"),
        (['device.driver in ["nic.example.com"]'], {}, "created"),
        (['device.driver.startsWith("gpu.")'], {}, "warned"),
        (['device.driver == "gpu." + "resource.admin"'], {}, "warned"),
        (['device.driver == "nic.example.com" || true'], {}, "warned"),
        ([], {}, "warned"),
        (['has(device.attributes["nic.example.com"].speed)'], {}, "warned"),
        ([], {f"{DRIVER_NAME}/unguarded": "true"}, "created"),
    ],
)
def test_device_classes(
    kubectl: Kubectl, expressions: list[str], labels: dict[str, str], outcome: str
) -> None:
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "admission-test", "labels": labels},
        "spec": {"selectors": [{"cel": {"expression": expression}} for expression in expressions]},
    }

    def attempt() -> str:
        result = kubectl(
            "create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(device_class), check=False
        )
        if result.returncode:
            assert "must also demand" in result.stderr
            return "refused"
        return "warned" if "does not begin with a comparison of device.driver" in result.stderr else "created"

    deadline_s = time.monotonic() + DEADLINE_S
    while (seen := attempt()) != outcome and time.monotonic() < deadline_s:
        time.sleep(0.2)
    assert seen == outcome
