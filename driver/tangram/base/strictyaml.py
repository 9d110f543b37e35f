"""YAML files of people, read strictly: bounded, without surprises, and with the line of everything.

Scalars are text unless they are integers, `true`, `false` or null, or decimals where asked: YAML 1.1 would
read `no` as false and the PCI bus id `0000:07:00.0` as the number 420. A key that stands twice, an alias
where they are not asked for, a tag and deep nesting are refused.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml

from tangram.base.errors import InvalidObjectError

MAXIMUM_DEPTH = 8
"""Of mappings and lists in each other."""
_MEND = "mend the YAML of the file"
_NULLS = frozenset({"", "~", "null"})
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"-?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")
_MAXIMUM_DIGITS = 300
_MAXIMUM_ALIASED = 1_000_000
"""Values that all aliases of a document stand for together, keys too."""
_TEXT_OF_A_VALUE = 100
"""Characters of a text that count as one more."""
_FREE_DECIMAL = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_FREE_TRUE = frozenset({"True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})
_FREE_FALSE = frozenset({"False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})
"""What Kubernetes reads as a boolean besides `true` and `false`."""

YamlPath = tuple[str | int, ...]
"""Where something stands in a document: keys and positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlDocument:
    """The content of a document: dict, list, str, int, float, bool and None. `line` counts from 1."""

    content: Any
    _lines: Mapping[YamlPath, int]

    def line(self, path: YamlPath) -> int:
        """The line of a key or an item; of the nearest thing around it where there is no such place."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)


def read_file(path: Path, *, maximum_bytes: int, object_name: str, what: str) -> bytes:
    """The bytes of a file; InvalidObjectError if unreadable or larger. `what`: the kind of file in words."""
    try:
        with path.open("rb") as file:
            data = file.read(maximum_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InvalidObjectError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}",
            object_name=object_name,
            next_step="check the path and its permissions",
        ) from None
    if len(data) > maximum_bytes:
        raise InvalidObjectError(
            f"is larger than {maximum_bytes // 1024} KiB",
            object_name=object_name,
            next_step=f"check that the path names {what}",
        )
    return data


def parse_yaml(data: bytes, *, object_name: str, decimals: bool = False) -> YamlDocument:
    """The one document of a text; an empty text is None. InvalidObjectError names object and line.

    With `decimals`, `1.5` and `1e3` are numbers, else text (a version `13.0` stays what it is).
    """
    documents = parse_yaml_documents(data, object_name=object_name, reading=Reading(decimals=decimals))
    if len(documents) > 1:
        _raise_invalid(
            "a second document",
            object_name=object_name,
            line=documents[1].line(()),
            next_step="leave one document in the file",
        )
    return documents[0] if documents else YamlDocument(content=None, _lines={})


class Reading(NamedTuple):
    """How to read. `aliases`: they are allowed. `free`: for the path of a scalar, whether nothing is known of
    its type: then it has the type that Kubernetes would read."""

    decimals: bool = False
    maximum_depth: int = MAXIMUM_DEPTH
    aliases: bool = False
    free: Callable[[YamlPath], bool] | None = None


def parse_yaml_documents(data: bytes, *, object_name: str, reading: Reading) -> list[YamlDocument]:
    """All documents of a text, as `parse_yaml` reads one."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidObjectError(
            f"is not UTF-8 at byte {error.start}", object_name=object_name, next_step="save the file as UTF-8"
        ) from None
    try:
        events = yaml.parse(text, Loader=yaml.CSafeLoader)
        return _documents(events, object_name, reading)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = (error.problem or error.context or "not YAML")[:200]
        _raise_invalid(problem, object_name=object_name, line=mark.line + 1 if mark else 0)
    except yaml.YAMLError as error:
        _raise_invalid(" ".join(str(error).split())[:200], object_name=object_name)


def _raise_invalid(problem: str, *, object_name: str, line: int = 0, next_step: str = _MEND) -> NoReturn:
    raise InvalidObjectError(
        problem, object_name=object_name, field=f"line {line}" if line else "", next_step=next_step
    )


def _documents(events: Iterator[Any], object_name: str, reading: Reading) -> list[YamlDocument]:
    found = []
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            composer = _Composer(events, object_name, reading)
            found.append(composer.document())
    return found


