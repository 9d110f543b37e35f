"""`tangram node status` and `drain-gpu` without a plugin: files and hardware, errors, exit codes."""

import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest
import structlog
import yaml
from tests.stub import nvmlstub

from tangram.cli.main import main
from tangram.hardware.machines import load_machine
from tangram.hardware.simulated import describe_machine
from tangram.model.gpu import GpuUuid
from tangram.node.held import HeldClaim, HeldDevice, HeldShare
from tangram.node.heldstore import HeldStore

DRIVER = Path(__file__).parents[3] / "driver"
MACHINE = "t4-x4"
GPUS = [gpu.uuid for gpu in sorted(
    describe_machine(load_machine(MACHINE), node_name="node-1").gpus, key=lambda gpu: gpu.index
)]  # fmt: skip
UID = "00000000-0000-4000-8000-00000000000"
NO_DEADLINE = (
    "import sys\nfrom tangram.hardware.workers import Workers\n"
    "Workers.__init__.__kwdefaults__.update(system_deadline_s=0.5, gpu_deadline_s=0.5)\n"
    "from tangram.cli.main import main\nsys.exit(main(sys.argv[1:]))"
)

needs_compiler = pytest.mark.skipif(nvmlstub.COMPILER is None, reason=nvmlstub.NO_COMPILER)
Capture = pytest.CaptureFixture[str]


