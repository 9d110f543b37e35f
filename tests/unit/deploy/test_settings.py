"""What the chart passes to the program is what the program reads."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tangram.base.settings import CommandSettings, load_settings, settings_of
from tangram.controller.settings import ControllerSettings
from tangram.kube.incluster import SERVICE_ACCOUNT
from tangram.node.settings import NodeSettings

from .conftest import VARIANTS, Rendered, rendering

COMPONENTS: dict[str, type[CommandSettings]] = {"node": NodeSettings, "controller": ControllerSettings}

# What the kubelet fills in from a fieldRef.
FIELDS = {
    "spec.nodeName": "node-2",
    "metadata.uid": "0f1e2d3c-0000-4000-8000-000000000000",
    "metadata.name": "tangram-controller-5d8c-x2x",
    "metadata.namespace": "tangram-system",
}


def _environment(spec: dict[str, Any]) -> dict[str, str]:
    (container,) = spec["containers"]
    return {
        entry["name"]: entry["value"]
        if "value" in entry
        else FIELDS[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for entry in container["env"]
    }


def _load(rendered: Rendered, component: str, directory: Path) -> Any:
    environment = _environment(rendered.pod_specs()[component])
    mounted = Path(environment.pop("TANGRAM_CONFIG"))
    config_map = rendered.one("ConfigMap", f"tangram-{component}-config")["data"]
    assert mounted.parent == Path("/etc/tangram")
    file = directory / mounted.name
    file.write_text(config_map[mounted.name], encoding="utf-8")
    loaded = load_settings(
        COMPONENTS[component],
        flags={},
        environment=environment,
        config_file=str(file),
        per_node=component == "node",
    )
    assert loaded.warnings == ()
    return loaded.settings


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_variable_is_a_setting(any_variant: Rendered, component: str) -> None:
    known = {setting.environment for setting in settings_of(COMPONENTS[component])}
    assert set(_environment(any_variant.pod_specs()[component])) <= known | {
        "TANGRAM_CONFIG",
        "SSL_CERT_FILE",
    }


@pytest.mark.parametrize("component", COMPONENTS)
def test_nothing_but_the_api_server_is_trusted(any_variant: Rendered, component: str) -> None:
    authority = _environment(any_variant.pod_specs()[component])["SSL_CERT_FILE"]
    assert authority == str(SERVICE_ACCOUNT / "ca.crt")


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("name", VARIANTS)
def test_every_rendering_is_accepted(name: str, component: str, tmp_path: Path) -> None:
    settings = _load(rendering(name), component, tmp_path)
    if component == "node":
        assert settings.node_name == "node-2"
        assert settings.pod_uid == FIELDS["metadata.uid"]
    else:
        assert settings.identity == FIELDS["metadata.name"]
    assert settings.metrics_address == {"no metrics": ""}.get(
        name, ":9465" if (name, component) == ("host network", "controller") else ":9464"
    )


def test_the_simulated_machines_differ_by_node(tmp_path: Path) -> None:
    rendered = rendering("simulated")
    assert _load(rendered, "node", tmp_path).simulate == "h100-sxm5-80gb-x8"
    everywhere = yaml.safe_load(rendered.one("ConfigMap", "tangram-node-config")["data"]["node.yaml"])
    assert everywhere["simulate"] == "a100-sxm4-80gb-x8"


def test_the_commands_are_those_of_the_program(rendered: Rendered) -> None:
    assert {name: spec["containers"][0]["args"] for name, spec in rendered.pod_specs().items()} == {
        "node": ["node", "run"],
        "controller": ["controller", "run"],
    }


def test_driver_root_is_passed_on(tmp_path: Path) -> None:
    assert _load(rendering("placed"), "node", tmp_path).driver_root == "/run/nvidia/driver"
