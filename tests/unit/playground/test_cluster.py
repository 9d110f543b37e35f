"""The playground has what the chart installs and its documents say."""

import re
import tempfile
from pathlib import Path

import pytest
from tests.unit.deploy.conftest import rendering

from tangram.cli.main import main
from tangram.playground.cluster import device_classes, temporary_directory

ROOT = Path(__file__).parents[3]


def test_its_device_classes_are_those_of_the_chart() -> None:
    shipped = {item["metadata"]["name"]: item["spec"] for item in rendering("default").all("DeviceClass")}
    assert {item["metadata"]["name"]: item["spec"] for item in device_classes()} == shipped


def test_documented_options_are_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["playground", "--help"])
    shown = capsys.readouterr().out
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for command in re.findall(r"^\./hack/try .*$", path.read_text(encoding="utf-8"), re.MULTILINE):
            for option in re.findall(r"--[a-z]+", command):
                assert option in shown, f"{path.name}: {command}"


def test_finding_its_directory_writes_no_file_that_a_kill_would_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)  # what is found is remembered
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as directory:
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setenv("TMPDIR", directory)
        before = Path(directory).stat().st_mtime_ns
        assert temporary_directory() == directory
        assert Path(directory).stat().st_mtime_ns == before


@pytest.mark.parametrize("usual", ["", "relative", "/no/such", "/etc/hostname", "/tmp/" + 30 * "x"])
def test_a_directory_that_cannot_serve_is_not_taken(monkeypatch: pytest.MonkeyPatch, usual: str) -> None:
    monkeypatch.setenv("TMPDIR", usual)
    assert temporary_directory() == "/tmp"
