"""What is recorded of a machine, the simulator plays back."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.base.errors import InvalidObjectError
from tangram.hardware.machines import MachineDescription, load_machine, parse_machine, shipped_machines
from tangram.hardware.recording import anonymize, as_json, as_yaml, record, without_uuids
from tangram.hardware.simulated import describe_machine
from tangram.model.gpu import Gpu, GpuUuid, Machine, NvLink

CLIQUES = ["8a0c1d6e-0f6c-4a1b-9d2e-5c3b7f1e2a90.7", "8a0c1d6e-0f6c-4a1b-9d2e-5c3b7f1e2a90.8", "odd", None]


def shipped(name: str) -> Machine:
    return describe_machine(load_machine(name), node_name="node-1")


def replay(description: MachineDescription) -> Machine:
    """Through the text of a file, as a user would."""
    text = as_yaml(description)
    return describe_machine(parse_machine(text.encode(), source="recorded"), node_name="another-node")


@pytest.mark.parametrize("name", shipped_machines())
def test_a_recording_plays_back_the_same_machine(name: str) -> None:
    machine = shipped(name)
    description = record(machine)
    assert replay(description) == machine
    assert parse_machine(as_json(description).encode(), source="recorded") == description


def test_models_are_told_apart_by_everything_that_differs() -> None:
    machine = shipped("a100-sxm4-80gb-x8")
    gpus = list(machine.gpus)
    gpus[1] = replace(gpus[1], memory_bytes=40960 * 2**20)
    gpus[2] = replace(gpus[2], mig_mode="enabled")
    gpus[3] = replace(gpus[3], memory_bytes=None, multiprocessors=None)
    mixed = replace(machine, gpus=tuple(gpus))
    description = record(mixed)
    assert sorted(model.name for model in description.models) == ["a100", "a100-2", "a100-3"]
    assert replay(description) == mixed


def test_gpus_that_do_not_answer_are_left_out_and_the_others_keep_their_indices() -> None:
    whole = shipped("t4-x4")
    gpus = tuple(gpu for gpu in whole.gpus if gpu.index != 1)
    description = record(replace(whole, gpus=gpus, failures={"index 1": "GPU is lost"}))
    assert [place.index for place in description.gpus] == [None, 2, 3]
    assert replay(description) == replace(whole, gpus=gpus)


def test_a_driver_that_tells_no_versions() -> None:
    machine = replace(shipped("t4-x4"), driver_version="", cuda_driver_version="")
    assert replay(record(machine)) == machine


def test_addresses_beyond_sixteen_bits_of_domain_and_capitals_in_a_uuid() -> None:
    whole = shipped("a10-x1")
    gpu = replace(
        whole.gpus[0],
        uuid=GpuUuid("GPU-8A0C1D6E-0F6C-4A1B-9D2E-5C3B7F1E2A90"),
        pci_bus_id="10000:01:00.0",
        pcie_root="pci10000:00",
    )
    assert replay(record(replace(whole, gpus=(gpu,)))) == replace(whole, gpus=(gpu,))


def test_memory_is_rounded_down_to_mebibytes() -> None:
    whole = shipped("a10-x1")
    odd = replace(whole, gpus=(replace(whole.gpus[0], memory_bytes=23028 * 2**20 + 4096),))
    assert replay(record(odd)) == whole


def test_a_machine_that_no_description_can_hold_is_an_error_of_the_house() -> None:
    whole = shipped("t4-x4")
    twice = tuple(replace(gpu, pci_bus_id=whole.gpus[0].pci_bus_id) for gpu in whole.gpus)
    with pytest.raises(InvalidObjectError, match="is taken by"):
        as_yaml(record(replace(whole, gpus=twice)))


BUS_IDS = [f"0000:{bus:02x}:00.0" for bus in (1, 2, 3, 4)]
ends = st.lists(
    st.builds(NvLink, peer_bus_id=st.sampled_from([*BUS_IDS, "0000:99:00.0"]))
    | st.just(NvLink(to_switch=True)),
    max_size=6,
)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Up to four GPUs with links that may be one-sided, mixed, to themselves or to nowhere."""
    count = draw(st.integers(min_value=1, max_value=4))
    minors = draw(st.permutations(range(count)))
    indices = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count, unique=True))
    gpus = [
        Gpu(
            uuid=GpuUuid(f"GPU-{draw(st.integers(0, 2**32 - 1)):08x}-5eed-4000-8000-{number:012x}"),
            index=indices[number],
            minor=minors[number],
            product_name=draw(
                st.sampled_from(["Tesla T4", "NVIDIA A100-SXM4-80GB", "unknown", "Ünü \U0001f600 'x': #"])
            ),
            memory_bytes=draw(st.sampled_from([None, 2**30, 80 * 2**30])),
            compute_capability=draw(st.sampled_from([(0, 0), (7, 5), (12, 1)])),
            pci_bus_id=draw(st.sampled_from([BUS_IDS[number], None])),
            numa_node=draw(st.none() | st.integers(0, 7)),
            mig_mode=draw(st.sampled_from(["enabled", "disabled", "unsupported"])),
            nvlinks=tuple(draw(ends)),
            fabric_clique=draw(st.sampled_from(CLIQUES)),
        )
        for number in range(count)
    ]
    return Machine(gpus=tuple(sorted(gpus, key=lambda gpu: gpu.uuid)), driver_version="1.2")


