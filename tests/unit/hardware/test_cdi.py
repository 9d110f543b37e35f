"""CDI files: what containers get, and that a file is there whole or not at all."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.base.errors import InvalidObjectError, StateError
from tangram.hardware.backend import DeviceNode
from tangram.hardware.cdi import (
    CdiDevice,
    CdiDirectory,
    CdiEdits,
    Hook,
    Mount,
    cdi_device_id,
    claim_spec,
    minimum_version,
)

UID = "b3c1d6e2-0f6c-4a1b-9d2e-5c3b7f1e2a90"
CONTROL = CdiEdits(device_nodes=(DeviceNode(path="/dev/nvidiactl", major=1, minor=3),))


def gpu(number: int, *requests: str, **changes: Any) -> CdiDevice:
    fields: dict[str, Any] = {
        "name": f"gpu-{number:012x}",
        "requests": requests or ("gpu",),
        "device_nodes": (DeviceNode(path=f"/dev/nvidia{number}", major=1, minor=3),),
        "gpu_uuid": f"GPU-{number}",
    }
    return CdiDevice(**fields | changes)


def spec_of(*devices: CdiDevice, uid: str = UID, common: CdiEdits = CONTROL) -> dict[str, Any]:
    return claim_spec(
        claim_uid=uid, claim_name="training", claim_namespace="team-a", devices=devices, common=common
    )


def container_environment(spec: dict[str, Any], names: list[str]) -> dict[str, str]:
    """What a runtime makes of the spec for a container that gets these devices, in this order."""
    edits = [spec["containerEdits"]]
    edits += [
        device["containerEdits"] for name in names for device in spec["devices"] if device["name"] == name
    ]
    pairs = (variable.split("=", 1) for edit in edits for variable in edit.get("env", ()))
    return {name: value for name, value in pairs}  # noqa: C416 - the later one wins, as in the runtime


def test_the_spec_of_a_claim() -> None:
    assert spec_of(gpu(1)) == {
        "cdiVersion": "0.5.0" if UID[0].isdigit() else "0.3.0",
        "kind": "gpu.resource.admin/claim",
        "containerEdits": {
            "env": [
                "NVIDIA_VISIBLE_DEVICES=void",
                "TANGRAM_CLAIM_NAME=training",
                "TANGRAM_CLAIM_NAMESPACE=team-a",
                f"TANGRAM_CLAIM_UID={UID}",
                "TANGRAM_GPU_UUIDS=GPU-1",
                "TANGRAM_MIG_UUIDS=",
            ],
            "deviceNodes": [
                {"path": "/dev/nvidiactl", "type": "c", "major": 1, "minor": 3, "permissions": "rw"}
            ],
        },
        "devices": [
            {
                "name": f"{UID}-gpu-000000000001",
                "containerEdits": {
                    "env": ["TANGRAM_GPU_UUIDS_GPU=GPU-1", "TANGRAM_MIG_UUIDS_GPU="],
                    "deviceNodes": [
                        {"path": "/dev/nvidia1", "type": "c", "major": 1, "minor": 3, "permissions": "rw"}
                    ],
                },
            }
        ],
    }


def test_ids_name_the_devices_of_the_spec() -> None:
    (device,) = spec_of(gpu(1))["devices"]
    assert cdi_device_id(claim_uid=UID, device="gpu-000000000001") == (
        f"gpu.resource.admin/claim={device['name']}"
    )


class TestEnvironment:
    """The variables tell the truth to every container, whichever of the claim's requests it names."""

    spec = spec_of(
        gpu(1, "train-a"),
        gpu(2, "train-a"),
        gpu(3, "infer"),
        CdiDevice(
            name="gpu-4-mig-1g10gb-0", requests=("infer",), device_nodes=(), gpu_uuid="", mig_uuid="MIG-4"
        ),
    )
    names = tuple(device["name"] for device in spec["devices"])

    def seen(self, environment: dict[str, str], kind: str) -> set[str]:
        """What a container sees of the claim: all variables of the requests together."""
        prefix = f"TANGRAM_{kind}_UUIDS_"
        return {
            uuid
            for name, value in environment.items()
            if name.startswith(prefix)
            for uuid in value.split(",")
            if uuid
        }

    def test_of_a_container_with_the_whole_claim(self) -> None:
        environment = container_environment(self.spec, list(self.names))
        assert environment["TANGRAM_GPU_UUIDS"] == "GPU-1,GPU-2,GPU-3"
        assert environment["TANGRAM_MIG_UUIDS"] == "MIG-4"
        assert self.seen(environment, "GPU") == {"GPU-1", "GPU-2", "GPU-3"}
        assert self.seen(environment, "MIG") == {"MIG-4"}

    def test_of_a_container_with_one_request(self) -> None:
        first = container_environment(self.spec, list(self.names[:2]))
        assert first["TANGRAM_GPU_UUIDS_TRAIN_A"] == "GPU-1,GPU-2"
        assert self.seen(first, "GPU") == {"GPU-1", "GPU-2"}
        second = container_environment(self.spec, list(self.names[2:]))
        assert self.seen(second, "GPU") == {"GPU-3"}
        assert self.seen(second, "MIG") == {"MIG-4"}
        # What the claim holds is the same in each of its containers.
        assert first["TANGRAM_GPU_UUIDS"] == second["TANGRAM_GPU_UUIDS"] == "GPU-1,GPU-2,GPU-3"

    def test_does_not_depend_on_the_order_of_devices(self) -> None:
        forth = container_environment(self.spec, list(self.names))
        assert forth == container_environment(self.spec, list(reversed(self.names)))

    def test_of_a_device_that_serves_two_requests(self) -> None:
        spec = spec_of(gpu(1, "main", "monitor"), gpu(2, "main"))
        environment = container_environment(spec, [spec["devices"][0]["name"]])
        assert environment["TANGRAM_GPU_UUIDS_MONITOR"] == "GPU-1"
        assert environment["TANGRAM_GPU_UUIDS_MAIN"] == "GPU-1,GPU-2"

    def test_names_each_gpu_and_request_once(self) -> None:
        shares = spec_of(gpu(1, "a", "a"), gpu(2, "a", gpu_uuid="GPU-1"))
        assert shares["containerEdits"]["env"][-2:] == ["TANGRAM_GPU_UUIDS=GPU-1", "TANGRAM_MIG_UUIDS="]
        for device in shares["devices"]:
            assert device["containerEdits"]["env"] == ["TANGRAM_GPU_UUIDS_A=GPU-1", "TANGRAM_MIG_UUIDS_A="]

    def test_of_two_claims_in_one_container_is_the_last_ones(self) -> None:
        other = spec_of(gpu(9), uid="c-2")
        both = container_environment(spec_of(gpu(1)), [f"{UID}-gpu-000000000001"])
        both |= container_environment(other, ["c-2-gpu-000000000009"])
        assert both["TANGRAM_CLAIM_UID"] == "c-2"


