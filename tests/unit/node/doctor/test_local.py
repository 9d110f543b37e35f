"""Each check of directories, sockets, files and disk: passing, and failing with what mends it."""

import os
import socket
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tangram.base.errors import StateError
from tangram.model.gpu import GpuUuid
from tangram.node.doctor import local
from tangram.node.doctor.check import Check
from tangram.node.drains import Drain
from tangram.node.held import Contents, Damage, HeldClaim
from tangram.node.settings import NodeSettings
from tangram.node.sight import Files, Plugin, plugin_directory

GPU = GpuUuid("GPU-00000000-0000-4000-8000-000000000001")


def results(checks: Iterable[Check]) -> dict[str, str]:
    """The result of each check; whoever says that something is wrong says what mends it."""
    found = list(checks)
    for check in found:
        assert bool(check.fix) == (check.result in ("warn", "fail")), check
    return {check.name: check.result for check in found}


def text(checks: Iterable[Check]) -> str:
    return "\n".join(f"{check.result}: {check.text}" for check in checks)


def held(uid: str, **more: Any) -> HeldClaim:
    fields: dict[str, Any] = {"namespace": "ns", "name": uid, "uid": uid, "boot_id": "b", "phase": "prepared"}
    return HeldClaim(**{**fields, "devices": (), **more})


def files(*claims: HeldClaim, **more: Any) -> Files:
    return Files(held=Contents(claims={claim.uid: claim for claim in claims}), **more)