class _Composer:
    """Values from the events of libyaml, whose own composer would follow aliases and nest without end."""

    def __init__(self, events: Iterator[Any], object_name: str, reading: Reading) -> None:
        self._events = events
        self._object_name = object_name
        self._reading = reading
        self._lines: dict[YamlPath, int] = {}
        self._named: dict[str, Any] = {}
        self._aliased = 0

    def document(self) -> YamlDocument:
        first = next(self._events)
        self._lines[()] = first.start_mark.line + 1
        content = self._value(first, ())
        return YamlDocument(content=content, _lines=self._lines)

    def _value(self, event: Any, path: YamlPath) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        if event.tag is not None:
            self._refuse(f"tags ({event.tag[:64]}) are not allowed", event, "write the value without a tag")
        value: Any
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, path)
        else:
            self._check_depth(event, path)
            value = self._mapping(path) if isinstance(event, yaml.MappingStartEvent) else self._list(path)
        if event.anchor is not None:
            self._named[event.anchor] = value
        return value

    def _alias(self, event: Any, path: YamlPath) -> Any:
        if not self._reading.aliases:
            self._refuse("aliases (*name) are not allowed", event, "write the values out")
        if event.anchor not in self._named:
            self._refuse(f"the alias *{event.anchor[:64]} names nothing above it", event)
        value = self._named[event.anchor]
        self._count(value, event, path)
        return value

    def _count(self, value: Any, event: Any, path: YamlPath) -> None:
        """Bounds what aliases stand for, in depth and all together."""
        self._aliased += 1 + (len(value) // _TEXT_OF_A_VALUE if isinstance(value, str) else 0)
        if self._aliased > _MAXIMUM_ALIASED:
            self._refuse("aliases that stand for too much", event, "write the values out")
        if isinstance(value, dict | list):
            self._check_depth(event, path)
            for item in (*value, *value.values()) if isinstance(value, dict) else value:
                self._count(item, event, (*path, ""))

    def _check_depth(self, event: Any, path: YamlPath) -> None:
        if len(path) >= self._reading.maximum_depth:
            self._refuse(f"nested deeper than {self._reading.maximum_depth} levels", event)

    def _mapping(self, path: YamlPath) -> dict[str, Any]:
        content: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if isinstance(event, yaml.CollectionStartEvent):
                self._refuse("a key that is a mapping or a list", event, "quote it, or remove it")
            if isinstance(event, yaml.ScalarEvent) and event.value == "<<" and not event.style:
                self._refuse("merge keys (<<) are not read", event, "write the values out")
            key = self._value(event, path)
            if not isinstance(key, str):
                shown = f"*{event.anchor}" if isinstance(event, yaml.AliasEvent) else event.value
                self._refuse(f"the key {shown[:64]} is not text", event, "quote it, or remove it")
            if key in content:
                self._refuse(f"the key {key[:64]!r} stands twice", event, "remove one")
            place = (*path, key)
            self._lines[place] = event.start_mark.line + 1
            content[key] = self._value(next(self._events), place)
        return content

    def _list(self, path: YamlPath) -> list[Any]:
        content: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            place = (*path, len(content))
            self._lines[place] = event.start_mark.line + 1
            content.append(self._value(event, place))
        return content

    def _scalar(self, event: Any, path: YamlPath) -> str | int | float | bool | None:
        text: str = event.value
        if event.style:  # quoted, or a block
            return text
        if text in _NULLS:
            return None
        if text in {"true", "false"}:
            return text == "true"
        if _INTEGER.fullmatch(text):
            if len(text) > _MAXIMUM_DIGITS:
                self._refuse("a number of very many digits", event, "quote it if it is meant as text")
            return int(text)
        free = self._reading.free is not None and self._reading.free(path)
        if free and (text in _FREE_TRUE or text in _FREE_FALSE):
            return text in _FREE_TRUE
        decimal = _FREE_DECIMAL if free else _DECIMAL
        if (free or self._reading.decimals) and decimal.fullmatch(text):
            if not math.isfinite(number := float(text)):
                self._refuse(f"the number {text[:64]} is too large", event)
            return number
        return text

    def _refuse(self, problem: str, event: Any, next_step: str = _MEND) -> NoReturn:
        line = event.start_mark.line + 1
        _raise_invalid(problem, object_name=self._object_name, line=line, next_step=next_step)
