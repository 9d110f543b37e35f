"""Values of the chart: each is refused by name, or gives objects that Kubernetes takes."""

import contextlib
import json
from pathlib import Path as FilePath
from typing import Any

import helm_python as helm
import jsonschema  # type: ignore[import-untyped]
import kubernetes_validate
import pytest
import yaml
from tests.unit.bad_input.hostile import CONFUSABLES, Path, changed, deep, without

from devtools.render import CHART, Manifest, main, render
from tangram.base.errors import ConfigurationError
from tangram.base.settings import load_settings
from tangram.controller.settings import ControllerSettings
from tangram.node.settings import NodeSettings

DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = jsonschema.Draft202012Validator(
    json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        1.5,
        2**40,
        "",
        "x",
        "null",
        "a: b\nc: d",
        "/a: b",
        "/a\nb: c",
        '"',
        "{{ .Values }}",
    ),
    *("x" * 5000, [], {}, [None], {"": None}, {"a": {"b": []}}, deep(30), CONFUSABLES[0], "/../.."),
)


def paths(values: dict[str, Any], prefix: Path = ()) -> list[Path]:
    """Every value that values.yaml has."""
    found: list[Path] = []
    for key, value in values.items():
        found.append((*prefix, key))
        if isinstance(value, dict):
            found += paths(value, (*prefix, key))
    return found


@pytest.mark.parametrize("path", paths(DEFAULTS), ids=".".join)
def test_every_value_with_every_value(path: Path, tmp_path: FilePath) -> None:
    for value in VALUES:
        # As Helm does: null removes a default.
        values = without(DEFAULTS, path) if value is None else changed(DEFAULTS, path, value)
        problems = [f"{error.json_path} {error.message}" for error in SCHEMA.iter_errors(values)]
        if problems:
            assert any(str(path[-1]) in problem for problem in problems), problems
        else:
            taken(render(values), tmp_path)


def test_helm_reads_the_schema_so_too() -> None:
    for values, name in (({"node": None}, "node"), ({"node": {"metricsPort": "x"}}, "metricsPort")):
        with pytest.raises(helm.HelmError, match=name):
            render(values)


def taken(manifests: list[Manifest], directory: FilePath) -> None:
    for manifest in manifests:
        if manifest["kind"] in {"DaemonSet", "Deployment"}:
            kubernetes_validate.validate(manifest, "1.36", strict=True)
        elif manifest["kind"] == "ConfigMap":
            readable(manifest, directory)


def readable(manifest: Manifest, directory: FilePath) -> None:
    """The settings of a component: read, or refused with a line of the file."""
    ((name, text),) = manifest["data"].items()
    file = directory / name
    file.write_text(text, encoding="utf-8")
    kind = NodeSettings if name == "node.yaml" else ControllerSettings
    with contextlib.suppress(ConfigurationError):
        load_settings(kind, flags={"node_name": "n"}, environment={}, config_file=str(file), per_node=True)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--values", "/nope"), "values file /nope: cannot be read: No such file"),
        (("--values", "/"), "Is a directory"),
        (("--values", "{list}"), "holds no mapping"),
        (("--values", "{binary}"), "values file"),
        (("--values", "{broken}"), "values file"),
        (("--values", "{deep}"), "values file"),
        (("--values", "{unknown}"), "'contoller' not allowed"),
        (("--set", "a"), "--set a: "),
        (("--set", "node=null"), "missing property 'node'"),
        (("--namespace", "Foo!"), "--namespace: 'Foo!'"),
    ],
)
def test_the_command_says_what_is_wrong(
    words: tuple[str, str],
    problem: str,
    tmp_path: FilePath,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = {
        "list": b"- a\n",
        "binary": b"\xff\xfe\x00",
        "broken": b"a: [",
        "deep": b"[" * 10_000,
        "unknown": b"contoller: {}\n",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    flag, value = words
    if value.startswith("{"):
        value = str(tmp_path / value.strip("{}"))
    monkeypatch.setattr("sys.argv", ["hack/render", flag, value])
    assert main() == 2
    printed = capsys.readouterr()
    assert problem in printed.err
    assert "\nnext: " in printed.err
    assert printed.out == ""
