"""Machine descriptions: every field with every value. What is accepted can be simulated and published."""

import json
from typing import Any

import pytest
import yaml
from tests.unit.bad_input.hostile import VALUES, Path, changed, deep, wire_paths, without

from tangram.base.errors import InvalidObjectError
from tangram.cli.machinetext import machine_text
from tangram.hardware.machines import MachineDescription, parse_machine, read_machine
from tangram.hardware.simulated import describe_machine
from tangram.kubeletplugin.slice_limits import check_pool
from tangram.model.gpu import Machine
from tangram.node.inventory import merge
from tangram.node.pools import pools

SOURCE = "mine.yaml"
BASE: dict[str, Any] = {
    "apiVersion": "tangram/v1alpha1",
    "kind": "MachineDescription",
    "driverVersion": "580.126.20",
    "cudaDriverVersion": "13.0",
    "models": [
        {
            "name": "a100",
            "productName": "NVIDIA A100-SXM4-80GB",
            "brand": "Nvidia",
            "architecture": "Ampere",
            "computeCapability": "8.0",
            "memoryMiB": 81920,
            "multiprocessors": 108,
            "migMode": "disabled",
            "mig": "key",
        }
    ],
    "gpus": [
        {
            "model": "a100",
            "uuid": "GPU-00000000-0000-0000-0000-00000000000a",
            "index": 0,
            "minor": 0,
            "pciBusID": "0000:07:00.0",
            "pcieRoot": "pci0000:00",
            "numaNode": 3,
            "migMode": "enabled",
            "nvlinks": {"switch": 12},
            "fabricClique": "9a0a5c1e-0000-4000-8000-000000000000.1",
            "state": "present",
        },
        {"model": "a100", "pciBusID": "0000:0f:00.0"},
    ],
    "migTables": {
        "key": {
            "memorySlices": 8,
            "computeSlices": 7,
            "profiles": [
                {
                    "name": "3g.40gb",
                    "enum": 2,
                    "id": 9,
                    "memoryMiB": 40192,
                    "multiprocessors": 42,
                    "engines": {"copy": 3, "decoder": 2, "encoder": 0, "jpeg": 0, "ofa": 0},
                    "maxInstances": 2,
                    "placements": ["0:4", "4:4"],
                }
            ],
        }
    },
}
PATHS = list(wire_paths(MachineDescription))


def use(data: bytes) -> None:
    """Accepted and usable, or refused with file, place and next step."""
    try:
        description = parse_machine(data, source=SOURCE)
    except InvalidObjectError as error:
        complete(error)
        return
    machine: Machine = describe_machine(description, node_name="n")
    machine_text(machine, description)
    for one_slice in (False, True):
        published = pools(
            merge(None, machine, held=frozenset()), node_name="n", allocator="controller", one_slice=one_slice
        )
        for name, pool in published.items():
            check_pool(pool_name=name, pool=pool)


def complete(error: InvalidObjectError) -> None:
    assert error.object_name == f"machine description {SOURCE}"
    assert error.next_step, str(error)
    assert str(error).isprintable()
    assert len(str(error)) < 900


def test_the_base_is_valid() -> None:
    parse_machine(json.dumps(BASE).encode(), source=SOURCE)


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_every_field_with_every_value(path: Path) -> None:
    use(json.dumps(without(BASE, path)).encode())
    for value in (*VALUES, deep(10)):
        use(json.dumps(changed(BASE, path, value), ensure_ascii=False).encode())


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_a_wrong_field_is_named(path: Path) -> None:
    value: Any = [[]]
    with pytest.raises(InvalidObjectError) as caught:
        parse_machine(json.dumps(changed(BASE, path, value)).encode(), source=SOURCE)
    assert str(path[0]) in caught.value.field or path[0] == caught.value.field


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_the_place_may_hold_a_key_that_is_unknown(path: Path) -> None:
    """A misspelt neighbour of each field."""
    parent = (*path[:-1], f"{path[-1]}x") if isinstance(path[-1], str) else (*path, "unknown")
    with pytest.raises(InvalidObjectError) as caught:
        parse_machine(json.dumps(changed(BASE, parent, 1)).encode(), source=SOURCE)
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\xff", "is not UTF-8 at byte 0"),
        (b"[" * 100_000, "nest"),
        (b"a: 1\na: 2", "line 2: the key 'a' stands twice"),
        (b"driverVersion: [1]\n", "next: nothing"),
        (b"", "is empty"),
    ],
)
def test_texts_that_are_no_description(data: bytes, problem: str) -> None:
    with pytest.raises(InvalidObjectError) as caught:
        parse_machine(data, source=SOURCE)
    if not problem.startswith("next"):
        assert problem in str(caught.value)
    assert "quote" not in caught.value.next_step


def test_one_changed_character_of_a_shipped_file() -> None:
    """Every line of a file that people start from, cut, doubled and with each of its values replaced."""
    lines = read_machine("a100-sxm4-80gb-x8").decode().splitlines(keepends=True)
    for number, line in enumerate(lines):
        before, after = "".join(lines[:number]), "".join(lines[number + 1 :])
        for instead in ("", line * 2, line.replace(": ", ": -"), line.replace(":", ""), f" {line}", "\x00\n"):
            use((before + instead + after).encode())


def test_a_description_as_yaml_of_other_tools() -> None:
    use(yaml.safe_dump(BASE, default_flow_style=True).encode())
    use(yaml.safe_dump(BASE, explicit_start=True).encode())
