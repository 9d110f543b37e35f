"""`tangram probe`: simulated machines, the stub of NVML in processes of their own, recordings, exit codes."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest
import structlog
from tests.stub import nvmlstub

from tangram.cli.main import main
from tangram.hardware.machines import MachineDescription, load_machine, parse_machine, shipped_machines
from tangram.hardware.machines.description import parse_description
from tangram.hardware.machines.migtables import MigGeometry, load_mig_table, mig_tables, offered_profiles
from tangram.hardware.simulated import describe_machine
from tangram.model.gpu import Machine

DRIVER = Path(__file__).parents[3] / "driver"
CLIQUE = "8a0c1d6e-0f6c-4a1b-9d2e-5c3b7f1e2a90.7"

needs_compiler = pytest.mark.skipif(nvmlstub.COMPILER is None, reason=nvmlstub.NO_COMPILER)
Capture = pytest.CaptureFixture[str]


def without_places(machine: Machine) -> Machine:
    """What is left where sysfs knows nothing of the GPUs."""
    return replace(machine, gpus=tuple(replace(gpu, pcie_root=None, numa_node=None) for gpu in machine.gpus))


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """The command sets logging up for its process: to a stream that is closed after the test."""
    config, root = structlog.get_config(), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.configure(**config)
    root.handlers[:] = handlers
    root.setLevel(level)


class TestSimulated:
    @pytest.mark.parametrize("name", shipped_machines())
    def test_every_shipped_machine_is_shown(self, name: str, capsys: Capture) -> None:
        assert main(["probe", "--simulate", name]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        description = load_machine(name)
        count = len(description.gpus)
        assert captured.out.startswith(
            f"{count} GPU{'s' if count > 1 else ''}, driver 580.126.20, CUDA 13.0\n"
        )
        for place in description.gpus:
            assert place.pci_bus_id is not None
            assert place.pci_bus_id in captured.out
        assert ("MIG profiles" in captured.out) == any(model.mig for model in description.models)
        assert max(map(len, captured.out.splitlines())) <= 120

    def test_links_by_index(self, capsys: Capture) -> None:
        assert main(["probe", "--simulate", "a100-pcie-80gb-x4"]) == 0
        assert (
            "NVLinks between the GPUs:\n"
            "      GPU0  GPU1  GPU2  GPU3\n"
            "GPU0  -     12    .     .\n"
            "GPU1  12    -     .     .\n"
            "GPU2  .     .     -     12\n"
            "GPU3  .     .     12    -\n"
            "Fully linked sets (nvlinkGroup2, 4, 8): 2 of 2\n"
        ) in capsys.readouterr().out

    def test_a_switch_and_no_links_in_words(self, capsys: Capture) -> None:
        main(["probe", "--simulate", "b200-sxm6-180gb-x8"])
        assert "every GPU has 18 links to one switch\n" in capsys.readouterr().out
        main(["probe", "--simulate", "gb10"])
        assert "NVLink: none between these GPUs\n" in capsys.readouterr().out

    @pytest.mark.parametrize("form", ["json", "yaml"])
    def test_what_is_printed_for_programs_is_a_description(self, form: str, capsys: Capture) -> None:
        assert main(["probe", "--simulate", "h100-sxm5-80gb-x8", "-o", form]) == 0
        printed = capsys.readouterr().out
        assert parse_machine(printed.encode(), source="printed") == load_machine("h100-sxm5-80gb-x8")
        if form == "json":
            content = json.loads(printed)
            assert (content["apiVersion"], content["kind"]) == ("tangram/v1alpha1", "MachineDescription")

    def test_an_unknown_name_is_bad_input(self, capsys: Capture) -> None:
        assert main(["probe", "--simulate", "a100"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "no such machine is shipped" in captured.err
        assert "shipped machines: a10-x1" in captured.err

    def test_a_lost_gpu_is_a_warning_and_all_lost_is_a_no(self, tmp_path: Path, capsys: Capture) -> None:
        content = msgspec.to_builtins(load_machine("t4-x4"))
        content["gpus"][2]["state"] = "lost"
        file = tmp_path / "machine.json"
        file.write_text(json.dumps(content))
        assert main(["probe", "--simulate", str(file)]) == 0
        captured = capsys.readouterr()
        assert captured.out.startswith("3 GPUs")
        assert captured.err.startswith("warning: a GPU does not answer: GPU-")
        for place in content["gpus"]:
            place["state"] = "lost"
        file.write_text(json.dumps(content))
        assert main(["probe", "--simulate", str(file)]) == 3
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "error: driver 580.126.20 is there, but no GPU answers\nnext: " in captured.err


class TestRecord:
    @pytest.mark.parametrize("name", ["machine.yaml", "machine.json"])
    def test_the_file_is_the_machine(self, name: str, tmp_path: Path, capsys: Capture) -> None:
        file = tmp_path / "new" / name
        assert main(["probe", "--simulate", "dgx-1v", "--record", str(file)]) == 0
        captured = capsys.readouterr()
        assert captured.out.startswith("8 GPUs")
        assert f"tangram probe --simulate {file}" in captured.err
        assert load_machine(str(file)) == load_machine("dgx-1v")
        assert file.read_text().startswith("{") == name.endswith(".json")
        assert file.stat().st_mode & 0o777 == 0o644

    def test_a_bare_word_is_told_as_a_path(
        self, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(["probe", "--simulate", "t4-x4", "--record", "mine"]) == 0
        assert "--simulate ./mine\n" in capsys.readouterr().err
        assert main(["probe", "--simulate", "./mine"]) == 0

    def test_devices_links_and_directories_are_not_replaced(self, tmp_path: Path, capsys: Capture) -> None:
        link = tmp_path / "link"
        link.symlink_to(tmp_path / "target.yaml")
        os.mkfifo(tmp_path / "pipe")
        for target in (link, tmp_path / "pipe", tmp_path, Path("/dev/null")):
            assert main(["probe", "--simulate", "t4-x4", "--record", str(target)]) == 2
            captured = capsys.readouterr()
            assert captured.out == ""
            assert f"--record: {target} is not a regular file" in captured.err
            assert "--output yaml" in captured.err
        assert link.is_symlink()

    def test_a_file_that_cannot_be_written(self, tmp_path: Path, capsys: Capture) -> None:
        (tmp_path / "file").write_text("")
        assert main(["probe", "--simulate", "t4-x4", "--record", str(tmp_path / "file" / "x.yaml")]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "cannot be written" in captured.err


class TestUsage:
    def test_the_beginning_of_a_name_is_enough_for_a_suggestion(self, capsys: Capture) -> None:
        assert main(["probe", "--simulate", "a100"]) == 2
        assert "did you mean 'a100-pcie-80gb-x4'?" in capsys.readouterr().err

    def test_simulated_and_driver_root_exclude_each_other(self, capsys: Capture) -> None:
        with pytest.raises(SystemExit) as caught:
            main(["probe", "--simulate", "t4-x4", "--driver-root", "/run/nvidia/driver"])
        assert caught.value.code == 2
        assert "not allowed with" in capsys.readouterr().err

    def test_a_misspelt_flag_is_suggested(self, capsys: Capture) -> None:
        with pytest.raises(SystemExit) as caught:
            main(["probe", "--anonymise"])
        assert caught.value.code == 2
        assert "did you mean --anonymize?" in capsys.readouterr().err

    def test_help_teaches(self, capsys: Capture) -> None:
        with pytest.raises(SystemExit) as caught:
            main(["probe", "--help"])
        assert caught.value.code == 0
        text = capsys.readouterr().out
        assert all(len(line) <= 110 for line in text.splitlines())
        assert "examples:\n" in text
        assert "exit codes:\n" in text
        assert all(name in text for name in shipped_machines())

    def test_no_driver_below_the_root_is_a_no(self, tmp_path: Path, capsys: Capture) -> None:
        assert main(["probe", "--driver-root", str(tmp_path)]) == 3
        captured = capsys.readouterr()
        assert captured.out == ""
        error, next_step, otherwise = captured.err.splitlines()
        assert error == f"error: no libnvidia-ml.so.1 below the driver root {tmp_path}"
        assert next_step.startswith("next: wait for the driver to be installed")
        assert "tangram probe --simulate NAME" in otherwise


def offering(name: str, geometry: MigGeometry | None) -> Machine:
    """A shipped machine whose driver tells these MIG profiles."""
    machine = describe_machine(load_machine(name), node_name="node-1")
    profiles = offered_profiles(geometry) if geometry else ()
    return replace(machine, gpus=tuple(replace(gpu, mig_profiles=profiles) for gpu in machine.gpus))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvmlstub.build(tmp_path_factory.mktemp("stub") / "library.so")


@needs_compiler
class TestStub:
    """Through NVML's C interface; each question in a process of its own."""

    @pytest.fixture(autouse=True)
    def _stub(self, tmp_path: Path, library: Path) -> None:
        self._directory = tmp_path
        self._library = library

    def probe(
        self,
        machine: Machine,
        *words: str,
        errors: nvmlstub.Errors | None = None,
        deadline_s: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        root = nvmlstub.install(self._directory / "root", self._library, machine, errors=errors)
        program = (
            "import sys; from tangram.cli import main, probe;"
            f"probe.DEADLINE_S = {deadline_s}; sys.exit(main.main())"
        )
        return subprocess.run(
            [sys.executable, "-c", program, "probe", "--driver-root", str(root), *words],
            env=os.environ | {"PYTHONPATH": str(DRIVER), "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def recorded(self, machine: Machine, *words: str, **how: Any) -> MachineDescription:
        file = self._directory / "recorded.yaml"
        finished = self.probe(machine, "--record", str(file), "-o", "json", *words, **how)
        assert finished.returncode == 0, finished.stderr
        printed = parse_description(json.loads(finished.stdout), object_name="printed")
        assert printed == load_machine(str(file))
        return printed

    @pytest.mark.parametrize("name", ["a100-pcie-80gb-x4", "b200-sxm6-180gb-x8", "dgx-1v", "gb10"])
    def test_a_recording_simulates_what_nvml_found(self, name: str) -> None:
        machine = describe_machine(load_machine(name), node_name="node-1")
        gpus = tuple(replace(gpu, fabric_clique=CLIQUE) for gpu in machine.gpus)
        machine = without_places(replace(machine, gpus=gpus))
        played = describe_machine(self.recorded(machine), node_name="another-node")
        assert without_places(played) == machine

    def test_anonymized(self) -> None:
        machine = describe_machine(load_machine("t4-x4"), node_name="node-1")
        finished = self.probe(machine, "--anonymize", errors={2: {"nvmlDeviceGetMinorNumber": 999}})
        everything = finished.stdout + finished.stderr
        assert finished.returncode == 0
        assert "warning: a GPU does not answer: GPU-********: " in everything
        assert "gpu-000000010000" in everything
        for gpu in machine.gpus:
            assert gpu.uuid not in everything
            assert gpu.uuid.removeprefix("GPU-")[:8] not in everything

    def test_a_lost_gpu_is_a_warning_and_left_out(self) -> None:
        machine = describe_machine(load_machine("t4-x4"), node_name="node-1")
        description = self.recorded(machine, errors={1: {"*": pynvml.NVML_ERROR_GPU_IS_LOST}})
        assert [place.index for place in description.gpus] == [None, 2, 3]

    def test_a_driver_that_hangs_ends_in_a_sentence(self) -> None:
        machine = describe_machine(load_machine("t4-x4"), node_name="node-1")
        hang: nvmlstub.Errors = {None: {"nvmlDeviceGetCount_v2": nvmlstub.HANG}}
        finished = self.probe(machine, errors=hang, deadline_s=0.5)
        assert (finished.returncode, finished.stdout) == (1, "")
        assert finished.stderr.startswith("error: the GPU driver did not answer within 0.5 s\nnext: ")

    @pytest.mark.parametrize("name", mig_tables())
    def test_mig_profiles_are_those_of_the_shipped_table(self, name: str) -> None:
        offered = load_mig_table(name)
        description = self.recorded(offering("h200-sxm5-141gb-x8", offered))
        (model,) = description.models
        assert model.mig == name
        recorded = description.mig_geometry(model)
        assert recorded is not None
        assert (recorded.memory_slices, recorded.compute_slices) == (8, 7)
        assert {profile.name: profile.placements for profile in recorded.profiles} == {
            profile.name: profile.placements for profile in offered.profiles
        }

    def test_mig_profiles_that_no_shipped_table_has(self) -> None:
        shipped = load_mig_table("h100-80gb")
        ours = MigGeometry(memory_slices=7, compute_slices=7, profiles=shipped.profiles[:1])
        description = self.recorded(offering("h100-sxm5-80gb-x8", ours))
        assert description.models[0].mig == "h100-1"
        assert description.mig_tables == {"h100-1": ours}

    def test_a_driver_that_tells_no_mig_profiles(self) -> None:
        finished = self.probe(offering("h100-sxm5-80gb-x8", None))
        assert "MIG profiles of NVIDIA H100 80GB HBM3: the driver does not tell them" in finished.stdout

    def test_a_driver_that_is_not_loaded_is_a_no(self) -> None:
        machine = describe_machine(load_machine("t4-x4"), node_name="node-1")
        finished = self.probe(
            machine, errors={None: {"nvmlInitWithFlags": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}}
        )
        assert (finished.returncode, finished.stdout) == (3, "")
        assert finished.stderr.startswith("error: NVML: Driver Not Loaded (code 9)\nnext: ")

    def test_a_driver_without_a_gpu_is_a_no(self) -> None:
        finished = self.probe(Machine(gpus=(), driver_version="580.1", cuda_driver_version="13.0"))
        assert (finished.returncode, finished.stdout) == (3, "")
        assert finished.stderr.startswith("error: driver 580.1 is there, but no GPU answers\nnext: ")
