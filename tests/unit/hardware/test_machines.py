"""Machine descriptions: the shipped ones are true, and anything else is refused with file and field."""

import contextlib
import copy
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tangram.base.errors import InvalidObjectError
from tangram.hardware.machines import load_machine, parse_machine, shipped_machines
from tangram.hardware.machines.migtables import mig_tables
from tangram.hardware.simulated import describe_machine
from tangram.model.gpu import Gpu
from tangram.model.links import disjoint_groups
from tangram.model.product import gpu_type, nominal_gigabytes

NAMES = (
    *(
        "a10-x1",
        "a100-pcie-80gb-x4",
        "a100-sxm4-40gb-x8",
        "a100-sxm4-80gb-x8",
        "b200-sxm6-180gb-x8",
        "dgx-1v",
    ),
    *("gb10", "h100-nvl-94gb-x8", "h100-sxm5-80gb-x8", "h200-sxm5-141gb-x8", "l40s-x4", "t4-x4"),
)
SOURCE = "machine.yaml"
MINIMAL: dict[str, Any] = {
    "apiVersion": "tangram/v1alpha1",
    "kind": "MachineDescription",
    "driverVersion": "580.1.2",
    "cudaDriverVersion": "13.0",
    "models": [
        {
            "name": "v100",
            "productName": "Tesla V100-SXM2-32GB",
            "computeCapability": "7.0",
            "memoryMiB": 32768,
            "multiprocessors": 80,
        }
    ],
    "gpus": [
        {"model": "v100", "pciBusID": "0000:06:00.0", "nvlinks": {"0000:07:00.0": 2}},
        {"model": "v100", "pciBusID": "0000:07:00.0", "nvlinks": {"0000:06:00.0": 2}},
    ],
}


def parse(content: Any) -> Any:
    # JSON is YAML, except that it writes characters beyond the first plane as two halves.
    return parse_machine(json.dumps(content, ensure_ascii=False).encode(), source=SOURCE)


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    content = copy.deepcopy(MINIMAL)
    target: Any = content
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return content


def test_the_shipped_machines_are_listed() -> None:
    assert shipped_machines() == NAMES


@pytest.mark.parametrize(
    ("name", "gpus", "product", "type_", "gigabytes", "memory_mib", "links", "mig"),
    [
        ("a100-sxm4-40gb-x8", 8, "NVIDIA A100-SXM4-40GB", "A100", 40, 40960, 12, "disabled"),
        ("a100-pcie-80gb-x4", 4, "NVIDIA A100 80GB PCIe", "A100", 80, 81920, 12, "disabled"),
        ("h100-nvl-94gb-x8", 8, "NVIDIA H100 NVL", "H100", 94, 95830, 12, "disabled"),
        ("h200-sxm5-141gb-x8", 8, "NVIDIA H200", "H200", 141, 143771, 18, "disabled"),
        ("b200-sxm6-180gb-x8", 8, "NVIDIA B200", "B200", 180, 183359, 18, "disabled"),
        ("l40s-x4", 4, "NVIDIA L40S", "L40S", 48, 46068, 0, "unsupported"),
        ("a10-x1", 1, "NVIDIA A10", "A10", 24, 23028, 0, "unsupported"),
        ("gb10", 1, "NVIDIA GB10", "GB10", 0, None, 0, "unsupported"),
        ("a100-sxm4-80gb-x8", 8, "NVIDIA A100-SXM4-80GB", "A100", 80, 81920, 12, "disabled"),
        ("h100-sxm5-80gb-x8", 8, "NVIDIA H100 80GB HBM3", "H100", 80, 81559, 18, "disabled"),
        ("dgx-1v", 8, "Tesla V100-SXM2-32GB", "V100", 32, 32768, 6, "unsupported"),
        ("t4-x4", 4, "Tesla T4", "T4", 16, 15360, 0, "unsupported"),
    ],
)
def test_the_shipped_machines_are_what_they_say(
    name: str,
    gpus: int,
    product: str,
    type_: str,
    gigabytes: int,
    memory_mib: int | None,
    links: int,
    mig: str,
) -> None:
    machine = describe_machine(load_machine(name), node_name="node-1")
    assert len(machine.gpus) == gpus
    for gpu in machine.gpus:
        assert gpu.product_name == product
        assert gpu_type(gpu.product_name) == type_
        assert gpu.memory_bytes == (memory_mib * 2**20 if memory_mib else None)
        assert nominal_gigabytes(gpu.product_name, gpu.memory_bytes) == gigabytes
        assert len(gpu.nvlinks) == links
        assert gpu.mig_mode == mig