def test_mounts_hooks_and_host_nodes() -> None:
    common = CdiEdits(
        mounts=(Mount(host_path="/drv/libcuda.so.1", container_path="/usr/lib64/libcuda.so.1"),),
        hooks=(Hook(path="/bin/sh", args=("sh", "/x.sh", "/usr/lib64")),),
    )
    real = DeviceNode(path="/dev/nvidia0", host_path="/run/nvidia/driver/dev/nvidia0")
    spec = spec_of(gpu(1, device_nodes=(real, DeviceNode(path="/dev/nvidia1"))), common=common)
    edits = spec["containerEdits"]
    assert edits["mounts"] == [
        {
            "hostPath": "/drv/libcuda.so.1",
            "containerPath": "/usr/lib64/libcuda.so.1",
            "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
        }
    ]
    assert edits["hooks"] == [
        {
            "hookName": "createContainer",
            "path": "/bin/sh",
            "args": ["sh", "/x.sh", "/usr/lib64"],
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "timeout": 60,
        }
    ]
    assert spec["devices"][0]["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidia0", "hostPath": "/run/nvidia/driver/dev/nvidia0", "permissions": "rw"},
        {"path": "/dev/nvidia1", "permissions": "rw"},
    ]


def test_edits_add_up() -> None:
    a, b = CdiEdits(env=("A=1",)), CdiEdits(env=("B=2",), device_nodes=CONTROL.device_nodes)
    assert a + b == CdiEdits(env=("A=1", "B=2"), device_nodes=CONTROL.device_nodes)


@pytest.mark.parametrize(
    ("uid", "host_path", "version"),
    [("a1", None, "0.3.0"), ("1a", None, "0.5.0"), ("a1", "/x/nvidia0", "0.5.0")],
)
def test_the_lowest_version_that_has_the_fields(uid: str, host_path: str | None, version: str) -> None:
    spec = spec_of(gpu(1, device_nodes=(DeviceNode(path="/dev/nvidia0", host_path=host_path),)), uid=uid)
    assert spec["cdiVersion"] == version == minimum_version(spec)


