"""NvmlBackend over the real ctypes path: a libnvidia-ml.so.1 in C, loaded by a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest
from tests.stub import nvmlstub
from tests.unit.hardware.fake_nvml import make_sysfs

from tangram.hardware.machines import load_machine, shipped_machines
from tangram.hardware.simulated import SimulatedBackend
from tangram.model.gpu import Gpu, Machine

REPOSITORY = Path(__file__).parents[3]
OLD_DRIVER_LACKS = (
    *("nvmlDeviceGetMigMode", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetNumGpuCores"),
    *(
        "nvmlDeviceGetArchitecture",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        "nvmlSystemGetCudaDriverVersion_v2",
    ),
)
CLIQUE = "8a0c1d6e-0f6c-4a1b-9d2e-5c3b7f1e2a90.7"

pytestmark = pytest.mark.skipif(nvmlstub.COMPILER is None, reason=nvmlstub.NO_COMPILER)
Build = Callable[[tuple[str, ...]], Path]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    built: dict[tuple[str, ...], Path] = {}

    def library(without: tuple[str, ...] = ()) -> Path:
        if without not in built:
            built[without] = nvmlstub.build(tmp_path_factory.mktemp("stub") / "library.so", without=without)
        return built[without]

    return library


class Stub:
    """A driver root with the stub, and questions to it."""

    def __init__(self, directory: Path, build: Build) -> None:
        self._directory = directory
        self._build = build

    def ask(
        self,
        machine: Machine,
        *,
        without: tuple[str, ...] = (),
        errors: nvmlstub.Errors | None = None,
        probe: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        root = nvmlstub.install(self._directory / "root", self._build(without), machine, errors=errors)
        return self.ask_root(root, make_sysfs(self._directory / "sys", machine), probe)

    def ask_root(self, root: Path, sysfs: Path, probe: tuple[str, ...] = ()) -> dict[str, Any]:
        finished = subprocess.run(
            [sys.executable, str(REPOSITORY / "tests/stub/ask.py"), str(root), str(sysfs), *probe],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY / "driver")},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert finished.returncode == 0, finished.stderr
        answer: dict[str, Any] = json.loads(finished.stdout)
        return answer

    def discover(self, machine: Machine, **how: Any) -> Machine:
        return msgspec.convert(self.ask(machine, **how)["machine"], Machine)


@pytest.fixture
def stub(tmp_path: Path, build: Build) -> Stub:
    return Stub(tmp_path, build)


def simulated(name: str) -> Machine:
    return SimulatedBackend(load_machine(name), node_name="node-1").discover()


def with_gpus(machine: Machine, **changes: Any) -> Machine:
    return replace(machine, gpus=tuple(replace(gpu, **changes) for gpu in machine.gpus))


@pytest.mark.parametrize("name", shipped_machines())
def test_discovers_exactly_what_the_simulated_back_end_does(name: str, stub: Stub) -> None:
    machine = simulated(name)
    assert stub.discover(machine) == machine


def test_a_fabric_clique_and_mig_mode_pass_the_structs(stub: Stub) -> None:
    machine = with_gpus(simulated("b200-sxm6-180gb-x8"), fabric_clique=CLIQUE, mig_mode="enabled")
    assert stub.discover(machine) == machine


def test_a_driver_without_newer_functions_costs_what_they_tell(stub: Stub) -> None:
    machine = with_gpus(simulated("a100-pcie-80gb-x4"), fabric_clique=CLIQUE, mig_mode="enabled")
    expected = with_gpus(
        replace(machine, cuda_driver_version=""),
        mig_mode="unsupported",
        mig_profiles=(),
        fabric_clique=None,
        multiprocessors=None,
        architecture="unknown",
    )
    assert stub.discover(machine, without=OLD_DRIVER_LACKS) == expected


def test_a_library_that_cannot_initialize_is_a_state(stub: Stub) -> None:
    answer = stub.ask(simulated("t4-x4"), without=("nvmlInitWithFlags",))
    kind, cause, next_step = answer["error"]
    assert kind == "DriverUnavailableError"
    assert f"code {pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}" in cause
    assert next_step


@pytest.mark.parametrize(
    ("code", "next_step"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "load it"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "/dev/nvidiactl"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "restart it"),
        (pynvml.NVML_ERROR_UNKNOWN, "wait for the driver"),
        (4711, "wait for the driver"),
    ],
)
def test_p55_a_driver_that_is_not_there_is_a_state(code: int, next_step: str, stub: Stub) -> None:
    answer = stub.ask(simulated("t4-x4"), errors={None: {"nvmlInitWithFlags": code}})
    assert "machine" not in answer
    assert answer["error"][0] == "DriverUnavailableError"
    assert f"code {code}" in answer["error"][1]
    assert next_step in answer["error"][2]


def test_p49_one_lost_gpu_costs_that_gpu_only(stub: Stub) -> None:
    machine = simulated("dgx-1v")
    by_index: dict[int, Gpu] = {gpu.index: gpu for gpu in machine.gpus}
    answer = stub.ask(
        machine,
        errors={3: {"*": pynvml.NVML_ERROR_GPU_IS_LOST}},
        probe=(by_index[3].uuid, by_index[4].uuid, "GPU-00000000-0000-0000-0000-000000000000"),
    )
    found = msgspec.convert(answer["machine"], Machine)
    assert found.gpus == tuple(gpu for gpu in machine.gpus if gpu.index != 3)
    assert list(found.failures) == ["index 3"]
    assert f"code {pynvml.NVML_ERROR_GPU_IS_LOST}" in found.failures["index 3"]
    assert list(answer["probes"].values()) == ["GpuLostError", "answers", "GpuLostError"]


def test_errors_of_single_calls_cost_what_they_tell(stub: Stub) -> None:
    unknown = pynvml.NVML_ERROR_UNKNOWN
    errors: nvmlstub.Errors = {
        0: {"nvmlDeviceGetMemoryInfo": unknown},
        1: {"nvmlDeviceGetMigMode": unknown},
        2: {"nvmlDeviceGetNvLinkState": pynvml.NVML_ERROR_NOT_SUPPORTED},
        3: {"nvmlDeviceGetUUID": unknown},
    }
    machine = simulated("a100-sxm4-40gb-x8")
    changes: dict[int, dict[str, Any]] = {0: {"memory_bytes": None}, 2: {"nvlinks": ()}}
    by_index = {gpu.index: gpu for gpu in machine.gpus}
    found = stub.discover(machine, errors=errors)
    assert {gpu.index: gpu for gpu in found.gpus} == {
        index: replace(gpu, **changes.get(index, {}))
        for index, gpu in by_index.items()
        if index not in (1, 3)
    }
    assert set(found.failures) == {by_index[1].uuid, "index 3"}


def test_a_file_that_is_no_library_is_a_state(stub: Stub, tmp_path: Path) -> None:
    library = tmp_path / "root" / nvmlstub.LIBRARY_DIRECTORY / "libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.write_text("not a library\n")
    kind, cause, _ = stub.ask_root(tmp_path / "root", tmp_path / "sys")["error"]
    assert kind == "DriverUnavailableError"
    assert "cannot be loaded" in cause
