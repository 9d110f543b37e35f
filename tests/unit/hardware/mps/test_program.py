"""Where the MPS programs are, for each way in which the GPU driver is installed (P42)."""

import os
from pathlib import Path

import pytest

from tangram.base.errors import DriverUnavailableError
from tangram.hardware.mps.program import driver_program, simulated_program

VERSION = "580.126.20"


def install(
    root: Path, *, libraries: str, programs: str, server: bool = True, version: str = VERSION
) -> None:
    directory = root / libraries
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("libcuda", "libnvidia-ml"):
        (directory / f"{name}.so.{version}").write_text(name)
        link = directory / f"{name}.so.1"
        link.unlink(missing_ok=True)
        link.symlink_to(f"{name}.so.{version}")
    (directory / "libc.so.6").write_text("the host's C library")
    (root / programs).mkdir(parents=True, exist_ok=True)
    for name in ("nvidia-cuda-mps-control", *(["nvidia-cuda-mps-server"] if server else [])):
        (root / programs / name).write_text("")


@pytest.mark.parametrize(
    ("driver_root", "libraries", "programs"),
    [
        ("/", "usr/lib/x86_64-linux-gnu", "usr/bin"),
        ("/run/nvidia/driver", "usr/lib64", "usr/bin"),
        ("/home/kubernetes/bin/nvidia", "lib64", "bin"),
    ],
)
@pytest.mark.parametrize("mounted", [False, True])
def test_p42_each_layout(
    tmp_path: Path, driver_root: str, libraries: str, programs: str, mounted: bool
) -> None:
    """No shell and no chroot: the file itself, with the driver's libraries and no other of that root."""
    root = tmp_path / ("driver-root" if mounted else driver_root.strip("/") or "root")
    install(root, libraries=libraries, programs=programs)
    program = driver_program(driver_root=Path(driver_root), visible_root=root, links=tmp_path / "links")
    assert program.command == (str(root / programs / "nvidia-cuda-mps-control"),)
    assert program.environment == {
        "PATH": str(root / programs),
        "LD_LIBRARY_PATH": str(tmp_path / "links"),
    }
    links = {name: os.readlink(tmp_path / "links" / name) for name in os.listdir(tmp_path / "links")}
    assert links == {
        name: str(root / libraries / f"{name.partition('.')[0]}.so.{VERSION}")
        for stem in ("libcuda", "libnvidia-ml")
        for name in (f"{stem}.so.1", f"{stem}.so.{VERSION}")
    }


def test_links_follow_an_update_of_the_driver(tmp_path: Path) -> None:
    for version in (VERSION, "590.1.2"):
        install(tmp_path / "root", libraries="usr/lib64", programs="usr/bin", version=version)
        driver_program(driver_root=Path("/"), visible_root=tmp_path / "root", links=tmp_path / "links")
    assert os.readlink(tmp_path / "links/libcuda.so.1").endswith("libcuda.so.590.1.2")
    assert not (tmp_path / "links" / f"libcuda.so.{VERSION}").is_symlink()


def test_a_driver_without_its_server_is_refused_by_name(tmp_path: Path) -> None:
    install(tmp_path, libraries="usr/lib64", programs="usr/bin", server=False)
    with pytest.raises(DriverUnavailableError, match="no nvidia-cuda-mps-server below the driver root /x"):
        driver_program(driver_root=Path("/x"), visible_root=tmp_path, links=tmp_path / "links")


def test_no_driver_at_all(tmp_path: Path) -> None:
    with pytest.raises(DriverUnavailableError, match=r"no libcuda\.so\.1"):
        driver_program(driver_root=Path("/"), visible_root=tmp_path, links=tmp_path / "links")


def test_a_directory_of_that_name_is_no_program(tmp_path: Path) -> None:
    """As a bind mount of a file that is not there leaves it."""
    install(tmp_path, libraries="usr/lib64", programs="usr/bin")
    (tmp_path / "usr/bin/nvidia-cuda-mps-control").unlink()
    (tmp_path / "usr/bin/nvidia-cuda-mps-control").mkdir()
    with pytest.raises(DriverUnavailableError, match="nvidia-cuda-mps-control"):
        driver_program(driver_root=Path("/"), visible_root=tmp_path, links=tmp_path / "links")


def test_the_simulation_is_a_file_of_this_package() -> None:
    assert Path(simulated_program().command[-1]).is_file()