def test_the_links_of_the_hybrid_cube_mesh() -> None:
    machine = describe_machine(load_machine("dgx-1v"), node_name="node-1")
    by_bus_id = sorted(machine.gpus, key=lambda gpu: gpu.pci_bus_id or "")
    matrix = machine.links()
    ordinal = {gpu.uuid: position for position, gpu in enumerate(machine.gpus)}

    def row(gpu: Gpu) -> list[int]:
        return [matrix.links(ordinal[gpu.uuid], ordinal[other.uuid]) for other in by_bus_id]

    # As `nvidia-smi topo -m` prints it on a DGX-1V: NV1 and NV2, SYS elsewhere.
    assert [row(gpu) for gpu in by_bus_id] == [
        [0, 1, 1, 2, 2, 0, 0, 0],
        [1, 0, 2, 1, 0, 2, 0, 0],
        [1, 2, 0, 2, 0, 0, 1, 0],
        [2, 1, 2, 0, 0, 0, 0, 1],
        [2, 0, 0, 0, 0, 1, 1, 2],
        [0, 2, 0, 0, 1, 0, 2, 1],
        [0, 0, 1, 0, 1, 2, 0, 2],
        [0, 0, 0, 1, 2, 1, 2, 0],
    ]


@pytest.mark.parametrize("name", ["a100-pcie-80gb-x4", "h100-nvl-94gb-x8"])
def test_bridges_link_pairs_and_nothing_else(name: str) -> None:
    machine = describe_machine(load_machine(name), node_name="node-1")
    matrix = machine.links()
    pairs = disjoint_groups(matrix, 2)
    assert len(pairs) == len(machine.gpus) // 2
    assert {matrix.links(*pair) for pair in pairs} == {12}
    assert all(len(matrix.peers(ordinal)) == 1 for ordinal in matrix.rows)
    assert disjoint_groups(matrix, 4) == ()


def test_an_unknown_name_lists_the_shipped_ones() -> None:
    with pytest.raises(InvalidObjectError) as raised:
        load_machine("a100-sxm4-80gb-x9")
    assert "did you mean 'a100-sxm4-80gb-x8'?" in raised.value.next_step
    assert all(name in raised.value.next_step for name in NAMES)


@pytest.mark.parametrize("source", ["/nonexistent/machine.yaml", "./", "a\0/b.yaml", "x" * 5000 + ".yaml"])
def test_a_file_that_cannot_be_read(source: str) -> None:
    with pytest.raises(InvalidObjectError, match="cannot be read"):
        load_machine(source)


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text(yaml.safe_dump(MINIMAL))
    assert load_machine(str(file)) == parse(MINIMAL)


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    file.write_bytes(b"#" * (256 * 1024 + 1))
    with pytest.raises(InvalidObjectError, match="larger than 256 KiB"):
        load_machine(str(file))


def test_scalars_need_no_quotes() -> None:
    text = yaml.safe_dump(MINIMAL).replace("'", "")
    assert "'" not in text
    assert "0000:06:00.0" in text
    assert parse_machine(text.encode(), source=SOURCE) == parse(MINIMAL)


@pytest.mark.parametrize(
    ("text", "problem", "field"),
    [
        ("", "is empty", ""),
        ("- 1", "expected a mapping, got a list", ""),
        ("text", "expected a mapping, got text", ""),
        ("a: [", "did not find expected node content", "line 2"),
        ("a: 1\na: 2", "the key 'a' stands twice", "line 2"),
        ("a: &x 1\nb: *x", "aliases", "line 2"),
        ("[[[[[[[[[", "nested deeper than 8 levels", "line 1"),
        ("a: 1\n---\nb: 2", "a second document", "line 3"),
        ("!!python/object:os.system {}", "tags (tag:yaml.org,2002:python/object", "line 1"),
        ("{? [1] : 2}", "a key that is a mapping or a list", "line 1"),
        ("{1: 2}", "the key 1 is not text", "line 1"),
        ("\t", "cannot start any token", "line 1"),
        (r'a: "\ud800"', "invalid Unicode character escape", "line 1"),
        (r'{"a\udfff": 1}', "invalid Unicode character escape", "line 1"),
    ],
)
def test_text_that_is_no_description(text: str, problem: str, field: str) -> None:
    with pytest.raises(InvalidObjectError) as raised:
        parse_machine(text.encode(), source=SOURCE)
    assert problem in raised.value.problem
    assert raised.value.field == field
    assert str(raised.value).startswith(f"machine description {SOURCE}: ")
    assert raised.value.next_step


