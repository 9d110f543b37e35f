"""Machine descriptions: the shipped ones, and those of a user's file.

The form of a description is `tangram.hardware.machines.description`.
"""

from importlib import resources
from pathlib import Path

from tangram.base.errors import InvalidObjectError
from tangram.base.strictyaml import parse_yaml, read_file
from tangram.hardware.machines.description import MachineDescription, parse_description
from tangram.hardware.machines.schema import did_you_mean

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
        return read_file(
            file,
            maximum_bytes=MAXIMUM_FILE_BYTES,
            object_name=_object_name(source),
            what="a machine description",
        )
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
    name = _object_name(source)
    return parse_description(parse_yaml(data, object_name=name).content, object_name=name)


def _object_name(source: str) -> str:
    return f"machine description {source[:256]}"
