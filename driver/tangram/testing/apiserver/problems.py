"""What is wrong with an object, as the API server says it, and the formats that many fields share."""

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal[
    "Required", "Invalid", "NotSupported", "Forbidden", "TooLong", "TooMany", "Duplicate", "NotFound"
]

_WORDS: Mapping[Kind, str] = {
    "Required": "Required value",
    "Invalid": "Invalid value",
    "NotSupported": "Unsupported value",
    "Forbidden": "Forbidden",
    "TooLong": "Too long",
    "TooMany": "Too many",
    "Duplicate": "Duplicate value",
    "NotFound": "Not found",
}
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_NAME_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MUST_BE_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start "
    "and end with an alphanumeric character"
)
_MUST_BE_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character"
)
_MUST_BE_NAME = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character"
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One cause of a 422. `field` is the path; `detail` what follows the kind of error."""

    kind: Kind
    field: str
    detail: str = ""

    def __str__(self) -> str:
        words = f"{self.field}: {_WORDS[self.kind]}"
        return f"{words}: {self.detail}" if self.detail else words


Problems = Iterator[Problem]


def invalid(field: str, value: Any, why: str) -> Problem:
    """`field` has a value that may not be."""
    return Problem("Invalid", field, f"{_shown(value)}: {why}")


def required(field: str, why: str = "") -> Problem:
    """`field` is missing."""
    return Problem("Required", field, why)


def too_many(field: str, items: Sequence[Any] | Mapping[str, Any], limit: int) -> Problems:
    """One problem if there are more items than `limit`."""
    if len(items) > limit:
        yield Problem("TooMany", field, f"{len(items)}: must have at most {limit} items")


def too_long(field: str, text: str, limit_bytes: int) -> Problems:
    """One problem if the text is longer than `limit_bytes`."""
    if len(text.encode()) > limit_bytes:
        yield Problem("TooLong", field, f"may not be more than {limit_bytes} bytes")


def not_supported(field: str, value: Any, supported: Iterable[str]) -> Problem:
    """`field` has a value that is none of the `supported`."""
    words = ", ".join(f'"{each}"' for each in sorted(supported))
    return Problem("NotSupported", field, f"{_shown(value)}: supported values: {words}")


def duplicates(field: str, values: Iterable[Any]) -> Problems:
    """One problem for each value that came before."""
    seen: list[Any] = []
    for index, value in enumerate(values):
        if value in seen:
            yield Problem("Duplicate", f"{field}[{index}]", _shown(value))
        seen.append(value)


def immutable(field: str, value: Any) -> Problem:
    """`field` may not change."""
    return invalid(field, value, "field is immutable")


# --- formats: the reasons why a text has not the form, none if it has --------------------------------------


def label(text: str) -> Iterator[str]:
    """RFC 1123 label."""
    if len(text) > 63:
        yield "must be no more than 63 bytes"
    if not _LABEL.fullmatch(text):
        yield "must not contain dots" if "." in text and _SUBDOMAIN.fullmatch(text) else _MUST_BE_LABEL


def subdomain(text: str) -> Iterator[str]:
    """RFC 1123 subdomain."""
    if len(text) > 253:
        yield "must be no more than 253 bytes"
    if not _SUBDOMAIN.fullmatch(text):
        yield _MUST_BE_SUBDOMAIN


def qualified_name(text: str) -> Iterator[str]:
    """`[prefix/]name`, as the keys of labels."""
    prefix, slash, name = text.partition("/")
    if not slash:
        prefix, name = "", text
    elif not prefix:
        yield "prefix part must be non-empty"
    else:
        yield from (f"prefix part {why}" for why in subdomain(prefix))
    if "/" in name:
        yield f"a qualified name {_MUST_BE_NAME} with an optional DNS subdomain prefix and '/'"
        return
    if not name:
        yield "name part must be non-empty"
    elif len(name) > 63:
        yield "name part must be no more than 63 bytes"
    if not _NAME_PART.fullmatch(name):
        yield f"name part {_MUST_BE_NAME}"


def label_value(text: str) -> Iterator[str]:
    """The value of a label."""
    if len(text) > 63:
        yield "must be no more than 63 bytes"
    if text and not _NAME_PART.fullmatch(text):
        yield f"a valid label must be an empty string or {_MUST_BE_NAME.removeprefix('must ')}"


def c_identifier(text: str) -> Iterator[str]:
    """A name of C, at most 32 bytes."""
    if not _C_IDENTIFIER.fullmatch(text):
        yield (
            "a valid C identifier must start with alphabetic character or '_', followed by a string of "
            "alphanumeric characters or '_'"
        )


def lower_case_uuid(text: str) -> Iterator[str]:
    """RFC 4122, in its usual form."""
    try:
        if str(uuid.UUID(text)) != text:
            yield "uid must be in RFC 4122 normalized form, with lowercase hexadecimal characters"
    except ValueError as error:
        yield f"error validating uid: {error}"


def checked(field: str, text: str, reasons: Iterable[str]) -> Problems:
    """The reasons as problems of `field`."""
    for why in reasons:
        yield invalid(field, text, why)


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
