"""The program `nvidia-cuda-mps-control`, wherever the GPU driver is installed, or its simulation.

It is run directly: no shell and no chroot, which a driver container need not have. LD_LIBRARY_PATH names a
private directory of links to the driver's own libraries; the directory they lie in would bring the host's C
library into a process that runs with this container's.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tangram.base.atomicfile import state_error
from tangram.base.errors import DriverUnavailableError
from tangram.hardware.driverfiles import driver_libraries
from tangram.hardware.driverroot import find_binary, resolve
from tangram.hardware.mps import simulated

CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsProgram:
    """How the program is started: `command` alone is the client of a daemon's control interface.

    `environment` is all it gets but the variables of MPS itself.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def driver_program(*, driver_root: Path, visible_root: Path, links: Path) -> MpsProgram:
    """The driver's program below `driver_root`, which this process sees at `visible_root`.

    `links` is a directory for the links to its libraries; they are made anew each time. Raises
    DriverUnavailableError where the driver, or its MPS, is not installed there, StateError.
    """
    libraries = driver_libraries(driver_root=driver_root, visible_root=visible_root)
    for name in (CONTROL, SERVER):
        found = find_binary(visible_root, name)
        if found is None or (real := resolve(visible_root, found)) is None:
            raise DriverUnavailableError(
                f"no {name} below the driver root {driver_root}",
                next_step="install the MPS programs of the GPU driver, or correct the driver root",
            )
        if name == CONTROL:
            control = real
    _link(links, {name.name: real for name, real in libraries})
    return MpsProgram(
        command=(str(control),),
        environment={"PATH": str(control.parent), "LD_LIBRARY_PATH": str(links)},
    )


def simulated_program() -> MpsProgram:
    """The simulation, run by this Python without anything but its standard library."""
    return MpsProgram(command=(sys.executable, "-I", "-S", str(Path(simulated.__file__))))


def _link(directory: Path, targets: Mapping[str, Path]) -> None:
    """Makes the directory hold exactly these links: a driver that was updated leaves none of the old ones."""
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        for name in set(os.listdir(directory)) - set(targets):
            (directory / name).unlink()
        for name, target in targets.items():
            link = directory / name
            if not link.is_symlink() or os.readlink(link) != str(target):
                temporary = directory / f".{name}.tmp"
                temporary.unlink(missing_ok=True)
                temporary.symlink_to(target)
                temporary.replace(link)
    except OSError as error:
        raise state_error(error, directory, "cannot be filled") from error
