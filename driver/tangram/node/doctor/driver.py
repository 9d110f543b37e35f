"""Checks of the GPU driver: its files, its kernel module, device nodes, the GPUs, MIG, fabric and MPS."""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tangram.base.errors import TangramError
from tangram.hardware.driverfiles import driver_libraries
from tangram.hardware.driverroot import find_binary, find_library, resolve
from tangram.hardware.mps.directory import gpu_directories, mps_root, read_status, running_keeper
from tangram.hardware.mps.program import CONTROL, SERVER
from tangram.hardware.nvmldetails import GpuDetails
from tangram.model.gpu import Machine
from tangram.model.offers import switches_without_reset
from tangram.node.doctor.check import Check, fail, ok, skip, warn
from tangram.node.settings import NodeSettings
from tangram.node.sight import Gpus, Sight

_NVML = "libnvidia-ml.so.1"
_VERSION = re.compile(r"[0-9]{2,4}(?:\.[0-9]{1,4}){1,3}")
_MINOR = re.compile(r"^DeviceFileMinor:\s*([0-9]{1,7})\s*$", re.MULTILINE)
_INSTALL = (
    "install the NVIDIA driver, or set driverRoot to where it is on the host: / , or with a driver container"
    " usually /run/nvidia/driver"
)
_SIMULATED = "the GPUs are simulated"
_HEALTH = "docs/hardware.md (Health) says what it means and when it clears"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Where this process sees the host's device nodes, /proc and /sys."""

    dev: Path = Path("/dev")
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")


def visible_root(settings: NodeSettings) -> Path:
    """The driver root as this process sees it."""
    return Path(settings.driver_root_mount or settings.driver_root)


def driver_files(settings: NodeSettings) -> Iterator[Check]:
    """The driver's own libraries, which containers get."""
    root = visible_root(settings)
    if not root.is_dir():
        yield fail("driver-root", f"there is no directory {root}", fix=_INSTALL)
        return
    try:
        libraries = driver_libraries(driver_root=Path(settings.driver_root), visible_root=root)
    except TangramError as error:
        yield fail("driver-root", error.cause, fix=_INSTALL)
    else:
        yield ok("driver-root", f"{root}: {len(libraries)} names of libraries")
    library = find_library(root, _NVML)
    if library is None:
        yield fail("nvml-library", f"no {_NVML} below {root}", fix=_INSTALL)
    else:
        yield ok("nvml-library", str(library))


def kernel_module(settings: NodeSettings, roots: Roots) -> Iterator[Check]:
    """Whether the kernel has the driver's module, of the version of its libraries."""
    name = "kernel-module"
    try:
        loaded = (roots.sys / "module/nvidia/version").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        yield fail(
            name,
            "the kernel module nvidia is not loaded",
            fix="run modprobe nvidia on the host, and look at its kernel log; with the GPU Operator look at"
            " the pod of the driver",
        )
        return
    installed = _library_version(visible_root(settings))
    if not installed:
        yield skip(name, f"{loaded} is loaded; the version of the libraries is not known")
    elif installed != loaded:
        yield fail(
            name,
            f"{loaded} is loaded, and the libraries are of {installed}: NVML refuses to work",
            fix="end what uses the GPUs and load the module anew, or reboot the node",
        )
    else:
        yield ok(name, loaded)


def _library_version(root: Path) -> str:
    library = find_library(root, _NVML)
    real = resolve(root, library) if library else None
    version = real.name.removeprefix("libnvidia-ml.so.") if real else ""
    return version if _VERSION.fullmatch(version) else ""


