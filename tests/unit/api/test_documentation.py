"""docs/parameters.md: its examples work, and its table is the truth about the fields."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tangram.api import GPUClaimParameters, MpsParameters, decode_parameters, lower
from tangram.base.errors import InvalidObjectError

REPOSITORY = Path(__file__).parents[3]
PAGE = (REPOSITORY / "docs" / "parameters.md").read_text()


def documents() -> Iterator[Any]:
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL):
        yield from yaml.safe_load_all(block)
    for path in sorted((REPOSITORY / "deploy" / "examples").glob("*.yaml")):
        yield from yaml.safe_load_all(path.read_text())


def all_parameters(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if node.get("kind") == "GPUClaimParameters":
            yield node
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from all_parameters(item)


def classes(node: Any) -> set[str]:
    """The device classes that a document asks for."""
    own = {node["deviceClassName"]} if isinstance(node, dict) and "deviceClassName" in node else set()
    items = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return own.union(*map(classes, items))


def test_every_example_means_something() -> None:
    found = [
        (parameters, next(iter(classes(document)), "gpu.resource.admin"))
        for document in documents()
        for parameters in all_parameters(document)
    ]
    assert len(found) >= 2
    for parameters, class_name in found:
        decoded = decode_parameters(
            json.dumps(parameters).encode(), object_name="example", field="parameters"
        )
        lower(decoded, class_name=class_name, object_name="example")


def rows() -> list[list[str]]:
    table = PAGE[PAGE.index("| field |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table]


def test_the_table_has_every_field_and_no_other() -> None:
    fields = [name for name in GPUClaimParameters.__struct_encode_fields__ if name != "mps"]
    fields += [f"mps.{name}" for name in MpsParameters.__struct_encode_fields__]
    assert sorted(row[0].strip("`") for row in rows()) == sorted(fields)


VALUES: dict[str, Any] = {
    "migProfile": "3g.40gb",
    "shPolicy": "mps",
    "mps.threadPercent": 50,
    "mps.pinnedMemory": "16Gi",
    "replicas": 2,
    "alternatives": {"a": 1},
    "latencySensitive": True,
    "longKernels": True,
    "memoryGB": 80,
    "gpuType": "H100",
    "nvLinkPeers": 8,
}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_table_tells_what_works(row: list[str]) -> None:
    name = row[0].strip("`")
    outer, _, inner = name.partition(".")
    document = {
        "apiVersion": "gpu.resource.admin/v1alpha1",
        "kind": "GPUClaimParameters",
        outer: {inner: VALUES[name]} if inner else VALUES[name],
    }
    decoded = decode_parameters(json.dumps(document).encode(), object_name="x", field="")
    classes = {"mps": "mps.gpu.resource.admin", "replicas": "timeslice.gpu.resource.admin"}
    if row[-1] == "works":
        lower(decoded, class_name=classes.get(outer, "own"), object_name="x")
    else:
        with pytest.raises(InvalidObjectError, match="not supported yet"):
            lower(decoded, class_name="own", object_name="x")
