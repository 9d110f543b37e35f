"""GPUs of a description: stable identities, faults on demand, hot plug by editing the file."""

import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import yaml
from tests.unit.hardware.test_machines import MINIMAL

from tangram.base.errors import DriverUnavailableError, GpuLostError, InvalidObjectError
from tangram.hardware.backend import Backend, DeviceNode
from tangram.hardware.machines import load_machine
from tangram.hardware.simulated import SimulatedBackend
from tangram.model.gpu import GpuUuid

LIMIT_S = 20.0


def backend(name: str = "t4-x4", node: str = "node-1") -> SimulatedBackend:
    return SimulatedBackend(load_machine(name), node_name=node)


def test_it_is_a_backend() -> None:
    typed: Backend = backend()
    typed.open()
    typed.close()
    assert typed.name == "simulated"


def test_uuids_are_stable_per_node_and_differ_between_nodes() -> None:
    first = [gpu.uuid for gpu in backend().discover().gpus]
    assert first == [gpu.uuid for gpu in backend().discover().gpus]
    assert first == sorted(first)
    assert all(re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid) for uuid in first)
    assert not set(first) & {gpu.uuid for gpu in backend(node="node-2").discover().gpus}


def test_literal_uuids_are_kept() -> None:
    uuid = "GPU-8a0c1d6e-0f6c-4a1b-9d2e-5c3b7f1e2a90"
    description = load_machine("t4-x4")
    first = msgspec.structs.replace(description.gpus[0], uuid=uuid)
    description = msgspec.structs.replace(description, gpus=(first, *description.gpus[1:]))
    machine = SimulatedBackend(description, node_name="node-1").discover()
    assert uuid in {gpu.uuid for gpu in machine.gpus}


def test_indices_count_what_is_not_absent_unless_they_are_stated() -> None:
    description = load_machine("t4-x4")
    places = list(description.gpus)
    places[0] = msgspec.structs.replace(places[0], state="absent")
    places[3] = msgspec.structs.replace(places[3], index=7)
    description = msgspec.structs.replace(description, gpus=tuple(places))
    machine = SimulatedBackend(description, node_name="node-1").discover()
    assert {gpu.pci_bus_id: gpu.index for gpu in machine.gpus} == {
        places[1].pci_bus_id: 0,
        places[2].pci_bus_id: 1,
        places[3].pci_bus_id: 7,
    }


def test_nodes_need_nothing_on_the_host() -> None:
    simulated = backend()
    gpu = next(gpu for gpu in simulated.discover().gpus if gpu.index == 2)
    assert simulated.device_nodes(gpu) == (DeviceNode(path="/dev/nvidia2", kind="c", major=1, minor=3),)
    assert [node.path for node in simulated.control_nodes()] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
    ]
    assert {(node.kind, node.major, node.minor) for node in simulated.control_nodes()} == {("c", 1, 3)}


def test_p49_a_lost_gpu_is_reported_and_its_links_are_down() -> None:
    simulated = backend("dgx-1v")
    before = simulated.discover()
    lost = before.gpus[3]
    simulated.lose(lost.uuid)
    with pytest.raises(GpuLostError) as raised:
        simulated.probe(lost.uuid)
    assert raised.value.uuid == lost.uuid
    machine = simulated.discover()
    assert machine.failures == {lost.uuid: "GPU is lost"}
    assert {gpu.uuid for gpu in machine.gpus} == {gpu.uuid for gpu in before.gpus} - {lost.uuid}
    assert all(link.peer_bus_id != lost.pci_bus_id for gpu in machine.gpus for link in gpu.nvlinks)
    for gpu in machine.gpus:
        simulated.probe(gpu.uuid)
    simulated.recover(lost.uuid)
    assert simulated.discover() == before
    simulated.probe(lost.uuid)


def test_a_stranger_is_lost() -> None:
    with pytest.raises(GpuLostError, match="no such GPU"):
        backend().probe(GpuUuid("GPU-x"))


def test_an_unavailable_driver_still_tells_nodes() -> None:
    simulated = backend()
    gpu = simulated.discover().gpus[0]
    simulated.make_unavailable("driver unloaded")
    for call in (simulated.open, simulated.discover, lambda: simulated.probe(gpu.uuid)):
        with pytest.raises(DriverUnavailableError, match="driver unloaded"):
            call()
    assert simulated.device_nodes(gpu)
    assert simulated.control_nodes()
    simulated.make_unavailable("")
    simulated.open()
    simulated.probe(gpu.uuid)


