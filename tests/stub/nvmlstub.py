"""Builds the stub of libnvidia-ml.so.1, and driver roots that hold it with the table of a machine."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from tests.unit.hardware.fake_nvml import _CORES, _long_bus_id

from tangram.hardware.nvmldiscovery import _ARCHITECTURES, _BRANDS
from tangram.model.gpu import Gpu, Machine

SOURCES = sorted(Path(__file__).parent.glob("*.c"))
LIBRARY_DIRECTORY = Path("usr/lib64")
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
NO_COMPILER = "no C compiler (cc, gcc or clang) to build the stub of libnvidia-ml.so.1 with"

Errors = Mapping[int | None, Mapping[str, int]]
"""Index of a GPU (None: any) → function (`*`: all with the GPU's handle) → the code it returns, or HANG."""
HANG = -1


def build(target: Path, *, without: tuple[str, ...] = ()) -> Path:
    """Compiles the library; `without` leaves functions out, as an older driver does."""
    assert COMPILER is not None
    absent = [f"-D{function}=absent_{function}" for function in without]
    warnings = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"]
    linking = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    command = [COMPILER, *warnings, *absent, *linking, "-o", str(target), *map(str, SOURCES), "-ldl"]
    subprocess.run(command, check=True, timeout=120)
    return target


def install(
    root: Path,
    library: Path,
    machine: Machine,
    *,
    errors: Errors | None = None,
) -> Path:
    """A driver root with that library and the table of that machine; returns the root."""
    directory = root / LIBRARY_DIRECTORY
    directory.mkdir(parents=True)
    shutil.copy(library, directory / "libnvidia-ml.so.1")
    (directory / "libnvidia-ml.table").write_text(table(machine, errors=errors or {}))
    return root


def table(machine: Machine, *, errors: Errors) -> str:
    """The text that the library answers from. NVML indices must be 0..n-1."""
    lines = [f"driver {machine.driver_version}" if machine.driver_version else ""]
    if machine.cuda_driver_version:
        major, minor = machine.cuda_driver_version.split(".")
        lines.append(f"cuda {int(major) * 1000 + int(minor) * 10}")
    lines += _errors(errors.get(None, {}))
    for index, gpu in enumerate(sorted(machine.gpus, key=lambda gpu: gpu.index)):
        assert gpu.index == index
        lines += ["gpu", *_gpu(gpu), *_mig(gpu), *_errors(errors.get(index, {}))]
    return "\n".join(line for line in lines if line) + "\n"


def _errors(codes: Mapping[str, int]) -> list[str]:
    return [f"error.{function} {code}" for function, code in codes.items()]


def _gpu(gpu: Gpu) -> list[str]:
    major, minor = gpu.compute_capability
    cores = (gpu.multiprocessors or 0) * _CORES.get(gpu.compute_capability, 0)
    values = {
        "uuid": gpu.uuid,
        "name": gpu.product_name,
        "minor": gpu.minor,
        "brand": _number(gpu.brand, _BRANDS),
        "architecture": _number(gpu.architecture, _ARCHITECTURES),
        "capability": f"{major}.{minor}",
        "cores": cores or None,
        "memory": gpu.memory_bytes,
        "bus": gpu.pci_bus_id and _long_bus_id(gpu.pci_bus_id).decode(),
        "mig": {"enabled": 1, "disabled": 0}.get(gpu.mig_mode),
        "virtual": int(gpu.virtual),
        "ecc": 0,
        "remap": "0 0 0 0",
        "retired": 0,
        "recovery": 0,
        "clocks": 1,
    }
    if gpu.fabric_clique is not None:
        cluster, _, clique = gpu.fabric_clique.rpartition(".")
        values["fabric"] = UUID(cluster).hex + clique
    lines = [f"{key} {value}" for key, value in values.items() if value is not None]
    ends = (link.peer_bus_id and _long_bus_id(link.peer_bus_id).decode() for link in gpu.nvlinks)
    return lines + [f"link {end or 'switch'}" for end in ends]


def _mig(gpu: Gpu) -> list[str]:
    lines = []
    for profile in gpu.mig_profiles:
        numbers = (
            *(profile.profile_id, profile.compute_slices, profile.max_instances),
            *(profile.multiprocessors or 0, profile.copy_engines, profile.decoders, profile.encoders),
            *(profile.jpeg_engines, profile.ofa_engines, (profile.memory_bytes or 0) // 2**20, profile.name),
        )
        placements = " ".join(f"{place.start}:{place.size}" for place in profile.placements)
        lines.append(f"profile.{profile.number} {' '.join(map(str, numbers))}")
        lines.append(f"placements.{profile.profile_id} {placements}")
    return lines


def _number(text: str, names: Mapping[int, str]) -> int | None:
    return next((number for number, name in names.items() if name == text), None)
