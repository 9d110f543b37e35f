"""The node plugin's side: claims join and leave, wait for the daemon, and get what a client needs."""

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.hardware.mps.support import BOOT, GPU, share

from tangram.base.errors import HardwareError, HardwareTimeoutError, StateError
from tangram.hardware.mps.directory import MpsDirectory, mps_root, read_members
from tangram.hardware.mps.values import (
    MpsDaemon,
    MpsMember,
    MpsShare,
    MpsState,
    MpsStatus,
    decode,
    directory_name,
    encode,
)
from tangram.model.gpu import GpuUuid
from tangram.testing.clock import FakeClock

UUID = GpuUuid(GPU)
TWIN = GpuUuid("GPU-05b16a01-46c6-0000-0000-000000000000")
DAEMON = MpsDaemon(pid=7, start_ticks=1, boot_id=BOOT)


class Plugin:
    """A plugin, and a supervisor played by the test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = FakeClock()
        self.directory = MpsDirectory(root, clock=self.clock, boot_id=BOOT)

    def tell(
        self,
        state: MpsState,
        limits: MpsShare | None = None,
        *,
        keeper: str = "k",
        daemon: MpsDaemon = DAEMON,
        uuid: str = GPU,
        cause: str = "",
    ) -> None:
        status = MpsStatus(uuid=uuid, state=state, keeper=keeper, limits=limits, daemon=daemon, cause=cause)
        self.file("status.json").write_bytes(encode(status))

    def file(self, name: str) -> Path:
        path = self.root / directory_name(UUID) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @contextlib.contextmanager
    def supervised(self, keeper: str = "k") -> Iterator[None]:
        self.root.mkdir(exist_ok=True)
        with (self.root / "keeper.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write(keeper)
            lock.flush()
            yield


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path / "mps")


def test_join_and_leave_may_be_repeated(plugin: Plugin) -> None:
    assert plugin.directory.members() == {}
    for _ in range(2):
        plugin.directory.join(UUID, claim_uid="a", share=share(100, 40))
        plugin.directory.join(UUID, claim_uid="b", share=share(200, 60))
        assert plugin.directory.members() == {UUID: {"a": share(100, 40), "b": share(200, 60)}}
    plugin.directory.join(UUID, claim_uid="a", share=share(300, 10))
    assert plugin.directory.members()[UUID]["a"] == share(300, 10)
    for _ in range(2):
        plugin.directory.leave(UUID, claim_uid="a")
        assert plugin.directory.members() == {UUID: {"b": share(200, 60)}}
    plugin.directory.leave(UUID, claim_uid="never-seen")


def test_a_repeated_join_writes_nothing(plugin: Plugin) -> None:
    plugin.directory.join(UUID, claim_uid="a", share=share(100))
    before = plugin.file("claims/a.json").stat()
    plugin.directory.join(UUID, claim_uid="a", share=share(100))
    assert plugin.file("claims/a.json").stat().st_ino == before.st_ino


@pytest.mark.parametrize("uid", ["", "..", "../x", "a/b", ".hidden", "x" * 65, "a\n"])
def test_a_uid_that_is_no_file_name_is_refused(plugin: Plugin, uid: str) -> None:
    with pytest.raises(StateError, match="cannot be a file name"):
        plugin.directory.join(UUID, claim_uid=uid, share=share(100))
    with pytest.raises(StateError, match="cannot be a file name"):
        plugin.directory.leave(UUID, claim_uid=uid)


def test_two_gpus_that_begin_alike_are_not_mixed_up(plugin: Plugin) -> None:
    plugin.directory.join(UUID, claim_uid="a", share=share(100))
    with pytest.raises(StateError, match="begin alike"):
        plugin.directory.join(TWIN, claim_uid="b", share=share(100))
    assert plugin.directory.members() == {UUID: {"a": share(100)}}


@pytest.mark.parametrize("uuid", ["", "GPU-", "GPU-../../etc", "GPU-0123", f"{GPU}0", "MIG-" + GPU[4:]])
def test_what_is_not_the_uuid_of_a_gpu_becomes_no_path(uuid: str) -> None:
    with pytest.raises(ValueError, match="is not the UUID of a GPU"):
        directory_name(GpuUuid(uuid))


def test_the_directory_lies_in_the_plugin_s_own() -> None:
    assert mps_root("/data/kubelet") == Path("/data/kubelet/plugins/gpu.resource.admin/mps")


def test_sockets_below_the_directory_fit() -> None:
    """unix(7): 107 bytes; of what MPS makes, control_privileged is among the longest names."""
    root = mps_root("/var/lib/kubelet")
    assert len(str(root / directory_name(UUID) / "pipe" / "nvidia-cuda-mps-control.pid")) < 108


async def test_ready_at_once_where_the_daemon_serves_already(plugin: Plugin) -> None:
    plugin.directory.join(UUID, claim_uid="a", share=share(100, 40))
    plugin.tell("ready", share(200, 60))
    with plugin.supervised():
        status = await plugin.directory.ready(UUID)
    assert status.limits == share(200, 60)
    assert plugin.clock.monotonic_s() == 0


async def test_ready_waits_until_the_limits_cover_all_claims(plugin: Plugin) -> None:
    plugin.directory.join(UUID, claim_uid="a", share=share(100, 40))
    plugin.directory.join(UUID, claim_uid="b", share=share(50, 90))
    with plugin.supervised():
        waiting = asyncio.ensure_future(plugin.directory.ready(UUID))
        for limits in (share(100, 40), share(50, 90), share(99, 90)):
            plugin.tell("ready", limits)
            await plugin.clock.advance(0.1)
            assert not waiting.done()
        for state in ("starting", "failing", "stopping"):
            plugin.tell(state, share(100, 90))
            await plugin.clock.advance(0.1)
            assert not waiting.done()
        plugin.tell("ready", share(100, 90))
        await plugin.clock.advance(0.1)
        assert (await waiting).limits == share(100, 90)


async def test_p41_prepare_has_an_answer_within_ten_seconds(plugin: Plugin) -> None:
    plugin.directory.join(UUID, claim_uid="a", share=share(100))
    plugin.tell("failing", cause="the MPS daemon does not start: no CUDA device")
    with plugin.supervised():
        waiting = asyncio.ensure_future(plugin.directory.ready(UUID))
        await plugin.clock.advance(9)
        with pytest.raises(HardwareTimeoutError, match="failing: the MPS daemon does not start") as caught:
            await waiting
    assert "tangram-mps" in caught.value.next_step


async def test_a_daemon_that_is_coming_up_is_waited_for_longer(plugin: Plugin) -> None:
    """On a node under load it takes more than eight seconds, and would do so each time it is asked for."""
    told: list[str] = []
    plugin.directory.join(UUID, claim_uid="a", share=share(100))
    plugin.tell("starting")
    with plugin.supervised():
        waiting = asyncio.ensure_future(plugin.directory.ready(UUID, slow=told.append))
        for _ in range(20):
            await plugin.clock.advance(1)
        assert told == [f"the MPS daemon of {UUID} is still starting after 8 s"]
        plugin.tell("ready", share(100))
        await plugin.clock.advance(0.1)
        assert (await waiting).state == "ready"


@pytest.mark.parametrize("then", ["starting", "failing"])
async def test_p41_the_wait_for_a_daemon_that_is_coming_up_ends(plugin: Plugin, then: MpsState) -> None:
    """Before the kubelet gives the call up, and at once where it has failed."""
    plugin.directory.join(UUID, claim_uid="a", share=share(100))
    plugin.tell("starting")
    with plugin.supervised():
        waiting = asyncio.ensure_future(plugin.directory.ready(UUID))
        await plugin.clock.advance(12)
        assert not waiting.done()
        plugin.tell(then)
        await plugin.clock.advance(14 if then == "starting" else 0.1)
        with pytest.raises(HardwareTimeoutError, match=f"({then})"):
            await waiting


async def test_without_a_supervisor_that_is_said(plugin: Plugin) -> None:
    plugin.directory.join(UUID, claim_uid="a", share=share(100))
    plugin.tell("ready", share(100))
    with pytest.raises(HardwareError, match="no MPS supervisor"):
        await plugin.directory.ready(UUID, deadline_s=0)


async def test_ready_without_a_claim_is_a_mistake_of_the_caller(plugin: Plugin) -> None:
    with pytest.raises(StateError, match="no claim has joined"):
        await plugin.directory.ready(UUID)


@pytest.mark.parametrize("what", ["other keeper", "other boot", "other GPU", "damaged", "huge"])
async def test_what_was_written_for_another_time_counts_for_nothing(plugin: Plugin, what: str) -> None:
    with plugin.supervised():
        plugin.tell("ready", share(100))
        assert plugin.directory.status(UUID) is not None
        if what == "other keeper":
            plugin.tell("ready", share(100), keeper="old")
        elif what == "other boot":
            plugin.tell("ready", share(100), daemon=MpsDaemon(pid=7, start_ticks=1, boot_id="old"))
        elif what == "other GPU":
            plugin.tell("ready", share(100), uuid=TWIN)
        elif what == "damaged":
            plugin.file("status.json").write_bytes(b'{"uuid": 7')
        else:
            plugin.file("status.json").write_bytes(b" " * 2**20)
        assert plugin.directory.status(UUID) is None


def test_statuses_are_those_of_this_supervisor(plugin: Plugin) -> None:
    assert plugin.directory.statuses() == {}
    plugin.directory.join(UUID, claim_uid="a", share=share(100))
    plugin.tell("failing", cause="x")
    assert plugin.directory.statuses() == {}
    with plugin.supervised():
        assert plugin.directory.statuses()[UUID].cause == "x"


@pytest.mark.parametrize("uuid", ["", "g", "../x", TWIN.replace("05b1", "ffff")])
def test_a_status_of_no_gpu_or_another_one_counts_for_nothing(plugin: Plugin, uuid: str) -> None:
    plugin.directory.join(UUID, claim_uid="a", share=share(100))
    plugin.tell("failing", uuid=uuid)
    with plugin.supervised():
        assert plugin.directory.statuses() == {}


async def test_gone_waits_for_the_end_of_the_last_daemon(plugin: Plugin) -> None:
    plugin.directory.join(UUID, claim_uid="a", share=share(100))
    plugin.tell("ready", share(100))
    with plugin.supervised():
        await plugin.directory.gone(UUID)  # a claim uses it: nothing to wait for
        plugin.directory.leave(UUID, claim_uid="a")
        waiting = asyncio.ensure_future(plugin.directory.gone(UUID))
        for state in ("ready", "stopping"):
            plugin.tell(state)
            await plugin.clock.advance(0.1)
            assert not waiting.done()
        plugin.tell("stopped")
        await plugin.clock.advance(0.1)
        await waiting
        plugin.tell("stopping", cause="processes 7 of the MPS daemon cannot be ended")
        waiting = asyncio.ensure_future(plugin.directory.gone(UUID))
        await plugin.clock.advance(9)
        with pytest.raises(HardwareTimeoutError, match="processes 7 of the MPS daemon"):
            await waiting
    await plugin.directory.gone(UUID)  # no supervisor, no daemon


def test_p40_p39_the_client_is_told_everything_explicitly(plugin: Plugin) -> None:
    edits = plugin.directory.client_edits(UUID, MpsShare(memory_bytes=10 * 2**30 + 5, cores_percent=40))
    assert edits.env == (
        "CUDA_MPS_PIPE_DIRECTORY=/run/tangram-mps",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40",
    )
    (pipe,) = edits.mounts
    assert pipe.host_path == str(plugin.root / directory_name(UUID) / "pipe")
    assert pipe.container_path == "/run/tangram-mps"
    assert {"nosuid", "nodev", "noexec"} <= set(pipe.options)


def test_clients_of_real_gpus_share_memory_with_the_daemon(tmp_path: Path) -> None:
    shared = Path("/dev/shm/tangram-mps")
    directory = MpsDirectory(tmp_path, clock=FakeClock(), boot_id=BOOT, shm_directory=shared)
    assert {
        (mount.host_path, mount.container_path) for mount in directory.client_edits(UUID, share(9)).mounts
    } >= {("/dev/shm/tangram-mps", "/dev/shm")}


def test_p48_one_share_is_the_same_for_all_containers_of_a_claim(plugin: Plugin) -> None:
    """Edits are a function of GPU and share alone, so a claim's one CDI device serves all its containers."""
    assert plugin.directory.client_edits(UUID, share(100)) == plugin.directory.client_edits(UUID, share(100))