def test_withheld_fields_are_not_supported() -> None:
    simulated = backend()
    before = simulated.discover()
    gpu = before.gpus[0]
    simulated.withhold(gpu.uuid, ["memory_bytes", "numa_node", "brand"])
    after = simulated.discover()
    assert after.gpus[0] == replace(gpu, memory_bytes=None, numa_node=None, brand="unknown")
    assert after.gpus[1:] == before.gpus[1:]


def test_a_hanging_call_returns_when_released() -> None:
    simulated = backend()
    hang = simulated.hang("discover")
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(len(simulated.discover().gpus)), daemon=True)
    thread.start()
    assert hang.entered.wait(LIMIT_S)
    assert found == []
    hang.release()
    thread.join(LIMIT_S)
    assert found == [4]


def test_p61_states_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text(yaml.safe_dump(MINIMAL))
    simulated = SimulatedBackend.load(str(file), node_name="node-1")
    both = simulated.discover()
    assert len(both.gpus) == 2
    first, second = sorted(both.gpus, key=lambda gpu: gpu.index)

    def edit(state: str) -> None:
        gpus = [{**MINIMAL["gpus"][0], "state": state}, MINIMAL["gpus"][1]]
        file.write_text(yaml.safe_dump({**MINIMAL, "gpus": gpus}))

    edit("lost")
    machine = simulated.discover()
    assert machine.failures == {first.uuid: "GPU is lost"}
    assert machine.gpus == (replace(second, nvlinks=()),)
    with pytest.raises(GpuLostError):
        simulated.probe(first.uuid)

    edit("absent")
    machine = simulated.discover()
    assert machine.failures == {}
    assert machine.gpus == (replace(second, index=0, nvlinks=()),)  # the index moves, uuid and minor stay

    edit("present")
    assert simulated.discover() == both

    third = {"model": "v100", "pciBusID": "0000:0a:00.0"}
    file.write_text(yaml.safe_dump({**MINIMAL, "gpus": [*MINIMAL["gpus"], third]}))
    assert {gpu.uuid for gpu in both.gpus} < {gpu.uuid for gpu in simulated.discover().gpus}


def test_a_file_that_breaks_is_a_driver_away(tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text(yaml.safe_dump(MINIMAL))
    simulated = SimulatedBackend.load(str(file), node_name="node-1")
    before = simulated.discover()
    file.write_text("kind: [")
    with pytest.raises(DriverUnavailableError, match=r"machine\.yaml"):
        simulated.discover()
    file.unlink()
    with pytest.raises(DriverUnavailableError, match="cannot be read"):
        simulated.discover()
    file.write_text(yaml.safe_dump(MINIMAL))
    assert simulated.discover() == before


def test_loading_a_bad_file_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text("kind: Machine")
    with pytest.raises(InvalidObjectError):
        SimulatedBackend.load(str(file), node_name="node-1")


def test_gpus_without_a_bus_id_and_memory(tmp_path: Path) -> None:
    content = {
        **MINIMAL,
        "models": [
            {
                "name": "gb10",
                "productName": "NVIDIA GB10",
                "computeCapability": "12.1",
                "memoryMiB": None,
                "multiprocessors": None,
            }
        ],
        "gpus": [{"model": "gb10"}],
    }
    file = tmp_path / "machine.yaml"
    file.write_text(yaml.safe_dump(content))
    (gpu,) = SimulatedBackend.load(str(file), node_name="node-1").discover().gpus
    assert (gpu.memory_bytes, gpu.pci_bus_id, gpu.compute_capability) == (None, None, (12, 1))


KILLED = """
import sys
from pathlib import Path
from tangram.hardware.machines import load_machine
from tangram.hardware.machines.faultplan import Fault
from tangram.hardware.simulated import SimulatedBackend
from tangram.hardware.simulated.store import FileStore

store = FileStore(Path(sys.argv[1]))
gpus = SimulatedBackend(load_machine("t4-x4"), node_name="n", store=store)
gpu = gpus.discover().gpus[0].uuid
gpus.fail(Fault(call="set_compute_mode", error="KILL", effect=sys.argv[2] == "after"))
try:
    gpus.set_compute_mode(gpu, "prohibited")
    print("lives")
finally:
    print("tidies up")
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_call_that_kills_its_process_does_so_once(tmp_path: Path, when: str) -> None:
    """Nothing is tidied up; the work is done or not; the next process gets past it."""

    def run() -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(tmp_path), when],
            capture_output=True, text=True, check=False, timeout=60,
            env={"PYTHONPATH": str(Path(__file__).parents[3] / "driver")},
        )  # fmt: skip
        return done.returncode, done.stdout

    assert run() == (137, "")
    done = [path for path in tmp_path.glob("GPU-*.json") if "prohibited" in path.read_text()]
    assert len(done) == (when == "after")
    assert run() == (0, "lives\ntidies up\n")
