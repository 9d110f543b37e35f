"""Finding the driver below its root, and what of it a container gets."""

import contextlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.hardware.test_nvml import one_gpu

from tangram.base.errors import DriverUnavailableError, StateError
from tangram.hardware.cdi import Hook
from tangram.hardware.driverfiles import driver_edits, install_ldcache_script
from tangram.hardware.driverroot import find_binary, find_library, resolve
from tangram.hardware.nvml import NvmlBackend
from tangram.hardware.nvmlcalls import load_library

VERSION = "580.126.20"
SCRIPT = Path("/var/lib/kubelet/plugins/gpu.resource.admin/hooks/update-ldcache.sh")
LAYOUTS = {
    "a Debian host": "usr/lib/x86_64-linux-gnu",
    "a Red Hat host": "usr/lib64",
    "an arm64 host": "usr/lib/aarch64-linux-gnu",
    "a driver directory": "lib64",
}


def install_driver(root: Path, directory: str, version: str = VERSION) -> Path:
    """A driver's user space as its installer leaves it."""
    libraries = root / directory
    libraries.mkdir(parents=True)
    for name in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"):
        (libraries / f"{name}.so.{version}").write_text(name)
        (libraries / f"{name}.so.1").symlink_to(f"{name}.so.{version}")
    (libraries / "libcuda.so").symlink_to("libcuda.so.1")
    (libraries / "libc.so.6").write_text("not the driver's")
    (libraries / "libm.so").symlink_to("libc.so.6")
    (libraries / f"libnvidia-old.so.{version}.bak").write_text("")
    (libraries / "libnvidia-cfg.so.470.57.02").write_text("of another version")
    programs = root / "usr/bin"
    programs.mkdir(parents=True)
    (programs / "nvidia-smi").write_text("")
    return libraries


_NAMES = st.sampled_from(["b", "a/c", "d", "a/e"])
_TARGETS = st.lists(
    st.sampled_from(["..", ".", "a", "b", "c", "d", "e", "file", "secret"]), min_size=1
).flatmap(lambda parts: st.sampled_from(["/".join(parts), "/" + "/".join(parts)]))


