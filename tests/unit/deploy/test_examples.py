"""The examples are valid objects, alike in form, and safe to apply side by side."""

import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from devtools.render import ROOT
from tangram import DRIVER_NAME
from tangram.api import decode_parameters, lower
from tangram.api.lowering import CLASS_SHARING
from tangram.cel import CelDevice, compile_expression
from tangram.model.devices import Kind

from .devices import cel_device, published

FILES = sorted((ROOT / "deploy/examples").glob("*.yaml"))


def _objects(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text(encoding="utf-8")))


def _pod_specs(file: Path) -> Iterator[dict[str, Any]]:
    for manifest in _objects(file):
        if manifest["kind"] == "Pod":
            yield manifest["spec"]
        elif manifest["kind"] in ("Job", "Deployment"):
            yield manifest["spec"]["template"]["spec"]


def _claim_specs(file: Path) -> Iterator[dict[str, Any]]:
    for manifest in _objects(file):
        if manifest["kind"] == "ResourceClaim":
            yield manifest["spec"]
        elif manifest["kind"] == "ResourceClaimTemplate":
            yield manifest["spec"]["spec"]


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36", "1.37"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_is_valid(file: Path, version: str) -> None:
    for manifest in _objects(file):
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_says_what_it_shows_and_how_to_see_it(file: Path) -> None:
    comment = re.match(r"(# .*\n)+", file.read_text(encoding="utf-8"))
    assert comment
    assert f"#   kubectl apply -f deploy/examples/{file.name}\n" in comment[0]
    assert comment[0].count("#   kubectl ") >= 2


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_names_only_what_it_brings(file: Path) -> None:
    brought = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in _objects(file)}
    for spec in _pod_specs(file):
        pod_claims = set()
        for claim in spec["resourceClaims"]:
            pod_claims.add(claim["name"])
            if "resourceClaimName" in claim:
                assert ("ResourceClaim", claim["resourceClaimName"]) in brought
            else:
                assert ("ResourceClaimTemplate", claim["resourceClaimTemplateName"]) in brought
        for container in spec["containers"]:
            used = {claim["name"] for claim in container.get("resources", {}).get("claims", [])}
            assert used <= pod_claims
    for claim_spec in _claim_specs(file):
        for request in claim_spec["devices"]["requests"]:
            assert request["exactly"]["deviceClassName"] in CLASS_SHARING


KINDS: Mapping[str, Kind] = {
    DRIVER_NAME: "gpu",
    **{f"{kind}.{DRIVER_NAME}": kind for kind in ("mig", "mps", "timeslice")},
}


@functools.cache
def _simulated(class_name: str) -> list[CelDevice]:
    """The devices of a class; of a class alone are selectors of claims asked."""
    return [
        cel_device(device)
        for machine in ("a100-sxm4-80gb-x8", "h100-sxm5-80gb-x8")
        for device in published(machine, kinds=(KINDS[class_name],))
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_selectors_are_understood_and_true_of_a_simulated_gpu(file: Path) -> None:
    for claim_spec in _claim_specs(file):
        for request in claim_spec["devices"]["requests"]:
            for selector in request["exactly"].get("selectors", []):
                program = compile_expression(selector["cel"]["expression"])
                devices = _simulated(request["exactly"]["deviceClassName"])
                fitting = [program.evaluate(device) for device in devices]
                assert any(fitting) is (file.stem != "09-cannot-fit")
                assert not all(fitting) or file.stem == "01-one-gpu"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_attributes_that_constraints_match_are_published(file: Path) -> None:
    names = {
        f"{DRIVER_NAME}/{name}" for device in published("a100-sxm4-80gb-x8") for name in device.attributes
    }
    for claim_spec in _claim_specs(file):
        for constraint in claim_spec["devices"].get("constraints", []):
            assert constraint["matchAttribute"] in names


def test_parameters_are_accepted() -> None:
    demands = {}
    for file in FILES:
        for claim_spec in _claim_specs(file):
            (request,) = claim_spec["devices"]["requests"]
            for config in claim_spec["devices"].get("config", []):
                raw = json.dumps(config["opaque"]["parameters"]).encode()
                parameters = decode_parameters(raw, object_name=file.name, field="parameters")
                class_name = request["exactly"]["deviceClassName"]
                demands[file.stem] = lower(parameters, class_name=class_name, object_name=file.name)
    assert sorted(demands) == ["08-claim-parameters", "12-mps", "14-mixed-kinds"]
    linked = demands["08-claim-parameters"]
    assert (linked.memory_gb, linked.linked_set_size, linked.sharing) == (80, 4, "exclusive")
    assert demands["12-mps"].share.cores == 60
    assert demands["14-mixed-kinds"].mig_profile == "3g.40gb"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_containers_are_alike(file: Path) -> None:
    for spec in _pod_specs(file):
        for container in spec["containers"]:
            assert container["image"] == "busybox:1.36"
            assert container["imagePullPolicy"] == "IfNotPresent"


def test_names_are_unique() -> None:
    names = [
        (manifest["kind"], manifest["metadata"]["name"]) for file in FILES for manifest in _objects(file)
    ]
    assert len(names) == len(set(names))