HOSTILE = ["", ".", "..", "a/b", "../../etc/x", "a\0b", "a b", "a\n", "-a", "a-", "é", "a" * 65, "x=y", "*"]


@pytest.mark.parametrize("uid", HOSTILE)
def test_a_uid_that_is_none_is_refused(uid: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidObjectError, match="is not a UID"):
        spec_of(gpu(1), uid=uid)
    with pytest.raises(InvalidObjectError, match="is not a UID"):
        cdi_device_id(claim_uid=uid, device="gpu-1")
    directory = CdiDirectory(tmp_path)
    with pytest.raises(InvalidObjectError):
        directory.write(uid, {})
    with pytest.raises(InvalidObjectError):
        directory.remove(uid)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [*HOSTILE, "GPU-1", "main/sub"])
def test_names_that_are_no_labels_are_refused(name: str) -> None:
    with pytest.raises(InvalidObjectError, match="is not the name of a device"):
        spec_of(gpu(1, name=name))
    with pytest.raises(InvalidObjectError, match="is not the name of a request"):
        spec_of(gpu(1, name))


def test_a_spec_needs_devices_and_each_once() -> None:
    with pytest.raises(InvalidObjectError, match="claim team-a/training: no device"):
        spec_of()
    with pytest.raises(InvalidObjectError, match="stands twice"):
        spec_of(gpu(1), gpu(1))


requests = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=2, unique=True)


@given(st.lists(requests, min_size=1, max_size=8), st.sampled_from(["a", "b", "c", ""]))
def test_every_container_finds_exactly_its_gpus(layout: list[list[str]], named: str) -> None:
    devices = [gpu(number, *names) for number, names in enumerate(layout)]
    spec = spec_of(*devices)
    got = [device for device in devices if not named or named in device.requests]
    environment = container_environment(spec, [f"{UID}-{device.name}" for device in got])
    if not named:
        assert environment["TANGRAM_GPU_UUIDS"] == ",".join(device.gpu_uuid for device in devices)
    elif got:
        assert environment[f"TANGRAM_GPU_UUIDS_{named.upper()}"] == ",".join(
            device.gpu_uuid for device in got
        )
    assert all(device["containerEdits"] for device in spec["devices"])  # an empty one is no valid CDI


# --- the directory


@pytest.fixture
def directory(tmp_path: Path) -> CdiDirectory:
    return CdiDirectory(tmp_path / "cdi")


def test_a_file_is_written_where_the_runtime_looks(directory: CdiDirectory, tmp_path: Path) -> None:
    spec = spec_of(gpu(1))
    directory.write(UID, spec)
    file = tmp_path / "cdi" / f"gpu.resource.admin_{UID}.json"
    assert json.loads(file.read_text()) == spec
    assert file.stat().st_mode & 0o777 == 0o600
    assert directory.list() == (UID,)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_nothing_is_written_that_is_there_already(directory: CdiDirectory, tmp_path: Path) -> None:
    directory.write(UID, spec_of(gpu(1)))
    file = next((tmp_path / "cdi").iterdir())
    inode = file.stat().st_ino
    directory.write(UID, spec_of(gpu(1)))
    assert file.stat().st_ino == inode
    directory.write(UID, spec_of(gpu(2)))
    assert json.loads(file.read_text()) == spec_of(gpu(2))


def test_a_damaged_file_is_mended(directory: CdiDirectory, tmp_path: Path) -> None:
    directory.write(UID, spec_of(gpu(1)))
    file = next((tmp_path / "cdi").iterdir())
    whole = file.read_bytes()
    file.write_bytes(whole[:40])
    directory.write(UID, spec_of(gpu(1)))
    assert file.read_bytes() == whole


def test_removing_is_idempotent(directory: CdiDirectory) -> None:
    directory.remove(UID)
    directory.write(UID, spec_of(gpu(1)))
    directory.remove(UID)
    directory.remove(UID)
    assert directory.list() == ()


def test_files_of_others_are_not_ours(directory: CdiDirectory, tmp_path: Path) -> None:
    directory.write(UID, spec_of(gpu(1)))
    root = tmp_path / "cdi"
    others = ["nvidia.yaml", "gpu.resource.admin_.json", "gpu.resource.admin_a b.json", "k8s.gpu_x.json"]
    others += [".other.json.1.tmp", "gpu.resource.admin_x.yaml"]
    for name in others:
        (root / name).write_text("{}")
    again = CdiDirectory(root)
    assert again.list() == (UID,)
    assert all((root / name).exists() for name in others)


