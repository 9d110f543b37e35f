"""docs/machines.md lists the machines, tables and fields that there are, and its example is valid."""

import re
from pathlib import Path

import msgspec

from tangram.hardware.machines import load_machine, parse_machine, shipped_machines
from tangram.hardware.machines.description import GpuModel, GpuPlace, MachineDescription
from tangram.hardware.machines.faultplan import Fault
from tangram.hardware.machines.migtables import MigEngines, MigProfile, MigTable

TEXT = (Path(__file__).parents[3] / "docs" / "machines.md").read_text(encoding="utf-8")


def test_every_shipped_machine_is_listed_with_its_gpus_and_table() -> None:
    section = TEXT.split("## Shipped machines")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `(.+?)` \| (.*) \|$", section, re.MULTILINE))
    assert tuple(sorted(rows)) == shipped_machines()
    for name, row in rows.items():
        description = load_machine(name)
        gpus, _, table = (cell.strip() for cell in row.split("|"))
        count, _, product = gpus.split(maxsplit=2)
        assert int(count) == len(description.gpus)
        assert product in ("H100-SXM5-80GB", *_products(description))
        assert table.strip("`") == (description.models[0].mig or "")


def _products(description: MachineDescription) -> list[str]:
    return [re.sub(r"^(NVIDIA|Tesla) ", "", model.product_name) for model in description.models]


def test_every_field_is_explained() -> None:
    for kind in (MachineDescription, GpuModel, GpuPlace, MigTable, MigProfile, MigEngines, Fault):
        for field in msgspec.structs.fields(kind):
            assert re.search(rf"^\|.*[`.]{field.encode_name}`", TEXT, re.MULTILINE), field.encode_name


def test_the_example_is_a_description() -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    description = parse_machine(example.encode(), source="docs/machines.md")
    assert description.models == load_machine("a100-pcie-80gb-x4").models
    assert description.gpus == load_machine("a100-pcie-80gb-x4").gpus[:2]
