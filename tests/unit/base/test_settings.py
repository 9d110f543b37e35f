"""Settings: precedence, strictness, and errors that name the source and the setting."""

import contextlib
import json
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from tangram.base.errors import ConfigurationError
from tangram.base.settings import CommandSettings, Loaded, load_settings, settings_of
from tangram.base.settingsfile import read_settings_file


class Sample(CommandSettings, frozen=True, kw_only=True):
    node_name: Annotated[str, Meta(description="the node", min_length=1)]
    root_dir: Annotated[
        str, Meta(description="a root", pattern="^/", extra={"expected": "an absolute path"})
    ] = "/root"
    period_s: Annotated[float, Meta(description="a period", ge=1, le=60, extra={"unit": "seconds"})] = 30.0
    longest_s: Annotated[float, Meta(description="the longest period", extra={"unit": "seconds"})] = 60.0
    mode: Annotated[Literal["fast", "safe"], Meta(description="a mode")] = "safe"

    def contradiction(self) -> tuple[str, str] | None:
        return ("periodS", "longestS") if self.period_s > self.longest_s else None


def load(
    tmp_path: Path,
    *,
    flags: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
    file: str | None = None,
) -> Loaded[Sample]:
    config_file = ""
    if file is not None:
        config_file = str(tmp_path / "settings.yaml")
        Path(config_file).write_text(file)
    return load_settings(
        Sample,
        flags={"node_name": "n1"} if flags is None else flags,
        environment=environment or {},
        config_file=config_file,
        per_node=True,
    )


def test_names_of_a_setting_come_from_the_struct() -> None:
    setting = next(setting for setting in settings_of(Sample) if setting.name == "period_s")
    assert (setting.flag, setting.environment, setting.key) == ("--period-s", "TANGRAM_PERIOD_S", "periodS")
    assert (setting.unit, setting.description, setting.default) == ("seconds", "a period", 30.0)
    assert [setting.name for setting in settings_of(Sample)][:5] == [
        "node_name", "root_dir", "period_s", "longest_s", "mode",
    ]  # fmt: skip


@given(layers=st.sets(st.sampled_from(["flag", "environment", "node", "file"])))
def test_precedence(layers: set[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    values = {"flag": "5", "environment": "4", "node": "3", "file": "2"}
    file = ""
    if "file" in layers:
        file += f"periodS: {values['file']}\n"
    if "node" in layers:
        file += f"nodes:\n  n1: {{periodS: {values['node']}}}\n  other: {{periodS: 7}}\n"
    loaded = load(
        tmp_path_factory.mktemp("settings"),
        flags={"node_name": "n1"} | ({"period_s": values["flag"]} if "flag" in layers else {}),
        environment={"TANGRAM_PERIOD_S": values["environment"]} if "environment" in layers else {},
        file=file or None,
    )
    winner = next((layer for layer in ("flag", "environment", "node", "file") if layer in layers), None)
    assert loaded.settings.period_s == (float(values[winner]) if winner else 30.0)
    origin = loaded.origins["periodS"]
    expected = {
        None: "default",
        "flag": "flag",
        "environment": "environment variable TANGRAM_PERIOD_S",
        "node": "nodes.n1",
        "file": "settings.yaml",
    }[winner]
    assert origin.endswith(expected)
    assert loaded.report()["periodS"] == {"value": loaded.settings.period_s, "from": origin}


def test_the_node_name_of_the_file_selects_its_overrides(tmp_path: Path) -> None:
    loaded = load(tmp_path, flags={}, file="nodeName: n2\nnodes: {n2: {mode: fast}}")
    assert loaded.settings.mode == "fast"


def test_effective_settings_are_a_settings_file(tmp_path: Path) -> None:
    loaded = load(tmp_path, flags={"node_name": "n1", "mode": "fast", "metrics_address": ""})
    text = json.dumps(loaded.as_object())
    assert load(tmp_path, flags={}, file=text).settings == loaded.settings


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("mode: fast\nperiodS: [", "settings.yaml, line 3: "),
        ("mode: fast\nperiods: 3", "line 2: unknown key 'periods'; did you mean periodS?"),
        ("completelyOther: 3", "unknown key 'completelyOther'; known keys: kubeconfig, "),
        ("mode: fast\nperiodS: soon", "line 2: periodS: expected a number, got text (value 'soon')"),
        ("periodS: '5'", "periodS: expected a number, got text"),
        ("periodS: .nan", "periodS: expected a number, got text (value '.nan')"),
        ("periodS: 1e999", "line 1: the number 1e999 is too large"),
        ("periodS: 0", "periodS: expected a number >= 1.0 (value 0)"),
        ("periodS: {a: 1}", "periodS: expected a number, got"),
        ("periodS:", "periodS: is null"),
        ("rootDir: tmp", "rootDir: expected an absolute path, got 'tmp'"),
        ("mode: no", "mode: expected one of fast, safe, got 'no'"),
        ("mode: slow", "mode: expected one of fast, safe, got 'slow'"),
        ("nodeName: ''", "nodeName: expected text of length >= 1"),
        ("mode: fast\nmode: safe", "line 2: the key 'mode' stands twice"),
        ("nodes: {n1: {mode: fast, mode: safe}}", "the key 'mode' stands twice"),
        ("nodes: {other: {mod: fast}}", "unknown key 'nodes.other.mod'; did you mean mode?"),
        ("nodes: {other: {mode: slow}}", "nodes.other.mode: expected one of fast, safe"),
        ("nodes: {other: {nodeName: x}}", "unknown key 'nodes.other.nodeName'"),
        ("nodes: {Other_1: {mode: fast}}", "nodes.'Other_1' is not the name of a node"),
        ("periodS: 9\nlongestS: 8", "larger than longestS (8, file"),
        ("nodes: 3", "nodes: expected a mapping, got a number"),
        ("nodes: {other: }", "nodes.other: expected a mapping, got null"),
        ("nodes:", "nodes: expected a mapping, got null"),
        ("1: 2", "the key 1 is not text"),
        ("? [a]\n: 1", "line 1: a key that is a mapping or a list"),
        ("a: &x 1\nb: *x", "line 2: aliases"),
        ("- mode", "the file: expected a mapping, got a list"),
        ("", "is empty"),
        ("# nothing but a comment", "is empty"),
        ("apiVersion: v1", "apiVersion is 'v1', expected tangram/v1alpha1"),
        ("kind: NodeSettings", "kind is 'NodeSettings', expected Sample"),
        ("mode: !!python/object:os.system x", "line 1: tags (tag:yaml.org,2002:python/object:os"),
        ("mode: fast\n---\nmode: safe", "line 3: a second document"),
        ("mode: 2026-99-99", "settings.yaml"),
        ("[" * 20, "nested deeper than 8 levels"),
        ("[" * 100_000, "nest"),
        ("a: \x00", "settings.yaml"),
    ],
)
def test_a_wrong_file_names_file_line_and_key(tmp_path: Path, file: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, file=file)
    assert str(tmp_path / "settings.yaml") in str(caught.value)
    assert message in str(caught.value)
    assert caught.value.next_step


