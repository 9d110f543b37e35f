"""What the schemas of this package's YAML files share: strictness, and errors that name file and field."""

import difflib
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import msgspec
from msgspec import Meta, Struct

from tangram.base.errors import InvalidObjectError

ApiVersion = Literal["tangram/v1alpha1"]
Text = Annotated[str, Meta(min_length=1, max_length=64)]

_PATH = re.compile(r"`\$\.?([^`]*)`$")
_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<name>.*)`", re.DOTALL)


class Strict(
    Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """Keys in camel case; an unknown one is an error."""


S = TypeVar("S", bound=Strict)


def convert(content: Any, kind: type[S], *, parts: tuple[type[Strict], ...], object_name: str) -> S:
    """The object in plain YAML or JSON content; InvalidObjectError names file and field.

    `parts` are the Structs inside it: their fields are suggested for a misspelt one.
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        structs: tuple[type[Strict], ...] = (kind, *parts)
        names = {field.encode_name for struct in structs for field in msgspec.structs.fields(struct)}
        _raise_invalid(str(error), sorted(names), object_name)


def _raise_invalid(message: str, field_names: list[str], object_name: str) -> NoReturn:
    problem, _, where = message.partition(" - at ")
    path = _PATH.search(where)
    hint = "compare with a shipped description, e.g. a100-sxm4-80gb-x8"
    if unknown := _UNKNOWN_FIELD.search(problem):
        name = unknown["name"][:64]
        problem = f"unknown field {name!r}"
        hint = did_you_mean(name, field_names) or f"the fields are {', '.join(field_names)}"
    elif "got `float`" in problem or "got `int`" in problem:
        hint = "quote the value if it is meant as text"
    raise InvalidObjectError(
        problem[:200],
        object_name=object_name,
        field=path[1] if path else "",
        next_step=hint,
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean …?` for the nearest known word; empty where none is near."""
    by_lower = {name.lower(): name for name in known}
    nearest = difflib.get_close_matches(word[:64].lower(), by_lower, n=1)
    return f"did you mean {by_lower[nearest[0]]!r}?" if nearest else ""
