"""The GPUs of the cluster as text: who holds which, and how they are linked."""

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TextIO

from tangram.model.links import LinkMatrix, LinkRow
from tangram.playground.recorder import GpuSeen

Holders = Mapping[tuple[str, str], Sequence[str]]
Paint = Callable[[str, Sequence[str]], str]

_COLOURS = (32, 33, 34, 35, 36, 92, 93, 94, 95, 96)
_CELL = 7
_WIDTH = 90


def coloured(stream: TextIO) -> bool:
    """Whether colours belong there: a terminal that can, and a user who has not set NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def draw(gpus: Sequence[GpuSeen], holders: Holders, *, colour: bool) -> list[str]:
    """Lines: each node with its GPUs as boxes, the letter of the holder in them, the links, and a legend."""
    names = sorted({name for held in holders.values() for name in held})
    letters = {name: _letter(number) for number, name in enumerate(names)}

    def paint(text: str, held: Sequence[str]) -> str:
        if not colour or not held:
            return text
        return f"\x1b[{_COLOURS[names.index(held[0]) % len(_COLOURS)]}m{text}\x1b[0m"

    lines: list[str] = []
    for node, group in groupby(gpus, key=lambda gpu: gpu.node):
        here = list(group)
        held = [holding(gpu, holders) for gpu in here]
        free = sum(not each for each in held)
        products = ", ".join(
            f"{len(list(same))} × {product}" for product, same in groupby(here, key=_product)
        )
        lines.append(f"{node}: {products}; {free} free")
        labels = [_label(gpu, [letters[name] for name in each]) for gpu, each in zip(here, held, strict=True)]
        boxes = [
            ["┌─────┐" for _ in here],
            [f"│{label[:5]:^5}│" for label in labels],
            [f"└{gpu.index!s:─^5}┘" for gpu in here],
        ]
        lines += [
            "  " + " ".join(paint(box, each) for box, each in zip(row, held, strict=True)) for row in boxes
        ]
        lines += [f"  {line}" for line in _links(here, held, paint)]
    if names:
        lines += _legend([(f"{letters[name]} {name}", name) for name in names], paint)
    if not all(gpu.healthy for gpu in gpus):
        lines.append("  ✗ unhealthy")
    return lines


def holding(gpu: GpuSeen, holders: Holders) -> list[str]:
    """Who has the GPU, or a part of it."""
    found = (name for device in sorted(gpu.devices) for name in holders.get((gpu.node, device), ()))
    return list(dict.fromkeys(found))


def _product(gpu: GpuSeen) -> str:
    memory = f", {gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else ""
    return f"{gpu.product_name}{memory}"


def _label(gpu: GpuSeen, letters: Sequence[str]) -> str:
    some = "+".join(letters)
    if len(some) > _CELL - 2:
        some = f"{letters[0]}…{letters[-1]}"
    return (some or "·" * gpu.healthy) + "✗" * (not gpu.healthy)


def _legend(entries: Sequence[tuple[str, str]], paint: Paint) -> list[str]:
    """Entries (text, holder) in lines of bearable width."""
    lines: list[str] = []
    width = _WIDTH
    for text, name in entries:
        if width + len(text) > _WIDTH:
            lines.append(" ")
            width = 0
        lines[-1] += f" {paint(text, [name])}  "
        width += len(text) + 3
    return [line.rstrip() for line in lines]


def _links(here: Sequence[GpuSeen], held: Sequence[Sequence[str]], paint: Paint) -> list[str]:
    rows = {gpu.ordinal: LinkRow.decode(gpu.links) for gpu in here}
    if all(row.switch_links for row in rows.values()):
        width = (_CELL + 1) * len(here) - 1
        text = f" NVSwitch, {here[0].links.removeprefix('sw:')} NVLinks to each GPU "
        taps = " ".join(paint("   ║   ", each) for each in held)
        return [taps, f"{text:═^{width}}"]
    matrix = LinkMatrix(rows)
    arcs = [
        (first, second, count)
        for first in range(len(here))
        for second in range(first + 1, len(here))
        if (count := matrix.links(here[first].ordinal, here[second].ordinal))
    ]
    # Short ones first: they share a line where they do not meet.
    arcs.sort(key=lambda arc: (arc[1] - arc[0], arc[0]))
    lines: list[list[tuple[int, int, int]]] = []
    for arc in arcs:
        for line in lines:
            if all(arc[0] > other[1] or arc[1] < other[0] for other in line):
                line.append(arc)
                break
        else:
            lines.append([arc])
    return [_line(sorted(line), held, paint) for line in lines] or ["(no NVLink)"]


def _line(arcs: Sequence[tuple[int, int, int]], held: Sequence[Sequence[str]], paint: Paint) -> str:
    """Arcs that do not meet: ─ for one link, ═ for several, with their number where it is above two."""
    text, position = "", 0
    for first, second, count in arcs:
        start, end = (gpu * (_CELL + 1) + _CELL // 2 for gpu in (first, second))
        line, left, right = ("─", "╰", "╯") if count == 1 else ("═", "╚", "╝")
        label = str(count) if count > 2 else ""
        arc = left + f"{label:{line}^{end - start - 1}}" + right
        same = held[first] if held[first] == held[second] else ()
        text += " " * (start - position) + paint(arc, same)
        position = end + 1
    return text


def _letter(number: int) -> str:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return letters[number] if number < len(letters) else f"{letters[number // 26 - 1]}{letters[number % 26]}"