@pytest.mark.parametrize("directory", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_the_libraries_are_mounted_under_all_their_names(tmp_path: Path, directory: str) -> None:
    install_driver(tmp_path, directory)
    edits = driver_edits(driver_root=Path("/run/nvidia/driver"), visible_root=tmp_path, ldcache_script=SCRIPT)
    mounts = {mount.container_path: mount.host_path for mount in edits.mounts}
    host = f"/run/nvidia/driver/{directory}"
    assert mounts == {
        f"/{directory}/libcuda.so": f"{host}/libcuda.so.{VERSION}",
        f"/{directory}/libcuda.so.1": f"{host}/libcuda.so.{VERSION}",
        f"/{directory}/libcuda.so.{VERSION}": f"{host}/libcuda.so.{VERSION}",
        f"/{directory}/libnvidia-ml.so.1": f"{host}/libnvidia-ml.so.{VERSION}",
        f"/{directory}/libnvidia-ml.so.{VERSION}": f"{host}/libnvidia-ml.so.{VERSION}",
        f"/{directory}/libnvidia-ptxjitcompiler.so.1": f"{host}/libnvidia-ptxjitcompiler.so.{VERSION}",
        f"/{directory}/libnvidia-ptxjitcompiler.so.{VERSION}": (
            f"{host}/libnvidia-ptxjitcompiler.so.{VERSION}"
        ),
        "/usr/bin/nvidia-smi": "/run/nvidia/driver/usr/bin/nvidia-smi",
    }
    assert all("ro" in mount.options for mount in edits.mounts)
    assert edits.hooks == (Hook(path="/bin/sh", args=("sh", str(SCRIPT), f"/{directory}")),)


@pytest.mark.parametrize("place", ["usr/bin", "usr/local/nvidia/toolkit"])
def test_nvidias_hook_is_used_where_it_is_installed(tmp_path: Path, place: str) -> None:
    install_driver(tmp_path, "usr/lib64")
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    (tmp_path / place / "nvidia-cdi-hook").write_text("")
    (hook,) = driver_edits(driver_root=tmp_path, ldcache_script=SCRIPT).hooks
    assert hook.path == f"{tmp_path}/{place}/nvidia-cdi-hook"
    assert hook.args == ("nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib64")
    assert hook.env  # else it would inherit the container's


def test_p56_without_a_driver_there_is_no_container(tmp_path: Path) -> None:
    with pytest.raises(DriverUnavailableError, match=r"no libcuda\.so\.1 below the driver root"):
        driver_edits(driver_root=tmp_path, ldcache_script=SCRIPT)


def test_a_library_without_a_version_is_no_driver_package(tmp_path: Path) -> None:
    # Its directory may hold any number of files that end in `.so.1`.
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libcuda.so.1").write_text("")
    with pytest.raises(DriverUnavailableError, match="no version in its name"):
        driver_edits(driver_root=tmp_path, ldcache_script=SCRIPT)


def test_links_that_lead_elsewhere_are_left_out(tmp_path: Path) -> None:
    libraries = install_driver(tmp_path / "root", "usr/lib64")
    elsewhere = tmp_path / f"libevil.so.{VERSION}"
    elsewhere.write_text("")
    (libraries / "libevil.so.1").symlink_to(elsewhere)
    (libraries / "libdangling.so.1").symlink_to("nowhere")
    (libraries / "libloop.so.1").symlink_to("libloop.so.1")
    (libraries / f"libdir.so.{VERSION}").mkdir()
    edits = driver_edits(driver_root=tmp_path / "root", ldcache_script=SCRIPT)
    assert not [
        m for m in edits.mounts if any(w in m.container_path for w in ("evil", "dangl", "loop", "dir."))
    ]
    assert len(edits.mounts) == 8


def test_absolute_links_stay_below_the_driver_root(tmp_path: Path) -> None:
    """As in a driver container whose /lib64 is a link to /usr/lib64: the host's directory is another one."""
    root = tmp_path / "root"
    install_driver(root, "opt/driver/lib")
    (root / "usr/lib64").symlink_to("/opt/driver/lib")
    smi = root / "usr/bin/nvidia-smi"
    smi.rename(root / "opt/driver/nvidia-smi")
    smi.symlink_to("/../opt/driver/nvidia-smi")
    (root / "usr/bin/nvidia-cdi-hook").symlink_to("/opt/hook")
    (root / "opt/hook").write_text("")
    (root / "opt/driver/lib/libcuda.so.1").unlink()
    (root / "opt/driver/lib/libcuda.so.1").symlink_to(f"/opt/driver/lib/libcuda.so.{VERSION}")
    edits = driver_edits(driver_root=Path("/run/nvidia/driver"), visible_root=root, ldcache_script=SCRIPT)
    mounts = {mount.container_path: mount.host_path for mount in edits.mounts}
    assert mounts["/usr/lib64/libcuda.so.1"] == f"/run/nvidia/driver/opt/driver/lib/libcuda.so.{VERSION}"
    assert mounts["/usr/bin/nvidia-smi"] == "/run/nvidia/driver/opt/driver/nvidia-smi"
    assert len(mounts) == 8
    assert [hook.path for hook in edits.hooks] == ["/run/nvidia/driver/opt/hook"]


@given(st.lists(st.tuples(_NAMES, _TARGETS), max_size=8), _TARGETS)
def test_no_link_leads_out_of_the_driver_root(
    tmp_path_factory: pytest.TempPathFactory, links: list[tuple[str, str]], path: str
) -> None:
    base = tmp_path_factory.mktemp("links")
    root = base / "root"
    (root / "a").mkdir(parents=True)
    (root / "a/file").write_text("")
    (base / "secret").write_text("")
    for name, target in links:
        with contextlib.suppress(OSError):
            (root / name).symlink_to(target)
    found = resolve(root, root / path.lstrip("/"))
    if found is not None:
        assert found.exists()
        assert found == Path(os.path.realpath(found))
        assert found.is_relative_to(root)


def test_p60_directories_are_not_libraries(tmp_path: Path) -> None:
    (tmp_path / "usr/lib64/libnvidia-ml.so.1").mkdir(parents=True)
    assert find_library(tmp_path, "libnvidia-ml.so.1") is None
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64/libnvidia-ml.so.1").write_text("")
    assert find_library(tmp_path, "libnvidia-ml.so.1") == tmp_path / "lib64/libnvidia-ml.so.1"
    assert find_binary(tmp_path, "nvidia-smi") is None
    assert find_library(tmp_path / "nowhere", "libcuda.so.1") is None


# --- loading NVML


def test_a_driver_root_without_nvml_says_so(tmp_path: Path) -> None:
    with pytest.raises(DriverUnavailableError, match=r"no libnvidia-ml\.so\.1 below the driver root"):
        load_library(tmp_path)


def test_a_library_that_cannot_be_loaded_says_so(tmp_path: Path) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libnvidia-ml.so.1").write_text("no ELF")
    with pytest.raises(DriverUnavailableError, match="cannot be loaded"):
        load_library(tmp_path)


def test_a_host_without_a_driver_is_a_state() -> None:
    if find_library(Path("/"), "libnvidia-ml.so.1"):
        pytest.skip("this machine has a driver")
    assert pynvml.nvmlLib is None
    with pytest.raises(DriverUnavailableError, match="NVML Shared Library Not Found"):
        NvmlBackend(driver_root=Path("/")).open()


LIBRARY = """
    #include <string.h>
    int nvmlInitWithFlags(unsigned flags) { return 0; }
    int nvmlShutdown(void) { return 0; }
    int nvmlSystemGetDriverVersion(char *text, unsigned length) { strncpy(text, "%s", length); return 0; }
    int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13020; return 0; }
    int nvmlDeviceGetCount_v2(unsigned *count) { *count = 0; return 0; }
"""
PROGRAM = """
    import sys
    from pathlib import Path
    from tangram.hardware.nvml import NvmlBackend
    backend = NvmlBackend(driver_root=Path(sys.argv[1]))
    backend.open()
    machine = backend.discover()
    backend.close()
    print(machine.driver_version, machine.cuda_driver_version, len(machine.gpus))
"""


def test_the_library_of_the_driver_root_is_the_one_in_use(tmp_path: Path) -> None:
    """A real shared object, found by the real loader."""
    directory = tmp_path / "driver/usr/lib64"
    directory.mkdir(parents=True)
    source = tmp_path / "nvml.c"
    source.write_text(LIBRARY % VERSION)
    library = directory / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(source)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("no C compiler")
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path / "driver")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout.split() == [VERSION, "13.2", "0"]


