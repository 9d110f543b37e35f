"""On a machine with a GPU: what NvmlBackend finds is what nvidia-smi says. It only reads.

Without a GPU these tests are skipped; what reads nvidia-smi's text is tested anywhere.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pynvml
import pytest

from tangram.base.errors import HardwareError
from tangram.hardware.machines import parse_machine
from tangram.hardware.nvml import NvmlBackend
from tangram.hardware.pci import normalize_bus_id
from tangram.hardware.recording import as_yaml, record
from tangram.hardware.simulated import describe_machine
from tangram.model.gpu import Gpu, Machine

FIELDS = (
    "index",
    "uuid",
    "name",
    "pci.bus_id",
    "memory.total",
    "driver_version",
    "compute_cap",
    "mig.mode.current",
    "compute_mode",
)
QUERY = """\
0, GPU-8a0c1d6e, NVIDIA H200, 00000000:19:00.0, 143771, 580.95.05, 9.0, Disabled, Default
1, GPU-9b0c1d6e, NVIDIA GB10, 0000000F:01:00.0, [N/A], 580.95.05, 12.1, [N/A], Default
"""
PROFILES = """\
+-------------------------------------------------------------------------------+
| GPU instance profiles:                                                        |
| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |
|                                Free/Total   GiB              CE    JPEG  OFA  |
|===============================================================================|
|   0  MIG 1g.18gb         19     7/7        16.00      No     16     1     0   |
|                                                               1     1     0   |
+-------------------------------------------------------------------------------+
|   0  MIG 1g.18gb+me      20     1/1        16.00      No     16     1     0   |
|                                                               1     1     1   |
+-------------------------------------------------------------------------------+
"""
TOPOLOGY = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tPIX\t0-47\t0\t\tN/A
GPU1\tNV18\t X \tSYS\t48-95\t1\t\tN/A
NIC0\tPIX\tSYS\t X \t\t\t

Legend:
  NV#  = Connection traversing a bonded set of # NVLinks
"""
PLACEMENTS = """\
GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1
GPU  0 Profile ID  0 Placement : {0}:8
"""
DETAILS = """\
==============NVSMI LOG==============

Driver Version                            : 580.95.05
CUDA Version                              : 13.0

Attached GPUs                             : 1
GPU 00000000:19:00.0
    Product Name                          : NVIDIA H200
    Product Architecture                  : Hopper
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    GPU UUID                              : GPU-8a0c1d6e
    Minor Number                          : 3
    Sparse Operation Mode                 : N/A
    FB Memory Usage
        Total                             : 143771 MiB
    Processes                             : None
"""
_PLACEMENT = re.compile(r"GPU\s+(\d+) Profile ID\s+(\d+) Placements?\s*:\s*\{([\d,]+)\}:(\d+)")
_PROFILE = re.compile(
    r"\|\s+(?P<gpu>\d+)\s+MIG (?P<name>\S+)\s+(?P<id>\d+)\s+\d+/(?P<total>\d+)\s+[\d.]+\s+(?:No|Yes)"
    r"\s+(?P<sm>\d+)\s+(?P<dec>\d+)\s+(?P<enc>\d+)\s+\|\n\|\s+(?P<ce>\d+)\s+(?P<jpeg>\d+)\s+(?P<ofa>\d+)\s+\|"
)


