"""What the schemas of this package's YAML files share: strictness, and errors that name file and field."""

import difflib
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from tangram.base.errors import InvalidObjectError
from tangram.base.wrongvalues import problem_and_path

ApiVersion = Literal["tangram/v1alpha1"]
_PRINTABLE = r"\A[^\x00-\x1f\x7f]+\Z"
Text = Annotated[str, Meta(max_length=64, pattern=_PRINTABLE, extra={"expected": "1 to 64 characters"})]
LongText = Annotated[str, Meta(max_length=96, pattern=_PRINTABLE, extra={"expected": "1 to 96 characters"})]

_COMPARE = "compare with a shipped description, e.g. a100-sxm4-80gb-x8"
_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<name>.*)`", re.DOTALL)


class Strict(
    Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """Keys in camel case; an unknown one is an error."""


S = TypeVar("S", bound=Strict)


def convert(content: Any, kind: type[S], *, object_name: str) -> S:
    """The object in plain YAML or JSON content; InvalidObjectError names file and field."""
    if content is None:
        raise InvalidObjectError("is empty", object_name=object_name, next_step=_COMPARE)
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        problem, path = problem_and_path(error)
        _raise_invalid(problem, path, kind, object_name)


def _raise_invalid(problem: str, path: str, kind: type[Strict], object_name: str) -> NoReturn:
    expected = _expected(_struct_at(kind, path))
    name = path.rpartition(".")[2].partition("[")[0]
    hint = f"{name}: {expected[name]}" if expected.get(name) else _COMPARE
    if unknown := _UNKNOWN_FIELD.search(problem):
        word = unknown["name"][:64]
        problem = f"unknown field {word!r}"
        hint = did_you_mean(word, expected) or f"the fields are {', '.join(sorted(expected))}"
    elif problem.startswith("expected text") and problem.endswith(" number"):
        hint = "quote the value if it is meant as text"
    raise InvalidObjectError(problem[:200], object_name=object_name, field=path, next_step=hint)


def _struct_at(kind: type[Strict], path: str) -> type[Strict]:
    """The innermost Struct on a path such as `gpus[1].nvlinks`."""
    for name in re.split(r"[.\[]", path):
        field = next((field for field in msgspec.structs.fields(kind) if field.encode_name == name), None)
        if field is not None:
            kind = _struct_in(get_type_hints(kind)[field.name]) or kind
    return kind


def _struct_in(hint: Any) -> type[Strict] | None:
    """The Struct that a hint is, or is a collection of."""
    if isinstance(hint, type) and issubclass(hint, Strict):
        return hint
    return next((found for part in get_args(hint) if (found := _struct_in(part))), None)


def _expected(struct: type[Strict]) -> dict[str, str]:
    """What to write as the value of each field, in words; empty where its type says it."""
    hints = get_type_hints(struct, include_extras=True)
    return {field.encode_name: _in_words(hints[field.name]) for field in msgspec.structs.fields(struct)}


def _in_words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    extras = [part.extra or {} for part in get_args(hint) if isinstance(part, Meta)]
    inner = (_in_words(part) for part in get_args(hint) if not isinstance(part, Meta | str))
    return next((extra["expected"] for extra in extras if "expected" in extra), "") or "".join(inner)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean …?` for a known word that begins so, else for the nearest; empty where none is near."""
    by_lower = {name.lower(): name for name in known}
    lower = word[:64].lower()
    nearest = [name for name in by_lower if lower and name.startswith(f"{lower}-")]
    nearest = nearest or difflib.get_close_matches(lower, by_lower, n=1)
    return f"did you mean {by_lower[nearest[0]]!r}?" if nearest else ""