def test_bytes_that_are_no_utf8() -> None:
    with pytest.raises(InvalidObjectError):
        parse_machine(b"kind: \xff\xfe", source=SOURCE)


@pytest.mark.parametrize(
    ("path", "value", "field", "problem", "next_step"),
    [
        (("gpu",), [], "", "unknown field 'gpu'", "did you mean 'gpus'?"),
        (("models", 0, "memoryMB"), 1, "models[0]", "unknown field", "did you mean 'memoryMiB'?"),
        (("gpus", 1, "NVLinks"), {}, "gpus[1]", "unknown field", "did you mean 'nvlinks'?"),
        (("gpus", 1, "qqqqqq"), {}, "gpus[1]", "unknown field", "the fields are fabricClique"),
        (("gpus", 1, "x" * 900), {}, "gpus[1]", "unknown field", "the fields are"),
        (("kind",), "Machine", "kind", "invalid enum value", ""),
        (("apiVersion",), "tangram/v2", "apiVersion", "invalid enum value", ""),
        (("driverVersion",), 580, "driverVersion", "expected text, got a whole number", "quote the value"),
        (("cudaDriverVersion",), "13", "cudaDriverVersion", "matching regex", ""),
        (("models",), None, "models", "expected a list, got null", ""),
        (("models", 0, "memoryMiB"), "81920", "models[0].memoryMiB", "expected a whole number", ""),
        (("models", 0, "memoryMiB"), 0, "models[0].memoryMiB", ">= 1", ""),
        (("models", 0, "memoryMiB"), 2**40, "models[0].memoryMiB", "<= 16777216", ""),
        (("models", 0, "computeCapability"), "seven", "models[0].computeCapability", "regex", ""),
        (("models", 0, "productName"), "x" * 97, "models[0].productName", "length <= 96", ""),
        (("models", 0, "migMode"), True, "models[0].migMode", "expected text, got true or false", ""),
        (("models", 0, "migMode"), "on", "models[0].migMode", "invalid enum value", ""),
        (("gpus",), [{"model": "v100"}] * 65, "gpus", "length <= 64", ""),
        (("gpus", 0, "model"), "v10", "gpus[0].model", "no model 'v10'", "did you mean 'v100'?"),
        (("gpus", 0, "model"), "zzz", "gpus[0].model", "no model", "models here: v100"),
        (("gpus", 0, "uuid"), "GPU-1", "gpus[0].uuid", "not a GPU UUID", "leave it out"),
        (("gpus", 0, "pciBusID"), "06:00.0", "gpus[0].pciBusID", "not a PCI bus id", "0000:07:00.0"),
        (("gpus", 0, "pciBusID"), "0000:0A:00.0", "gpus[0].pciBusID", "not a PCI bus id", "lower case"),
        (("gpus", 0, "pcieRoot"), "0000:00", "gpus[0].pcieRoot", "not a PCIe root", "pci0000:00"),
        (("gpus", 0, "numaNode"), -1, "gpus[0].numaNode", ">= 0", ""),
        (("gpus", 0, "minor"), 1, "gpus[1].minor", "1 is taken by gpus[0]", ""),
        (("gpus", 0, "index"), 1, "gpus[1].index", "1 is taken by gpus[0]", ""),
        (("gpus", 0, "index"), -1, "gpus[0].index", ">= 0", ""),
        (
            ("models", 0, "mig"),
            "a100-80g",
            "models[0].mig",
            "no table 'a100-80g'",
            "did you mean 'a100-80gb'?",
        ),
        (("models", 0, "mig"), "a100-80gb", "models[0].mig", "migMode is unsupported", "migMode: disabled"),
        (("models", 0, "mig"), {}, "models[0].mig", "expected text or null", ""),
        (("gpus", 0, "state"), "dead", "gpus[0].state", "invalid enum value", ""),
        (
            ("gpus", 1, "pciBusID"),
            "0000:06:00.0",
            "gpus[1].pciBusID",
            "0000:06:00.0 is taken by gpus[0]",
            "",
        ),
        (
            ("gpus", 0, "nvlinks"),
            {"0000:08:00.0": 1},
            "gpus[0].nvlinks.0000:08:00.0",
            "no GPU of this file",
            "did you mean '0000:07:00.0'?",
        ),
        (
            ("gpus", 0, "nvlinks"),
            {"0000:06:00.0": 1},
            "gpus[0].nvlinks.0000:06:00.0",
            "linked to itself",
            "",
        ),
        (
            ("gpus", 0, "nvlinks"),
            {"0000:07:00.0": 1},
            "gpus[0].nvlinks.0000:07:00.0",
            "1 links there, but 2 links back",
            "the same number on both",
        ),
        (("gpus", 0, "nvlinks"), {}, "gpus[1].nvlinks.0000:06:00.0", "2 links there, but 0 back", ""),
        (
            ("gpus", 0, "nvlinks"),
            {"switch": 2, "0000:07:00.0": 2},
            "gpus[0].nvlinks",
            "to a switch and to GPUs",
            "",
        ),
        (("gpus", 0, "nvlinks"), {"switch": 37}, "gpus[0].nvlinks[...]", "<= 36", ""),
        (("gpus", 0, "nvlinks"), {"0000:07:00.0": 0}, "gpus[0].nvlinks[...]", ">= 1", ""),
        (("gpus", 0, "nvlinks"), {"0000:07:00.0": 30, "x": 7}, "gpus[0].nvlinks", "more than 36", ""),
    ],
)
def test_every_mistake_is_named_by_file_and_field(
    path: tuple[Any, ...], value: Any, field: str, problem: str, next_step: str
) -> None:
    with pytest.raises(InvalidObjectError) as raised:
        parse(changed(path, value))
    error = raised.value
    assert error.object_name == f"machine description {SOURCE}"
    assert error.field == field
    assert problem.replace("but 0 back", "but 0 links back") in error.problem
    assert next_step in error.next_step
    assert len(str(error)) < 1000


