"""Which simulated machines a playground has."""

from collections.abc import Sequence

from tangram.base.errors import UsageError
from tangram.hardware.machines import load_machine, machine_file, shipped_machines

ALIASES = {
    "a100x8": "a100-sxm4-80gb-x8",
    "h100x8": "h100-sxm5-80gb-x8",
    "dgx1v": "dgx-1v",
    "t4x4": "t4-x4",
}
_MAXIMUM = 16


def parse_machines(text: str) -> tuple[str, ...]:
    """The machines of `a100x8,dgx1v` as the node plugin takes them: shipped names, or absolute paths.

    UsageError for none, too many, or one that does not exist; InvalidObjectError for a bad description.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not 1 <= len(words) <= _MAXIMUM:
        raise UsageError(
            f"--machines names {len(words)} machines", next_step=f"name 1 to {_MAXIMUM}: {names()}"
        )
    return tuple(_machine(word) for word in words)


def names() -> str:
    """What may be named, for help and errors."""
    short: Sequence[str] = [f"{alias} ({name})" for alias, name in ALIASES.items()]
    return ", ".join([*short, *(name for name in shipped_machines() if name not in ALIASES.values())])


def _machine(word: str) -> str:
    name = ALIASES.get(word, word)
    file = machine_file(name)
    if file is None and name not in shipped_machines():
        raise UsageError(
            f"--machines: there is no machine {word}", next_step=f"name some of {names()}, or a file"
        )
    load_machine(name)
    return str(file.absolute()) if file is not None else name