class NodeOnDisk:
    """A node without a plugin process, and the commands run against it."""

    def __init__(self, root: Path, capture: Capture) -> None:
        self.root, self._capture = root, capture
        self.directory = root / "plugins" / "gpu.resource.admin"
        self.store = HeldStore(self.directory / "claims")
        self.store.create()

    def hold(self, number: int, uuid: str, **more: Any) -> HeldClaim:
        fields: dict[str, Any] = {
            "pool": "gpu.resource.admin/node-1",
            "device": f"gpu-{uuid[4:12]}{uuid[13:17]}",
            "uuid": uuid,
            "request_names": ("gpu",),
        }
        device = HeldDevice(**fields | more.pop("device", {}))
        claim = HeldClaim(
            **{"namespace": "ns", "name": f"claim-{number}", "uid": f"{UID}{number}"}
            | {"boot_id": "b", "phase": "prepared", "devices": (device,)}
            | more
        )
        self.store.write(claim)
        return claim

    def flags(self) -> list[str]:
        return ["--node-name", "node-1", "--kubelet-dir", str(self.root)]

    def run(self, *words: str, simulate: str = MACHINE) -> tuple[int, str, str]:
        """Exit code and what it printed."""
        more = ["--simulate", simulate] if simulate else []
        code = main(["node", *words, *self.flags(), *more])
        out, err = self._capture.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    def status(self, **how: Any) -> dict[str, Any]:
        _, out, _ = self.run("status", "-o", "json", **how)
        found: dict[str, Any] = json.loads(out)
        assert (found["apiVersion"], found["kind"]) == ("tangram/v1alpha1", "NodeStatus")
        return found


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """The commands silence the logs of their process."""
    config, root = structlog.get_config(), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.configure(**config)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("TANGRAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))


@pytest.fixture
def node(capsys: Capture) -> Iterator[NodeOnDisk]:
    # The path of a socket is short: pytest's own directories are not.
    with tempfile.TemporaryDirectory(prefix="tg") as name:
        yield NodeOnDisk(Path(name), capsys)


class TestStatus:
    def test_held_files_are_the_truth_while_the_plugin_is_dead(self, node: NodeOnDisk) -> None:
        node.hold(1, GPUS[0])
        share = HeldShare(memory_bytes=2**30, replicas=1)
        node.hold(2, GPUS[1], phase="unpreparing", device={"kind": "timeslice", "share": share})
        node.hold(3, GPUS[0], device={"admin_access": True})
        code, out, err = node.run("status")
        assert (code, err) == (3, "")
        assert out.startswith(
            "node node-1: 4 GPUs, simulated, driver 580.126.20, CUDA 13.0\nnode plugin: not running\n"
        )
        lines = [line.strip() for line in out.splitlines()]
        first = next(index for index, line in enumerate(lines) if GPUS[0] in line)
        assert lines[first].endswith("healthy")
        assert lines[first + 1] == f"whole (gpu-{GPUS[0][4:12]}{GPUS[0][13:17]}) held by claim ns/claim-1"
        assert lines[first + 2] == "looked at by claim ns/claim-3"
        assert f"time-slice (gpu-{GPUS[1][4:12]}{GPUS[1][13:17]}, 1Gi, 1 replica) held" in out
        assert "held by claim ns/claim-2, unpreparing" in out
        assert "problem: the node plugin does not run\n   next: " in out
        assert "note: pods and published devices are not known: " in out

    def test_who_has_how_much_by_mps(self, node: NodeOnDisk) -> None:
        share = HeldShare(memory_bytes=3 * 2**29, cores=40)
        node.hold(1, GPUS[0], device={"kind": "mps", "share": share})
        _, out, _ = node.run("status")
        assert f"MPS (gpu-{GPUS[0][4:12]}{GPUS[0][13:17]}, 1.5Gi, 40 percent) held" in out

    def test_for_programs(self, node: NodeOnDisk) -> None:
        node.hold(1, GPUS[0])
        found = node.status()
        assert [gpu["index"] for gpu in found["gpus"]] == [0, 1, 2, 3]
        first = found["gpus"][0]
        assert (first["uuid"], first["state"], first["offers"]) == (
            GPUS[0],
            "healthy",
            {"gpu": 1, "timeslice": 1},
        )
        assert first["holders"][0] == {
            "namespace": "ns", "name": "claim-1", "uid": f"{UID}1", "phase": "prepared", "kind": "gpu",
            "device": first["holders"][0]["device"], "share": None, "adminAccess": False, "pods": None,
        }  # fmt: skip
        assert found["plugin"] == {"state": "not running", "waitingFor": []}
        _, text, _ = node.run("status", "-o", "yaml")
        assert yaml.safe_load(text) == found

    def test_a_held_gpu_that_the_driver_does_not_know(self, node: NodeOnDisk) -> None:
        other = "GPU-99999999-0000-4000-8000-000000000001"
        node.hold(1, other)
        last = node.status()["gpus"][-1]
        assert (last["uuid"], last["state"], last["index"]) == (other, "gone", None)
        assert last["holders"][0]["name"] == "claim-1"

    def test_without_any_driver_what_is_held_is_told(self, node: NodeOnDisk, tmp_path: Path) -> None:
        node.hold(1, GPUS[0])
        (tmp_path / "empty").mkdir()
        code, out, _ = node.run("status", "--driver-root", str(tmp_path / "empty"), simulate="")
        assert code == 3
        assert "unknown: no libnvidia-ml.so.1 below the driver root" in out
        assert "held by claim ns/claim-1" in out

    def test_damaged_and_set_aside_files_are_named(self, node: NodeOnDisk) -> None:
        path = node.directory / "claims" / f"{UID}1.json"
        path.write_text("{")
        (node.directory / "claims" / f"{UID}2.json.set-aside-1").write_text("{")
        before = sorted(path.parent.iterdir())
        _, out, _ = node.run("status")
        assert f"problem: the held file of claim uid {UID}1 cannot be used: " in out
        assert f"note: {node.directory}/claims/{UID}2.json.set-aside-1 is a held file" in out
        assert sorted(path.parent.iterdir()) == before
        assert path.read_text() == "{"

    def test_where_no_plugin_has_ever_run(self, tmp_path: Path, capsys: Capture) -> None:
        words = ["--node-name", "n", "--kubelet-dir", str(tmp_path / "k"), "--simulate", MACHINE]
        assert main(["node", "status", *words]) == 3
        assert "problem: no node plugin has run here: there is no " in capsys.readouterr().out
        assert not (tmp_path / "k").exists()

    def test_what_others_wrote_cannot_steer_the_terminal(self, node: NodeOnDisk) -> None:
        node.hold(1, GPUS[0], name="claim\x1b[2J\u202e")
        _, out, _ = node.run("status")
        assert "claim ns/claim\\x1b[2J\\u202e" in out

    def test_a_plugin_that_listens_and_does_not_answer(self, node: NodeOnDisk) -> None:
        with socket.socket(socket.AF_UNIX) as server, socket.socket() as http:
            server.bind(str(node.directory / "dra.sock"))
            server.listen()
            http.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{http.getsockname()[1]}"  # nobody listens there
            code, out, _ = node.run("status", "--metrics-address", address)
        assert code == 3
        assert "node plugin: not answering\n" in out
        code, out, _ = node.run("status")
        assert "node plugin: not running\n" in out  # its socket is left over

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            (["--simulate", "no-such-machine"], "simulate: "),
            (["--kinds", "gpus"], "flag --kinds: expected kinds"),
            (["--node-name", "A B"], "expected a node name"),
            (["--config", "/no/such/file"], "settings file /no/such/file"),
        ],
    )
    def test_bad_settings(self, capsys: Capture, words: list[str], text: str) -> None:
        assert main(["node", "status", "--node-name", "n", *words]) == 2
        assert text in capsys.readouterr().err

    def test_bad_usage(self, capsys: Capture) -> None:
        for words in (["-o", "xml"], ["--replicas", "4"], ["GPU-1"]):
            with pytest.raises(SystemExit) as ended:
                main(["node", "status", "--node-name", "n", *words])
            assert ended.value.code == 2
            assert "next: " in capsys.readouterr().err

    def test_what_should_not_be_is_told_in_a_sentence(
        self, node: NodeOnDisk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object) -> None:
            raise RuntimeError("boom")

        monkeypatch.setattr("tangram.node.sight.look_at_files", broken)
        code, out, err = node.run("status")
        assert (code, out) == (1, "")
        assert err.startswith("error: internal error: RuntimeError('boom') at ")

    def test_health_as_the_hardware_tells_it(self, node: NodeOnDisk, tmp_path: Path) -> None:
        machine = tmp_path / "machine.yaml"
        with_faults(machine, [{"call": "*", "target": GPUS[1], "error": "GPU_IS_LOST", "times": "always"}])
        found = node.status(simulate=str(machine))
        states = {gpu["uuid"]: gpu["state"] for gpu in found["gpus"]}
        assert states == {GPUS[0]: "healthy", GPUS[1]: "unhealthy", GPUS[2]: "healthy", GPUS[3]: "healthy"}

    @pytest.mark.parametrize("call", ["open", "discover"])
    def test_simulated_hardware_that_hangs(self, node: NodeOnDisk, tmp_path: Path, call: str) -> None:
        node.hold(1, GPUS[0])
        machine = tmp_path / "machine.yaml"
        with_faults(machine, [{"call": call, "error": "HANG", "times": "always"}])
        finished = in_a_process("status", *node.flags(), "--simulate", str(machine))
        assert (finished.returncode, finished.stderr) == (3, "")
        assert f"unknown: system: {call} did not return within 0.5 s" in finished.stdout
        assert "held by claim ns/claim-1" in finished.stdout

    @needs_compiler
    def test_a_real_library_that_hangs(self, node: NodeOnDisk, tmp_path: Path, library: Path) -> None:
        node.hold(1, GPUS[0])
        machine = describe_machine(load_machine(MACHINE), node_name="node-1")
        hang: nvmlstub.Errors = {None: {"nvmlDeviceGetCount_v2": nvmlstub.HANG}}
        root = nvmlstub.install(tmp_path / "root", library, machine, errors=hang)
        finished = in_a_process("status", *node.flags(), "--driver-root", str(root))
        assert (finished.returncode, finished.stderr) == (3, "")
        assert "discover did not return within 0.5 s" in finished.stdout
        assert "held by claim ns/claim-1" in finished.stdout

    @needs_compiler
    def test_a_real_library_with_a_lost_gpu(self, node: NodeOnDisk, tmp_path: Path, library: Path) -> None:
        machine = describe_machine(load_machine(MACHINE), node_name="node-1")
        lost: nvmlstub.Errors = {2: {"*": pynvml.NVML_ERROR_GPU_IS_LOST}}
        root = nvmlstub.install(tmp_path / "root", library, machine, errors=lost)
        finished = in_a_process("status", *node.flags(), "--driver-root", str(root))
        assert finished.returncode == 3
        # No device nodes on this machine: the plugin could hand out none of these GPUs.
        assert "problem: the GPUs cannot be looked at: no character device " in finished.stdout