def device_nodes(machine: Machine | None, roots: Roots) -> Iterator[Check]:
    """The device nodes that containers get, and whether they lead to the driver that is loaded now."""
    name = "device-nodes"
    majors = _majors(roots.proc)
    wanted = {"nvidiactl": "nvidia-modprobe", "nvidia-uvm": "nvidia-modprobe -u -c 0"}
    for gpu in machine.gpus if machine else ():
        wanted[f"nvidia{gpu.minor}"] = f"nvidia-modprobe -c {gpu.minor}"
    wrong = False
    for node, remedy in wanted.items():
        path = roots.dev / node
        driver = "nvidia-uvm" if node == "nvidia-uvm" else "nvidia"
        major = _major(path)
        if major is None:
            wrong = True
            yield fail(
                name,
                f"no character device {path}",
                fix=f"run {remedy} on the host; in the plugin's pod /dev must be the host's",
            )
        elif driver in majors and major not in majors[driver]:
            wrong = True
            yield fail(
                name,
                f"{path} is of device {major}, the driver has {', '.join(map(str, sorted(majors[driver])))}",
                fix=f"remove it and run {remedy} on the host: it was left by another driver or boot",
            )
    if not wrong:
        yield ok(name, f"{len(wanted)} in {roots.dev}")


def _major(path: Path) -> int | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return os.major(found.st_rdev) if stat.S_ISCHR(found.st_mode) else None


def _majors(proc: Path) -> dict[str, set[int]]:
    """Major numbers by the names of /proc/devices; `nvidia-frontend` is how older drivers say `nvidia`."""
    found: dict[str, set[int]] = {}
    try:
        text = (proc / "devices").read_text(encoding="ascii")
    except (OSError, ValueError):
        return found
    for number, name in re.findall(r"^\s*([0-9]{1,4}) (nvidia\S*)$", text, re.MULTILINE):
        found.setdefault("nvidia" if name == "nvidia-frontend" else name, set()).add(int(number))
    return found


def gpus(sight: Sight) -> Iterator[Check]:
    """What the driver says of the GPUs."""
    inventory = sight.gpus.inventory
    if inventory is None:
        yield fail("gpus", sight.gpus.problem, fix="look at the checks of the driver, and at the kernel log")
        return
    machine = inventory.machine
    for label, cause in machine.failures.items():
        yield fail(
            "gpus",
            f"{label} does not answer: {cause}",
            fix="look at the kernel log (Xid); reset or replace it",
        )
    if not machine.gpus:
        yield fail("gpus", "the driver knows no GPU", fix="lspci -d 10de: shows what the host has")
    elif not machine.failures:
        count = len(machine.gpus)
        driver = f"driver {machine.driver_version or 'of unknown version'}"
        yield ok("gpus", f"{count} GPU{'' if count == 1 else 's'}, {driver}")
    for uuid, cause in inventory.unhealthy.items():
        if uuid not in machine.failures:
            yield fail("health", f"{uuid}: {cause}", fix=_HEALTH)
    for uuid, cause in inventory.warnings.items():
        yield warn("health", f"{uuid}: {cause}", fix=_HEALTH)
    if machine.gpus and not inventory.unhealthy and not inventory.warnings:
        yield ok("health", "no GPU tells of trouble")
    for uuid, instances in inventory.foreign.items():
        yield warn(
            "foreign-mig",
            f"{uuid} has {len(instances)} MIG instances that no claim has made: it offers these alone",
            fix="remove them (nvidia-smi mig -dci, -dgi; or mig-manager) to have all placements offered",
        )


