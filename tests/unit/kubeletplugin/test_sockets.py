import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.base.errors import ConfigurationError
from tangram.kubeletplugin.sockets import (
    MAXIMUM_PATH_BYTES,
    SocketFile,
    dra_socket_path,
    registration_socket_path,
    remove_dead_sockets,
)

UID = "0b8e5c52-7b51-4f0f-9d3c-6a8c2b7c1f10"


@pytest.fixture
def listening() -> Iterator[list[socket.socket]]:
    sockets: list[socket.socket] = []
    yield sockets
    for opened in sockets:
        opened.close()


def listen(path: Path, opened: list[socket.socket]) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.fspath(path))
    listener.listen()
    opened.append(listener)


def published(path: Path, opened: list[socket.socket]) -> SocketFile:
    file = SocketFile(path)
    listen(file.bind_path, opened)
    file.publish()
    return file


def test_names_of_an_ordinary_node() -> None:
    plugins = Path("/var/lib/kubelet/plugins/gpu.example.com")
    registry = Path("/var/lib/kubelet/plugins_registry")
    assert dra_socket_path(plugin_directory=plugins, pod_uid="") == plugins / "dra.sock"
    assert dra_socket_path(plugin_directory=plugins, pod_uid=UID) == plugins / f"dra-{UID}.sock"
    assert (
        registration_socket_path(registry_directory=registry, driver_name="gpu.example.com", pod_uid="")
        == registry / "gpu.example.com-reg.sock"
    )
    assert (
        registration_socket_path(registry_directory=registry, driver_name="gpu.example.com", pod_uid=UID)
        == registry / f"gpu.example.com-{UID}-reg.sock"
    )


def test_shorter_names_where_the_path_is_long() -> None:
    """Digests by hand: `printf %s UID | sha256sum`, the first 8 (16) bytes in URL-safe base64, unpadded."""
    registry = Path("/var/lib/kubelet/plugins_registry")
    name = "d" * 40
    assert registration_socket_path(registry_directory=registry, driver_name=name, pod_uid=UID).name == (
        f"{name}-liYVGW06h3Y-reg.sock"
    )
    name = "d" * 63
    assert registration_socket_path(registry_directory=registry, driver_name=name, pod_uid=UID).name == (
        "dra-SWsbo2kCFYW_gNe8CV--YA-reg.sock"
    )


def test_no_name_fits() -> None:
    with pytest.raises(ConfigurationError, match=r"even /x+/d-reg\.sock is longer than 107 bytes"):
        registration_socket_path(registry_directory=Path("/" + "x" * 100), driver_name="d", pod_uid="")
    with pytest.raises(ConfigurationError, match="use a shorter kubelet directory"):
        dra_socket_path(plugin_directory=Path("/" + "x" * 100), pod_uid=UID)


@given(
    st.integers(1, 120),
    st.from_regex(r"[a-z0-9.]{1,63}", fullmatch=True),
    st.sampled_from(["", UID, "u" * 200]),
)
def test_a_name_always_fits_or_is_refused(depth: int, driver_name: str, pod_uid: str) -> None:
    directory = Path("/" + "d" * depth)
    try:
        path = registration_socket_path(
            registry_directory=directory, driver_name=driver_name, pod_uid=pod_uid
        )
    except ConfigurationError:
        return
    assert len(os.fsencode(path)) <= MAXIMUM_PATH_BYTES
    assert path.parent == directory
    # The hidden name used while binding must fit as well.
    assert len(os.fsencode(SocketFile(path).bind_path)) <= MAXIMUM_PATH_BYTES


def test_published_sockets_belong_to_their_owner_only(
    tmp_path: Path, listening: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # tmp_path may be longer than a socket's path can be
    file = published(Path("dra.sock"), listening)
    assert file.intact
    assert not file.lost
    assert Path("dra.sock").stat().st_mode & 0o777 == 0o600
    assert os.listdir() == ["dra.sock"]
    file.remove()
    assert os.listdir() == []
    file.remove()


def test_a_newer_process_keeps_its_file(
    tmp_path: Path, listening: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    older = published(Path("dra.sock"), listening)
    newer = published(Path("dra.sock"), listening)
    assert not older.intact
    assert not older.lost, "somebody else serves there: nothing to restore"
    older.remove()
    assert newer.intact


def test_lost_files_are_noticed(
    tmp_path: Path, listening: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = published(Path("dra.sock"), listening)
    Path("dra.sock").unlink()
    assert not file.intact
    assert file.lost
    Path("dra.sock").write_text("no socket")
    assert file.lost
    file.remove()
    assert Path("dra.sock").exists(), "not ours"


def test_a_new_file_with_the_old_inode_is_not_taken_for_ours(
    tmp_path: Path, listening: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems give a freed inode number out again at once; ours is not freed while we look after it."""
    monkeypatch.chdir(tmp_path)
    file = published(Path("dra.sock"), listening)
    Path("dra.sock").unlink()
    for _ in range(50):
        listen(Path("dra.sock"), listening)
        assert not file.intact
        Path("dra.sock").unlink()
    file.remove()


def test_dead_sockets_are_removed(
    tmp_path: Path, listening: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    listen(Path("d-living-reg.sock"), listening)
    for name in ("d-dead-reg.sock", "other-dead-reg.sock"):
        dead: list[socket.socket] = []
        listen(Path(name), dead)
        dead[0].close()
    Path("d-file-reg.sock").write_text("")
    assert remove_dead_sockets(Path(), "d-*reg.sock") == [Path("d-dead-reg.sock")]
    assert sorted(os.listdir()) == ["d-file-reg.sock", "d-living-reg.sock", "other-dead-reg.sock"]
    assert remove_dead_sockets(Path("absent"), "*") == []