def links(machine: Machine) -> dict[tuple[int, int], int]:
    matrix = machine.links()
    return {(a, b): matrix.links(a, b) for a in matrix.rows for b in matrix.rows}


def without_links(machine: Machine) -> list[Gpu]:
    return [replace(gpu, nvlinks=()) for gpu in machine.gpus]


@settings(max_examples=30)
@given(machines())
def test_any_machine_plays_back_with_its_link_matrix(machine: Machine) -> None:
    played = replay(record(machine))
    assert links(played) == links(machine)
    assert without_links(played) == without_links(machine)


@settings(max_examples=30)
@given(machines())
def test_recording_what_was_played_back_changes_nothing(machine: Machine) -> None:
    description = record(machine)
    assert record(replay(description)) == description


@settings(max_examples=30)
@given(machines())
def test_made_up_uuids_hide_the_old_and_keep_order_and_equality(machine: Machine) -> None:
    description = record(machine)
    hidden = anonymize(description)
    text = as_yaml(hidden)
    for place, new in zip(description.gpus, hidden.gpus, strict=True):
        assert place.uuid is not None
        assert place.uuid not in text
        assert (place.fabric_clique is None) == (new.fabric_clique is None)
    assert "8a0c1d6e" not in text
    cliques = {
        (old.fabric_clique, new.fabric_clique) for old, new in zip(description.gpus, hidden.gpus, strict=True)
    }
    assert len({old for old, _ in cliques}) == len({new for _, new in cliques}) == len(cliques)
    played, original = replay(hidden), replay(description)
    assert [gpu.index for gpu in played.gpus] == [gpu.index for gpu in original.gpus]
    assert links(played) == links(original)

    def rest(machine: Machine) -> list[Any]:
        return [replace(gpu, uuid=GpuUuid(""), fabric_clique=None) for gpu in machine.gpus]

    assert rest(played) == rest(original)


def test_made_up_uuids_make_short_device_ids_that_differ() -> None:
    hidden = replay(anonymize(record(shipped("h100-sxm5-80gb-x8"))))
    assert len({gpu.uuid[:17] for gpu in hidden.gpus}) == 8


def test_what_is_derived_stays_derived() -> None:
    assert anonymize(load_machine("t4-x4")) == load_machine("t4-x4")


def test_uuids_in_messages_are_blotted_out() -> None:
    uuid = shipped("t4-x4").gpus[0].uuid
    assert without_uuids(f"{uuid}: GPU is lost ({uuid})") == "GPU-********: GPU is lost (GPU-********)"


def test_the_file_begins_with_what_it_is() -> None:
    lines = as_yaml(record(shipped("t4-x4"))).splitlines()
    assert lines[:2] == ["apiVersion: tangram/v1alpha1", "kind: MachineDescription"]
    assert msgspec.json.decode(as_json(record(shipped("t4-x4"))))["kind"] == "MachineDescription"
