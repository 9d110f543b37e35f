"""Derived attributes in files: what an API server would refuse is refused, by its field; the rest works."""

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.dra_objects import Json, claim, node, resource_slice

from tangram.cli.main import main

PAGE = (Path(__file__).parents[3] / "docs/selectors.md").read_text(encoding="utf-8")
EXAMPLE: Json = yaml.safe_load(re.findall(r"```yaml\n(spec:.*?)```", PAGE, re.DOTALL)[0])
GPUS, NICS = "gpu.resource.admin", "nic.example.com"
NUMA = "resource.kubernetes.io/numaNode"
CLASSES = [
    {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}}
    | {"spec": {"selectors": [{"cel": {"expression": f'device.driver == "{name}"'}}]}}
    for name in (GPUS, NICS)
]
WORLD: list[Json] = [
    node("n1"),
    *CLASSES,
    resource_slice(
        "n1", *({"name": f"g{i}", "attributes": {NUMA: {"int": i}}} for i in range(3)), driver=GPUS
    ),
    resource_slice("n1", {"name": "n", "attributes": {"topology": {"string": "numa-1"}}}, driver=NICS),
]
FEATURES = ("--features", "k8s-1.37,DerivedAttributes", "--as", "scheduler")


def run(
    objects: list[Json], tmp_path: Path, capsys: pytest.CaptureFixture[str], *flags: str
) -> tuple[int, str, str]:
    file = tmp_path / "objects.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    code = main(["allocate", "-f", str(file), "-o", "json", *(flags or FEATURES)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def asking(*attributes: Json, constraints: tuple[str, ...] = ("derived/a",)) -> Json:
    made = claim("c", class_name=GPUS)
    devices = made["spec"]["devices"]
    devices["requests"][0]["exactly"]["derivedAttributes"] = list(attributes)
    devices["constraints"] = [{"matchAttribute": name} for name in constraints]
    return made


def derived(name: str = "derived/a", expression: str = "1") -> Json:
    return {"name": name, "expression": expression}


def test_the_example_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = {**claim("c"), **EXAMPLE}
    code, out, _ = run([*WORLD, wanted], tmp_path, capsys)
    (answer,) = json.loads(out)["claims"]
    assert code == 0
    assert [each["device"] for each in answer["allocation"]["devices"]["results"]] == ["g1", "n"]


def test_without_the_gate_it_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run([*WORLD, asking(derived())], tmp_path, capsys, "--features", "k8s-1.37")
    assert code == 3
    assert "the DRADerivedAttributes feature is off" in json.loads(out)["claims"][0]["error"]


def test_what_fails_on_a_device_is_named_by_its_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = asking(derived(expression=f'device.attributes["{GPUS}"].nope'))
    code, out, _ = run([*WORLD, failing], tmp_path, capsys)
    assert code == 3
    error = json.loads(out)["claims"][0]["error"]
    assert "spec.devices.requests[0].exactly.derivedAttributes[0].expression: on device" in error


FIELD = "spec.devices.requests[0].exactly.derivedAttributes"
DEAR = "lists.range(200).map(x, lists.range(200).map(y, x).size()).size()"
BAD = [
    (asking(*[derived()] * 33), f"{FIELD}: has 33 entries, more than 32"),
    (asking(derived("a"), constraints=("a",)), f"{FIELD}[0].name: 'a' is not a domain, a slash and"),
    (asking(derived("D/a"), constraints=("D/a",)), f"{FIELD}[0].name: 'D/a' is not a domain"),
    (asking(derived("d/1a"), constraints=("d/1a",)), f"{FIELD}[0].name: 'd/1a' is not a domain"),
    (asking(derived("d/" + "a" * 33), constraints=("d/" + "a" * 33,)), f"{FIELD}[0].name: 'd/aaa"),
    (asking(derived("d" * 64 + "/a"), constraints=("d" * 64 + "/a",)), f"{FIELD}[0].name: 'ddd"),
    (asking(derived(), derived("derived/b")), f"{FIELD}[1].name: derived/b is in no constraint of the claim"),
    (asking(derived(expression="")), f"{FIELD}[0].expression: CEL column 1"),
    (asking(derived(expression="1.0")), f"{FIELD}[0].expression: CEL column 1: the expression must evaluate"),
    (asking(derived(expression="1" * 10_241)), f"{FIELD}[0].expression: CEL column 1: the expression is l"),
    (asking(derived(expression="[" * 100)), f"{FIELD}[0].expression: CEL column "),
    (asking(*[derived(expression=DEAR)] * 3), f"{FIELD}[1].expression: those of the claim so far may cost "),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "message"), BAD, ids=range(len(BAD)))
def test_what_an_api_server_refuses(
    bad: Json, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run([*WORLD, bad], tmp_path, capsys)
    assert (code, out) == (2, "")
    assert f"ResourceClaim c: {message}" in err
    assert "next: " in err
    # An object that a server has let pass is not judged again.
    held = {**bad, "status": {"allocation": {}}}
    assert run([*WORLD, held], tmp_path, capsys)[0] == 0


def test_templates_and_subrequests_are_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = asking(derived("nothing/known"))
    exactly = bad["spec"]["devices"]["requests"][0].pop("exactly")
    bad["spec"]["devices"]["requests"][0]["firstAvailable"] = [{"name": "s", **exactly}]
    template = {**bad, "kind": "ResourceClaimTemplate", "spec": {"spec": bad["spec"]}}
    _, _, err = run([*WORLD, template], tmp_path, capsys)
    field = "spec.spec.devices.requests[0].firstAvailable[0].derivedAttributes[0].name"
    assert f"ResourceClaimTemplate c: {field}: nothing/known is in no constraint" in err
