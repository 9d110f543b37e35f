"""Without Tangram nothing of it is offered any more."""

from collections.abc import Iterator

import pytest
from tests.cluster.harness import DRIVER, ROOT, SYSTEM, Cluster, run

pytestmark = pytest.mark.cluster


@pytest.fixture
def put_back(cluster: Cluster) -> Iterator[None]:
    """Tangram is installed again after the test."""
    yield
    values = str(ROOT / "deploy" / "values-simulated.yaml")
    cluster.kubectl("apply", "-f", "-", stdin=run(str(ROOT / "hack" / "render"), "--values", values))
    cluster.wait_components()


def slices(cluster: Cluster) -> list[str]:
    """Of our driver."""
    names = cluster.kubectl(
        "get", "resourceslices", "--field-selector", f"spec.driver={DRIVER}", "-o", "name", check=False
    )
    return names.split()


@pytest.mark.usefixtures("put_back")
def test_p14_no_slice_outlives_the_node_plugins(cluster: Cluster) -> None:
    """kube-scheduler and our controller would go on allocating what nobody prepares. The kubelet removes the
    slices of a plugin that is not registered any more, after half a minute."""
    cluster.wait("slices", lambda: slices(cluster))
    cluster.kubectl("delete", "daemonset/tangram-node", "-n", SYSTEM, "--wait=true")
    cluster.wait("all slices to go", lambda: not slices(cluster), timeout_s=120)
