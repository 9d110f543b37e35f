"""docs/configuration.md says what the settings Structs say, setting by setting."""

from pathlib import Path

import pytest

from tangram.base.settings import CommandSettings, Setting, settings_of
from tangram.cli.flags import default_text
from tangram.controller.settings import ControllerSettings
from tangram.hardware.mps.settings import MpsSettings
from tangram.node.settings import NodeSettings

DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"


def row(setting: Setting) -> str:
    default = "required" if setting.required else f"`{default_text(setting)}`"
    meaning = setting.description.replace("|", "\\|")
    if setting.choices:
        meaning += f" ({', '.join(f'`{choice}`' for choice in setting.choices)})"
    return (
        f"| `{setting.key}` | `{setting.flag}` | `{setting.environment}` | {default} | {setting.unit}"
        f" | {meaning} |"
    )


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("tangram node run", NodeSettings),
        ("tangram controller run", ControllerSettings),
        ("tangram mps run", MpsSettings),
    ],
)
def test_the_table_lists_exactly_the_settings(command: str, kind: type[CommandSettings]) -> None:
    section = DOCUMENT.read_text().split(f"## `{command}`")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [row(setting) for setting in settings_of(kind)]


@pytest.mark.parametrize("kind", [NodeSettings, ControllerSettings, MpsSettings])
def test_every_setting_is_described(kind: type[CommandSettings]) -> None:
    for setting in settings_of(kind):
        assert setting.description
        assert not setting.description.endswith(".")
        assert not setting.name.endswith("_s") or setting.unit == "seconds"
