"""Held state on disk: what is written is read back, and nothing damaged is trusted or overwritten."""

import errno
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.base.errors import StateError
from tangram.node.held import (
    CdiStep,
    ComputeModeStep,
    Damage,
    HeldClaim,
    HeldDevice,
    HeldPlacement,
    HeldResult,
    HeldShare,
    MigStep,
    MpsStep,
    decode,
    encode,
)
from tangram.node.heldstore import HeldStore

UID = "0a1b2c3d-0000-4000-8000-000000000001"


def held(uid: str = UID, **changes: object) -> HeldClaim:
    claim = HeldClaim(
        namespace="ns",
        name="claim",
        uid=uid,
        boot_id="boot-1",
        phase="prepared",
        devices=(
            HeldDevice(pool="p/n", device="gpu-1", uuid="GPU-1", request_names=("gpu",)),
            HeldDevice(
                pool="p/n",
                device="gpu-2",
                uuid="GPU-2",
                request_names=("a/b",),
                share_id="s",
                admin_access=True,
            ),
        ),
        undo=(CdiStep(),),
        result=(
            HeldResult(pool="p/n", device="gpu-1", request_names=("gpu",), cdi_device_ids=("v/c=x-gpu-1",)),
        ),
    )
    return msgspec.structs.replace(claim, **changes)


def kinds_of_all() -> HeldClaim:
    """A claim with devices and steps of every kind."""
    common: dict[str, Any] = {"pool": "p/n", "request_names": ("gpu",)}
    return held(
        devices=(
            HeldDevice(device="g", uuid="GPU-1", **common),
            HeldDevice(
                device="m",
                uuid="GPU-2",
                kind="mig",
                mig=HeldPlacement(profile_id=9, start=4, size=4),
                **common,
            ),
            HeldDevice(
                device="f",
                uuid="GPU-3",
                kind="mig",
                mig=HeldPlacement(profile_id=9, start=0, size=4, foreign="MIG-1"),
                **common,
            ),
            HeldDevice(
                device="s",
                uuid="GPU-4",
                kind="mps",
                share=HeldShare(memory_bytes=2**30, cores=40),
                share_id="x",
                **common,
            ),
            HeldDevice(
                device="t",
                uuid="GPU-5",
                kind="timeslice",
                share=HeldShare(memory_bytes=2**30, replicas=1),
                **common,
            ),
        ),
        undo=(
            ComputeModeStep(uuid="GPU-1", before="default", wanted="exclusive_process"),
            MigStep(
                device="m",
                uuid="GPU-2",
                profile_id=9,
                start=4,
                size=4,
                before=((1, 0),),
                gpu_instance_id=2,
                compute_instance_id=0,
                mig_uuid="MIG-2",
            ),
            MpsStep(uuid="GPU-4"),
            CdiStep(),
        ),
    )


@pytest.fixture
def store(tmp_path: Path) -> HeldStore:
    made = HeldStore(tmp_path / "claims")
    made.create()
    return made


def test_round_trip(store: HeldStore) -> None:
    store.write(held())
    assert store.read(UID) == held()
    assert store.load().claims == {UID: held()}
    assert store.load().damaged == {}
    store.remove(UID)
    store.remove(UID)
    assert store.read(UID) is None
    assert store.load().claims == {}


def test_the_form_on_disk(store: HeldStore, tmp_path: Path) -> None:
    store.write(held())
    path = tmp_path / "claims" / f"{UID}.json"
    assert path.stat().st_mode & 0o777 == 0o600
    content = json.loads(path.read_bytes())
    assert content["version"] == 1
    assert content["checksum"].startswith("sha256:")
    assert content["payload"]["bootId"] == "boot-1"
    assert content["payload"]["undo"] == [{"step": "cdi"}]
    assert content["payload"]["devices"][0] == {
        "pool": "p/n", "device": "gpu-1", "uuid": "GPU-1", "requestNames": ["gpu"],
    }  # fmt: skip


