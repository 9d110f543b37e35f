"""What msgspec says of a wrong value, in the words of people who write YAML."""

import re
from typing import Any

import msgspec

_WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "null",
}
_ONE = "|".join(_WORDS)
_TYPES = re.compile(rf"`(?P<types>(?:{_ONE})(?: \| (?:{_ONE}))*)`")
_PLACE = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`\Z")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")


def problem_and_path(error: msgspec.ValidationError) -> tuple[str, str]:
    """`expected a whole number or null, got text` and the path of the field, empty for the whole."""
    text = str(error)
    place = _PLACE.search(text)
    path = place["path"] if place else ""
    problem = text[: place.start()] if place else text
    if missing := _MISSING.fullmatch(problem):
        return "is missing", f"{path}.{missing['name']}".lstrip(".")
    problem = _TYPES.sub(lambda found: _in_words(found["types"]), problem)
    return problem[:1].lower() + problem[1:], path


def _in_words(types: str) -> str:
    return " or ".join(_WORDS[each] for each in types.split(" | "))


def kind_in_words(value: Any) -> str:
    """What a value of YAML is, in YAML's words."""
    kinds: dict[type, str] = {dict: "a mapping", list: "a list", str: "text", bool: "true or false"}
    if value is None:
        return "null"
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
