"""PCI addresses, and what sysfs knows of a PCI device that NVML does not say."""

import re
from pathlib import Path

BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
"""A PCI address as sysfs and the attribute `resource.kubernetes.io/pciBusID` write it: `0000:07:00.0`."""
PCIE_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
"""A PCIe root complex as sysfs and the attribute `resource.kubernetes.io/pcieRoot` write it: `pci0000:00`."""


def normalize_bus_id(text: str) -> str | None:
    """The sysfs form (lower case, domain of four digits) of NVML's `00000000:07:00.0`.

    None for anything else, and for the all-zero address that integrated GPUs report in place of one. A domain
    above ffff keeps its digits, as in sysfs.
    """
    lower = text.strip().lower()
    if not BUS_ID.fullmatch(lower):
        return None
    domain, rest = lower.split(":", 1)
    if int(domain, 16) == 0 and rest == "00:00.0":
        return None
    return f"{int(domain, 16):04x}:{rest}"


class PciTree:
    """Reads sysfs below `sysfs_root`. Answers None where sysfs is absent, unreadable or says nothing."""

    def __init__(self, sysfs_root: Path = Path("/sys")) -> None:
        self._devices = sysfs_root / "bus/pci/devices"

    def pcie_root(self, bus_id: str) -> str | None:
        """The PCIe root complex, `pci<domain>:<bus>`: the attribute `resource.kubernetes.io/pcieRoot`.

        It is the first component of that form on the device's resolved path, which on some platforms lies
        below other components (`/sys/devices/platform/…/pci0005:00/…`).
        """
        if not BUS_ID.fullmatch(bus_id):
            return None
        try:
            path = (self._devices / bus_id).resolve(strict=True)
        except (OSError, RuntimeError):
            return None
        return next((part for part in path.parts if PCIE_ROOT.fullmatch(part)), None)

    def numa_node(self, bus_id: str) -> int | None:
        """The NUMA node next to the device; None where the firmware names none (sysfs: -1)."""
        if not BUS_ID.fullmatch(bus_id):
            return None
        try:
            node = int((self._devices / bus_id / "numa_node").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None