class TestDrain:
    def test_drained_and_given_back(self, node: NodeOnDisk) -> None:
        node.hold(1, GPUS[1])
        code, out, err = node.run("drain-gpu", GPUS[1].upper(), "--reason", " fan is broken ")
        assert (code, err) == (3, "")  # no plugin runs that could publish it
        first, second, *rest = out.splitlines()
        assert first.startswith(f"GPU {GPUS[1]} is drained since 2")
        assert first.endswith(": fan is broken")
        assert second.startswith("the node plugin does not run: no new claim gets it once it has started")
        assert rest[0] == "still held; delete the pods to free it:"
        assert "held by claim ns/claim-1" in rest[1]
        gpu = node.status()["gpus"][1]
        assert (gpu["state"], gpu["drained"]["reason"]) == ("drained", "fan is broken")
        code, out, _ = node.run("drain-gpu", GPUS[1], "--undo")
        assert (code, out.splitlines()[0]) == (3, f"GPU {GPUS[1]} is given back")
        assert node.status()["gpus"][1]["drained"] is None

    def test_repeated(self, node: NodeOnDisk) -> None:
        def drained(*words: str) -> dict[str, Any]:
            _, out, _ = node.run("drain-gpu", GPUS[0], "-o", "json", *words)
            found: dict[str, Any] = json.loads(out)
            assert (found["kind"], found["uuid"], found["outcome"]) == ("GpuDrain", GPUS[0], "not running")
            return found["drained"] or {}

        first = drained("--reason", "one")
        assert drained() == first
        assert drained("--reason", "two") == {"since": first["since"], "reason": "two"}
        assert drained("--undo") == {}
        assert drained("--undo") == {}
        assert node.run("drain-gpu", GPUS[0], "--undo")[1].startswith(f"GPU {GPUS[0]} was not drained\n")

    @pytest.mark.parametrize(
        ("named", "text"),
        [
            ("0", "0 is an index"),
            ("MIG-1b0b6f0c-0000-4000-8000-000000000000", "is a MIG device; a GPU is drained as a whole"),
            ("gpu-c3bffa548b31", "no GPU of this node has the UUID 'gpu-c3bffa548b31'"),
            ("GPU-1\x1b[2J", "UUID 'GPU-1\\x1b[2J'"),
            ("", "no GPU of this node has the UUID ''"),
            ("../../etc/passwd", "no GPU of this node has the UUID '../../etc/passwd'"),
        ],
    )
    def test_what_names_no_gpu_lists_those_there_are(self, node: NodeOnDisk, named: str, text: str) -> None:
        code, out, err = node.run("drain-gpu", named)
        assert (code, out) == (2, "")
        assert text in err
        for index, uuid in enumerate(GPUS):
            assert f"\n  {uuid}  index {index}, Tesla T4\n" in err
        assert not (node.directory / "drained").exists()

    def test_a_lost_gpu_is_known_by_what_holds_it(self, node: NodeOnDisk) -> None:
        lost = GpuUuid("GPU-99999999-0000-4000-8000-000000000001")
        node.hold(1, lost)
        code, out, _ = node.run("drain-gpu", lost)
        assert (code, out.startswith(f"GPU {lost} is drained")) == (3, True)

    def test_without_a_driver_and_anything_held(self, node: NodeOnDisk, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        code, out, err = node.run("drain-gpu", GPUS[0], "--driver-root", str(tmp_path / "empty"), simulate="")
        assert (code, out) == (1, "")
        assert "which GPUs this node has cannot be told: no libnvidia-ml.so.1" in err

    @pytest.mark.parametrize("reason", ["a\nb", "x" * 257, "\x1b[2J"])
    def test_a_reason_is_a_line(self, node: NodeOnDisk, reason: str) -> None:
        code, _, err = node.run("drain-gpu", GPUS[0], "--reason", reason)
        assert code == 2
        assert "--reason is not a line" in err
        assert not (node.directory / "drained").exists()

    def test_where_no_plugin_has_ever_run(self, tmp_path: Path, capsys: Capture) -> None:
        words = ["--node-name", "n", "--kubelet-dir", str(tmp_path / "k"), "--simulate", MACHINE]
        assert main(["node", "drain-gpu", GPUS[0], *words]) == 1
        assert "no node plugin has run here" in capsys.readouterr().err
        assert not (tmp_path / "k").exists()

    def test_a_disk_that_refuses(self, node: NodeOnDisk) -> None:
        (node.directory / "drained").write_text("")
        code, out, err = node.run("drain-gpu", GPUS[0])
        assert (code, out) == (1, "")
        assert "drained cannot be read" in err

    def test_hanging_hardware_is_not_needed_for_a_gpu_that_is_held(
        self, node: NodeOnDisk, tmp_path: Path
    ) -> None:
        node.hold(1, GPUS[0])
        machine = tmp_path / "machine.yaml"
        with_faults(machine, [{"call": "discover", "error": "HANG", "times": "always"}])
        finished = in_a_process("drain-gpu", GPUS[0], *node.flags(), "--simulate", str(machine))
        assert (finished.returncode, finished.stderr) == (3, "")
        assert finished.stdout.startswith(f"GPU {GPUS[0]} is drained")
        finished = in_a_process("drain-gpu", GPUS[1], *node.flags(), "--simulate", str(machine))
        assert finished.returncode == 2
        assert f"  {GPUS[0]}" in finished.stderr


@pytest.mark.parametrize("command", ["status", "doctor", "drain-gpu"])
def test_help_teaches(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["node", command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for part in ("examples:", "exit codes:", "kubectl --namespace tangram-system exec POD", "--kubelet-dir"):
        assert part in text
    assert "--replicas" not in text


def with_faults(path: Path, faults: list[dict[str, Any]]) -> None:
    """The machine of these tests, with a plan of faults."""
    description = msgspec.to_builtins(load_machine(MACHINE))
    path.write_text(json.dumps({**description, "faults": faults}))


def in_a_process(*words: str) -> subprocess.CompletedProcess[str]:
    """With calls to the hardware that give up after half a second."""
    return subprocess.run(
        [sys.executable, "-c", NO_DEADLINE, "node", *words],
        env=os.environ | {"PYTHONPATH": str(DRIVER)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvmlstub.build(tmp_path_factory.mktemp("stub") / "library.so")
