"""The main module from which Kubernetes, containerd and etcd are built."""

import msgspec
import pytest

from clusterlib.binaries import etcd_build, kubernetes_build
from clusterlib.errors import ClusterError
from clusterlib.gomod import UpstreamMod, main_module, staging_version

# As printed by `go mod edit -json`, shortened.
_KUBERNETES = """{
  "Module": {"Path": "k8s.io/kubernetes"},
  "Go": "1.26.0",
  "Require": [
    {"Path": "k8s.io/streaming", "Version": "v0.0.0"},
    {"Path": "k8s.io/api", "Version": "v0.0.0"},
    {"Path": "github.com/google/cel-go", "Version": "v0.26.0"},
    {"Path": "go.etcd.io/etcd/api/v3", "Version": "v3.6.8", "Indirect": true}
  ],
  "Replace": [
    {"Old": {"Path": "k8s.io/api"}, "New": {"Path": "./staging/src/k8s.io/api"}},
    {"Old": {"Path": "k8s.io/streaming"}, "New": {"Path": "./staging/src/k8s.io/streaming"}}
  ]
}"""


def upstream(text: str) -> UpstreamMod:
    return msgspec.json.decode(text, type=UpstreamMod)


def test_staging_modules_are_replaced_by_their_published_versions() -> None:
    made = main_module(
        path="k8s.io/kubernetes",
        version="v1.36.3",
        upstream=upstream(_KUBERNETES),
        tools=["k8s.io/kubernetes/cmd/kubelet"],
    )
    assert made == (
        "module tangram.invalid/build\n\n"
        "go 1.26.0\n\n"
        "require k8s.io/kubernetes v1.36.3\n\n"
        "replace (\n"
        "\tk8s.io/api => k8s.io/api v0.36.3\n"
        "\tk8s.io/streaming => k8s.io/streaming v0.36.3\n"
        ")\n\n"
        "tool (\n"
        "\tk8s.io/kubernetes/cmd/kubelet\n"
        ")\n"
    )


def test_a_module_without_staging_or_tools_needs_no_more_than_its_requirement() -> None:
    made = main_module(
        path="example.invalid/module", version="v2.1.0", upstream=upstream('{"Go": "1.25.0"}'), tools=[]
    )
    assert made == "module tangram.invalid/build\n\ngo 1.25.0\n\nrequire example.invalid/module v2.1.0\n"


@pytest.mark.parametrize(("version", "staged"), [("v1.34.4", "v0.34.4"), ("v1.37.12", "v0.37.12")])
def test_staging_version(version: str, staged: str) -> None:
    assert staging_version(version) == staged


@pytest.mark.parametrize("version", ["1.36.3", "v1.36", "v2.36.3", "v1.36.3-rc.1", ""])
def test_staging_version_of_anything_else(version: str) -> None:
    with pytest.raises(ValueError, match="no release"):
        staging_version(version)


def test_kubernetes_is_stamped_with_its_version() -> None:
    build = kubernetes_build("1.34.4")
    flags = " ".join(build.flags)
    assert build.directory.name == "1.34.4"
    assert "version.gitVersion=v1.34.4 " in flags
    assert "version.gitMinor=34 " in flags


@pytest.mark.parametrize("version", ["v1.36.3", "1.36", "latest", "../../etc", ""])
def test_other_kubernetes_versions_are_refused(version: str) -> None:
    with pytest.raises(ClusterError, match="no Kubernetes version") as refused:
        kubernetes_build(version)
    assert refused.value.exit_code == 2


def test_etcd_has_a_main_package_of_ours() -> None:
    build = etcd_build()
    assert build.main_source is not None
    assert f"{build.module}/etcdmain" in build.main_source