def test_leftovers_of_killed_processes_go_at_start(directory: CdiDirectory, tmp_path: Path) -> None:
    directory.write(UID, spec_of(gpu(1)))
    leftover = tmp_path / "cdi" / f".gpu.resource.admin_{UID}.json.0123.tmp"
    leftover.write_text("{")
    assert directory.list() == (UID,)
    CdiDirectory(tmp_path / "cdi")
    assert not leftover.exists()
    assert directory.list() == (UID,)


def test_a_directory_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("a file")
    directory = CdiDirectory(tmp_path / "cdi")
    with pytest.raises(StateError, match="cdi"):
        directory.list()
    with pytest.raises(StateError, match="cdi"):
        directory.write(UID, spec_of(gpu(1)))
    directory.remove(UID)  # nothing is there, so nothing is left to remove


STEPS = ["os.open", "os.fchmod", "Path.replace"]


class Crash(BaseException):
    """The process is gone: nothing runs after this."""


@pytest.fixture
def fail_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, BaseException], list[str]]]:
    """Makes the n-th file operation of a write fail (counted from 0; large: none), and records them."""

    def install(number: int, error: BaseException) -> list[str]:
        done: list[str] = []

        def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                done.append(name)
                if len(done) - 1 == number:
                    raise error
                return function(*arguments, **options)

            return call

        monkeypatch.setattr(os, "open", counted("os.open", os.open))
        monkeypatch.setattr(os, "fchmod", counted("os.fchmod", os.fchmod))
        monkeypatch.setattr(os, "fsync", counted("os.fsync", os.fsync))
        monkeypatch.setattr(Path, "replace", counted("Path.replace", Path.replace))
        return done

    yield install
    monkeypatch.undo()


def test_the_steps_of_a_write(
    directory: CdiDirectory, fail_at: Callable[[int, BaseException], list[str]]
) -> None:
    directory.write(UID, spec_of(gpu(2)))  # the directory is there
    done = fail_at(100, Crash())
    directory.write(UID, spec_of(gpu(1)))
    assert done == STEPS


@pytest.mark.parametrize("step", range(len(STEPS)), ids=STEPS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_file_system_that_refuses(
    tmp_path: Path, fail_at: Callable[[int, BaseException], list[str]], step: int, code: int
) -> None:
    directory = CdiDirectory(tmp_path)
    directory.write(UID, spec_of(gpu(1)))
    fail_at(step, OSError(code, os.strerror(code)))
    with pytest.raises(StateError) as raised:
        directory.write(UID, spec_of(gpu(2)))
    assert f"gpu.resource.admin_{UID}.json" in raised.value.cause
    assert os.strerror(code) in raised.value.cause
    assert raised.value.next_step
    (file,) = tmp_path.iterdir()  # no partial file
    # Before the rename the old content stands, after it the new one.
    assert json.loads(file.read_text()) == spec_of(gpu(1 if step <= 3 else 2))


@pytest.mark.parametrize("step", range(len(STEPS)), ids=STEPS)
def test_a_process_killed_at_any_step(
    tmp_path: Path,
    fail_at: Callable[[int, BaseException], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    step: int,
) -> None:
    directory = CdiDirectory(tmp_path)
    directory.write(UID, spec_of(gpu(1)))
    monkeypatch.setattr(Path, "unlink", lambda self: None)  # a dead process cleans nothing up
    fail_at(step, Crash())
    with pytest.raises(Crash):
        directory.write(UID, spec_of(gpu(2)))
    monkeypatch.undo()
    after = CdiDirectory(tmp_path)
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text()) == spec_of(gpu(1 if step <= 3 else 2))
    after.write(UID, spec_of(gpu(2)))
    assert json.loads(file.read_text()) == spec_of(gpu(2))


def test_a_temporary_file_that_another_process_cleaned_away(
    directory: CdiDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.write(UID, spec_of(gpu(2)))  # the directory is there
    replace = Path.replace
    tries = 0

    def cleaned_away_once(self: Path, target: Path) -> Path:
        nonlocal tries
        tries += 1
        if tries == 1:
            self.unlink()
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", cleaned_away_once)
    directory.write(UID, spec_of(gpu(1)))
    assert tries == 2
    assert directory.list() == (UID,)
