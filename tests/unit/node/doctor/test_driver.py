"""Each check of the GPU driver: passing, and failing with what mends it."""

import fcntl
import os
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.hardware.mps.support import GPU as MPS_GPU
from tests.unit.model.boards import instance, machine
from tests.unit.node.doctor.test_local import results, text

from tangram.base.errors import GpuLostError
from tangram.hardware.mps.directory import mps_root
from tangram.hardware.mps.values import MpsStatus, directory_name, encode
from tangram.hardware.nvmldetails import GpuDetails
from tangram.model.gpu import GpuUuid, Machine
from tangram.node.doctor import driver
from tangram.node.doctor.driver import Roots
from tangram.node.inventory import Inventory, Policy
from tangram.node.settings import NodeSettings
from tangram.node.sight import Gpus, Sight

VERSION = "580.126.20"


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """A host with the driver loaded, and all device nodes."""
    made = Roots(dev=tmp_path / "dev", proc=tmp_path / "proc", sys=tmp_path / "sys")
    (made.sys / "module/nvidia").mkdir(parents=True)
    (made.sys / "module/nvidia/version").write_text(f"{VERSION}\n")
    made.proc.mkdir()
    (made.proc / "devices").write_text("Character devices:\n195 nvidia\n509 nvidia-uvm\n510 nvidia-caps\n")
    return made


@pytest.fixture
def node(tmp_path: Path) -> NodeSettings:
    """With a driver installed below its root."""
    library = tmp_path / "root/usr/lib64"
    library.mkdir(parents=True)
    for name in ("libnvidia-ml", "libcuda"):
        (library / f"{name}.so.{VERSION}").write_text("")
        (library / f"{name}.so.1").symlink_to(f"{name}.so.{VERSION}")
    return NodeSettings(
        node_name="n",
        kubelet_dir=str(tmp_path / "kubelet"),
        driver_root="/run/nvidia/driver",
        driver_root_mount=str(tmp_path / "root"),
        kinds="gpu,mig,mps,timeslice",
    )


