"""A real cluster with Tangram deployed from its own image and chart.

Reuses a cluster that is up at TANGRAM_CLUSTER_BASE_PORT (default 17400), else starts one with two nodes, and
leaves it up. Each test has a namespace of its own.
"""

import os
import re
from collections.abc import Iterator

import pytest
from tests.cluster.harness import ROOT, Cluster, run

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="session")
def deployed() -> Cluster:
    base_port = os.environ.get("TANGRAM_CLUSTER_BASE_PORT", "17400")
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
    return cluster


@pytest.fixture
def cluster(deployed: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster, with a fresh namespace that is gone (and with it all claims) after the test."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:50].strip("-")
    deployed.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=true")
    deployed.kubectl("create", "namespace", name)
    deployed.namespace = name
    yield deployed
    deployed.kubectl("delete", "namespace", name, "--wait=true", "--timeout=120s")
    deployed.namespace = "default"
