"""How two answers differ: in status, reason, details and result. Nobody should compare messages."""

import re
from collections.abc import Iterator
from typing import Any

from tests.conformance.asking import Answer

# Of a refusal, and of an ERROR of a watch.
_FOR_READERS = re.compile(r"(\.message|\.text|\.events\[\d+\]\.object\.message)")


def differences(given: Answer, wanted: Answer) -> list[str]:
    """By path, what was given and what was wanted."""
    return list(_differences(given, wanted, ""))


def _differences(given: Any, wanted: Any, path: str) -> Iterator[str]:
    if isinstance(given, dict) and isinstance(wanted, dict):
        for key in sorted(given.keys() | wanted.keys()):
            if not _FOR_READERS.fullmatch(f"{path}.{key}"):
                pair = (given.get(key, "<absent>"), wanted.get(key, "<absent>"))
                yield from _differences(*pair, f"{path}.{key}")
    elif isinstance(given, list) and isinstance(wanted, list) and len(given) == len(wanted):
        for index, pair in enumerate(zip(given, wanted, strict=True)):
            yield from _differences(*pair, f"{path}[{index}]")
    elif given != wanted or type(given) is not type(wanted):
        yield f"{path}: {given!r:.300} instead of {wanted!r:.300}"
