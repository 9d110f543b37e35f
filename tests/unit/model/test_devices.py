"""Devices as published: names, attributes, and the limits of the API on any machine."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.hardware.machines import load_machine, shipped_machines
from tangram.hardware.simulated import describe_machine
from tangram.model.devices import (
    PublishedDevice,
    Version,
    gpu_device_name,
    gpu_devices,
    pool_name,
    short_ids,
)
from tangram.model.gpu import Gpu, GpuUuid, Machine, NvLink
from tangram.model.links import LinkMatrix, LinkRow
from tangram.model.semver import SemVer

ALWAYS = {
    *("type", "uuid", "productName", "gpuType", "brand", "architecture", "ordinal", "index"),
    *("driverVersion", "cudaDriverVersion", "cudaComputeCapability"),
    *("migMode", "migCapable", "isolation", "healthy", "allocator"),
    *("nvlinkDomain", "nvlinkPeers", "nvlinkLinks", "fabricClique"),
}
SOMETIMES = {
    *(f"resource.kubernetes.io/{name}" for name in ("pcieRoot", "pciBusID", "numaNode")),
    *(f"nvlinkGroup{size}" for size in (2, 4, 8)),
}
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def machine(name: str, node: str = "node-1") -> Machine:
    return describe_machine(load_machine(name), node_name=node)


def check_limits(devices: tuple[PublishedDevice, ...]) -> None:
    """What the API server would refuse, and what the design promises."""
    assert len({device.name for device in devices}) == len(devices)
    for device in devices:
        assert LABEL.fullmatch(device.name)
        assert len(device.attributes) + len(device.capacity) <= 32
        assert set(device.attributes) >= ALWAYS
        assert set(device.attributes) <= ALWAYS | SOMETIMES
        for name, value in device.attributes.items():
            assert len(name.rpartition("/")[2]) <= 32
            if isinstance(value, str):
                assert len(value.encode()) <= 64
            elif isinstance(value, Version):
                assert SemVer(value.text).text == value.text
                assert len(value.text) <= 64
            else:
                assert isinstance(value, bool | int)
                assert -(2**63) <= value < 2**63
        assert all(0 <= value < 2**63 for value in device.capacity.values())


@pytest.mark.parametrize("name", shipped_machines())
def test_the_shipped_machines_keep_the_limits(name: str) -> None:
    devices = gpu_devices(machine(name), allocator="controller")
    check_limits(devices)
    assert [device.attributes["ordinal"] for device in devices] == list(range(len(devices)))
    assert len({frozenset(device.attributes) for device in devices}) == 1


def test_a_device_in_full() -> None:
    gpus = machine("a100-sxm4-80gb-x8")
    first = gpus.gpus[0]
    device = gpu_devices(gpus, allocator="scheduler", unhealthy=frozenset({first.uuid}))[0]
    assert first.pcie_root is not None
    assert first.pci_bus_id is not None
    assert first.numa_node is not None
    short = first.uuid.removeprefix("GPU-").replace("-", "")[:12]
    assert device == PublishedDevice(
        name=f"gpu-{short}",
        attributes={
            "type": "gpu",
            "uuid": first.uuid,
            "productName": "NVIDIA A100-SXM4-80GB",
            "gpuType": "A100",
            "brand": "Nvidia",
            "architecture": "Ampere",
            "driverVersion": Version("580.126.20"),
            "cudaDriverVersion": Version("13.0.0"),
            "cudaComputeCapability": Version("8.0.0"),
            "index": first.index,
            "ordinal": 0,
            "migMode": "disabled",
            "migCapable": True,
            "isolation": "hardware",
            "healthy": False,
            "allocator": "scheduler",
            "nvlinkDomain": short,
            "nvlinkPeers": 7,
            "nvlinkLinks": "sw:12",
            "nvlinkGroup2": short,
            "nvlinkGroup4": short,
            "nvlinkGroup8": short,
            "fabricClique": "none",
            "resource.kubernetes.io/pcieRoot": first.pcie_root,
            "resource.kubernetes.io/pciBusID": first.pci_bus_id,
            "resource.kubernetes.io/numaNode": first.numa_node,
        },
        capacity={"memory": 81920 * 2**20, "multiprocessors": 108, "memorySlices": 8, "computeSlices": 7},
    )


def test_the_matrix_is_rebuilt_from_the_attributes() -> None:
    gpus = machine("dgx-1v")
    devices = gpu_devices(gpus, allocator="controller")
    rows = {i: LinkRow.decode(str(device.attributes["nvlinkLinks"])) for i, device in enumerate(devices)}
    assert LinkMatrix(rows) == gpus.links()
    assert {device.attributes["nvlinkPeers"] for device in devices} == {4}
    assert len({device.attributes["nvlinkDomain"] for device in devices}) == 1
    assert "nvlinkGroup8" not in devices[0].attributes
    assert len({device.attributes["nvlinkGroup4"] for device in devices}) == 2


def test_gpus_without_links_say_none() -> None:
    for device in gpu_devices(machine("t4-x4"), allocator="controller"):
        assert device.attributes["nvlinkLinks"] == device.attributes["nvlinkDomain"] == "none"
        assert device.attributes["nvlinkPeers"] == 0
        assert not any(name.startswith("nvlinkGroup") for name in device.attributes)
        assert device.attributes["migCapable"] is False


def test_what_the_hardware_lacks_is_left_out_or_neutral() -> None:
    bare = Gpu(
        uuid=GpuUuid("GPU-8a0c1d6e-0f6c-4a1b-9d2e-5c3b7f1e2a90"), index=0, minor=0, product_name="NVIDIA GB10"
    )
    (device,) = gpu_devices(Machine(gpus=(bare,)), allocator="controller")
    check_limits((device,))
    assert set(device.attributes) == ALWAYS
    assert device.capacity == {"memorySlices": 0, "computeSlices": 0}
    assert device.attributes["driverVersion"] == Version("0.0.0")


def test_names_come_from_uuids() -> None:
    one = GpuUuid("GPU-8A0C1D6E-0f6c-4a1b-9d2e-5c3b7f1e2a90")
    two = GpuUuid("GPU-00000000-0f6c-4a1b-9d2e-5c3b7f1e2a90")
    assert short_ids([one, two]) == {one: "8a0c1d6e0f6c", two: "000000000f6c"}
    assert gpu_device_name("8a0c1d6e0f6c") == "gpu-8a0c1d6e0f6c"
    assert pool_name("gpu.resource.admin", "node-1") == "gpu.resource.admin/node-1"


def test_short_ids_that_collide_become_long() -> None:
    one = GpuUuid("GPU-8a0c1d6e-0f6c-4a1b-9d2e-5c3b7f1e2a90")
    two = GpuUuid("GPU-8a0c1d6e-0f6c-ffff-9d2e-5c3b7f1e2a90")
    three = GpuUuid("GPU-00000000-0f6c-4a1b-9d2e-5c3b7f1e2a90")
    ids = short_ids([one, two, three])
    assert ids == {
        one: "8a0c1d6e0f6c4a1b9d2e5c3b7f1e2a90",
        two: "8a0c1d6e0f6cffff9d2e5c3b7f1e2a90",
        three: "000000000f6c",
    }
    assert all(LABEL.fullmatch(gpu_device_name(short)) for short in ids.values())


def test_removing_a_gpu_renames_no_other() -> None:
    gpus = machine("a100-sxm4-80gb-x8")
    names = {device.attributes["uuid"]: device.name for device in gpu_devices(gpus, allocator="controller")}
    fewer = replace(gpus, gpus=gpus.gpus[1:])
    for device in gpu_devices(fewer, allocator="controller"):
        assert device.name == names[device.attributes["uuid"]]


uuids = st.uuids().map(lambda value: GpuUuid(f"GPU-{value}"))
texts = st.text(max_size=96)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    count = draw(st.integers(min_value=0, max_value=8))
    names = sorted(draw(st.lists(uuids, min_size=count, max_size=count, unique=True)))
    bus_ids = [f"0000:{number:02x}:00.0" for number in range(count)]
    peers = st.sampled_from([*bus_ids, "0000:ff:00.0"]).map(lambda bus_id: NvLink(peer_bus_id=bus_id))
    links = st.one_of(
        st.integers(min_value=0, max_value=18).map(lambda count: (NvLink(to_switch=True),) * count),
        st.lists(peers, max_size=18).map(tuple),
    )
    gpus: list[Gpu] = []
    for position, name in enumerate(names):
        fields: dict[str, Any] = {
            "product_name": draw(texts),
            "brand": draw(texts),
            "architecture": draw(texts),
            "compute_capability": draw(st.tuples(st.integers(0, 99), st.integers(0, 99))),
            "memory_bytes": draw(st.none() | st.integers(1, 2**45)),
            "multiprocessors": draw(st.none() | st.integers(1, 1000)),
            "pci_bus_id": draw(st.sampled_from([None, bus_ids[position]])),
            "pcie_root": draw(st.sampled_from([None, "pci0000:00"])),
            "numa_node": draw(st.none() | st.integers(0, 1023)),
            "mig_mode": draw(st.sampled_from(["enabled", "disabled", "unsupported"])),
            "nvlinks": draw(links),
            "fabric_clique": draw(st.none() | texts),
        }
        gpus.append(Gpu(uuid=name, index=position, minor=position, **fields))
    return Machine(gpus=tuple(gpus), driver_version=draw(texts), cuda_driver_version=draw(texts))


@settings(max_examples=50)
@given(machines())
def test_any_machine_keeps_the_limits(gpus: Machine) -> None:
    check_limits(gpu_devices(gpus, allocator="controller"))