def test_the_checksum_covers_the_bytes_as_they_stand() -> None:
    """A version that adds a field, or orders them otherwise, writes what this one reads."""
    payload = json.dumps(
        {"later": {"deep": [1]}, **json.loads(msgspec.json.encode(held()))}, indent=1, sort_keys=True
    ).encode()
    data = b'{"payload": %s, "more": 1, "version": 1, "checksum": "sha256:%s"}' % (
        payload,
        hashlib.sha256(payload).hexdigest().encode(),
    )
    assert decode(data, uid=UID) == held()


def test_unknown_fields_are_kept(store: HeldStore, tmp_path: Path) -> None:
    path = tmp_path / "claims" / f"{UID}.json"
    path.write_bytes(encode(held(), unknown={"later": msgspec.Raw(b'{"deep":[1,null]}')}))
    store.write(held(phase="unpreparing"))
    payload = json.loads(path.read_bytes())["payload"]
    assert payload["later"] == {"deep": [1, None]}
    assert payload["phase"] == "unpreparing"
    assert store.read(UID) == held(phase="unpreparing")


@given(
    position=st.integers(min_value=0, max_value=10_000),
    change=st.sampled_from(["truncate", "flip", "zero", "append", "insert"]),
    bit=st.integers(min_value=0, max_value=7),
)
def test_damage_is_found_and_never_raised(position: int, change: str, bit: int) -> None:
    data = bytearray(encode(held()))
    position %= len(data)
    if change == "truncate":
        del data[position:]
    elif change == "flip":
        data[position] ^= 1 << bit
    elif change == "zero":
        data[position:] = bytes(len(data) - position)
    elif change == "append":
        data += b"x"
    else:
        data.insert(position, 0)
    found = decode(bytes(data), uid=UID)
    # Some bits stand where they do not matter (none do in what we write, but JSON allows for it).
    assert isinstance(found, Damage) or found == held()
    if change in ("truncate", "zero", "append"):
        assert isinstance(found, Damage)
        assert found.cause


@pytest.mark.parametrize(
    ("data", "cause", "newer"),
    [
        (b"", "truncated", False),
        (b"null", "Expected `object`", False),
        (b"[]", "Expected `object`", False),
        (b'{"version": "1"}', "Expected `int`", False),
        (b'{"version": 3, "anything": null}', "version 3, this is version 2", True),
        (b'{"version": 0}', "version 0, this is version 2", False),
        (b'{"version": 1, "checksum": "sha256:0", "payload": {}}', "the checksum does not match", False),
        (b"[" * 100_000, "", False),
    ],
)
def test_causes(data: bytes, cause: str, newer: bool) -> None:
    found = decode(data, uid=UID)
    assert isinstance(found, Damage)
    assert cause in found.cause
    assert found.newer is newer


def test_a_file_under_another_claims_name_is_damage() -> None:
    found = decode(encode(held()), uid="other")
    assert isinstance(found, Damage)
    assert UID in found.cause


def test_a_damaged_file_costs_only_its_claim(store: HeldStore, tmp_path: Path) -> None:
    store.write(held())
    store.write(held("second"))
    (tmp_path / "claims" / "second.json").write_bytes(b"{")
    (tmp_path / "claims" / "third.json").mkdir()
    (tmp_path / "claims" / "fourth.json").write_bytes(b" " * (1024 * 1024 + 1))
    contents = store.load()
    assert list(contents.claims) == [UID]
    assert set(contents.damaged) == {"second", "third", "fourth"}
    first = store.set_aside("second")
    assert first.name == "second.json.set-aside-1"
    assert first.read_bytes() == b"{"
    (tmp_path / "claims" / "second.json").write_bytes(b"}")
    assert store.set_aside("second").name == "second.json.set-aside-2"
    assert set(store.load().damaged) == {"third", "fourth"}


def test_a_newer_file_is_not_overwritten(store: HeldStore, tmp_path: Path) -> None:
    path = tmp_path / "claims" / f"{UID}.json"
    path.write_bytes(b'{"version": 9}')
    with pytest.raises(StateError, match="version 9"):
        store.write(held())
    assert path.read_bytes() == b'{"version": 9}'