# --- device nodes of real GPUs


def test_nodes_that_exist_are_handed_out(tmp_path: Path) -> None:
    backend = NvmlBackend(driver_root=Path("/"), device_root=tmp_path)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0"):
        (tmp_path / name).symlink_to("/dev/null")
    gpu = one_gpu().gpus[0]
    (node,) = backend.device_nodes(gpu)
    assert (node.path, node.host_path, node.major, node.minor) == ("/dev/nvidia0", None, None, None)
    control = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert [node.path for node in backend.control_nodes()] == control
    (tmp_path / "nvidia-modeset").symlink_to("/dev/null")
    assert [node.path for node in backend.control_nodes()] == [*control, "/dev/nvidia-modeset"]


@pytest.mark.parametrize("missing", ["nvidiactl", "nvidia-uvm", "nvidia0"])
def test_p56_a_missing_node_is_told_with_its_remedy(tmp_path: Path, missing: str) -> None:
    backend = NvmlBackend(driver_root=Path("/"), device_root=tmp_path)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0"):
        if name != missing:
            (tmp_path / name).symlink_to("/dev/null")
    (tmp_path / missing).write_text("a file, no device")
    with pytest.raises(DriverUnavailableError, match=missing) as raised:
        backend.device_nodes(one_gpu().gpus[0]) if missing == "nvidia0" else backend.control_nodes()
    assert "nvidia-modprobe" in raised.value.next_step


# --- our hook


def test_the_script_is_installed_once_and_mended(tmp_path: Path) -> None:
    path = install_ldcache_script(tmp_path / "hooks")
    assert path == tmp_path / "hooks/update-ldcache.sh"
    assert path.stat().st_mode & 0o777 == 0o755
    inode = path.stat().st_ino
    content = path.read_bytes()
    install_ldcache_script(tmp_path / "hooks")
    assert path.stat().st_ino == inode
    path.write_bytes(b"#!/bin/sh\nevil")
    install_ldcache_script(tmp_path / "hooks")
    assert path.read_bytes() == content


def test_a_directory_that_refuses_the_script(tmp_path: Path) -> None:
    (tmp_path / "hooks").write_text("a file")
    with pytest.raises(StateError, match=r"hooks/update-ldcache\.sh"):
        install_ldcache_script(tmp_path / "hooks")
