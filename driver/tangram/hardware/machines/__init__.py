"""Machine descriptions: the shipped ones, and those of a user's file.

The form of a description is `tangram.hardware.machines.description`.
"""

from importlib import resources
from pathlib import Path

from tangram.base.errors import InvalidObjectError
from tangram.hardware.machines.description import MachineDescription, parse_description
from tangram.hardware.machines.schema import did_you_mean
from tangram.hardware.machines.strictyaml import YamlError, load_yaml

__all__ = [
    "MachineDescription",
    "load_machine",
    "machine_file",
    "parse_machine",
    "read_machine",
    "shipped_machines",
]

MAXIMUM_FILE_BYTES = 256 * 1024
_SUFFIX = ".yaml"


def shipped_machines() -> tuple[str, ...]:
    """The names of the shipped descriptions, sorted."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(_SUFFIX) for file in files if file.name.endswith(_SUFFIX)))


def load_machine(source: str) -> MachineDescription:
    """The description of a shipped name such as `a100-sxm4-80gb-x8`, or in the file at a path.

    InvalidObjectError names the file and the field; for an unknown name it lists the shipped ones.
    """
    return parse_machine(read_machine(source), source=source)


def machine_file(source: str) -> Path | None:
    """The path that `source` means; None where it is meant as the name of a shipped machine."""
    return Path(source) if "/" in source or source.endswith((".yaml", ".yml", ".json")) else None


def read_machine(source: str) -> bytes:
    """The text of a description, unparsed. Errors as of `load_machine`."""
    file = machine_file(source)
    if file is not None:
        return _read(file)
    shipped = shipped_machines()
    if source not in shipped:
        raise InvalidObjectError(
            "no such machine is shipped, and no file is there",
            object_name=_object_name(source),
            next_step=f"{did_you_mean(source, shipped)} shipped machines: {', '.join(shipped)}".lstrip(),
        )
    return resources.files(__name__).joinpath(source + _SUFFIX).read_bytes()


def parse_machine(data: bytes, *, source: str) -> MachineDescription:
    """The description in the text of `source`. Errors as of `load_machine`."""
    try:
        content = load_yaml(data)
    except YamlError as error:
        raise InvalidObjectError(
            str(error),
            object_name=_object_name(source),
            field=f"line {error.line}" if error.line else "",
            next_step="mend the YAML of the file",
        ) from None
    return parse_description(content, object_name=_object_name(source))


def _object_name(source: str) -> str:
    return f"machine description {source[:256]}"


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAXIMUM_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InvalidObjectError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}",
            object_name=_object_name(str(file)),
            next_step="check the path and its permissions",
        ) from None
    if len(data) > MAXIMUM_FILE_BYTES:
        raise InvalidObjectError(
            f"larger than {MAXIMUM_FILE_BYTES // 1024} KiB",
            object_name=_object_name(str(file)),
            next_step="check that the path names a machine description",
        )
    return data