class Devices:
    """Device nodes, which only root could make."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, roots: Roots) -> None:
        self.majors = {"nvidiactl": 195, "nvidia-uvm": 509}
        known = Path.stat

        def stat_of(path: Path, **how: Any) -> Any:
            name = str(path).removeprefix(f"{roots.dev}/")
            if name in self.majors:
                return SimpleNamespace(st_mode=stat.S_IFCHR, st_rdev=os.makedev(self.majors[name], 0))
            return known(path, **how)

        monkeypatch.setattr(Path, "stat", stat_of)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch, roots: Roots) -> Devices:
    return Devices(monkeypatch, roots)


def sight(of: Machine, **more: Any) -> Sight:
    return Sight(gpus=Gpus(inventory=Inventory(machine=of, **more)))


class TestFiles:
    def test_well(self, node: NodeSettings) -> None:
        assert results(driver.driver_files(node)) == {"driver-root": "ok", "nvml-library": "ok"}

    def test_a_driver_that_is_installed_in_part(self, node: NodeSettings, tmp_path: Path) -> None:
        (tmp_path / "root/usr/lib64/libcuda.so.1").unlink()
        (tmp_path / f"root/usr/lib64/libcuda.so.{VERSION}").unlink()
        assert results(driver.driver_files(node)) == {"driver-root": "fail", "nvml-library": "ok"}
        (tmp_path / "root/usr/lib64/libnvidia-ml.so.1").unlink()
        (tmp_path / "root/usr/lib64/libnvidia-ml.so.1").mkdir()  # as a failed bind mount leaves it (P60)
        assert results(driver.driver_files(node)) == {"driver-root": "fail", "nvml-library": "fail"}

    def test_no_directory(self) -> None:
        node = NodeSettings(node_name="n", driver_root="/no/such/root")
        found = list(driver.driver_files(node))
        assert results(found) == {"driver-root": "fail"}
        assert text(found) == "fail: there is no directory /no/such/root"


class TestKernelModule:
    def test_well(self, node: NodeSettings, roots: Roots) -> None:
        assert results(driver.kernel_module(node, roots)) == {"kernel-module": "ok"}

    def test_not_loaded(self, node: NodeSettings, roots: Roots) -> None:
        (roots.sys / "module/nvidia/version").unlink()
        assert results(driver.kernel_module(node, roots)) == {"kernel-module": "fail"}

    def test_of_another_version_than_its_libraries(self, node: NodeSettings, roots: Roots) -> None:
        (roots.sys / "module/nvidia/version").write_text("570.86.15\n")
        found = list(driver.kernel_module(node, roots))
        assert results(found) == {"kernel-module": "fail"}
        assert f"570.86.15 is loaded, and the libraries are of {VERSION}" in text(found)

    def test_libraries_that_tell_no_version(self, node: NodeSettings, roots: Roots, tmp_path: Path) -> None:
        (tmp_path / "root/usr/lib64/libnvidia-ml.so.1").unlink()
        assert results(driver.kernel_module(node, roots)) == {"kernel-module": "skip"}


class TestDeviceNodes:
    def test_well(self, roots: Roots, devices: Devices) -> None:
        of = machine("t4-x4")
        devices.majors |= {f"nvidia{gpu.minor}": 195 for gpu in of.gpus}
        found = list(driver.device_nodes(of, roots))
        assert (results(found), text(found)) == ({"device-nodes": "ok"}, f"ok: 6 in {roots.dev}")

    @pytest.mark.parametrize("missing", ["nvidiactl", "nvidia-uvm", "nvidia2"])
    def test_p56_one_is_missing(self, roots: Roots, devices: Devices, missing: str) -> None:
        of = machine("t4-x4")
        devices.majors |= {f"nvidia{gpu.minor}": 195 for gpu in of.gpus}
        del devices.majors[missing]
        (check,) = driver.device_nodes(of, roots)
        assert (check.result, check.text) == ("fail", f"no character device {roots.dev}/{missing}")
        assert "nvidia-modprobe" in check.fix

    def test_p57_one_is_of_a_driver_before(self, roots: Roots, devices: Devices) -> None:
        devices.majors = {"nvidiactl": 195, "nvidia-uvm": 508}
        found = list(driver.device_nodes(None, roots))
        assert text(found) == f"fail: {roots.dev}/nvidia-uvm is of device 508, the driver has 509"

    def test_names_of_older_drivers(self, roots: Roots, devices: Devices) -> None:
        (roots.proc / "devices").write_text("195 nvidia-frontend\n")
        devices.majors = {"nvidiactl": 195, "nvidia-uvm": 508}
        assert results(driver.device_nodes(None, roots)) == {"device-nodes": "ok"}
        (roots.proc / "devices").unlink()
        assert results(driver.device_nodes(None, roots)) == {"device-nodes": "ok"}


class TestGpus:
    def test_well(self) -> None:
        assert results(driver.gpus(sight(machine("t4-x4")))) == {"gpus": "ok", "health": "ok"}

    def test_not_well(self) -> None:
        of = machine("t4-x4")
        ill, warned = of.gpus[0].uuid, of.gpus[1].uuid
        found = list(
            driver.gpus(
                sight(
                    replace(of, failures={"index 4": "GPU is lost"}),
                    unhealthy={ill: "XID 79"},
                    warnings={warned: "1 of 6 NVLinks are down"},
                )
            )
        )
        assert text(found).splitlines() == [
            "fail: index 4 does not answer: GPU is lost",
            f"fail: {ill}: XID 79",
            f"warn: {warned}: 1 of 6 NVLinks are down",
        ]
        results(found)

    def test_none(self) -> None:
        assert results(driver.gpus(sight(Machine(gpus=())))) == {"gpus": "fail"}
        unknown = Sight(gpus=Gpus(problem="system: open did not return within 30 s"))
        assert "did not return" in text(driver.gpus(unknown))
        assert results(driver.gpus(unknown)) == {"gpus": "fail"}

    def test_foreign_instances(self) -> None:
        of = machine("a100-sxm4-80gb-x8", mode="enabled")
        seen = sight(of, policy=Policy(kinds=("mig",)), foreign={of.gpus[0].uuid: (instance(9, 0),)})
        assert results(driver.gpus(seen))["foreign-mig"] == "warn"


class TestMig:
    def of(self, node: NodeSettings, roots: Roots, *, mode: Any = "enabled", euid: int = 0) -> dict[str, str]:
        gpus = Gpus(inventory=Inventory(machine=machine("h100-sxm5-80gb-x8", mode=mode)))
        return results(driver.mig(node, gpus, roots, euid=euid))

    def capability(self, roots: Roots, text: str = "DeviceFileMinor: 1\nDeviceFileMode: 256\n") -> None:
        directory = roots.proc / "driver/nvidia/capabilities/mig"
        directory.mkdir(parents=True)
        (directory / "config").write_text(text)

    def test_well(self, node: NodeSettings, roots: Roots, devices: Devices) -> None:
        self.capability(roots)
        devices.majors = {"nvidia-caps/nvidia-cap1": 510}
        assert self.of(node, roots) == {"mig": "ok"}
        assert self.of(node, roots, euid=1000) == {"mig": "warn"}

    def test_without_the_capability_or_its_node(self, node: NodeSettings, roots: Roots) -> None:
        assert self.of(node, roots) == {"mig": "fail"}
        self.capability(roots)
        assert self.of(node, roots) == {"mig": "fail"}

    def test_where_it_does_not_matter(self, node: NodeSettings, roots: Roots) -> None:
        assert self.of(node, roots, mode="disabled") == {"mig": "skip"}
        assert results(driver.mig(node, Gpus(problem="hangs"), roots, euid=0)) == {"mig": "skip"}

    def test_a_mode_that_can_be_switched_matters(self, tmp_path: Path, roots: Roots) -> None:
        node = NodeSettings(node_name="n", kinds="gpu,mig", mig_mode="dynamic")
        assert self.of(node, roots, mode="disabled") == {"mig": "fail"}


class TestDetails:
    def of(self, name: str, **details: Any) -> dict[str, str]:
        of = machine(name)
        return results(
            driver.details(of, lambda of: [GpuDetails(uuid=gpu.uuid, **details) for gpu in of.gpus])
        )

    @pytest.mark.parametrize(("mode", "result"), [(True, "ok"), (False, "warn"), (None, "skip")])
    def test_persistence(self, mode: bool | None, result: str) -> None:
        assert self.of("t4-x4", persistence=mode) == {"persistence": result, "fabric-manager": "skip"}

    @pytest.mark.parametrize(
        ("fabric", "result"),
        [("ready", "ok"), ("waiting", "fail"), ("failed", "fail"), ("none", "skip"), (None, "skip")],
    )
    def test_the_fabric_of_machines_with_a_switch(self, fabric: Any, result: str) -> None:
        assert self.of("h100-sxm5-80gb-x8", fabric=fabric)["fabric-manager"] == result

    def test_a_lost_gpu(self) -> None:
        def lost(_: Machine) -> list[GpuDetails]:
            raise GpuLostError("GPU is lost", uuid="u", next_step="reset it")

        assert results(driver.details(machine("t4-x4"), lost)) == {"persistence": "fail"}
        assert results(driver.details(None, lost)) == {}


class TestMps:
    def test_without_a_supervisor_and_programs(self, node: NodeSettings) -> None:
        assert results(driver.mps(node)) == {"mps": "fail", "mps-programs": "fail"}

    def test_programs(self, node: NodeSettings, tmp_path: Path) -> None:
        binaries = tmp_path / "root/usr/bin"
        binaries.mkdir(parents=True)
        (binaries / "nvidia-cuda-mps-control").write_text("")
        found = list(driver.mps(node))
        assert "no nvidia-cuda-mps-server below " in text(found)
        (binaries / "nvidia-cuda-mps-server").write_text("")
        assert results(driver.mps(node))["mps-programs"] == "ok"

    def test_the_supervisor_and_its_daemons(self, node: NodeSettings) -> None:
        root = mps_root(node.kubelet_dir)
        directory = root / directory_name(GpuUuid(MPS_GPU))
        (directory / "claims").mkdir(parents=True)
        status = MpsStatus(uuid=MPS_GPU, state="failing", keeper="k", cause="the server ended")
        (directory / "status.json").write_bytes(encode(status))
        with (root / "keeper.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write("k")
            lock.flush()
            checks = [check for check in driver.mps(node) if check.name == "mps"]
        assert text(checks) == f"ok: its supervisor runs\nfail: the daemon of {MPS_GPU}: the server ended"

    def test_where_nobody_shares(self) -> None:
        assert results(driver.mps(NodeSettings(node_name="n"))) == {"mps": "skip"}


def test_only_simulated() -> None:
    assert results(driver.only_simulated()) == {"driver": "skip"}