def test_what_is_not_ours_in_the_directory_is_ignored(store: HeldStore, tmp_path: Path) -> None:
    for name in ("..json", ".hidden.json", "x y.json", "notes.txt", f"{UID}.json.set-aside-1"):
        (tmp_path / "claims" / name).write_bytes(b"{}")
    assert store.load().claims == {}
    assert store.load().damaged == {}


@pytest.mark.parametrize("uid", ["", "..", "../x", "a/b", "a\0b", "x" * 65, "-a", "a.b", "ä"])
def test_a_uid_never_becomes_a_path(store: HeldStore, uid: str) -> None:
    for call in (store.read, store.remove, store.set_aside):
        with pytest.raises(StateError, match="cannot be a file name"):
            call(uid)
    with pytest.raises(StateError, match="cannot be a file name"):
        store.write(held(uid))


def test_unchanged_files_are_not_read_again(
    store: HeldStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(held())
    store.load()

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr("tangram.node.held.decode", fail)
    assert store.load().claims == {UID: held()}
    monkeypatch.undo()
    other = HeldStore(tmp_path / "claims")
    other.write(held(phase="unpreparing"))
    assert store.load().claims[UID].phase == "unpreparing"


@pytest.mark.parametrize("call", ["os.fsync", "pathlib.Path.replace"])
def test_a_full_disk_leaves_the_old_content(
    store: HeldStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store.write(held())

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(call, fail)
    with pytest.raises(StateError, match=r"cannot be written: No space left on device") as caught:
        store.write(held(phase="unpreparing"))
    monkeypatch.undo()
    assert caught.value.next_step
    assert store.read(UID) == held()
    assert [path.name for path in (tmp_path / "claims").iterdir()] == [f"{UID}.json"]


@pytest.mark.parametrize(
    ("call", "act"),
    [
        ("pathlib.Path.unlink", lambda store: store.remove(UID)),
        ("pathlib.Path.rename", lambda store: store.set_aside(UID)),
        ("os.scandir", lambda store: store.load()),
    ],
)
def test_failures_of_the_disk_are_state_errors(
    store: HeldStore, monkeypatch: pytest.MonkeyPatch, call: str, act: Callable[[HeldStore], object]
) -> None:
    store.write(held())

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(call, fail)
    with pytest.raises(StateError, match="Input/output error") as caught:
        act(store)
    monkeypatch.undo()
    assert caught.value.next_step
    assert store.read(UID) == held()


def test_leftovers_of_cut_off_writes_go_at_the_start(store: HeldStore, tmp_path: Path) -> None:
    (tmp_path / "claims" / f".{UID}.json.0123.tmp").write_bytes(b"{")
    assert store.load().damaged == {}
    store.create()
    assert list((tmp_path / "claims").iterdir()) == []


def test_no_directory(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StateError, match="cannot be made"):
        HeldStore(blocked / "claims").create()
    missing = HeldStore(tmp_path / "missing")
    with pytest.raises(StateError, match="cannot be read"):
        missing.load()


RELEASED = Path(__file__).parent / "held"


@pytest.mark.parametrize("path", sorted(RELEASED.iterdir()), ids=lambda path: path.name)
def test_files_of_released_versions_load(path: Path) -> None:
    """One file per released version and form, written by it: never edit one, add the next."""
    found = decode(path.read_bytes(), uid=UID)
    assert found == (kinds_of_all() if path.stem.endswith("-kinds") else held())


def test_p01_whole_gpus_are_written_for_the_version_before() -> None:
    """A node can go back: the version before reads what needs nothing new. What does, it sets aside (P03)."""
    assert json.loads(encode(held()))["version"] == 1
    assert json.loads(encode(kinds_of_all()))["version"] == 2
    assert decode(encode(kinds_of_all()), uid=UID) == kinds_of_all()
