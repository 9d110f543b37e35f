"""docs/simulator.md: its example runs as it stands, and what it names is there."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from tangram.base.errors import NoRoomError
from tangram.hardware.machines.faultplan import FaultError
from tangram.testing import SimulatedBackend

PAGE = (Path(__file__).parents[3] / "docs/simulator.md").read_text(encoding="utf-8")


def test_the_example_runs_and_its_fault_strikes_the_third_time() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    gpus, uuid, instance, made = (names[name] for name in ("gpus", "uuid", "instance", "first"))
    place = {"gpu_instance_id": instance}
    gpus.destroy_compute_instance(uuid, **place, compute_instance_id=made.compute_instance_id)
    second = gpus.create_compute_instance(uuid, **place)
    gpus.destroy_compute_instance(uuid, **place, compute_instance_id=second.compute_instance_id)
    with pytest.raises(NoRoomError, match="planned fault"):
        gpus.create_compute_instance(uuid, **place)


def test_every_method_of_the_table_is_there() -> None:
    table = PAGE.partition("| method | effect |\n|---|---|\n")[2].partition("\n\n")[0]
    methods = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert len(methods) > 10
    assert [name for name in methods if not callable(getattr(SimulatedBackend, name, None))] == []


def test_every_error_of_a_fault_is_named() -> None:
    assert [error for error in get_args(FaultError) if f"`{error}`" not in PAGE] == []
