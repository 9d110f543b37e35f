"""The device nodes that give a container one MIG instance: capabilities of the NVIDIA kernel driver.

`<proc>/driver/nvidia/capabilities/gpu<minor>/mig/gi<G>[/ci<C>]/access` tells their minor numbers, and
`<proc>/devices` the major number (MIG user guide, "Device nodes and capabilities").
"""

import re
from pathlib import Path

from tangram.base.errors import DriverUnavailableError, HardwareError
from tangram.hardware.backend import DeviceNode

_MINOR = re.compile(r"^DeviceFileMinor:\s*([0-9]{1,7})\s*$", re.MULTILINE)
_MAJOR = re.compile(r"^\s*([0-9]{1,4}) nvidia-caps$", re.MULTILINE)


def mig_nodes(
    proc_root: Path, *, gpu_minor: int, gpu_instance_id: int, compute_instance_id: int
) -> tuple[DeviceNode, ...]:
    """Those of the GPU instance and of the compute instance in it, and no more: none to configure or monitor.

    DriverUnavailableError where the driver tells no capabilities at all, HardwareError where not these.
    """
    major = _major(proc_root)
    instance = proc_root / f"driver/nvidia/capabilities/gpu{gpu_minor}/mig/gi{gpu_instance_id}"
    minors = (_minor(instance / "access"), _minor(instance / f"ci{compute_instance_id}/access"))
    return tuple(
        DeviceNode(path=f"/dev/nvidia-caps/nvidia-cap{minor}", major=major, minor=minor) for minor in minors
    )


def _major(proc_root: Path) -> int:
    path = proc_root / "devices"
    try:
        found = _MAJOR.search(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise DriverUnavailableError(
            f"{path} cannot be read: {error}", next_step="mount /proc of the host into this process"
        ) from error
    if found is None:
        raise DriverUnavailableError(
            f"no nvidia-caps in {path}", next_step="load the NVIDIA driver; MIG needs its capabilities"
        )
    return int(found[1])


def _minor(path: Path) -> int:
    try:
        found = _MINOR.search(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise HardwareError(
            f"{path} cannot be read: {error}",
            next_step="look whether the instance is there (nvidia-smi mig -lci), and for /proc/driver/nvidia",
        ) from error
    if found is None:
        raise HardwareError(f"no DeviceFileMinor in {path}", next_step="report this as a bug")
    return int(found[1])
