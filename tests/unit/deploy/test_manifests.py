"""What the chart renders: valid on every supported Kubernetes, and no more rights on the host than needed."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import helm_python as helm
import kubernetes_validate
import pytest

from devtools.render import CHART, render
from tangram import DRIVER_NAME

from .conftest import VARIANTS, Rendered

KUBERNETES_VERSIONS = ("1.34", "1.35", "1.36", "1.37")


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_every_object_is_valid(any_variant: Rendered, version: str) -> None:
    for manifest in any_variant.manifests:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_helm_lint_finds_nothing() -> None:
    report = helm.lint(CHART, VARIANTS["default"], strict=True)
    assert report["errors"] == []
    assert [message for message in report["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("unknown", 1),
        ("node.unknown", 1),
        ("node.hostNetworking", True),
        ("node.backend", "fake"),
        ("node.kubeletDir", "var/lib/kubelet"),
        ("node.metricsPort", 70000),
        ("node.resources.limit", {}),
        ("node.config", "allocator: scheduler"),
        ("controller.replicas", "2"),
        ("controller.unknown", 1),
        ("mps.enabled", "yes"),
        ("mps.config", {}),
        ("image.tag", "latest"),
        ("image.digest", "sha256:abc"),
        ("image.pullPolicy", "Sometimes"),
        ("admissionPolicies.enable", False),
    ],
)
def test_schema_refuses(path: str, value: Any) -> None:
    values: Any = value
    for key in reversed(path.split(".")):
        values = {key: values}
    with pytest.raises(helm.HelmError, match=path.rsplit(".", maxsplit=1)[-1]):
        render(values)


def test_each_value_is_in_the_schema_and_explained(default_values: dict[str, Any]) -> None:
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    explained = {line.split(":")[0].strip() for above, line in pairwise(lines) if "#" in above}
    said_by_their_name = {"priorityClassName", "resources", "nodeSelector", "affinity", "tolerations"}
    for key in default_values:
        assert key in explained, key
    for component in ("image", "node", "mps"):
        unexplained = set(default_values[component]) - explained - said_by_their_name
        assert not unexplained


def test_images_are_pinned(any_variant: Rendered) -> None:
    for spec in any_variant.pod_specs().values():
        for container in spec["containers"]:
            name = PurePosixPath(container["image"]).name
            assert ":" in name
            assert not name.endswith(":latest")


def test_containers_are_bounded(any_variant: Rendered) -> None:
    for spec in any_variant.pod_specs().values():
        for container in spec["containers"]:
            resources = container["resources"]
            assert set(resources["requests"]) == {"cpu", "memory"}
            # No CPU limit: throttling would delay Prepare just when many pods start.
            assert set(resources["limits"]) == {"memory"}


def test_containers_are_confined(any_variant: Rendered) -> None:
    for spec in any_variant.pod_specs().values():
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
        for flag in ("hostPID", "hostIPC"):
            assert flag not in spec


def test_only_a_node_plugin_with_real_gpus_is_privileged(variant: Callable[[str], Rendered]) -> None:
    def privileged(name: str, component: str) -> bool:
        (container,) = variant(name).pod_specs()[component]["containers"]
        return bool(container["securityContext"].get("privileged", False))

    assert privileged("default", "node")
    assert not privileged("simulated", "node")
    assert not privileged("default", "controller")


def test_controller_does_not_run_as_root(any_variant: Rendered) -> None:
    context = any_variant.pod_specs()["controller"]["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0


def _host_paths(spec: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Host path → where it is mounted, and whether read-only."""
    mounts = {mount["name"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    return {
        volume["hostPath"]["path"]: (
            mounts[volume["name"]]["mountPath"],
            mounts[volume["name"]].get("readOnly", False),
        )
        for volume in spec["volumes"]
        if "hostPath" in volume
    }


def test_host_paths_of_a_simulated_node(variant: Callable[[str], Rendered]) -> None:
    plugin = f"/var/lib/kubelet/plugins/{DRIVER_NAME}"
    registry = "/var/lib/kubelet/plugins_registry"
    assert _host_paths(variant("simulated").pod_specs()["node"]) == {
        plugin: (plugin, False),
        registry: (registry, False),
        "/var/run/cdi": ("/var/run/cdi", False),
    }


def test_host_paths_of_a_node_with_gpus(variant: Callable[[str], Rendered]) -> None:
    simulated = _host_paths(variant("simulated").pod_specs()["node"])
    assert _host_paths(variant("default").pod_specs()["node"]) == {
        **simulated,
        "/": ("/driver-root", True),
        "/dev": ("/dev", False),
    }
    assert "/run/nvidia/driver" in _host_paths(variant("placed").pod_specs()["node"])


def test_controller_has_no_host_path(any_variant: Rendered) -> None:
    assert _host_paths(any_variant.pod_specs()["controller"]) == {}


def test_kubelet_dir_moves_all_its_paths(variant: Callable[[str], Rendered]) -> None:
    spec = variant("placed").pod_specs()["node"]
    paths = _host_paths(spec)
    assert f"/data/kubelet/plugins/{DRIVER_NAME}" in paths
    assert "/data/kubelet/plugins_registry" in paths
    assert not [path for path in paths if path.startswith("/var/lib/kubelet")]
    env = {entry["name"]: entry.get("value") for entry in spec["containers"][0]["env"]}
    assert env["TANGRAM_KUBELET_DIR"] == "/data/kubelet"


def test_rolling_update_leaves_no_gap_but_on_the_host_network(variant: Callable[[str], Rendered]) -> None:
    def strategy(name: str) -> dict[str, int]:
        spec = variant(name).one("DaemonSet", "tangram-node")["spec"]
        rolling: dict[str, int] = spec["updateStrategy"]["rollingUpdate"]
        return rolling

    assert strategy("default") == {"maxSurge": 1, "maxUnavailable": 0}
    # Both pods would need the same port, and a DaemonSet does not surge with host ports.
    assert strategy("host network") == {"maxSurge": 0, "maxUnavailable": 1}


def test_probes_follow_the_port(variant: Callable[[str], Rendered]) -> None:
    for spec in variant("default").pod_specs().values():
        (container,) = spec["containers"]
        assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    for spec in variant("no metrics").pod_specs().values():
        (container,) = spec["containers"]
        assert not {"livenessProbe", "readinessProbe", "ports"} & set(container)


def test_a_change_of_configuration_rolls_the_pods() -> None:
    def checksums(values: dict[str, Any]) -> list[str]:
        manifests = Rendered(render(values))
        return [
            manifests.one(kind, name)["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for kind, name in (("DaemonSet", "tangram-node"), ("Deployment", "tangram-controller"))
        ]

    before = checksums({})
    node_changed = checksums({"node": {"config": {"allocator": "scheduler"}}})
    controller_changed = checksums({"controller": {"config": {"logLevel": "debug"}}})
    assert [a == b for a, b in zip(before, node_changed, strict=True)] == [False, True]
    assert [a == b for a, b in zip(before, controller_changed, strict=True)] == [True, False]


def test_selectors_match_the_pods(any_variant: Rendered) -> None:
    for kind in ("DaemonSet", "Deployment"):
        for manifest in any_variant.all(kind):
            selector = manifest["spec"]["selector"]["matchLabels"]
            labels = manifest["spec"]["template"]["metadata"]["labels"]
            assert selector.items() <= labels.items()
            assert "app.kubernetes.io/version" not in selector
