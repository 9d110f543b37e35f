"""The driver's user-space files that a container with a GPU needs, as CDI edits.

All libraries that carry the driver's version in their names are mounted, under every name they have on the
host (`libcuda.so.580.126.20`, `libcuda.so.1`, `libcuda.so`), and a hook puts their directory into the
container's ld.so.cache: `nvidia-cdi-hook update-ldcache` where it is installed, else our own script.
"""

import os
import re
from importlib import resources
from pathlib import Path

from tangram.base.atomicfile import state_error, write_atomically
from tangram.base.errors import DriverUnavailableError
from tangram.hardware.cdi import CdiEdits, Hook, Mount
from tangram.hardware.driverroot import find_binary, find_library, is_file, resolve

_SCRIPT = "update-ldcache.sh"
_VERSION = re.compile(r"[0-9]{2,4}(?:\.[0-9]{1,4}){1,3}")
_PROGRAMS = ("nvidia-smi",)
_CDI_HOOK_DIRECTORIES = ("usr/bin", "usr/local/bin", "usr/local/nvidia/toolkit")


def driver_edits(*, driver_root: Path, ldcache_script: Path, visible_root: Path | None = None) -> CdiEdits:
    """Mounts and hooks for the driver below `driver_root` (a path on the host).

    `visible_root` is where this process sees that directory (default: at the same path), `ldcache_script` the
    host's path of `install_ldcache_script`. DriverUnavailableError where no driver is installed there: a
    container without its libraries would start and fail later for no visible reason.
    """
    visible_root = visible_root or driver_root
    directory, version = _library_directory(visible_root, driver_root)
    files = [*_libraries(visible_root, directory, version), *_programs(visible_root)]
    return CdiEdits(
        mounts=tuple(
            Mount(
                host_path=str(driver_root / real.relative_to(visible_root)),
                container_path=str(Path("/") / name.relative_to(visible_root)),
            )
            for name, real in files
        ),
        hooks=(
            _ldcache_hook(
                driver_root,
                visible_root,
                ldcache_script,
                directory=str(Path("/") / directory.relative_to(visible_root)),
            ),
        ),
    )


def driver_libraries(*, driver_root: Path, visible_root: Path) -> list[tuple[Path, Path]]:
    """(name, file) of the driver's own libraries, both as this process sees them, sorted.

    DriverUnavailableError where no driver is installed there.
    """
    directory, version = _library_directory(visible_root, driver_root)
    return _libraries(visible_root, directory, version)


def install_ldcache_script(directory: Path) -> Path:
    """Puts our hook script into a directory that the host sees at the same path; returns its path.

    StateError where the file system refuses.
    """
    path = directory / _SCRIPT
    data = resources.files(__package__).joinpath(_SCRIPT).read_bytes()
    try:
        current = path.read_bytes()
    except FileNotFoundError:
        current = b""
    except OSError as error:
        raise state_error(error, path, "cannot be read") from error
    if current != data:
        write_atomically(path, data, mode=0o755)
    return path


def _library_directory(visible_root: Path, driver_root: Path) -> tuple[Path, str]:
    """The directory of libcuda, and the driver's version in the name of its file."""
    library = find_library(visible_root, "libcuda.so.1") or find_library(visible_root, "libcuda.so.*.*")
    if library is None:
        raise DriverUnavailableError(
            f"no libcuda.so.1 below the driver root {driver_root}",
            next_step="wait for the driver to be installed, or correct the driver root",
        )
    real = resolve(visible_root, library) or library
    version = real.name.removeprefix("libcuda.so.")
    if not _VERSION.fullmatch(version):
        raise DriverUnavailableError(
            f"{library} is not the file of a driver package: no version in its name",
            next_step="point the driver root at an installation of the NVIDIA driver",
        )
    return library.parent, version


def _libraries(visible_root: Path, directory: Path, version: str) -> list[tuple[Path, Path]]:
    """(name, file) of all libraries of this driver version in the directory, links included, sorted."""
    suffix = f".so.{version}"
    resolved = resolve(visible_root, directory) or directory
    found = []
    with os.scandir(resolved) as entries:
        for entry in entries:
            if ".so" not in entry.name or not (entry.is_symlink() or entry.name.endswith(suffix)):
                continue
            real = resolve(visible_root, directory / entry.name)
            if real and real.name.endswith(suffix) and real.parent == resolved and real.is_file():
                found.append((directory / entry.name, real))
    return sorted(found)


def _programs(visible_root: Path) -> list[tuple[Path, Path]]:
    """(name, file) of each."""
    found = (find_binary(visible_root, name) for name in _PROGRAMS)
    return [(path, real) for path in found if path is not None and (real := resolve(visible_root, path))]


def _ldcache_hook(driver_root: Path, visible_root: Path, ldcache_script: Path, *, directory: str) -> Hook:
    for place in _CDI_HOOK_DIRECTORIES:
        program = visible_root / place / "nvidia-cdi-hook"
        if is_file(visible_root, program) and (real := resolve(visible_root, program)):
            return Hook(
                path=str(driver_root / real.relative_to(visible_root)),
                args=("nvidia-cdi-hook", "update-ldcache", "--folder", directory),
            )
    # Through the shell, so that the directory of the script may be mounted noexec.
    return Hook(path="/bin/sh", args=("sh", str(ldcache_script), directory))