def mig(settings: NodeSettings, gpus: Gpus, roots: Roots, *, euid: int) -> Iterator[Check]:
    """What it needs to make MIG instances."""
    name = "mig"
    machine = gpus.inventory.machine if gpus.inventory else None
    concerned = [gpu for gpu in machine.gpus if gpu.mig_mode == "enabled"] if machine else []
    if settings.policy.dynamic and machine:
        concerned += [
            gpu for gpu in machine.gpus if gpu.mig_mode == "disabled" and switches_without_reset(gpu)
        ]
    if "mig" not in settings.policy.kinds or not concerned:
        yield skip(name, "no GPU offers MIG devices" if machine else "the GPUs are not known")
        return
    file = roots.proc / "driver/nvidia/capabilities/mig/config"
    try:
        minor = _MINOR.search(file.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        yield fail(
            name, f"{file} cannot be read: {error}", fix="load the NVIDIA driver; /proc must be the host's"
        )
        return
    node = roots.dev / f"nvidia-caps/nvidia-cap{minor[1] if minor else 1}"
    if _major(node) is None:
        yield fail(
            name,
            f"no character device {node}: MIG instances cannot be made",
            fix="run nvidia-modprobe -f /proc/driver/nvidia/capabilities/mig/config on the host",
        )
    elif euid != 0:
        yield warn(name, "whether MIG instances can be made is root's to know", fix="run it as root")
    else:
        yield ok(name, f"{len(concerned)} GPUs; {node} is there")


def details(machine: Machine | None, ask: Callable[[Machine], Iterable[GpuDetails]]) -> Iterator[Check]:
    """Persistence mode and fabric. `ask` raises TangramError."""
    if machine is None or not machine.gpus:
        return
    try:
        found = list(ask(machine))
    except TangramError as error:
        yield fail("persistence", error.cause, fix=error.next_step)
        return
    yield _persistence(found)
    yield _fabric(found, switched=any(link.to_switch for gpu in machine.gpus for link in gpu.nvlinks))


def _persistence(found: list[GpuDetails]) -> Check:
    name = "persistence"
    off = [one.uuid for one in found if one.persistence is False]
    if off:
        return warn(
            name,
            f"persistence mode is off on {len(off)} of {len(found)} GPUs: while nothing uses them the driver"
            " lets go of them, and to wake one up takes seconds",
            fix="run nvidia-persistenced on the host (nvidia-smi -pm 1 until the next boot)",
        )
    if all(one.persistence is None for one in found):
        return skip(name, "the driver does not tell")
    return ok(name, "persistence mode is on")


def _fabric(found: list[GpuDetails], *, switched: bool) -> Check:
    name = "fabric-manager"
    if not switched:
        return skip(name, "no NVSwitch")
    wrong = [one for one in found if one.fabric in ("waiting", "failed")]
    if wrong:
        return fail(
            name,
            f"{len(wrong)} of {len(found)} GPUs are not in their NVLink fabric ({wrong[0].fabric}): CUDA does"
            " not start on them",
            fix="look at nvidia-fabricmanager on the host (systemctl status, journalctl): it must run, in the"
            " driver's version",
        )
    if not any(one.fabric == "ready" for one in found):
        return skip(name, "these GPUs do not tell: systemctl status nvidia-fabricmanager on the host does")
    return ok(name, "all GPUs are in their NVLink fabric")


def mps(settings: NodeSettings) -> Iterator[Check]:
    """What shares by MPS need."""
    if "mps" not in settings.policy.kinds:
        yield skip("mps", "kinds has no mps")
        return
    root = mps_root(settings.kubelet_dir)
    if running_keeper(root) is None:
        yield fail(
            "mps",
            "no MPS supervisor (tangram mps run) runs on this node",
            fix="look at the pods of the DaemonSet tangram-mps on this node (mps.enabled of the chart)",
        )
    else:
        yield ok("mps", "its supervisor runs")
    if settings.simulate:
        yield skip("mps-programs", _SIMULATED)
    else:
        missing = [name for name in (CONTROL, SERVER) if find_binary(visible_root(settings), name) is None]
        if missing:
            yield fail(
                "mps-programs",
                f"no {' and no '.join(missing)} below {visible_root(settings)}",
                fix="install the MPS programs of the GPU driver (nvidia-compute-utils or the like)",
            )
        else:
            yield ok("mps-programs", f"{CONTROL}, {SERVER}")
    for directory in gpu_directories(root):
        status = read_status(directory)
        if status is not None and status.state == "failing":
            yield fail(
                "mps", f"the daemon of {status.uuid}: {status.cause}", fix="log of tangram-mps on this node"
            )


def only_simulated() -> Iterator[Check]:
    """In place of all checks of a driver."""
    yield skip("driver", _SIMULATED)
