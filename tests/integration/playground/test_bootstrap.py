"""`./hack/try` before the playground is there: it makes its environment, and leaves none half made."""

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from devtools import bootstrap

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 120


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A clone, as far as ./hack/try needs it, whose lock names one package."""
    package = ROOT / "driver" / "tangram"
    taken = [
        package / "__init__.py",
        *(package / "base").glob("*.py"),
        *(package / "playground").glob("guard*.py"),
    ]
    taken += [package / "playground" / "__init__.py", ROOT / "hack/try", ROOT / "hack/devtools/bootstrap.py"]
    for name in (file.relative_to(ROOT) for file in taken):
        (tmp_path / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "clone" / name)
    (tmp_path / "clone" / "deploy").mkdir()
    (tmp_path / "clone" / "deploy" / "requirements.txt").write_text(f"a==1 --hash=sha256:{'0' * 64}\n")
    (tmp_path / "tmp").mkdir()
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_signal_while_it_installs_leaves_nothing(tree: Path, number: signal.Signals) -> None:
    asked = asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        asked.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(never_answer, "127.0.0.1", 0) as index:
        port = index.sockets[0].getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            str(tree / "clone" / "hack" / "try"),
            env={
                "PATH": os.environ["PATH"],
                "PYTHON": sys.executable,
                "PIP_INDEX_URL": f"http://127.0.0.1:{port}/",
                "PIP_CONFIG_FILE": os.devnull,
                "TMPDIR": str(tree / "tmp"),
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(TIMEOUT_S):
            await asked.wait()
            process.send_signal(number)
            _, errors = await process.communicate()
    assert process.returncode in {130, -signal.SIGKILL}, errors.decode()
    assert "Traceback" not in errors.decode()
    if number is signal.SIGKILL:
        async with asyncio.timeout(TIMEOUT_S):
            while leftovers(tree):  # noqa: ASYNC110 - the guardian is no child of ours
                await asyncio.sleep(0.05)
    else:
        assert not (tree / "clone" / ".venv-run").exists()
    assert not leftovers(tree)


def leftovers(tree: Path) -> list[str]:
    """Temporary files, and processes that know of the clone."""
    found = [str(path) for path in (tree / "tmp").iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes()
            found += [command.decode()] if str(tree).encode() in command else []
    return found


def lacks(monkeypatch: pytest.MonkeyPatch, *, ensurepip: bool, pip: str, uv: str | None) -> None:
    """A Python with or without `ensurepip`, with a version of pip or none, beside uv or not."""

    def version(name: str) -> str:
        if not pip:
            raise importlib.metadata.PackageNotFoundError(name)
        return pip

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if ensurepip else None)
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(shutil, "which", lambda _: uv)


@pytest.mark.parametrize("ensurepip", [True, False])
def test_a_pip_that_is_there_installs(monkeypatch: pytest.MonkeyPatch, ensurepip: bool) -> None:
    lacks(monkeypatch, ensurepip=ensurepip, pip="23.0.1", uv=None)
    made, install = bootstrap._installer()
    assert made[-1] == "--without-pip"
    assert install[:4] == [sys.executable, "-m", "pip", "--python"]


@pytest.mark.parametrize("pip", ["22.2.2", "", "none"])
def test_else_the_one_that_comes_with_python(monkeypatch: pytest.MonkeyPatch, pip: str) -> None:
    lacks(monkeypatch, ensurepip=True, pip=pip, uv="/usr/bin/uv")
    made, install = bootstrap._installer()
    assert "--without-pip" not in made
    assert install[:3] == [str(bootstrap.VENV / "bin" / "python"), "-m", "pip"]


def test_else_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks(monkeypatch, ensurepip=False, pip="", uv="/usr/bin/uv")
    made, install = bootstrap._installer()
    assert made[-1] == "--without-pip"
    assert install[:3] == ["/usr/bin/uv", "pip", "install"]


def test_without_any_installer_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks(monkeypatch, ensurepip=False, pip="", uv=None)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    with pytest.raises(bootstrap.CannotPrepareError, match=f"apt-get install python{version}-venv"):
        bootstrap._installer()


def test_the_command_beside_its_python_runs_from_anywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    venv = tmp_path / "a folder" / ".venv-run"
    (venv / "bin").mkdir(parents=True)
    python = venv / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(bootstrap, "VENV", venv)
    for _ in range(2):  # there already, at every start but the first
        bootstrap._write_command()
        command = str(venv / "bin" / "tangram")
        done = subprocess.run(
            [command, "probe", "--simulate", "a10-x1"], cwd="/", env={}, check=False, capture_output=True
        )
        assert done.returncode == 0, done.stderr.decode()
        assert done.stdout.startswith(b"1 GPU, ")
