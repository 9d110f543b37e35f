"""Flags of a command, made from its settings Struct."""

import argparse
import json
import os
from collections.abc import Collection

from tangram.base.settings import CommandSettings, Loaded, Setting, T, load_settings, settings_of

_CONFIG_VARIABLE = "TANGRAM_CONFIG"


def add_settings_flags(
    parser: argparse.ArgumentParser, kind: type[CommandSettings], *, only: Collection[str] = ()
) -> None:
    """One flag for each setting, `--config` and `--print-config`; with `only`, for a command that looks at
    what another one does, `--config` and these settings."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help=f"settings file (YAML); environment {_CONFIG_VARIABLE}. A flag wins over the environment, the"
        " environment over the file",
    )
    if not only:
        parser.add_argument(
            "--print-config",
            action="store_true",
            help="print the effective settings as JSON (itself a valid settings file) and exit",
        )
    group = parser.add_argument_group("settings")
    for setting in (each for each in settings_of(kind) if not only or each.name in only):
        group.add_argument(
            setting.flag,
            dest=f"setting.{setting.name}",
            metavar=_metavar(setting),
            default=argparse.SUPPRESS,
            help=_help(setting),
        )


def settings_from(arguments: argparse.Namespace, kind: type[T], *, per_node: bool = False) -> Loaded[T]:
    """The settings that flags, environment and file add up to. Raises ConfigurationError."""
    given = vars(arguments)
    flags = {
        name.removeprefix("setting."): text for name, text in given.items() if name.startswith("setting.")
    }
    config_file = given.get("config", os.environ.get(_CONFIG_VARIABLE, ""))
    return load_settings(
        kind, flags=flags, environment=os.environ, config_file=config_file, per_node=per_node
    )


def print_settings(loaded: Loaded[T]) -> None:
    """The effective settings as JSON on standard output."""
    print(json.dumps(loaded.as_object(), indent=2))


def _metavar(setting: Setting) -> str:
    if setting.choices:
        return "{" + ",".join(setting.choices) + "}"
    return "SECONDS" if setting.unit == "seconds" else "VALUE"


def _help(setting: Setting) -> str:
    default = "required" if setting.required else f"default {default_text(setting)}"
    return f"{setting.description} ({default}; {setting.environment})".replace("%", "%%")


def default_text(setting: Setting) -> str:
    """A setting's default as the user would write it."""
    if isinstance(setting.default, float):
        return f"{setting.default:g}"
    return setting.default or '""'
