"""Reading a YAML settings file: strict, bounded, and with the line of every key."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tangram.base.errors import ConfigurationError

MAXIMUM_FILE_BYTES = 1024 * 1024
MAXIMUM_DEPTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FileValue:
    """A value of a settings file; `where` is its file and line.

    `value` is a scalar, a list, or for a mapping a dict of FileValue.
    """

    value: Any
    where: str

    def mapping(self, name: str) -> dict[str, "FileValue"]:
        """The entries of a mapping; ConfigurationError if it is anything else."""
        if not isinstance(self.value, dict):
            raise ConfigurationError(
                f"{self.where}: {name}: expected a mapping, got {kind_in_words(self.value)}",
                next_step="see docs/configuration.md for the form of the settings file",
            )
        return self.value


def kind_in_words(value: Any) -> str:
    """What a value of YAML is, in YAML's words."""
    kinds = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def read_settings_file(path: str) -> dict[str, FileValue]:
    """The top-level keys of a YAML file.

    Raises ConfigurationError naming the file (and line): unreadable, larger than 1 MiB, not UTF-8, not YAML,
    empty, not a mapping, a key twice, an alias, nested deeper than eight levels.
    """
    text = _read(path)
    import yaml  # noqa: PLC0415 - most starts of the command line read no file

    try:
        _check_shape(path, yaml.parse(text, Loader=yaml.CSafeLoader))
        loader = yaml.CSafeLoader(text)
        try:
            root = loader.get_single_node()
            content = None if root is None else _value(path, loader, root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"settings file {path}" + (f", line {mark.line + 1}" if mark else "")
        raise ConfigurationError(
            f"{where}: {error.problem or error.context}", next_step="mend the YAML of the file"
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(
            f"settings file {path}: {error}", next_step="mend the YAML of the file"
        ) from None
    if content is None or content.value is None:
        raise ConfigurationError(
            f"settings file {path} is empty", next_step="write settings to it, or leave --config out"
        )
    return content.mapping("the file")


def _read(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAXIMUM_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(
            f"settings file {path}: {error.strerror or error}", next_step="check --config and the permissions"
        ) from None
    if len(data) > MAXIMUM_FILE_BYTES:
        raise ConfigurationError(
            f"settings file {path} is larger than {MAXIMUM_FILE_BYTES // 1024} KiB",
            next_step="check that --config names a settings file",
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"settings file {path}: not UTF-8 at byte {error.start}", next_step="save the file as UTF-8"
        ) from None


def _check_shape(path: str, events: Iterator[Any]) -> None:
    """Refuses what could blow up while it is composed: aliases and deep nesting."""
    import yaml  # noqa: PLC0415

    depth = 0
    for event in events:
        problem = ""
        if isinstance(event, yaml.AliasEvent):
            problem = "aliases (*name) are not allowed"
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAXIMUM_DEPTH:
                problem = f"nested deeper than {MAXIMUM_DEPTH} levels"
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if problem:
            raise ConfigurationError(
                f"settings file {path}, line {event.start_mark.line + 1}: {problem}",
                next_step="write the settings out plainly",
            )


def _value(path: str, loader: Any, node: Any) -> FileValue:
    import yaml  # noqa: PLC0415

    where = f"settings file {path}, line {node.start_mark.line + 1}"
    if not isinstance(node, yaml.MappingNode):
        return FileValue(value=loader.construct_object(node, deep=True), where=where)
    content: dict[str, FileValue] = {}
    for key_node, value_node in node.value:
        key_where = f"settings file {path}, line {key_node.start_mark.line + 1}"
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise ConfigurationError(
                f"{key_where}: the key {key!r} is not text", next_step="quote it, or remove it"
            )
        if key in content:
            raise ConfigurationError(f"{key_where}: the key {key!r} stands twice", next_step="remove one")
        content[key] = FileValue(value=_value(path, loader, value_node).value, where=key_where)
    return FileValue(value=content, where=where)
