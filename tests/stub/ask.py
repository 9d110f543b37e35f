"""Run in a process of its own: what NvmlBackend finds below a driver root, as JSON on standard output.

Usage: ask.py DRIVER_ROOT SYSFS_ROOT [UUID…]; the UUIDs are probed after the discovery.
"""

import json
import sys
from pathlib import Path

import msgspec

from tangram.base.errors import HardwareError
from tangram.hardware.nvml import NvmlBackend
from tangram.model.gpu import GpuUuid


def main() -> None:
    driver_root, sysfs_root, *uuids = sys.argv[1:]
    backend = NvmlBackend(driver_root=Path(driver_root), sysfs_root=Path(sysfs_root))
    answer: dict[str, object] = {}
    try:
        backend.open()
        answer["machine"] = msgspec.to_builtins(backend.discover())
        answer["probes"] = {uuid: _probe(backend, GpuUuid(uuid)) for uuid in uuids}
        backend.close()
    except HardwareError as error:
        answer["error"] = [type(error).__name__, error.cause, error.next_step]
    sys.stdout.write(json.dumps(answer))


def _probe(backend: NvmlBackend, uuid: GpuUuid) -> str:
    try:
        backend.probe(uuid)
    except HardwareError as error:
        return type(error).__name__
    return "answers"


if __name__ == "__main__":
    main()
