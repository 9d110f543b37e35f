"""`kubectl` works against the fake API server: whichever is installed, and those of other versions that
`hack/cluster build-kubectl` built."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tangram.kube.decoding import ObjectKey
from tangram.kube.resources import NODES, PODS, RESOURCE_CLAIMS
from tangram.testing.apiserver import CONFIG_MAPS, DEPLOYMENTS, NAMESPACES, FakeApiServer

_INSTALLED = shutil.which("kubectl", path=str(Path(sys.executable).parent)) or shutil.which("kubectl") or ""
_BUILT = sorted(map(str, (Path.home() / ".cache" / "tangram" / "k8s").glob("*/bin/kubectl")))
_ALL = [*filter(None, [_INSTALLED]), *_BUILT]

CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: gpu}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.resource.admin}}]}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: c, image: busybox, command: [sleep, "1"], resources: {claims: [{name: gpu}]}}]
  resourceClaims: [{name: gpu, resourceClaimName: gpu}]
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  selector: {matchLabels: {app: d}}
  template: {metadata: {labels: {app: d}}, spec: {containers: [{name: c, image: i}]}}
"""


class Kubectl:
    """A kubectl and the server that it talks to."""

    def __init__(self, program: str, server: FakeApiServer, directory: Path) -> None:
        self.server = server
        self._argv = [program, "--kubeconfig", server.kubeconfig(directory / "kubeconfig")]
        self._argv.append(f"--cache-dir={directory}")

    async def run(self, *arguments: str, stdin: str = "", fails: bool = False) -> str:
        """What it prints; on stderr where it is meant to fail."""
        process = await asyncio.create_subprocess_exec(
            *self._argv, *arguments,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(stdin.encode()), 120)
        assert (process.returncode != 0) == fails, (out + err).decode()
        return (err if fails else out).decode()

    async def apply(self, manifest: str, *options: str, fails: bool = False) -> str:
        """kubectl apply."""
        return await self.run("apply", *options, "-f", "-", stdin=manifest, fails=fails)


@pytest.fixture(params=_ALL or ["none"], ids=lambda path: path.rsplit("/", 3)[-3])
async def kubectl(request: pytest.FixtureRequest, server: FakeApiServer, tmp_path: Path) -> Kubectl:
    if request.param == "none":
        pytest.skip("kubectl is not installed")
    return Kubectl(request.param, server, tmp_path)


def pod(server: FakeApiServer) -> dict[str, Any]:
    return server.get(PODS, name="p", namespace="default")


async def test_apply_get_delete(kubectl: Kubectl) -> None:
    server = kubectl.server
    assert "resourceclaim.resource.k8s.io/gpu created" in await kubectl.apply(CLAIM)
    assert "pod/p created" in await kubectl.apply(POD)
    assert "pod/p unchanged" in await kubectl.apply(POD)
    assert "pod/p configured" in await kubectl.apply(POD.replace("busybox", "other"))
    assert pod(server)["spec"]["containers"][0]["image"] == "other"
    assert "pod/p labeled" in await kubectl.run("label", "pod", "p", "x=y")
    assert "pod/p\n" in await kubectl.run("get", "pods", "-l", "x=y", "-o", "name")
    assert "Pending" in await kubectl.run("get", "pods")
    assert "pending" in await kubectl.run("get", "resourceclaims")
    assert json.loads(await kubectl.run("get", "pod", "p", "-o", "json"))["kind"] == "Pod"
    assert "gpu.resource.admin" in await kubectl.run("describe", "resourceclaim", "gpu")
    assert "other" in await kubectl.run("describe", "pod", "p")
    await kubectl.run("delete", "pod", "p")
    await kubectl.run("delete", "resourceclaims", "--all")
    assert not server.objects(PODS)
    assert not server.objects(RESOURCE_CLAIMS)


async def test_wrong_manifests_are_refused_by_the_server(kubectl: Kubectl) -> None:
    said = await kubectl.apply(POD.replace("image:", "picture:"), fails=True)
    assert 'unknown field "spec.containers[0].picture"' in said
    said = await kubectl.apply(POD.replace("name: c,", "name: C_,"), fails=True)
    assert "spec.containers[0].name: Invalid value" in said
    said = await kubectl.apply(CLAIM.replace("deviceClassName: gpu.resource.admin", ""), fails=True)
    assert "spec.devices.requests[0].exactly.deviceClassName: Required value" in said
    assert not kubectl.server.objects(PODS)


