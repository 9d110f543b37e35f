"""Which simulated machines a playground has."""

from itertools import combinations

from tangram.base.errors import UsageError
from tangram.hardware.machines import load_machine, machine_file, shipped_machines
from tangram.hardware.machines.description import SWITCH

SHORT_NAMES = (
    "Words in the middle of a name, and dashes, may be left out; where that fits several, the last is meant.",
    "A path, such as ./my-node.yaml, is a machine description of your own.",
)
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
    return ", ".join(shortest_name(name) for name in shipped_machines())


def shortest_name(name: str) -> str:
    """The shortest name that means this shipped machine."""
    return next(form for form in _forms(name) if _shipped(form) == name)


def listing() -> list[str]:
    """A line for each shipped machine: short name, name, and its GPUs."""
    lines = [f"{'NAME':<13} {'IN FULL':<19} GPUS"]
    for name in shipped_machines():
        description = load_machine(name)
        product = description.model(description.gpus[0].model)
        memory = f", {product.memory_mib / 1024:.0f} GiB" if product.memory_mib else ""
        ends = {end for gpu in description.gpus for end in gpu.nvlinks}
        links = ", NVSwitch" if SWITCH in ends else ", NVLink" if ends else ""
        count = len(description.gpus)
        lines.append(f"{shortest_name(name):<13} {name:<19} {count} × {product.product_name}{memory}{links}")
    return [*lines, "", *SHORT_NAMES]


def _machine(word: str) -> str:
    file = machine_file(word)
    name = word if file is not None else _shipped(word)
    if not name:
        raise UsageError(
            f"--machines: there is no machine {word}", next_step=f"name some of {names()}, or a file"
        )
    load_machine(name)
    return str(file.absolute()) if file is not None else name


def _shipped(word: str) -> str:
    """The shipped machine that a full or shortened name means; empty if there is none."""

    def plain(text: str) -> str:
        return text.lower().replace("-", "")

    fitting = [name for name in shipped_machines() if plain(word) in map(plain, _forms(name))]
    return fitting[-1] if fitting else ""


def _forms(name: str) -> list[str]:
    """Its names with none, some or all of the words in its middle; the shortest first."""
    first, *rest = name.split("-")
    middle, last = rest[:-1], rest[-1:]
    chosen = [words for count in range(len(middle) + 1) for words in combinations(middle, count)]
    return ["-".join([first, *words, *last]) if words else "".join([first, *last]) for words in chosen]