def test_a_wrong_file_is_refused_although_a_flag_wins(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="mode: expected one of"):
        load(tmp_path, flags={"node_name": "n1", "mode": "fast"}, file="mode: slow")


def test_huge_missing_and_unreadable_files(tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    huge.write_bytes(b"#" * (1024 * 1024 + 1))
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for path, message in (
        (huge, "larger than 1024 KiB"),
        (tmp_path / "none", "No such file"),
        (tmp_path, "Is a directory"),
        (binary, "not UTF-8 at byte 0"),
    ):
        with pytest.raises(ConfigurationError, match=message) as caught:
            read_settings_file(str(path))
        assert str(path) in caught.value.cause


@given(text=st.text(max_size=200))
def test_no_text_crashes_the_reader(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("settings") / "fuzz.yaml"
    path.write_text(text, encoding="utf-8", errors="ignore")
    with contextlib.suppress(ConfigurationError):
        read_settings_file(str(path))


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        ({}, {}, "nodeName is not set; give --node-name, TANGRAM_NODE_NAME or nodeName"),
        ({"node_name": "n", "period_s": "soon"}, {}, "flag --period-s: expected a number, got text"),
        ({"node_name": "n", "period_s": ""}, {}, "flag --period-s: expected a number"),
        ({"node_name": "n", "period_s": "nan"}, {}, "flag --period-s: expected a number"),
        ({"node_name": "n", "period_s": "inf"}, {}, "flag --period-s: expected a number <= 60.0"),
        ({"node_name": "n"}, {"TANGRAM_MODE": "slow"}, "environment variable TANGRAM_MODE: expected one of"),
        ({"node_name": "n"}, {"TANGRAM_ROOT_DIR": ""}, "environment variable TANGRAM_ROOT_DIR: expected an"),
        ({}, {"TANGRAM_NODE_NAME": ""}, "environment variable TANGRAM_NODE_NAME: expected text of length"),
        ({"node_name": "n", "mode": "x" * 500}, {}, "xxx..."),
        (
            {"node_name": "n", "longest_s": "5"},
            {"TANGRAM_PERIOD_S": "6"},
            "periodS (6, environment variable TANGRAM_PERIOD_S) is larger than longestS (5, flag)",
        ),
    ],
)
def test_a_wrong_flag_or_variable_is_named(
    tmp_path: Path, flags: dict[str, str], environment: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, flags=flags, environment=environment)
    assert message in str(caught.value)
    assert len(caught.value.cause) < 250


def test_a_variable_that_is_nearly_a_setting_is_warned_about(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        environment={"TANGRAM_PERIODS": "3", "TANGRAM_CONTROLLER_SERVICE_HOST": "x", "PERIOD_S": "4"},
    )
    assert loaded.warnings == ("TANGRAM_PERIODS is not a setting; did you mean TANGRAM_PERIOD_S?",)
    assert loaded.settings.period_s == 30.0
