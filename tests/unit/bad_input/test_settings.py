"""Every setting, from every source, with every value that nobody should give it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.bad_input.hostile import TEXTS, VALUES, deep

from tangram.base.errors import ConfigurationError
from tangram.base.settings import CommandSettings, Loaded, Setting, load_settings, settings_of
from tangram.controller.settings import ControllerSettings
from tangram.node.settings import NodeSettings

CASES = [
    pytest.param(kind, setting, id=f"{kind.__name__}-{setting.key}")
    for kind in (NodeSettings, ControllerSettings)
    for setting in settings_of(kind)
]


def load(
    kind: type[CommandSettings], file: Path | None = None, *, without_name: bool = False, **flags: str
) -> Loaded[Any]:
    """With the name of the node that the node's settings must have, unless that is tried."""
    named = {} if kind is ControllerSettings or without_name else {"node_name": "n"}
    return load_settings(
        kind,
        flags={**named, **flags},
        environment={},
        config_file=str(file) if file else "",
        per_node=kind is NodeSettings,
    )


def refused(error: ConfigurationError, *names: str) -> None:
    """The error says what is wrong where, in a line, and what to do."""
    for name in names:
        assert name in error.cause, str(error)
    assert error.next_step
    assert error.cause.isprintable()
    assert len(error.cause) < 400 + len(names[0])


@pytest.mark.parametrize(("kind", "setting"), CASES)
def test_every_value_in_a_file(kind: type[CommandSettings], setting: Setting, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    taken = 0
    for value in (*VALUES, deep(10)):
        file.write_text(f"# a comment\n{json.dumps({setting.key: value}, ensure_ascii=False)}\n")
        try:
            loaded = load(kind, file, without_name=setting.key == "nodeName")
        except ConfigurationError as error:
            where = f"settings file {file}"
            if value == deep(10):
                refused(error, where, "line 2")
            elif error.cause.startswith("exclusion"):
                refused(error, f"file {file}", setting.key)
            else:
                refused(error, where, f"line 2: {setting.key}")
        else:
            taken += 1
            json.dumps(loaded.as_object())
    assert taken < len(VALUES) / 2


@pytest.mark.parametrize(("kind", "setting"), CASES)
def test_every_text_as_flag_and_variable(kind: type[CommandSettings], setting: Setting) -> None:
    for text in (*TEXTS, "null", "nan", "inf", "-1", "1e999", "x" * 100_000, "\udcff", "true", "[]", "{}"):
        for source in ("flag", "variable"):
            try:
                if source == "flag":
                    load_settings(kind, flags={"node_name": "n", setting.name: text}, environment={})
                else:
                    flags = {} if setting.name == "node_name" else {"node_name": "n"}
                    load_settings(kind, flags=flags, environment={setting.environment: text})
            except ConfigurationError as error:
                refused(error, setting.flag if source == "flag" else setting.environment)


@pytest.mark.parametrize("kind", [NodeSettings, ControllerSettings])
@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\xff\xfe\x00", "not UTF-8 at byte 0"),
        (b"logLevel: debug\nlogLevel: info\n", "line 2: the key 'logLevel' stands twice"),
        (b"logLevel: &a debug\nlogFormat: *a\n", "line 2: aliases"),
        (b"logLevel: !!python/name:os.system\n", "line 1: tags"),
        (b"unknown: 1\n", "line 1: unknown key 'unknown'"),
        ("l\u043egLevel: debug\n".encode(), "unknown key 'l\u043egLevel'; did you mean logLevel?"),
        (b"[" * 100_000, "nest"),
        (b"{" * 100_000, "line 1"),
        (b"shutdownGraceS: .nan\n", "shutdownGraceS: expected a number"),
        (b"shutdownGraceS: -.inf\n", "shutdownGraceS: expected a number"),
        (b"shutdownGraceS: 1e999\n", "line 1: the number 1e999 is too large"),
        (b"shutdownGraceS: " + b"9" * 5000, "line 1: a number of very many digits"),
        (b"a: \x00", "settings file"),
        (b"\t", "line 1"),
        (b"#" * (1024 * 1024 + 1), "is larger than 1024 KiB"),
        (b"", "is empty"),
    ],
)
def test_files_that_hold_no_settings(
    kind: type[CommandSettings], data: bytes, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes(data)
    with pytest.raises(ConfigurationError) as caught:
        load(kind, file)
    assert problem in str(caught.value)
    refused(caught.value, f"settings file {file}")
