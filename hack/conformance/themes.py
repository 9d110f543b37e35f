"""The hand-written selectors of tests/unit/cel/themes.txt, and Kubernetes' answers to them."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from clusterlib.layout import REPOSITORY
from conformance.selectors import DEVICE, Answer, cel_device
from tangram.base.errors import CelCompileError
from tangram.cel import compile_expression

THEMES = REPOSITORY / "tests/unit/cel/themes.txt"
RECORDED: Path = REPOSITORY / "tests/unit/cel/recorded/themes.json"
WORK: Path = REPOSITORY / "tests/unit/cel/recorded/work.json"
_OWN_ATTRIBUTES = 'device.attributes["gpu.resource.admin"]'
_OWN_CAPACITY = 'device.capacity["gpu.resource.admin"]'


def read_themes() -> dict[str, list[str]]:
    """Selectors by theme, as written: one a line, below a line `## theme`."""
    themes: dict[str, list[str]] = {}
    name = ""
    for line in THEMES.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            name = line.removeprefix("## ")
        elif line:
            themes.setdefault(name, []).append(line)
    return themes


def expand(text: str) -> str:
    """`@` stands for the driver's own attributes, `%.` for its capacities, `<ab*3>` for "ababab"."""
    text = re.sub(r"<([^<>*\"]+)\*(\d+)>", lambda match: f'"{int(match[2]) * match[1]}"', text)
    text = re.sub(r"@(?=[.\[ )]|$|,)", _OWN_ATTRIBUTES, text)
    return re.sub(r"%(?=\.)", _OWN_CAPACITY, text)


def record(themes: Mapping[str, Sequence[str]], answers: Mapping[str, Sequence[Answer]]) -> dict[str, Any]:
    """By theme and selector: the answer of all versions, or by version where they differ."""
    recorded: dict[str, dict[str, Any]] = {}
    index = 0
    for theme, texts in themes.items():
        recorded[theme] = {}
        for text in texts:
            of_versions = {version: given[index].short for version, given in answers.items()}
            index += 1
            distinct = set(of_versions.values())
            recorded[theme][text] = distinct.pop() if len(distinct) == 1 else of_versions
    return recorded


def own_work() -> dict[str, int]:
    """What each selector takes of our time, in units of work (`tangram.cel.work`), if it is valid."""
    device = cel_device(DEVICE)
    work: dict[str, int] = {}
    for text in chain.from_iterable(read_themes().values()):
        with contextlib.suppress(CelCompileError):
            work[text] = compile_expression(expand(text)).answer(device)[1].work
    return work
