"""What is written for the next boot, and what a power cut may leave of the rest."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.kinds import KindsNode, assert_consistent, claim, make_node
from tests.unit.node.support import Claims, uid

from tangram.hardware.mps.directory import MpsDirectory
from tangram.hardware.mps.values import MpsShare
from tangram.model.gpu import MigMode
from tangram.testing.clock import FakeClock

DEVICES = {
    "whole GPU": [(0, "gpu")],
    "MIG": [(0, "mig-3g40gb-4")],
    "two MIG instances": [(0, "mig-3g40gb-4"), (0, "mig-1g10gb-0")],
    "MPS": [(0, "mps")],
    "time-slicing": [(0, "ts")],
}


class Syncs:
    """Counts what waits for the disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        fsync = os.fsync

        def counted(descriptor: int) -> None:
            self.count += 1
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", counted)


def mode_for(devices: list[tuple[int, str]]) -> MigMode:
    return "enabled" if "mig" in devices[0][1] else "disabled"


def put(node: KindsNode, devices: list[tuple[int, str]], **how: Any) -> Any:
    return Claims().put(claim(node, *devices, **how))


@pytest.mark.parametrize("devices", DEVICES.values(), ids=DEVICES)
async def test_prepare_waits_for_the_disk_once_and_unprepare_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: list[tuple[int, str]]
) -> None:
    node = make_node(tmp_path, mode=mode_for(devices))
    wanted = put(node, devices)
    syncs = Syncs(monkeypatch)
    await node.preparer.prepare(wanted)
    assert syncs.count == 1
    await node.preparer.unprepare(uid(1))
    assert syncs.count == 1


def test_joining_a_daemon_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node(tmp_path)
    syncs = Syncs(monkeypatch)
    directory = MpsDirectory(tmp_path / "mps", clock=FakeClock(), boot_id="b")
    gpu = node.gpu_at(0).uuid
    directory.join(gpu, claim_uid=uid(1), share=MpsShare(memory_bytes=2**30, cores_percent=10))
    directory.leave(gpu, claim_uid=uid(1))
    assert syncs.count == 0


@pytest.mark.parametrize("left", [None, b"", b"\0" * 200], ids=["no file", "an empty file", "zeros"])
@pytest.mark.parametrize("devices", DEVICES.values(), ids=DEVICES)
async def test_after_a_power_cut_while_preparing_the_claim_is_prepared_anew(
    tmp_path: Path, devices: list[tuple[int, str]], left: bytes | None
) -> None:
    """File systems may keep the name of a file and lose what was not synced of it."""
    node = make_node(tmp_path, mode=mode_for(devices))
    wanted = put(node, devices)
    await node.preparer.prepare(wanted)
    if left is None:
        node.held_file(1).unlink()
    else:
        node.held_file(1).write_bytes(left)
    node.reboot()
    held, new = await node.preparer.prepare(wanted)
    assert new
    assert held.phase == "prepared"
    assert [each.uid for each in assert_consistent(node)] == [uid(1)]
    await node.preparer.unprepare(uid(1))
    assert assert_consistent(node) == []
