"""Our createContainer hook, run by a real shell against a root file system that cannot be trusted."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

SCRIPT = resources.files("tangram.hardware").joinpath("update-ldcache.sh").read_text()
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
LIMIT_S = 60


class Bundle:
    """An OCI bundle with the driver's library in `/opt/driver`."""

    def __init__(self, directory: Path, library: Path) -> None:
        self.directory = directory
        self.root = directory / "rootfs"
        for name in ("etc", "proc", "opt/driver", "var/cache"):
            (self.root / name).mkdir(parents=True)
        shutil.copy(library, self.root / "opt/driver/libcuda.so.580.1")
        self.config: dict[str, Any] = {"ociVersion": "1.1.0", "root": {"path": "rootfs"}, "process": {}}
        self.state: dict[str, Any] = {
            "ociVersion": "1.1.0",
            "id": "c1",
            "status": "creating",
            "bundle": str(directory),
        }

    @property
    def cache(self) -> Path:
        return self.root / "etc/ld.so.cache"

    def run(self, *, script: str = SCRIPT, arguments: tuple[str, ...] = ("/opt/driver",)) -> str:
        """Runs the hook as a runtime does: state on standard input, the container's /proc in its root.

        The shell around it is process 1 of that /proc and still has the host's root, like runc's own process.
        """
        (self.directory / "config.json").write_text(json.dumps(self.config))
        (self.directory / "hook.sh").write_text(script)
        result = subprocess.run(
            [
                *("unshare", "--mount", "--pid", "--fork", "--propagation", "private", "sh", "-c"),
                'mount -t proc proc "$0/proc" && cd "$0" && sh "$0/../hook.sh" "$@"; exit $?',
                *(str(self.root), *arguments),
            ],
            input=json.dumps(self.state),
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stderr


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("library")
    (directory / "f.c").write_text("int f(void) { return 1; }")
    path = directory / "libcuda.so.580.1"
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(path), str(directory / "f.c")]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
        subprocess.run(
            ["unshare", "--mount", "sh", "-c", "mount -t proc proc /proc && ldconfig -p >/dev/null"],
            check=True,
            capture_output=True,
            env=ENVIRONMENT,
            timeout=LIMIT_S,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs root, a C compiler, unshare and ldconfig: {error}")
    return path


@pytest.fixture
def bundle(tmp_path: Path, library: Path) -> Iterator[Bundle]:
    host = Path("/etc/ld.so.cache")
    before = host.stat().st_mtime_ns if host.exists() else None
    yield Bundle(tmp_path / "bundle", library)
    assert (host.stat().st_mtime_ns if host.exists() else None) == before


def test_the_directory_is_in_the_cache_of_the_container(bundle: Bundle) -> None:
    assert bundle.run() == ""
    assert b"/opt/driver/libcuda.so.1" in bundle.cache.read_bytes()
    assert os.readlink(bundle.root / "opt/driver/libcuda.so.1") == "libcuda.so.580.1"


def test_an_absolute_root(bundle: Bundle) -> None:
    bundle.config["root"]["path"] = str(bundle.root)
    bundle.run()
    assert bundle.cache.exists()


def test_text_of_the_pod_is_not_taken_for_the_state(bundle: Bundle, tmp_path: Path) -> None:
    evil = tmp_path / "evil"
    (evil / "rootfs/etc").mkdir(parents=True)
    (evil / "config.json").write_text('{"root": {"path": "rootfs"}}')
    lies = {
        "bundle": str(evil),
        "x": f'{{"bundle":"{evil}"}}',
        f'a","bundle":"{evil}': "x",
        "root.path": "/",
        "root": '{"path":"/"}',
    }
    bundle.state = {"annotations": lies, **bundle.state, "more": [{"bundle": str(evil)}], "z": lies}
    bundle.config = {
        "annotations": lies,
        **bundle.config,
        "process": {"env": ['"root":{"path":"/"}', "\\"], "args": ['{"root":{"path":"/"}}']},
        "hooks": {"root": {"path": "/"}},
    }
    bundle.run()
    assert bundle.cache.exists()
    assert not (evil / "rootfs/etc/ld.so.cache").exists()


WEAK = "\n".join(line for line in SCRIPT.splitlines() if "umount -l" not in line and "/proc/self" not in line)


@pytest.mark.parametrize("defended", [True, False], ids=["as shipped", "without the defence"])
def test_no_link_leads_out_of_the_container(
    bundle: Bundle, tmp_path: Path, library: Path, *, defended: bool
) -> None:
    """ldconfig makes links in the directories that the image names, so those must stay inside."""
    outside = tmp_path / "outside"
    outside.mkdir()
    shutil.copy(library, outside / "libcuda.so.9")
    (bundle.root / "etc/ld.so.conf").write_text(f"/proc/1/root{outside}\n/proc/self/cwd{outside}\n")
    bundle.run(script=SCRIPT if defended else WEAK)
    assert bundle.cache.exists()
    assert (outside / "libcuda.so.1").is_symlink() is not defended


def test_a_proc_that_cannot_be_taken_away_stops_it(bundle: Bundle) -> None:
    stuck = SCRIPT.replace('umount -l "$root/proc" 2>/dev/null', ":")
    assert "ldconfig failed" in bundle.run(script=stuck)
    assert not bundle.cache.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("no bundle", "no bundle in the container's state"),
        ("a bundle that is not there", "no bundle in the container's state"),
        ("no root", "no root in"),
        ("a root that is not there", "no root file system at"),
        ("the host's root", "is the host's"),
        ("a link to the host's root", "is the host's"),
        ("no /etc", "no /etc in the image"),
        ("a root with an escape", "no root in"),
    ],
)
def test_what_cannot_be_done_is_left_undone(bundle: Bundle, change: str, message: str) -> None:
    match change:
        case "no bundle":
            del bundle.state["bundle"]
        case "a bundle that is not there":
            bundle.state["bundle"] = "/nonexistent"
        case "no root":
            del bundle.config["root"]
        case "a root that is not there":
            bundle.config["root"]["path"] = "nowhere"
        case "the host's root":
            bundle.config["root"]["path"] = "/"
        case "a link to the host's root":
            (bundle.directory / "link").symlink_to("/")
            bundle.config["root"]["path"] = "link"
        case "no /etc":
            (bundle.root / "etc").rmdir()
        case "a root with an escape":
            bundle.config["root"]["path"] = "root\nfs"
    assert message in bundle.run()
    assert not bundle.cache.exists()


@pytest.mark.parametrize("tool", ["ldconfig", "awk", "unshare"])
def test_a_host_without_a_tool_starts_containers_all_the_same(
    bundle: Bundle, tmp_path: Path, tool: str
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("awk", "unshare", "umount", "ldconfig", "sh", "cat"):
        if name != tool and (found := shutil.which(name, path=ENVIRONMENT["PATH"])):
            (tools / name).symlink_to(found)
    script = SCRIPT.replace("PATH=/usr/sbin:/usr/bin:/sbin:/bin", f"PATH={tools}")
    assert f"no {tool} on this host" in bundle.run(script=script)


def test_no_directory_no_work(bundle: Bundle) -> None:
    assert "no directory given" in bundle.run(arguments=())