def test_joining_wakes_the_supervisor(plugin: Plugin) -> None:
    plugin.root.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(plugin.root / "wake"))
        supervisor.settimeout(10)
        plugin.directory.join(UUID, claim_uid="a", share=share(100))
        assert supervisor.recv(10)
        plugin.directory.leave(UUID, claim_uid="a")
        assert supervisor.recv(10)


@pytest.mark.parametrize(
    ("memory_bytes", "percent"), [(0, 50), (2**20 - 1, 50), (-1, 50), (2**20, 0), (2**20, 101)]
)
def test_a_share_that_means_nothing_is_refused(memory_bytes: int, percent: int) -> None:
    with pytest.raises(ValueError, match="is "):
        MpsShare(memory_bytes=memory_bytes, cores_percent=percent)


@given(st.binary(max_size=300) | st.sampled_from([b"{}", b"null", b"[]", b'{"uuid":null}', b"[" * 5000]))
def test_files_of_any_content_are_read_without_error(data: bytes) -> None:
    for kind in (MpsMember, MpsStatus, MpsShare):
        value = decode(data, kind)
        assert value is None or encode(value)


def test_strangers_in_the_directory_are_left_out(plugin: Plugin) -> None:
    plugin.directory.join(UUID, claim_uid="a", share=share(100))
    plugin.file("claims/broken.json").write_text("{")
    plugin.file("claims/note.txt").write_text("x")
    plugin.file("claims/directory.json").mkdir()
    plugin.file("claims/tiny.json").write_bytes(
        b'{"uuid":"%s","share":{"memoryBytes":1,"coresPercent":0}}' % GPU.encode()
    )
    (plugin.root / "keeper.lock").write_text("")
    assert plugin.directory.members() == {UUID: {"a": share(100)}}


def test_fields_of_a_later_version_are_no_error() -> None:
    text = b'{"uuid":"g","share":{"memoryBytes":1048576,"coresPercent":5,"new":1},"newer":{}}'
    assert decode(text, MpsMember) == MpsMember(uuid="g", share=share(1, 5))


def test_what_the_disk_refuses_is_an_error_of_the_house(plugin: Plugin) -> None:
    plugin.file("claims").write_text("no directory")
    with pytest.raises(StateError):
        plugin.directory.join(UUID, claim_uid="a", share=share(100))
    plugin.directory.leave(UUID, claim_uid="a")
    assert read_members(plugin.root / directory_name(UUID)) == {}
    assert os.listdir(plugin.root)
