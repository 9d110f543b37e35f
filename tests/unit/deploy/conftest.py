"""The rendered chart, once for the whole run: Helm's library takes a second to load."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import yaml

from devtools.render import CHART, ROOT, Manifest, read_values, render

SIMULATED = ROOT / "deploy/values-simulated.yaml"

# Each way in which the chart branches, at least once.
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "simulated": read_values([SIMULATED], []),
    "host network": {"node": {"hostNetwork": True}, "controller": {"hostNetwork": True, "metricsPort": 9465}},
    "no metrics": {"node": {"metricsPort": 0}, "controller": {"metricsPort": 0}},
    "placed": {
        "image": {"digest": "sha256:" + "0" * 64},
        "imagePullSecrets": [{"name": "registry"}],
        "createNamespace": True,
        "admissionPolicies": {"enabled": False},
        "node": {
            "driverRoot": "/run/nvidia/driver",
            "kubeletDir": "/data/kubelet",
            "nodeSelector": {"nvidia.com/gpu.present": "true"},
            "podAnnotations": {"example.com/a": "b"},
            "affinity": {"nodeAffinity": {}},
            "tolerations": [],
        },
        "mps": {"enabled": True, "podAnnotations": {"example.com/a": "b"}},
        "controller": {
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"key": "system", "operator": "Exists"}],
            "podAnnotations": {"example.com/a": "b"},
            "affinity": {"podAntiAffinity": {}},
        },
    },
}


class Rendered:
    """The objects of one rendering."""

    def __init__(self, manifests: list[Manifest]) -> None:
        self.manifests = manifests

    def all(self, kind: str) -> list[Manifest]:
        return [manifest for manifest in self.manifests if manifest["kind"] == kind]

    def one(self, kind: str, name: str) -> Manifest:
        (found,) = (manifest for manifest in self.all(kind) if manifest["metadata"]["name"] == name)
        return found

    def mps(self) -> Manifest:
        """The DaemonSet of the MPS supervisor."""
        return self.one("DaemonSet", "tangram-mps")

    def pod_specs(self) -> dict[str, Any]:
        """`node` and `controller` → pod specification."""
        return {
            "node": self.one("DaemonSet", "tangram-node")["spec"]["template"]["spec"],
            "controller": self.one("Deployment", "tangram-controller")["spec"]["template"]["spec"],
        }


@cache
def rendering(variant: str) -> Rendered:
    return Rendered(render(VARIANTS[variant]))


@pytest.fixture(params=VARIANTS)
def any_variant(request: pytest.FixtureRequest) -> Rendered:
    return rendering(request.param)


@pytest.fixture
def variant() -> Callable[[str], Rendered]:
    return rendering


@pytest.fixture
def rendered() -> Rendered:
    """With the chart's own values."""
    return rendering("default")


@pytest.fixture
def default_values() -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return values
