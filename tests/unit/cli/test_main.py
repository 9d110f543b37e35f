"""The command line: help that teaches, exit codes, errors with a next step, and what starts cost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tangram import __version__
from tangram.cli.main import main

DRIVER = Path(__file__).parents[3] / "driver"


def run(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TANGRAM_")}
    return subprocess.run(
        [sys.executable, "-m", "tangram", *words],
        env=clean | {"PYTHONPATH": str(DRIVER)} | (environment or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TANGRAM_")]:
        monkeypatch.delenv(name)


def test_version() -> None:
    finished = run("--version")
    assert (finished.returncode, finished.stdout) == (0, f"tangram {__version__}\n")


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["node", "--help"]])
def test_looking_loads_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\nfrom tangram.cli.main import main\n"
        f"try: main({words!r})\nexcept SystemExit: pass\n"
        "heavy = {'kubernetes', 'grpc', 'aiohttp', 'structlog', 'msgspec', 'yaml', 'asyncio', 'pynvml'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(DRIVER)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert finished.stderr == "[]\n"


@pytest.mark.parametrize("command", ["node", "controller", "mps"])
def test_printing_settings_loads_no_kubernetes_and_no_grpc(command: str) -> None:
    code = (
        "import sys\nfrom tangram.cli.main import main\n"
        f"main([{command!r}, 'run', '--print-config'])\n"
        "heavy = {'kubernetes', 'grpc', 'aiohttp', 'pynvml'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(DRIVER), "TANGRAM_NODE_NAME": "n"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert finished.stderr == "[]\n"


@pytest.mark.parametrize(
    "words", [[], *([name, *run] for name in ("node", "controller", "mps") for run in ([], ["run"]))]
)
def test_help_teaches(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*words, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(len(line) <= 110 for line in text.splitlines())
    if words and words[-1] == "run":
        assert "examples:\n" in text
        assert "TANGRAM_LOG_LEVEL" in text
    if not words:
        assert "examples:\n" in text
        assert "exit codes:\n" in text


@pytest.mark.parametrize(
    ("words", "error", "next_step"),
    [
        ([], "the following arguments are required: command", "see tangram --help"),
        (["nod"], "argument command: invalid choice: 'nod'", "see tangram --help"),
        (
            ["node", "run", "--nodename", "x"],
            "unrecognized arguments: --nodename x",
            "did you mean --node-name?",
        ),
        (["node", "run", "--node-name"], "argument --node-name: expected one argument", "node run --help"),
    ],
)
def test_wrong_usage(
    words: list[str], error: str, next_step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    first, second = captured.err.splitlines()
    assert first.startswith(f"error: {error}")
    assert second.startswith("next: ")
    assert next_step in second


def test_a_wrong_setting_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "run", "--node-name", "n", "--allocator", "me"]) == 2
    captured = capsys.readouterr()
    assert captured.err == (
        "error: flag --allocator: expected one of controller, scheduler, got 'me'\n"
        "next: allocator: who allocates this node's devices: Tangram's controller, or kube-scheduler itself"
        " (autoscaled pools, native extended resources)\n"
    )


def test_print_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "node.yaml"
    config.write_text("allocator: controller\nnodes: {n: {allocator: scheduler}}")
    assert main(["node", "run", "--node-name", "n", "--config", str(config), "--print-config"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["apiVersion"] == "tangram/v1alpha1"
    assert printed["kind"] == "NodeSettings"
    assert (printed["nodeName"], printed["allocator"]) == ("n", "scheduler")


def test_the_config_file_may_come_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TANGRAM_CONFIG", str(tmp_path / "missing.yaml"))
    assert main(["controller", "run", "--print-config"]) == 2
    assert "missing.yaml: cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["nod", "run"], "node"), (["node", "rum"], "run"), (["probe", "--output", "tabel"], "table")],
)
def test_a_misspelt_word_is_suggested(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert f"\nnext: did you mean {meant}? see tangram" in capsys.readouterr().err


def test_a_broken_connection_other_than_the_output_is_no_end_in_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(_: object) -> int:
        raise BrokenPipeError("of a socket")

    monkeypatch.setattr("tangram.cli.allocate._run", broken)
    with (tmp_path / "output").open("w") as output:
        monkeypatch.setattr("sys.stdout", output)
        with pytest.raises(BrokenPipeError, match="of a socket"):
            main(["allocate"])
