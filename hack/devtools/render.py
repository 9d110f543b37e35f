"""The chart as plain manifests, in an order in which `kubectl apply` may create them."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/chart"
NAMESPACE = "tangram-system"

# What others need comes first: a pod whose service account is missing is retried, but late.
_ORDER = (
    "Namespace",
    "ServiceAccount",
    "ConfigMap",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "DeviceClass",
    "Deployment",
    "DaemonSet",
)

Manifest = dict[str, Any]


def render(values: Mapping[str, Any], *, namespace: str = NAMESPACE) -> list[Manifest]:
    """All objects of the chart with `values` over its defaults.

    Raises helm.HelmError for values that the chart's schema refuses, and ValueError for a kind that has no
    place in the order.
    """
    with helm.Chart.load(CHART) as chart:
        files = chart.render(dict(values), name="tangram", namespace=namespace)
    manifests = [
        document
        for path, text in sorted(files.items())
        if path.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document
    ]
    return sorted(manifests, key=lambda manifest: _ORDER.index(manifest["kind"]))


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Values as Helm merges them: maps by key, everything else replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def read_values(files: Sequence[Path], settings: Sequence[str]) -> dict[str, Any]:
    """Values from files, then from `a.b=c` settings; later ones win."""
    values: dict[str, Any] = {}
    for file in files:
        values = merge(values, yaml.safe_load(file.read_text(encoding="utf-8")) or {})
    for setting in settings:
        values = merge(values, helm.parse_set_string(setting))
    return values


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="hack/render",
        description="Renders deploy/chart as manifests on standard output, e.g. for kubectl apply -f -.",
    )
    parser.add_argument("--values", metavar="FILE", type=Path, action="append", default=[])
    parser.add_argument("--set", metavar="KEY=VALUE", dest="settings", action="append", default=[])
    parser.add_argument("--namespace", default=NAMESPACE)
    arguments = parser.parse_args()
    try:
        values = read_values(arguments.values, arguments.settings)
        manifests = render(values, namespace=arguments.namespace)
    except (OSError, yaml.YAMLError, helm.HelmError) as error:
        print(f"hack/render: {error}", file=sys.stderr)
        return 2
    yaml.safe_dump_all(manifests, sys.stdout, sort_keys=False, width=110)
    return 0


if __name__ == "__main__":
    sys.exit(main())
