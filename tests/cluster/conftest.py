"""A real cluster with Tangram deployed from its own image and chart.

Reuses a cluster that is up at TANGRAM_CLUSTER_BASE_PORT (default 17400), else starts one with two nodes, and
leaves it up. Each test has a namespace of its own. With `-n 2` each worker has its own cluster, the second
one's base port is 1000 higher: what a test disturbs and counts is the whole of a cluster.
"""

import os
import re
from collections.abc import Iterator

import pytest
from tests.cluster.harness import ROOT, Cluster, run

pytestmark = pytest.mark.cluster

LABEL = "tangram-test=yes"
_PORTS_APART = 1000


def own_base_port() -> str:
    """Of the cluster of this worker of pytest-xdist, or of the only one."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return str(int(os.environ.get("TANGRAM_CLUSTER_BASE_PORT", "17400")) + worker * _PORTS_APART)


@pytest.fixture(scope="session")
def deployed() -> Cluster:
    base_port = own_base_port()
    version = os.environ.get("TANGRAM_CLUSTER_VERSION", "1.36.3")
    run(str(ROOT / "hack" / "cluster"), "up", "--base-port", base_port, "--nodes", "2", "--version", version)
    cluster = Cluster(base_port)
    archive = run(str(ROOT / "hack" / "image")).split()[-1]
    cluster.hack("load-image", archive)
    manifests = run(str(ROOT / "hack" / "render"), "--values", str(ROOT / "deploy" / "values-simulated.yaml"))
    cluster.kubectl("apply", "-f", "-", stdin=manifests)
    # A tag that stays the same does not roll the pods: start them anew from the image just loaded.
    cluster.kubectl("delete", "pods", "-n", "tangram-system", "--all", "--wait=true")
    cluster.wait_components()
    # What a run that was cut off left behind would hold devices.
    cluster.kubectl("delete", "namespaces", "--selector", LABEL, "--wait=true")
    return cluster


@pytest.fixture
def cluster(deployed: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster, with a fresh namespace of which nothing holds a device any more after the test."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:50].strip("-")
    deployed.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=true")
    deployed.kubectl("create", "namespace", name)
    deployed.kubectl("label", "namespace", name, LABEL)
    deployed.namespace = name
    yield deployed
    deployed.kubectl("delete", "deployments,jobs,pods", "--all", "-n", name, "--timeout=120s")
    deployed.wait("the test's claims to go", lambda: not allocated_claims(deployed))
    deployed.kubectl("delete", "namespace", name, "--wait=false")
    deployed.namespace = "default"


def allocated_claims(cluster: Cluster) -> list[str]:
    """Claims of the test's namespace that still hold devices (its own named ones are freed after a while)."""
    return [
        item["metadata"]["name"]
        for item in cluster.items("resourceclaims")
        if item.get("status", {}).get("reservedFor")
    ]