@pytest.mark.parametrize("field", ["apiVersion", "kind", "driverVersion", "models", "gpus"])
def test_a_missing_field_is_named(field: str) -> None:
    content = copy.deepcopy(MINIMAL)
    del content[field]
    with pytest.raises(InvalidObjectError, match=f"{field}: is missing"):
        parse(content)


def test_duplicate_uuids_and_models_are_refused() -> None:
    content = copy.deepcopy(MINIMAL)
    for gpu in content["gpus"]:
        gpu["uuid"] = "GPU-8a0c1d6e-0f6c-4a1b-9d2e-5c3b7f1e2a90"
    with pytest.raises(InvalidObjectError, match=r"gpus\[1\].uuid: GPU-8a0c.* is taken by gpus\[0\]"):
        parse(content)
    content = copy.deepcopy(MINIMAL)
    content["models"] *= 2
    with pytest.raises(InvalidObjectError, match=r"models\[1\].name: a second model 'v100'"):
        parse(content)


def test_a_machine_without_gpus_is_a_machine() -> None:
    assert parse(changed(("gpus",), [])).gpus == ()


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
PATHS = [
    (),
    *((key,) for key in MINIMAL),
    *(("models", 0, key) for key in MINIMAL["models"][0]),
    *(("gpus", 0, key) for key in ("model", "uuid", "minor", "pciBusID", "pcieRoot", "numaNode", "migMode")),
    *(("gpus", 0, key) for key in ("nvlinks", "fabricClique", "state", "index")),
    ("models", 0, "mig"),
]


@given(path=st.sampled_from(PATHS), value=json_like)
def test_no_content_raises_anything_but_the_one_error(path: tuple[Any, ...], value: Any) -> None:
    with contextlib.suppress(InvalidObjectError):
        parse(changed(path, value) if path else value)


@given(st.binary(max_size=64) | st.text(max_size=64).map(str.encode))
def test_no_text_raises_anything_but_the_one_error(text: bytes) -> None:
    with contextlib.suppress(InvalidObjectError):
        parse_machine(text, source=SOURCE)


def test_the_wheel_contains_what_is_not_python(tmp_path: Path) -> None:
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        pytest.skip("uv is not installed")
    root = Path(__file__).parents[3]
    subprocess.run(
        [uv, "build", "--wheel", "--offline", "--quiet", "-o", str(tmp_path), str(root)],
        check=True,
        timeout=120,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"tangram/hardware/machines/{name}.yaml" for name in NAMES} <= names
    assert {f"tangram/hardware/machines/mig/{name}.yaml" for name in mig_tables()} <= names
    assert "tangram/hardware/update-ldcache.sh" in names
