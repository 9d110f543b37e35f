"""The DaemonSet of the MPS supervisor: apart from the node plugin, and with no more rights than it needs."""

from typing import Any

import helm_python as helm
import pytest

from devtools.render import read_values, render
from tangram import DRIVER_NAME
from tangram.base.settings import load_settings, settings_of
from tangram.hardware.mps.settings import MpsSettings

from .conftest import SIMULATED, Rendered, rendering

BOTH = pytest.mark.parametrize("name", ["placed", "simulated"])


def _spec(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = rendering(name).mps()["spec"]["template"]["spec"]
    return spec


def _container(name: str) -> dict[str, Any]:
    (container,) = _spec(name)["containers"]
    return dict(container)


def _host_paths(name: str) -> dict[str, tuple[str, bool]]:
    mounts = {mount["name"]: mount for mount in _container(name)["volumeMounts"]}
    return {
        volume["hostPath"]["path"]: (mount["mountPath"], mount.get("readOnly", False))
        for volume in _spec(name)["volumes"]
        for mount in [mounts[volume["name"]]]
    }


def test_there_is_none_unless_it_is_wanted() -> None:
    names = [each["metadata"]["name"] for each in rendering("default").all("DaemonSet")]
    assert names == ["tangram-node"]


@pytest.mark.parametrize("config", [{"kinds": "gpu,mps"}, {"nodes": {"a": {}, "b": {"kinds": "gpu, mps"}}}])
def test_shares_by_mps_without_it_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(helm.HelmError, match=r"mps\.enabled is false"):
        render({"node": {"config": config}})
    render({"node": {"config": config}, "mps": {"enabled": True}})


def test_other_kinds_do_without_it() -> None:
    render({"node": {"config": {"kinds": "gpu,timeslice", "nodes": {"a": {"kinds": "mig"}}}}})


@BOTH
def test_an_update_waits_until_the_pods_are_deleted(name: str) -> None:
    """CUDA processes end with the pod: no rollout may decide that."""
    assert rendering(name).mps()["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert not {"livenessProbe", "startupProbe", "readinessProbe"} & set(_container(name))


def test_a_change_of_the_plugin_leaves_it_alone() -> None:
    values = read_values([SIMULATED], [])
    before = Rendered(render(values)).mps()
    values["node"]["config"]["rescanIntervalS"] = 5
    assert Rendered(render(values)).mps() == before


@BOTH
def test_p43_it_needs_nothing_of_the_api(name: str) -> None:
    spec = _spec(name)
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec
    accounts = [account["metadata"]["name"] for account in rendering(name).all("ServiceAccount")]
    assert accounts == ["tangram-controller", "tangram-node"]


def test_only_real_gpus_need_privilege_and_the_host_s_processes() -> None:
    assert _container("placed")["securityContext"]["privileged"] is True
    assert _spec("placed")["hostPID"] is True
    context = _container("simulated")["securityContext"]
    assert context["privileged"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert "hostPID" not in _spec("simulated")


@BOTH
def test_it_is_confined_and_bounded(name: str) -> None:
    container = _container(name)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert not {"hostNetwork", "hostIPC"} & set(_spec(name))
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert set(container["resources"]["limits"]) == {"memory"}


def test_host_paths() -> None:
    own = f"/var/lib/kubelet/plugins/{DRIVER_NAME}/mps"
    assert _host_paths("simulated") == {own: (own, False)}
    own = f"/data/kubelet/plugins/{DRIVER_NAME}/mps"
    assert _host_paths("placed") == {
        own: (own, False),
        "/run/nvidia/driver": ("/driver-root", True),
        "/dev": ("/dev", False),
        "/dev/shm/tangram-mps": ("/dev/shm", False),
    }


@BOTH
def test_it_lies_in_what_the_plugin_sees(name: str) -> None:
    """Both write into one directory, under the same path."""
    plugin = rendering(name).pod_specs()["node"]["volumes"]
    seen = [volume["hostPath"]["path"] for volume in plugin if "hostPath" in volume]
    assert any(
        path.endswith(f"/plugins/{DRIVER_NAME}") and f"{path}/mps" in _host_paths(name) for path in seen
    )


@BOTH
def test_the_environment_is_settings(name: str) -> None:
    environment = {entry["name"]: entry["value"] for entry in _container(name)["env"]}
    assert set(environment) <= {setting.environment for setting in settings_of(MpsSettings)}
    loaded = load_settings(MpsSettings, flags={}, environment=environment)
    assert loaded.warnings == ()
    assert loaded.settings.simulated == (name == "simulated")
    assert loaded.settings.metrics_address == ""
    assert _container(name)["args"] == ["mps", "run"]


@BOTH
def test_it_runs_where_the_plugin_does(name: str) -> None:
    node = rendering(name).pod_specs()["node"]
    for key in ("nodeSelector", "affinity", "tolerations", "priorityClassName"):
        assert _spec(name).get(key) == node.get(key), key
