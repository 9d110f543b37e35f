"""Kubernetes objects from the files of people and programs: YAML, JSON, several documents, Lists.

What comes out is raw JSON with the place it was found at, so that every later error can name it. Nothing here
knows what a kind means.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import msgspec

from tangram.base.errors import InvalidObjectError
from tangram.base.strictyaml import Reading, YamlPath, parse_yaml_documents, read_file
from tangram.kube.decoding import T, decode

MAXIMUM_FILE_BYTES = 1024 * 1024 * 1024
"""5,000 nodes of partitioned GPUs are 630 MB of JSON."""
_MAXIMUM_DEPTH = 64
_JSON = re.compile(rb"\s*(?:\[|\{\s*[\"}{]|\{\s*$)")
"""How JSON begins: with a brace also a document of YAML may."""
_SEPARATOR = b"\n---"
"""Between documents of YAML, which may be JSON; no text of JSON has it."""
_MAXIMUM_NESTED_LISTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FileObject:
    """One object. `where` names file and document, e.g. `pods.yaml, document 2`; `raw` is its JSON."""

    where: str
    api_version: str
    kind: str
    raw: bytes

    def decode(self, kind: type[T]) -> T:
        """The object as a msgspec Struct; InvalidObjectError names file, document, object and field."""
        return decode(self.raw, kind, where=self.where)


def read_objects(path: Path) -> list[FileObject]:
    """The objects of a file in its order, those of a List one by one. InvalidObjectError names the place."""
    name = str(path)
    data = read_file(
        path, maximum_bytes=MAXIMUM_FILE_BYTES, object_name=name, what="a file of Kubernetes objects"
    )
    return parse_objects(data, name=name)


def parse_objects(data: bytes, *, name: str) -> list[FileObject]:
    """As `read_objects`, of what was read already; `name` stands for the file in errors."""
    found: list[FileObject] = []
    documents = list(_documents(data, name))
    for number, raw in enumerate(documents, start=1):
        where = f"{name}, document {number}" if len(documents) > 1 else name
        if raw.strip() != b"null":
            found.extend(_objects(raw, where))
    if not found:
        raise InvalidObjectError(
            "has no object", object_name=name, next_step="give Kubernetes objects as YAML or JSON"
        )
    return found


def _documents(data: bytes, name: str) -> Iterator[bytes]:
    """Each document as JSON."""
    if _JSON.match(data) and _SEPARATOR not in data:
        yield from _json_documents(data, name)
        return
    reading = Reading(maximum_depth=_MAXIMUM_DEPTH, aliases=True, free=_is_free)
    for document in parse_yaml_documents(data, object_name=name, reading=reading):
        yield msgspec.json.encode(document.content)


def _is_free(path: YamlPath) -> bool:
    """Whether what stands there is of a type that only a driver knows."""
    return "parameters" in path and ("opaque", "parameters") in pairwise(path)


def _json_documents(data: bytes, name: str) -> Iterator[bytes]:
    """One JSON text as it is, or several one after the other."""
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        whole = str(error)
    else:
        yield data
        return
    try:
        text = data.decode()
        position = 0
        while text[position:].strip():
            start = len(text) - len(text[position:].lstrip())
            content, position = _decoder.raw_decode(text, start)
            yield msgspec.json.encode(content)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        problem = str(error) if isinstance(error, json.JSONDecodeError) else whole
        raise InvalidObjectError(
            f"is not JSON: {problem}", object_name=name, next_step="mend the JSON of the file"
        ) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


class _Head(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    items: list[msgspec.Raw] | None = None


_head = msgspec.json.Decoder(_Head)
_UNSAID = _Head()


def _objects(
    raw: bytes | msgspec.Raw, where: str, lists: int = 0, *, listed: _Head = _UNSAID
) -> Iterator[FileObject]:
    """`listed`: what items of a list of one kind are where they do not say it themselves."""
    try:
        head = _head.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidObjectError(
            f"is no Kubernetes object: {error}", object_name=where, next_step=_EACH
        ) from None
    kind, api_version = head.kind or listed.kind, head.api_version or listed.api_version
    if not kind or not api_version:
        missing = "kind" if not kind else "apiVersion"
        raise InvalidObjectError("is missing", object_name=where, field=missing, next_step=_EACH)
    if head.items is None or not kind.endswith("List"):
        yield FileObject(where=where, api_version=api_version, kind=kind, raw=bytes(raw))
        return
    if lists == _MAXIMUM_NESTED_LISTS:
        raise InvalidObjectError(
            "has too many Lists in each other", object_name=where, next_step="give the objects one by one"
        )
    of = kind.removesuffix("List")
    item_head = _Head(api_version=api_version if of else "", kind=of)
    for index, item in enumerate(head.items):
        yield from _objects(item, f"{where}, items[{index}]", lists + 1, listed=item_head)


_EACH = "each object needs apiVersion, kind and metadata.name"