def queried(text: str) -> list[dict[str, str]]:
    """The answer of `--query-gpu`, one for each GPU; what does not apply is empty."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return [
        {field: "" if cell.startswith("[") else cell for field, cell in zip(FIELDS, row, strict=True)}
        for row in rows
    ]


def profiles(text: str) -> dict[int, list[tuple[str, int, int, int, int, int, int, int, int]]]:
    """The answer of `mig -lgip`: index of the GPU → name, id, instances, SM, then the engines as printed."""
    found: dict[int, list[tuple[str, int, int, int, int, int, int, int, int]]] = {}
    for match in _PROFILE.finditer(text):
        numbers = [int(match[key]) for key in ("id", "total", "sm", "dec", "enc", "ce", "jpeg", "ofa")]
        row = (match["name"], *numbers)
        found.setdefault(int(match["gpu"]), []).append(row)  # type: ignore[arg-type]  # nine of them
    return found


def placements(text: str) -> dict[int, dict[int, set[tuple[int, int]]]]:
    """The answer of `mig -lgipp`: index of the GPU → number of the profile → (start, size)."""
    found: dict[int, dict[int, set[tuple[int, int]]]] = {}
    for gpu, profile, starts, size in _PLACEMENT.findall(text):
        places = {(int(start), int(size)) for start in starts.split(",")}
        found.setdefault(int(gpu), {})[int(profile)] = places
    return found


def details(text: str) -> dict[str, dict[str, str]]:
    """The answer of `-q`: UUID of the GPU → what is told of it, as `MIG Mode/Current`; without `N/A`."""
    gpus: list[dict[str, str]] = []
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        if line.startswith("GPU "):
            gpus.append({})
        elif gpus and line.strip():
            depth = len(line) - len(line.lstrip())
            name, _, value = (part.strip() for part in line.partition(" : "))
            path = [each for each in path if each[0] < depth] + [(depth, name)]
            if value and value != "N/A":
                gpus[-1]["/".join(each for _, each in path)] = value
    return {gpu["GPU UUID"]: gpu for gpu in gpus}


def nvlinks(text: str) -> dict[tuple[int, int], int]:
    """The answer of `topo -m`: pairs of indices with as many NVLinks between them."""
    found = {}
    for line in text.splitlines():
        name, *cells = line.split("\t")
        if row := re.fullmatch(r"GPU(\d+)", name.strip()):
            for column, cell in enumerate(cells):
                if links := re.fullmatch(r"NV(\d+)", cell.strip()):
                    found[int(row[1]), column] = int(links[1])
    return found


def test_the_text_of_nvidia_smi_is_read() -> None:
    first, second = queried(QUERY)
    assert (first["name"], first["memory.total"]) == ("NVIDIA H200", "143771")
    assert (second["memory.total"], second["mig.mode.current"]) == ("", "")
    assert profiles(PROFILES) == {
        0: [("1g.18gb", 19, 7, 16, 1, 0, 1, 1, 0), ("1g.18gb+me", 20, 1, 16, 1, 0, 1, 1, 1)]
    }
    assert placements(PLACEMENTS) == {0: {19: {(start, 1) for start in range(7)}, 0: {(0, 8)}}}
    assert details(DETAILS) == {
        "GPU-8a0c1d6e": {
            "Product Name": "NVIDIA H200",
            "Product Architecture": "Hopper",
            "MIG Mode/Current": "Disabled",
            "MIG Mode/Pending": "Disabled",
            "GPU UUID": "GPU-8a0c1d6e",
            "Minor Number": "3",
            "FB Memory Usage/Total": "143771 MiB",
            "Processes": "None",
        }
    }
    assert nvlinks(TOPOLOGY) == {(0, 1): 18, (1, 0): 18}


def nvidia_smi(*words: str) -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        pytest.skip("no GPU here: no nvidia-smi")
    finished = subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=120)
    if finished.returncode != 0:
        pytest.skip(f"no GPU here, or not for this: {finished.stdout.strip() or finished.stderr.strip()}")
    return finished.stdout


@pytest.fixture(scope="module")
def smi() -> list[dict[str, str]]:
    return queried(nvidia_smi(f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"))


@pytest.fixture(scope="module")
def backend(smi: list[dict[str, str]]) -> Iterator[NvmlBackend]:
    before = pynvml.nvmlLib
    backend = NvmlBackend(driver_root=Path("/"))
    try:
        backend.open()
    except HardwareError as error:
        pytest.skip(f"no GPU here: {error}")
    yield backend
    backend.close()
    pynvml.nvmlLib = before


@pytest.fixture(scope="module")
def machine(backend: NvmlBackend) -> Machine:
    return backend.discover()


def by_index(machine: Machine) -> dict[int, Gpu]:
    return {gpu.index: gpu for gpu in machine.gpus}


def test_discovery_is_what_nvidia_smi_says(
    machine: Machine, backend: NvmlBackend, smi: list[dict[str, str]]
) -> None:
    assert machine.failures == {}
    assert set(by_index(machine)) == {int(row["index"]) for row in smi}
    for row in smi:
        gpu = by_index(machine)[int(row["index"])]
        assert gpu.uuid == row["uuid"]
        assert gpu.product_name == row["name"]
        assert gpu.pci_bus_id == normalize_bus_id(row["pci.bus_id"])
        assert machine.driver_version == row["driver_version"]
        assert ".".join(map(str, gpu.compute_capability)) == row["compute_cap"]
        assert gpu.mig_mode == (row["mig.mode.current"].lower() or "unsupported")
        told = None if gpu.memory_bytes is None else str(gpu.memory_bytes // 2**20)
        assert told == (row["memory.total"] or None)
        assert backend.compute_mode(gpu.uuid) == row["compute_mode"].lower()


def test_profiles_of_mig_are_what_nvidia_smi_says(machine: Machine) -> None:
    for index, rows in profiles(nvidia_smi("mig", "-lgip")).items():
        found = {
            (
                *(profile.name, profile.profile_id, profile.max_instances, profile.multiprocessors or 0),
                *(profile.decoders, profile.encoders, profile.copy_engines, profile.jpeg_engines),
                profile.ofa_engines,
            )
            for profile in by_index(machine)[index].mig_profiles
        }
        assert found == set(rows)


def test_placements_of_mig_are_what_nvidia_smi_says(machine: Machine) -> None:
    for index, profiles_told in placements(nvidia_smi("mig", "-lgipp")).items():
        found = {
            profile.profile_id: {(place.start, place.size) for place in profile.placements}
            for profile in by_index(machine)[index].mig_profiles
        }
        assert found == profiles_told


def test_details_are_what_nvidia_smi_says(machine: Machine, backend: NvmlBackend) -> None:
    told = details(nvidia_smi("-q"))
    assert set(told) == {gpu.uuid for gpu in machine.gpus}
    for gpu in machine.gpus:
        own = told[gpu.uuid]
        assert gpu.product_name == own["Product Name"]
        assert gpu.architecture.split()[0].lower() == own["Product Architecture"].split()[0].lower()
        assert gpu.minor == int(own["Minor Number"])
        assert gpu.pci_bus_id == normalize_bus_id(own["PCI/Bus Id"])
        assert gpu.mig_mode == own.get("MIG Mode/Current", "unsupported").lower()
        if gpu.mig_mode != "unsupported":
            pending = own["MIG Mode/Pending"] == "Enabled"
            assert backend.mig_modes(gpu.uuid).pending is pending
        if gpu.memory_bytes is not None:
            assert f"{gpu.memory_bytes // 2**20} MiB" == own["FB Memory Usage/Total"]


def test_a_recording_of_this_machine_plays_back_what_was_found(machine: Machine) -> None:
    text = as_yaml(record(machine))
    replayed = describe_machine(parse_machine(text.encode(), source="recorded"), node_name="another-node")
    for found, played in zip(machine.gpus, replayed.gpus, strict=True):
        assert (played.uuid, played.index, played.minor) == (found.uuid, found.index, found.minor)
        assert (played.product_name, played.mig_mode) == (found.product_name, found.mig_mode)
        assert (played.nvlinks, played.mig_profiles) == (found.nvlinks, found.mig_profiles)


def test_links_are_what_nvidia_smi_says(machine: Machine) -> None:
    ordinals = {gpu.index: ordinal for ordinal, gpu in enumerate(machine.gpus)}
    matrix = machine.links()
    told = nvlinks(nvidia_smi("topo", "-m"))
    for (one, here), (other, there) in permutations(ordinals.items(), 2):
        assert matrix.links(here, there) == told.get((one, other), 0)


def test_health_and_use_are_told(machine: Machine, backend: NvmlBackend) -> None:
    for gpu in machine.gpus:
        backend.health(gpu.uuid)
        backend.processes(gpu.uuid)
        used_bytes = backend.used_memory_bytes(gpu.uuid)
        assert (used_bytes is None) == (gpu.memory_bytes is None)
        if gpu.mig_mode != "unsupported":
            assert backend.mig_modes(gpu.uuid).current == (gpu.mig_mode == "enabled")
            backend.gpu_instances(gpu.uuid)
    backend.watch([gpu.uuid for gpu in machine.gpus])
    assert backend.next_event(timeout_s=0.01) is None
