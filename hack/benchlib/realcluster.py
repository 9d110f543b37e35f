"""Tangram on a real cluster (hack/cluster), from its own image and chart, for as long as it takes."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clusterlib.appimage import ImageBuilder
from clusterlib.binaries import KUBERNETES_VERSION
from clusterlib.cluster import Cluster, ClusterState
from clusterlib.commands import run
from clusterlib.errors import ClusterError
from clusterlib.layout import REPOSITORY, Layout, default_run_dir
from clusterlib.steps import step
from devtools.render import NAMESPACE, merge, read_values, render

BASE_PORT = 17_600
"""Apart from those of hack/cluster, hack/test and the tests, so that a cluster in use stays as it is."""
_VALUES = REPOSITORY / "deploy" / "values-simulated.yaml"
_READY_TIMEOUT_S = 180.0
_POLL_S = 0.5


@contextmanager
def deployed(*, base_port: int, version: str, node_config: Mapping[str, Any]) -> Iterator[Path]:
    """A cluster of two nodes with Tangram as it is in this checkout; its kubeconfig.

    One that is up at this port already is used, and stays up; else it is removed in the end. Raises
    ClusterError.
    """
    cluster = Cluster(Layout(base_port=base_port, run_dir=default_run_dir(base_port).resolve()))
    was_up = cluster.state() is not None
    try:
        with step(f"Kubernetes {version}"):
            cluster.up(ClusterState(version=version, node_count=2))
        with step("the driver's image"):
            cluster.load_image(ImageBuilder(REPOSITORY).build())
        with step("Tangram"):
            _deploy(cluster.layout.kubeconfig, node_config)
        yield cluster.layout.kubeconfig
    finally:
        if not was_up:
            with step("removing the cluster"):
                cluster.down()


def _deploy(kubeconfig: Path, node_config: Mapping[str, Any]) -> None:
    values = merge(read_values([_VALUES], []), {"node": {"config": node_config}})
    manifests = {"apiVersion": "v1", "kind": "List", "items": render(values)}
    kubectl(kubeconfig, "apply", "-f", "-", stdin=json.dumps(manifests))
    # A tag that stays the same does not roll the pods: start them anew from the image just loaded.
    kubectl(kubeconfig, "delete", "pods", "--namespace", NAMESPACE, "--all", "--wait=true")
    _wait_until(lambda: _ready(kubeconfig), "Tangram's pods to be ready")


def _ready(kubeconfig: Path) -> bool:
    shown = json.loads(kubectl(kubeconfig, "get", "pods", "--namespace", NAMESPACE, "-o", "json"))
    ready = [
        condition["status"] == "True"
        for pod in shown["items"]
        if "deletionTimestamp" not in pod["metadata"]
        for condition in pod["status"].get("conditions", ())
        if condition["type"] == "Ready"
    ]
    return len(ready) == 3 and all(ready)


def kubectl(kubeconfig: Path, *words: str, stdin: str | None = None) -> str:
    """Its standard output. Raises ClusterError."""
    return run([REPOSITORY / ".venv/bin/kubectl", "--kubeconfig", kubeconfig, *words], stdin=stdin)


def _wait_until(seen: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    while not seen():
        if time.monotonic() > deadline_s:
            raise ClusterError(
                f"waited {_READY_TIMEOUT_S:.0f} s for {what}",
                next_step="start the cluster with `hack/cluster up` and look at the pods with kubectl",
            )
        time.sleep(_POLL_S)


__all__ = ["BASE_PORT", "KUBERNETES_VERSION", "deployed", "kubectl"]
