"""Reading a YAML settings file: strict, bounded, and with the line of every key."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tangram.base.errors import ConfigurationError, InvalidObjectError
from tangram.base.wrongvalues import kind_in_words

MAXIMUM_FILE_BYTES = 1024 * 1024


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


def read_settings_file(path: str) -> dict[str, FileValue]:
    """The top-level keys of a YAML file.

    Raises ConfigurationError naming the file (and line): unreadable, larger than 1 MiB, not UTF-8, not YAML
    of the strict kind (`tangram.base.strictyaml`), empty, not a mapping.
    """
    from tangram.base.strictyaml import YamlDocument, parse_yaml, read_file  # noqa: PLC0415 - loads yaml

    name = f"settings file {path}"

    def located(document: YamlDocument, value: Any, place: tuple[str, ...]) -> FileValue:
        if isinstance(value, dict):
            value = {key: located(document, inner, (*place, key)) for key, inner in value.items()}
        return FileValue(value=value, where=f"{name}, line {document.line(place)}")

    try:
        data = read_file(
            Path(path), maximum_bytes=MAXIMUM_FILE_BYTES, object_name=name, what="a settings file"
        )
        document = parse_yaml(data, object_name=name, decimals=True)
    except InvalidObjectError as error:
        where = ", ".join(filter(None, (name, error.field)))
        raise ConfigurationError(f"{where}: {error.problem}", next_step=error.next_step) from None
    if document.content is None:
        raise ConfigurationError(f"{name} is empty", next_step="write settings to it, or leave --config out")
    return located(document, document.content, ()).mapping("the file")
