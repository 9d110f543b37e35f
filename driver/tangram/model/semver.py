"""Semantic versions as DRA version attributes need them (strict SemVer 2.0.0)."""

import re
from functools import total_ordering
from typing import NamedTuple

_IDENTIFIER = r"(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    rf"(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?"
    r"(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?",
    re.ASCII,
)


class _Precedence(NamedTuple):
    core: tuple[int, int, int]
    is_release: bool
    prerelease: tuple[tuple[int, int, str], ...]


@total_ordering
class SemVer:
    """A parsed version. Ordering ignores build metadata (SemVer 2.0.0 section 10)."""

    __slots__ = ("_precedence", "text")

    def __init__(self, text: str) -> None:
        match = _SEMVER.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:80]!r} is not a semantic version (example: 570.86.15)")
        self.text = text
        identifiers = match[4].split(".") if match[4] else []
        self._precedence = _Precedence(
            core=(int(match[1]), int(match[2]), int(match[3])),
            is_release=not identifiers,
            prerelease=tuple((0, int(i), "") if i.isdigit() else (1, 0, i) for i in identifiers),
        )

    @property
    def major(self) -> int:
        return self._precedence.core[0]

    @property
    def minor(self) -> int:
        return self._precedence.core[1]

    @property
    def patch(self) -> int:
        return self._precedence.core[2]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SemVer) and self._precedence == other._precedence

    def __lt__(self, other: "SemVer") -> bool:
        return self._precedence < other._precedence

    def __hash__(self) -> int:
        return hash(self._precedence)

    def __repr__(self) -> str:
        return f"SemVer({self.text!r})"


def normalize_version(text: str) -> str:
    """The nearest strict version of a vendor's version string, for publishing.

    NVIDIA writes `535.104.05` and `12.4`; SemVer forbids leading zeros and asks for three parts. Numbers are
    kept (up to nine digits), parts are padded with 0, anything after three numbers is dropped. No number at
    all gives `0.0.0`.
    """
    digits = re.findall(r"[0-9]+", text)[:3]
    numbers = [str(int(part)) if len(part) < 10 else "999999999" for part in digits]
    return ".".join((*numbers, *["0"] * (3 - len(numbers))))