async def test_server_side_apply(kubectl: Kubectl) -> None:
    first = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v, l: w}}"
    second = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: other}}"
    assert "serverside-applied" in await kubectl.apply(first, "--server-side")
    assert "serverside-applied" in await kubectl.apply(second, "--server-side")
    found = kubectl.server.get(CONFIG_MAPS, name="a", namespace="default")
    assert found["data"] == {"k": "other"}
    said = await kubectl.apply(first, "--server-side", "--field-manager=me", fails=True)
    assert 'conflict with "kubectl": .data.k' in said
    await kubectl.apply(first, "--server-side", "--field-manager=me", "--force-conflicts")
    assert kubectl.server.get(CONFIG_MAPS, name="a", namespace="default")["data"] == {"k": "v", "l": "w"}
    await kubectl.apply(POD, "--server-side", "--dry-run=server")
    assert not kubectl.server.objects(PODS)


async def test_namespaces_and_explain(kubectl: Kubectl) -> None:
    assert "namespace/team created" in await kubectl.run("create", "namespace", "team")
    await kubectl.run("create", "configmap", "c", "--from-literal=a=b", "-n", "team")
    assert "Active" in await kubectl.run("get", "namespace", "team", "-o", "yaml")
    assert "runAsUser" in await kubectl.run("explain", "pod.spec.securityContext")
    assert "deviceClassName" in await kubectl.run("explain", "resourceclaim.spec.devices.requests.exactly")
    assert "resourceslices" in await kubectl.run("api-resources", "--api-group=resource.k8s.io")
    await kubectl.run("delete", "namespace", "team")
    assert not kubectl.server.objects(CONFIG_MAPS)
    assert ObjectKey("", "team") not in {
        ObjectKey("", each["metadata"]["name"]) for each in kubectl.server.objects(NAMESPACES)
    }


async def test_scale_rollout_and_wait(kubectl: Kubectl) -> None:
    server = kubectl.server
    await kubectl.apply(DEPLOYMENT)
    assert "deployment.apps/d scaled" in await kubectl.run("scale", "deployment", "d", "--replicas=3")
    deployment = server.get(DEPLOYMENTS, name="d", namespace="default")
    assert deployment["spec"]["replicas"] == 3
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 3)
    status = {**counts, "observedGeneration": deployment["metadata"]["generation"]}
    waiting = asyncio.ensure_future(kubectl.run("rollout", "status", "deployment/d", "--timeout=60s"))
    await server.until(lambda: server.watches.running(DEPLOYMENTS), timeout_s=60)
    server.patch(DEPLOYMENTS, {"status": status}, name="d", namespace="default", subresource="status")
    assert "successfully rolled out" in await waiting
    server.create(NODES, {"metadata": {"name": "n"}})
    waiting = asyncio.ensure_future(kubectl.run("wait", "--for=condition=Ready", "node/n", "--timeout=60s"))
    await server.until(lambda: server.watches.running(NODES), timeout_s=60)
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    server.patch(NODES, ready, name="n", subresource="status")
    assert "condition met" in await waiting


async def test_watch_and_logs(kubectl: Kubectl) -> None:
    server = kubectl.server
    await kubectl.apply(POD)
    watching = asyncio.ensure_future(kubectl.run("get", "pods", "--watch", "-o", "name"))
    await server.until(lambda: server.watches.running(PODS), timeout_s=60)
    server.patch(PODS, {"metadata": {"labels": {"x": "y"}}}, name="p", namespace="default")
    server.end_watches()
    assert (await watching).split() == ["pod/p", "pod/p"]

    async def written(key: ObjectKey, query: object) -> AsyncIterator[bytes]:
        yield f"{key.name} says hello\n".encode()

    server.serve_logs(written)
    server.bind(name="p", namespace="default", node="n")
    assert await kubectl.run("logs", "p") == "p says hello\n"