@contextmanager
def listening(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield


@pytest.fixture
def node() -> Iterator[NodeSettings]:
    # The path of a socket is short: pytest's own directories are not.
    with tempfile.TemporaryDirectory(prefix="tg") as name:
        made = NodeSettings(node_name="n", kubelet_dir=name, cdi_root=f"{name}/cdi")
        for path in (plugin_directory(made), Path(name, "plugins_registry"), Path(name, "cdi")):
            path.mkdir(parents=True)
        yield made


def test_rights() -> None:
    assert results(local.rights(0)) == {"rights": "ok"}
    assert results(local.rights(1000)) == {"rights": "warn"}


class TestDirectories:
    def test_well(self, node: NodeSettings) -> None:
        assert set(results(local.directories(node)).values()) == {"ok"}

    @pytest.mark.parametrize(
        ("name", "path"),
        [("plugin-directory", "plugins/gpu.resource.admin"), ("plugins-registry", "plugins_registry")],
    )
    def test_missing_or_a_file(self, node: NodeSettings, name: str, path: str) -> None:
        (Path(node.kubelet_dir) / path).rmdir()
        assert results(local.directories(node))[name] == "fail"
        (Path(node.kubelet_dir) / path).write_text("")
        assert results(local.directories(node))[name] == "fail"

    def test_the_cdi_root_comes_with_the_first_claim(self, node: NodeSettings) -> None:
        Path(node.cdi_root).rmdir()
        assert results(local.directories(node))["cdi-root"] == "warn"
        Path(node.cdi_root).write_text("")
        assert results(local.directories(node))["cdi-root"] == "fail"

    def test_not_writable(self, node: NodeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "access", lambda *_: False)
        found = list(local.directories(node))
        assert set(results(found).values()) == {"fail"}
        assert "cannot be written" in text(found)


class TestProcesses:
    @pytest.mark.parametrize(
        ("plugin", "result", "said"),
        [
            (Plugin(state="ready"), "ok", "is ready"),
            (Plugin(state="serving"), "ok", "it runs"),
            (Plugin(state="not running"), "fail", "there is no "),
            (Plugin(state="not answering"), "fail", "/readyz does not answer"),
            (Plugin(state="waiting", waiting_for=("the GPUs: x",)), "fail", "it waits for the GPUs: x"),
        ],
    )
    def test_the_plugin(self, node: NodeSettings, plugin: Plugin, result: str, said: str) -> None:
        found = list(local.processes(node, plugin))
        assert results(found)["plugin"] == result
        assert said in text(found)

    def test_a_socket_that_is_left_over_is_named(self, node: NodeSettings) -> None:
        path = plugin_directory(node) / "dra.sock"
        with listening(path):
            pass
        assert f"nobody listens on {path}" in text(local.processes(node, Plugin(state="not running")))

    def test_the_registration_socket(self, node: NodeSettings) -> None:
        runs, dead = Plugin(state="ready"), Plugin(state="not running")
        registry = Path(node.kubelet_dir) / "plugins_registry"
        path = registry / "gpu.resource.admin-1234-reg.sock"
        assert results(local.processes(node, runs))["registration-socket"] == "fail"
        assert results(local.processes(node, dead))["registration-socket"] == "skip"
        with listening(path):
            assert results(local.processes(node, runs))["registration-socket"] == "ok"
        assert results(local.processes(node, runs))["registration-socket"] == "fail"
        with listening(registry / "another.driver-reg.sock"):
            assert results(local.processes(node, runs))["registration-socket"] == "fail"


class TestHeldFiles:
    def test_well(self) -> None:
        found = list(local.held_files(files(held("a"), held("b"))))
        assert (results(found), text(found)) == ({"held-files": "ok"}, "ok: 2 claims held")

    @pytest.mark.parametrize(
        ("seen", "result", "said"),
        [
            (
                Files(problems=(StateError("x cannot be read", next_step="mend it"),)),
                "fail",
                "x cannot be read",
            ),
            (
                Files(held=Contents(damaged={"u": Damage(uid="u", cause="checksum")})),
                "fail",
                "claim uid u cannot be used: checksum",
            ),
            (
                Files(held=Contents(damaged={"u": Damage(uid="u", cause="version 9", newer=True)})),
                "fail",
                "version 9",
            ),
            (files(set_aside=("/x.set-aside-1",)), "warn", "the last as /x.set-aside-1"),
        ],
    )
    def test_not_well(self, seen: Files, result: str, said: str) -> None:
        found = list(local.held_files(seen))
        assert results(found) == {"held-files": result}
        assert said in text(found)

    @pytest.mark.parametrize("phase", ["preparing", "unpreparing"])
    def test_half_done(self, phase: str) -> None:
        assert f"is half done ({phase})" in text(local.held_files(files(held("a", phase=phase))))


def test_drains() -> None:
    assert results(local.drains(Files())) == {"drains": "ok"}
    (check,) = local.drains(Files(drains={GPU: Drain(reason="fan")}))
    assert (check.result, check.text) == ("warn", f"{GPU} is drained: fan")
    assert check.fix.startswith(f"tangram node drain-gpu --undo {GPU}")


class TestCdiFiles:
    def write(self, node: NodeSettings, uid: str) -> None:
        (Path(node.cdi_root) / f"gpu.resource.admin_{uid}.json").write_text("{}")

    def test_as_held(self, node: NodeSettings) -> None:
        self.write(node, "a")
        assert results(local.cdi_files(node, files(held("a"), held("b", phase="preparing")))) == {
            "cdi-files": "ok"
        }

    def test_missing_and_left_over(self, node: NodeSettings) -> None:
        self.write(node, "c")
        claims = [held(uid) for uid in "abde"]
        found = list(local.cdi_files(node, files(*claims)))
        assert text(found) == (
            "fail: none for claims a, b, d and 1 more, which are held: their containers cannot start again\n"
            "warn: some of claims that are not held: claim c"
        )
        assert results(found) == {"cdi-files": "warn"}

    def test_of_damaged_claims_they_are_no_strays(self, node: NodeSettings) -> None:
        self.write(node, "u")
        damaged = Files(held=Contents(damaged={"u": Damage(uid="u", cause="checksum")}))
        assert results(local.cdi_files(node, damaged)) == {"cdi-files": "ok"}

    def test_without_a_directory(self, node: NodeSettings) -> None:
        Path(node.cdi_root).rmdir()
        assert results(local.cdi_files(node, Files())) == {"cdi-files": "skip"}


class TestDisk:
    def of(self, monkeypatch: pytest.MonkeyPatch, path: Path, **room: int) -> dict[str, str]:
        whole = {"f_bavail": 2**30, "f_frsize": 4096, "f_files": 10**6, "f_favail": 10**5}
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**{**whole, **room}))
        return results(local.disk([path, path / "same", path / "none"]))

    @pytest.mark.parametrize(
        ("room", "result"),
        [
            ({}, "ok"),
            ({"f_bavail": local.LITTLE_BYTES // 4096 - 1}, "warn"),
            ({"f_bavail": local.TOO_LITTLE_BYTES // 4096 - 1}, "fail"),
            ({"f_favail": 3}, "fail"),
            ({"f_files": 0, "f_favail": 0}, "ok"),
        ],
    )
    def test_room(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: dict[str, int], result: str
    ) -> None:
        (tmp_path / "same").mkdir()
        assert self.of(monkeypatch, tmp_path, **room) == {"disk": result}

    def test_of_this_machine(self, tmp_path: Path) -> None:
        assert list(results(local.disk([tmp_path]))) == ["disk"]
