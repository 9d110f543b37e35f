"""Tables of MIG profiles: the shipped ones agree with what NVIDIA documents, anything else is refused."""

import contextlib
import copy
import json
import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tangram.base.errors import InvalidObjectError
from tangram.hardware.machines import load_machine, shipped_machines
from tangram.hardware.machines.description import GpuModel
from tangram.hardware.machines.migtables import MigTable, load_mig_table, mig_tables, parse_mig_table

MODELS = [(name, model) for name in shipped_machines() for model in load_machine(name).models]
MIG_MODELS = [pytest.param(model, id=name) for name, model in MODELS if model.mig is not None]
GEOMETRY = {
    # profile id: enum, starts, size (nvidia-smi mig -lgipp), for all boards with seven compute slices
    19: (0, (0, 1, 2, 3, 4, 5, 6), 1),
    20: (7, (0, 1, 2, 3, 4, 5, 6), 1),
    15: (9, (0, 2, 4, 6), 2),
    14: (1, (0, 2, 4), 2),
    9: (2, (0, 4), 4),
    5: (3, (0,), 4),
    0: (4, (0,), 8),
}
MINIMAL: dict[str, Any] = {
    "apiVersion": "tangram/v1alpha1",
    "kind": "MIGTable",
    "memorySlices": 8,
    "computeSlices": 7,
    "profiles": [
        {"name": "3g.40gb", "enum": 2, "id": 9, "maxInstances": 2, "placements": ["0:4", "4:4"]},
        {"name": "7g.80gb", "enum": 4, "id": 0, "maxInstances": 1, "placements": ["0:8"]},
    ],
}


def parse(content: Any) -> MigTable:
    return parse_mig_table(json.dumps(content, ensure_ascii=False).encode(), source="table")


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    content = copy.deepcopy(MINIMAL)
    target: Any = content
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return content


def test_every_gpu_that_can_do_mig_names_its_table() -> None:
    for name, model in MODELS:
        assert (model.mig is not None) == (model.mig_mode != "unsupported"), name
    assert {model.mig for _, model in MODELS if model.mig} == set(mig_tables())


@pytest.mark.parametrize("name", mig_tables())
def test_the_geometry_is_that_of_the_family(name: str) -> None:
    table = load_mig_table(name)
    assert (table.memory_slices, table.compute_slices) == (8, 7)
    found = {
        profile.id: (profile.enum, tuple(start for start, _ in profile.spans()), profile.spans()[0][1])
        for profile in table.profiles
    }
    assert found == GEOMETRY
    assert all(len({size for _, size in profile.spans()}) == 1 for profile in table.profiles)


@pytest.mark.parametrize("model", MIG_MODELS)
def test_names_follow_from_the_memory(model: GpuModel) -> None:
    """A profile is named by its eighths of the board's memory: NVIDIA's rule where the driver tells none."""
    assert model.mig is not None
    assert model.memory_mib is not None
    board_gib = math.ceil(model.memory_mib / 1024)
    for profile in load_mig_table(model.mig).profiles:
        _, size = profile.spans()[0]
        assert profile.name.partition(".")[2].partition("gb")[0] == str(
            math.floor(board_gib * size / 8 + 0.5)
        )
        if profile.memory_mib is not None:
            assert math.ceil(profile.memory_mib * 8 / model.memory_mib) == size


@pytest.mark.parametrize("model", MIG_MODELS)
def test_no_set_of_instances_exceeds_the_board(model: GpuModel) -> None:
    assert model.mig is not None
    for profile in load_mig_table(model.mig).profiles:
        total = (profile.multiprocessors or 0) * profile.max_instances
        assert total <= (model.multiprocessors or 0)
        assert (profile.memory_mib or 0) * profile.max_instances <= (model.memory_mib or 0)


def test_unknown_values_are_absent() -> None:
    largest = load_mig_table("b200-180gb").profiles[-1]
    assert (largest.name, largest.compute_slices) == ("7g.180gb", 7)
    assert (largest.memory_mib, largest.multiprocessors, largest.engines.copy) == (None, None, None)


@pytest.mark.parametrize(
    ("path", "value", "field", "problem"),
    [
        (("slices",), 8, "", "unknown field 'slices'"),
        (("kind",), "MachineDescription", "kind", "invalid enum value"),
        (("memorySlices",), "8", "memorySlices", "expected a whole number"),
        (("profiles",), [], "profiles", "length >= 1"),
        (("profiles", 0, "name"), "big", "profiles[0].name", "regex"),
        (("profiles", 0, "enum"), 18, "profiles[0].enum", "<= 17"),
        (("profiles", 0, "id"), None, "profiles[0].id", "expected a whole number, got null"),
        (("profiles", 1, "id"), 9, "profiles[1].id", "a second profile with 9"),
        (("profiles", 1, "name"), "3g.40gb", "profiles[1].name", "a second profile with 3g.40gb"),
        (("profiles", 0, "engines"), {"video": 1}, "profiles[0].engines", "unknown field 'video'"),
        (("profiles", 0, "engines"), {"copy": -1}, "profiles[0].engines.copy", ">= 0"),
        (("profiles", 0, "memoryMiB"), 0, "profiles[0].memoryMiB", ">= 1"),
        (("profiles", 0, "placements"), [], "profiles[0].placements", "length >= 1"),
        (("profiles", 0, "placements"), ["0-4"], "profiles[0].placements[0]", "regex"),
        (("profiles", 0, "placements"), ["0:0"], "profiles[0].placements[0]", "regex"),
        (
            ("profiles", 0, "placements"),
            ["5:4", "0:4"],
            "profiles[0].placements",
            "beyond the 8 memory slices",
        ),
        (("profiles", 0, "placements"), ["0:4", "0:4"], "profiles[0].placements", "stands twice"),
        (("profiles", 0, "maxInstances"), 3, "profiles[0].maxInstances", "3 instances, but 2 placements"),
        (("computeSlices",), 5, "profiles[0].maxInstances", "but the board has 5"),
    ],
)
def test_every_mistake_is_named_by_file_and_field(
    path: tuple[Any, ...], value: Any, field: str, problem: str
) -> None:
    with pytest.raises(InvalidObjectError) as raised:
        parse(changed(path, value))
    assert raised.value.object_name == "MIG table table"
    assert raised.value.field == field
    assert problem in raised.value.problem
    assert raised.value.next_step


def test_text_that_is_no_yaml_is_named_by_line() -> None:
    with pytest.raises(InvalidObjectError) as raised:
        parse_mig_table(b"a: 1\na: 2", source="table")
    assert raised.value.field == "line 2"


def test_the_minimal_table_is_valid() -> None:
    assert parse_mig_table(yaml.safe_dump(MINIMAL).encode(), source="table") == parse(MINIMAL)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
PATHS = [(), *((key,) for key in MINIMAL), *(("profiles", 0, key) for key in MINIMAL["profiles"][0])]


@given(path=st.sampled_from(PATHS), value=json_like)
def test_no_content_raises_anything_but_the_one_error(path: tuple[Any, ...], value: Any) -> None:
    with contextlib.suppress(InvalidObjectError):
        parse(changed(path, value) if path else value)
