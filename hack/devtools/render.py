"""The chart as plain manifests, in an order in which `kubectl apply` may create them."""

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

from tangram.base.errors import UsageError
from tangram.base.settings import DNS_LABEL
from tangram.base.strictyaml import read_file
from tangram.cli.main import print_error

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

_MAXIMUM_BYTES = 1024 * 1024

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
    """Values from files, then from `a.b=c` settings; later ones win. Raises UsageError."""
    values: dict[str, Any] = {}
    for file in files:
        values = merge(values, _read(file))
    for setting in settings:
        try:
            values = merge(values, helm.parse_set_string(setting))
        except helm.HelmError as error:
            raise UsageError(f"--set {setting}: {error}", next_step="write KEY=VALUE as for helm") from None
    return values


def _read(file: Path) -> dict[str, Any]:
    """The values of one file. Read as Helm reads it, so not by `tangram.base.strictyaml`."""
    name = f"values file {file}"
    data = read_file(file, maximum_bytes=_MAXIMUM_BYTES, object_name=name, what="a values file")
    try:
        content = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise UsageError(f"{name}: {problem[:300]}", next_step="mend the YAML of the file") from None
    if not isinstance(content, dict | None):
        raise UsageError(f"{name} holds no mapping", next_step="write values as in deploy/chart/values.yaml")
    return content or {}


def _checked_namespace(namespace: str) -> str:
    if not re.search(DNS_LABEL, namespace):
        raise UsageError(
            f"--namespace: {namespace!r} cannot be the name of a namespace",
            next_step="write up to 63 of a-z, 0-9 and '-', no '-' at the ends",
        )
    return namespace


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
        manifests = render(values, namespace=_checked_namespace(arguments.namespace))
    except UsageError as error:
        print_error(error)
        return error.exit_code
    except helm.HelmError as error:
        print_error(UsageError(str(error).rstrip(), next_step="compare with deploy/chart/values.yaml"))
        return UsageError.exit_code
    try:
        yaml.safe_dump_all(manifests, sys.stdout, sort_keys=False, width=110)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
