"""PCI addresses and what sysfs says of them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.hardware.pci import BUS_ID, PciTree, normalize_bus_id


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:07:00.0", "0000:07:00.0"),
        ("00000000:0F:00.0", "0000:0f:00.0"),
        ("0000:bd:00.0", "0000:bd:00.0"),
        ("00000001:00:00.0", "0001:00:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("  00000000:07:00.0\n", "0000:07:00.0"),
        ("0000:00:00.0", None),  # integrated GPUs
        ("", None),
        ("N/A", None),
        ("07:00.0", None),
        ("0000:07:00.0/../..", None),
        ("ffffffff:ff:ff.f", "ffffffff:ff:ff.f"),
    ],
)
def test_bus_ids_are_written_as_sysfs_does(text: str, expected: str | None) -> None:
    assert normalize_bus_id(text) == expected


@given(st.text(max_size=24))
def test_what_comes_out_is_a_bus_id(text: str) -> None:
    result = normalize_bus_id(text)
    assert result is None or BUS_ID.fullmatch(result)


def device(root: Path, below: str, bus_id: str, numa_node: str | None) -> None:
    place = root / "devices" / below / bus_id
    place.mkdir(parents=True)
    if numa_node is not None:
        (place / "numa_node").write_text(numa_node)
    devices = root / "bus/pci/devices"
    devices.mkdir(parents=True, exist_ok=True)
    (devices / bus_id).symlink_to(Path("../../../devices") / below / bus_id)


def test_root_and_numa_node(tmp_path: Path) -> None:
    device(tmp_path, "pci0000:40/0000:40:01.1/0000:45:00.0/0000:46:00.0", "0000:47:00.0", "1\n")
    device(tmp_path, "pci0000:80", "0000:87:00.0", "-1\n")
    device(tmp_path, "platform/soc/141a0000.pcie/pci0005:00/0005:00:00.0", "0005:01:00.0", None)
    device(tmp_path, "virtual", "0000:01:00.0", "no number")
    tree = PciTree(tmp_path)
    assert (tree.pcie_root("0000:47:00.0"), tree.numa_node("0000:47:00.0")) == ("pci0000:40", 1)
    assert (tree.pcie_root("0000:87:00.0"), tree.numa_node("0000:87:00.0")) == ("pci0000:80", None)
    assert (tree.pcie_root("0005:01:00.0"), tree.numa_node("0005:01:00.0")) == ("pci0005:00", None)
    assert (tree.pcie_root("0000:01:00.0"), tree.numa_node("0000:01:00.0")) == (None, None)


def test_a_sysfs_without_the_device_says_nothing(tmp_path: Path) -> None:
    tree = PciTree(tmp_path)
    for bus_id in ("0000:47:00.0", "..", "", "0000:47:00.0/x"):
        assert tree.pcie_root(bus_id) is None
        assert tree.numa_node(bus_id) is None


def test_a_dangling_or_circular_link_says_nothing(tmp_path: Path) -> None:
    devices = tmp_path / "bus/pci/devices"
    devices.mkdir(parents=True)
    (devices / "0000:01:00.0").symlink_to("nowhere")
    (devices / "0000:02:00.0").symlink_to("0000:02:00.0")
    tree = PciTree(tmp_path)
    assert tree.pcie_root("0000:01:00.0") is None
    assert tree.pcie_root("0000:02:00.0") is None
    assert tree.numa_node("0000:02:00.0") is None
